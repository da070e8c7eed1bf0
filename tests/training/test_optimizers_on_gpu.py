"""The form of each optimizer for a GPU: the same update in few kernels, without a wait."""

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from plmctl.config.sections import ComputeConfig
from plmctl.optimizers._gpu import Flagged
from plmctl.training.checkpoint import Checkpoints, Trained, restore
from plmctl.training.engine import make_accelerator, make_engine, make_optimizer
from tests.builders import make_model, make_network
from tests.training.test_optimizers import config

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("adamw", {"bias_correction": False}),
    "gpt1": ("adamw", {"bias_correction": "rate"}),
    "lamb": ("lamb", {}),
    "lamb, paper": ("lamb", {"bias_correction": True}),
    "adagrad": ("adagrad", {}),
    "adagrad, decay": ("adagrad", {"weight_decay": 0.1, "eps": 1e-3}),
    "adafactor": ("adafactor", {}),
    "adafactor, decay": ("adafactor", {"weight_decay": 0.1}),
    "adafactor, absolute": ("adafactor", {"scale_parameter": False}),
    "muon": ("muon", {}),
}


class Shapes(nn.Module):
    """Several tensors of one shape, tall and wide ones, GPT's fused matrix, and odd ones."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(150, 128)
        self.wide = nn.ModuleList(nn.Linear(256, 128) for _ in range(2))
        self.tall = nn.ModuleList(nn.Linear(128, 256) for _ in range(3))
        self.small = nn.Linear(7, 2)
        self.attn = nn.Module()
        self.attn.c_attn = nn.Linear(384, 128, bias=False)
        self.stack = nn.Parameter(torch.randn(2, 130, 140))
        self.number = nn.Parameter(torch.tensor(3.0))
        self.unused = nn.Linear(128, 128)


def made(case: str, seed: int = 0, *, on_gpu: bool = True) -> Trained:
    name, fields = CASES[case]
    network = Shapes(seed)
    return Trained(network, make_optimizer(config(name, lr=0.05, **fields), network, fused=on_gpu))


def gradients(trained: Trained, step: int) -> None:
    """A seeded gradient of very different sizes for all but the unused layer."""
    draws = torch.Generator().manual_seed(step)
    for name, p in trained.network.named_parameters():
        if "unused" not in name:
            power = 2 * torch.rand((), generator=draws) - 1
            p.grad = torch.randn(p.shape, generator=draws) * 10**power


def steps(trained: Trained, first: int, last: int) -> None:
    for step in range(first, last):
        gradients(trained, step)
        trained.optimizer.step()


def tensors(trained: Trained) -> dict[str, Tensor]:
    """Copies of the weights and of the states."""
    found = {}
    for name, p in trained.network.named_parameters():
        found[name] = p.detach().clone()
        for field, value in trained.optimizer.state.get(p, {}).items():
            found[f"{field}/{name}"] = torch.as_tensor(value).clone()
    return found


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], within: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        expected = theirs[name].double()
        assert (value.double() - expected).norm() <= within * expected.norm(), name


@pytest.mark.parametrize("case", CASES)
def test_twenty_updates_are_those_of_the_plain_form(case: str) -> None:
    ours, plain = made(case), made(case, on_gpu=False)
    assert isinstance(ours.optimizer, Flagged)
    assert not isinstance(plain.optimizer, Flagged)
    for trained in (ours, plain):
        steps(trained, 0, 20)
    assert_close(tensors(ours), tensors(plain), 1e-6)


@pytest.mark.parametrize("case", CASES)
def test_tensors_with_other_counts_of_updates_have_their_own_corrections(case: str) -> None:
    """As after a phase that did not train all of them."""
    ours, plain = made(case), made(case, on_gpu=False)
    for trained in (ours, plain):
        steps(trained, 0, 2)
        for step in range(2, 5):
            gradients(trained, step)
            for p in trained.network.unused.parameters():
                p.grad = torch.full_like(p, 0.1 * step)
            trained.optimizer.step()
    assert_close(tensors(ours), tensors(plain), 1e-6)


@pytest.mark.parametrize("case", CASES)
def test_an_update_with_the_flag_changes_nothing(case: str) -> None:
    """Nor do later ones; when the host has heard of them the counts are right as well."""
    ours, other = made(case), made(case)
    ours.optimizer.found_inf = torch.zeros(())
    steps(ours, 0, 3)
    before = tensors(ours)
    ours.optimizer.found_inf.fill_(1)
    gradients(ours, 3)
    for p in ours.network.parameters():
        if p.grad is not None:
            p.grad.fill_(math.nan)
    ours.optimizer.step()
    steps(ours, 4, 5)
    ours.optimizer.uncount(2)
    assert before.keys() == tensors(ours).keys()
    for name, value in tensors(ours).items():
        assert torch.equal(value, before[name]), name
    ours.optimizer.found_inf.zero_()
    steps(ours, 5, 7)
    steps(other, 0, 3)
    steps(other, 5, 7)
    for name, value in tensors(other).items():
        assert torch.equal(value, tensors(ours)[name]), name


@pytest.mark.parametrize("on_gpu", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_of_one_form_is_continued_by_the_other(
    case: str, on_gpu: bool, tmp_path: Path
) -> None:
    """Those of older versions are of the plain one."""
    first, second = made(case, on_gpu=not on_gpu), made(case, seed=9, on_gpu=on_gpu)
    steps(first, 0, 3)
    steps(second, 7, 8)
    restore(Checkpoints(tmp_path, 1).save(3, first, {}), second)
    for trained in (first, second):
        steps(trained, 3, 6)
    assert_close(tensors(second), tensors(first), 1e-6)


# --- Kernels and waits, on PyTorch's device without data, which refuses every read ---


# MultiTensorApply.cuh: tensors of a launch by the number of lists; numbers in a block, and blocks
_TENSORS, _CHUNK, _CHUNKS = (0, 110, 64, 48, 36), 65_536, 320


class Kernels(TorchDispatchMode):
    """Counts what a GPU would be told to do."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.partition("::")[2]
        flat = tree_leaves((args, kwargs))
        if not any(isinstance(x, Tensor) and x.device.type == "meta" for x in flat):
            return func(*args, **(kwargs or {}))
        lists = [a for a in args if isinstance(a, list | tuple) and a and isinstance(a[0], Tensor)]
        if name.startswith(("_foreach", "_fused")):
            many = len(lists) + (not name.endswith("_") and name != "_foreach_norm")
            chunks = sum(math.ceil(x.numel() / _CHUNK) for x in lists[0])
            tensors = math.ceil(len(lists[0]) / _TENSORS[min(many, 4)])
            self.count += max(tensors, math.ceil(chunks / _CHUNKS)) + 2 * (name == "_foreach_norm")
            if name.startswith("_fused"):  # it has no form without data
                return None
        elif name in ("cat", "stack"):
            self.count += math.ceil(len(lists[0]) / 128)
        elif not func.is_view and func.namespace != "prim":
            self.count += 2 if name == "baddbmm" else 1  # a copy of what is added
        return func(*args, **(kwargs or {}))


