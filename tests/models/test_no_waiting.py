"""Nothing in a forward, a loss or a backward asks a device what is in a tensor.

On a GPU such a question makes the host wait for all that it has given the device to do. The meta
device stands in for one: its tensors have no data, so that the question itself is an error, and so
is a tensor that was left on the CPU.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from plmctl.corpus.store import TokenStore
from plmctl.models import losses as projection
from plmctl.models.batch import IGNORE
from plmctl.models.fast.attention import use_unread_masks
from plmctl.models.losses import Projection, cross_entropy_sums
from plmctl.training.data import Slicing, StepBatches
from tests.training.conftest import store as store
from tests.training.test_checkpointed_activations import CASES, network_of, step_of

META = torch.device("meta")


@pytest.fixture
def unseen() -> Iterator[None]:
    use_unread_masks()
    yield
    AttentionMaskInterface.register("sdpa", sdpa_mask)


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("width", [None, 48])
@pytest.mark.parametrize("case", CASES)
def test_a_step_never_waits(case: str, width: int | None, store: TokenStore) -> None:
    family, objective, fields, options = CASES[case]
    network, step = network_of(family, objective, fields), step_of(objective, options, store)
    network.to(META).train()
    batch = StepBatches(step, Slicing(16, 16, width=width), 7)[0][0]
    losses = step.loss(network, batch.to(META))
    torch.stack([losses[part] for part in step.loss_terms]).sum().backward()
    assert set(losses) == set(step.loss_terms)
    # All the way down; moving a model to this device unties what shares its weights.
    assert sum(parameter.grad is None for parameter in network.parameters()) <= 1


def test_the_meta_device_would_tell(store: TokenStore) -> None:
    """transformers' own masks do wait."""
    network, step = network_of("bert", "mlm", CASES["bert"][2]), step_of("mlm", {}, store)
    batch = StepBatches(step, Slicing(16, 16), 7)[0][0]
    with pytest.raises(RuntimeError, match="meta"):
        step.loss(network.to(META), batch.to(META))


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("case", ["bert", "t5"])
def test_masks_without_looking_are_the_same(case: str, store: TokenStore) -> None:
    family, objective, fields, options = CASES[case]
    network, step = network_of(family, objective, fields).eval(), step_of(objective, options, store)
    (batch,) = StepBatches(step, Slicing(16, 16), 7)[0]
    losses = step.loss(network, batch)
    AttentionMaskInterface.register("sdpa", sdpa_mask)
    for part, loss in step.loss(network, batch).items():
        torch.testing.assert_close(losses[part], loss, rtol=1e-6, atol=0)


@pytest.mark.parametrize("attention", ["sdpa", "plmctl_cpu"])
@pytest.mark.parametrize("options", [{}, {"attention": "within"}])
def test_gpt2s_masks_are_transformers_own(
    attention: str, options: dict[str, Any], store: TokenStore
) -> None:
    from transformers import GPT2LMHeadModel

    network, step = (
        network_of("gpt2", "clm", CASES["gpt2"][2]).eval(),
        step_of("clm", options, store),
    )
    (batch,) = StepBatches(step, Slicing(16, 16), 7)[0]
    model = network.model
    assert isinstance(model, GPT2LMHeadModel)
    for weight in model.parameters():
        weight.data.mul_(4)  # sharp attention: a wrong mask shows
    model.set_attn_implementation("eager")
    expected = model(**batch.inputs, use_cache=False).logits
    model.set_attn_implementation(attention)
    torch.testing.assert_close(network(**batch.inputs)["lm"], expected, rtol=1e-4, atol=1e-4)


class _Watched(TorchDispatchMode):
    """Notes what would need data on the host."""

    waits = (
        torch.ops.aten._local_scalar_dense.default,
        torch.ops.aten.nonzero.default,
        torch.ops.aten.masked_select.default,
        torch.ops.aten.bincount.default,
    )

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.waits or (
            func is torch.ops.aten.index.Tensor
            and any(index is not None and index.dtype == torch.bool for index in args[1])
        ):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_the_loss_in_pieces_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "_WORTH_IT", 0)
    monkeypatch.setattr(projection, "_FEWEST_ROWS", 7)
    layer, hidden = nn.Linear(8, 20), torch.randn(30, 8, requires_grad=True)
    targets = torch.randint(20, (30,))
    targets[::3] = IGNORE
    with _Watched() as watched:
        cross_entropy_sums({"lm": Projection(hidden, layer)}, {"lm": targets})["lm"].backward()
    assert watched.seen == []
    with _Watched() as watched:  # it would notice
        taken: Tensor = hidden.detach()[targets != IGNORE].sum()
        assert float(taken) != 0
    assert len(watched.seen) == 2
