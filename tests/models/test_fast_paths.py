"""The fast paths change no result, and can be left out: every family with them and without."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from plmctl.corpus.store import TokenStore
from plmctl.families.base import get_family
from plmctl.models import fast as door
from plmctl.models.batch import Batch
from plmctl.models.decoder import cache_parameter
from plmctl.models.fast.required import require_attributes, require_parameters
from plmctl.models.network import Network
from plmctl.objectives.base import get_objective
from plmctl.training.data import StepBatches
from plmctl.training.plan import Slicing
from tests.training.conftest import store as store
from tests.training.test_checkpointed_activations import CASES, VOCAB, step_of

ROOT = Path(door.__file__).parents[2]
WITHIN = {"attention": "within"}
MORE = {
    "gpt1, several texts a row": ("gpt1", "clm", CASES["gpt1"][2], WITHIN),
    "gpt2, several texts a row": ("gpt2", "clm", CASES["gpt2"][2], WITHIN),
}
ALL = {**CASES, **MORE}


@pytest.fixture
def own_masks() -> Iterator[None]:
    yield
    AttentionMaskInterface.register("sdpa", sdpa_mask)


def plain_network(case: str) -> Network:
    """A network without dropout, as its family builds it."""
    family, objective, fields, _ = ALL[case]
    member = get_family(family)
    torch.manual_seed(0)
    config = member.Config.model_validate({"family": family, "size": "tiny", **fields})
    still = config.model_copy(
        update=dict.fromkeys(set(member.DROPOUT) & set(type(config).model_fields), 0.0)
    )
    terms = get_objective(objective).LOSS_TERMS
    model = member(still).build(vocab_size=VOCAB.size, pad_id=0, loss_terms=terms)
    return Network(model, member.forward).train()


def outcome(case: str, network: Network, batch: Batch, store: TokenStore) -> dict[str, Tensor]:
    """The summed losses of a batch, and the gradient of every parameter."""
    _, objective, _, fields = ALL[case]
    network.zero_grad()
    losses = step_of(objective, fields, store).loss(network, batch)
    torch.stack(list(losses.values())).sum().backward()
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return {**{name: loss.detach() for name, loss in losses.items()}, **gradients}


def assert_equal(name: str, actual: Tensor, expected: Tensor) -> None:
    """To 1e-5 of the tensor's largest value; a key's bias has a gradient of 0 but for rounding."""
    if name.endswith(("key.bias", "k_lin.bias")):
        assert float((actual - expected).abs().max()) < 1e-5
        return
    difference = float((actual - expected).abs().max()) / float(expected.abs().max())
    assert difference < 1e-5, f"{name}: {difference:.1e}"


@pytest.mark.usefixtures("own_masks")
@pytest.mark.parametrize("way", ["on a CPU", "compiled", "on a GPU", "sharded"])
@pytest.mark.parametrize("case", ALL)
def test_with_and_without(case: str, way: str, store: TokenStore) -> None:
    network = plain_network(case)
    _, objective, _, fields = ALL[case]
    batch = StepBatches(step_of(objective, fields, store), Slicing(8, 8), 7)[0][0]
    expected = {
        name: tensor.clone() for name, tensor in outcome(case, network, batch, store).items()
    }
    device = "cuda" if way == "on a GPU" else "cpu"  # the name decides the paths, not the place
    door.apply_fast_paths(
        network.model, device=device, compiled=way == "compiled", sharded=way == "sharded"
    )
    actual = outcome(case, network, batch, store)
    assert set(actual) == set(expected)
    for name, tensor in expected.items():
        assert_equal(name, actual[name], tensor)


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of the fast paths are imported again, and what is left out reported again."""
    for name in [n for n in sys.modules if n.startswith(f"{door.__name__}.")]:
        monkeypatch.delitem(sys.modules, name)
    door._report.cache_clear()


@pytest.mark.usefixtures("forgotten", "own_masks")
@pytest.mark.parametrize("case", ["bert", "gpt1", "gpt2"])
def test_a_missing_name_leaves_the_path_out_with_one_line(
    case: str,
    store: TokenStore,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The line is only for networks that the path is for, and names versions and a command."""
    from transformers.models.openai import modeling_openai

    network = plain_network(case)
    _, objective, _, fields = ALL[case]
    batch = StepBatches(step_of(objective, fields, store), Slicing(8, 8), 7)[0][0]
    expected = {
        name: tensor.clone() for name, tensor in outcome(case, network, batch, store).items()
    }
    if case == "bert":
        layers: torch.nn.Module = network.model.base_model.encoder
        layers.__class__ = type("OtherLayers", (type(layers),), {})
    monkeypatch.delattr(modeling_openai, "Attention")
    for _ in range(2):
        door.apply_fast_paths(network.model, device="cpu", compiled=False, sharded=False)
    (line,) = capsys.readouterr().err.splitlines()
    assert ("unused positions" if case == "bert" else "fused attention") in line
    assert ("BertEncoder" if case == "bert" else "Attention") in line
    assert f"transformers {transformers.__version__}" in line
    assert "pip install transformers==" in line
    for name, tensor in outcome(case, network, batch, store).items():
        assert_equal(name, tensor, expected[name])


@pytest.mark.parametrize("name", ["cache", "past_key_values"])
def test_both_names_of_the_cache(name: str) -> None:
    """transformers 5.24 renamed it, in the parameters and in the output."""
    namespace: dict[str, Any] = {}
    exec(f"def forward(hidden_states, {name}=None): ...", namespace)
    assert cache_parameter(SimpleNamespace(forward=namespace["forward"])) == name


def test_other_parameters_and_attributes_are_noticed() -> None:
    def function(hidden: int, mask: int) -> None:
        """Takes two."""

    require_parameters(function, "hidden", "mask")
    with pytest.raises(ImportError, match="hidden, mask, not hidden, bias"):
        require_parameters(function, "hidden", "bias")
    require_attributes(torch.nn.Linear(2, 2), "weight.shape")
    with pytest.raises(ImportError, match=r"Linear has no weight\.query"):
        require_attributes(torch.nn.Linear(2, 2), "weight.query")


INSIDE = ("transformers.models.", "transformers.integrations", "transformers.masking_utils",
          "transformers.modeling_layers", "torch._")  # fmt: skip


def test_the_rest_of_the_house_uses_the_door() -> None:
    """Only ``models/fast`` imports what is inside of transformers and PyTorch."""
    for path in ROOT.rglob("*.py"):
        if path.parent == Path(door.__file__).parent:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            for name in names:
                assert not name.startswith((f"{door.__name__}.", *INSIDE)), f"{path}: {name}"