def bert_base() -> nn.Module:
    """The network on the device without data."""
    with torch.device("meta"):
        return make_model("bert", 30_522, ("mlm", "nsp"), size="base", seed=None)


@pytest.mark.parametrize("case", ["bert", "gpt1", "lamb", "adagrad", "adafactor", "muon"])
def test_an_update_of_bert_base_has_less_than_a_hundred_kernels_and_no_wait(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adam = sys.modules["torch.optim.adam"]  # the name in `torch.optim` is deleted
    monkeypatch.setattr(adam, "_device_dtype_check_for_fused", lambda _: None)
    name, fields = CASES[case]
    network = bert_base()
    optimizer = make_optimizer(config(name, **fields), network, fused=True)
    optimizer.found_inf = torch.zeros((), device="meta")
    for p in network.parameters():
        p.grad = torch.empty_like(p)
    for _ in range(2):  # the first makes the state
        with Kernels() as kernels:
            optimizer.step()
    assert 5 < kernels.count < 100


def test_counts_of_updates_stay_on_the_host() -> None:
    """Accelerate would move them to the device, and every update would wait for them."""
    accelerator = make_accelerator(ComputeConfig(device="cpu"))
    accelerator.state._shared_state["device"] = torch.device("meta")
    network = make_network("bert", 120, ("mlm",), size="tiny")
    engine = make_engine(accelerator, network, config("adagrad"), ComputeConfig(compile=False))
    states = engine.trained().optimizer.state.values()
    assert {state["sum"].device.type for state in states} == {"meta"}
    assert {state["step"].device.type for state in states} == {"cpu"}
    make_accelerator(ComputeConfig(device="cpu"))  # the state is of all accelerators
