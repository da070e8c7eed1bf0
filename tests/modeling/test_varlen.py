"""Encoders without padding, by lists that are made on the host: the same network.

The kernel runs on a GPU only. Here its operator is given a CPU's implementation, written out row by
row, forward and backward; what calls it is the code that a GPU has.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from plmctl.config.optim import OptimConfig
from plmctl.config.run import ComputeConfig
from plmctl.corpus.store import TokenStore
from plmctl.modeling import varlen
from plmctl.modeling.batch import Batch
from plmctl.modeling.encoder import narrow
from plmctl.modeling.network import Network
from plmctl.training.engine import make_accelerator, make_engine
from plmctl.training.loader import Slicing, StepBatches
from plmctl.training.shapes import listed
from plmctl.training.update import update
from tests.training.conftest import store as store
from tests.training.test_checkpointed_activations import CASES as DROPPED
from tests.training.test_checkpointed_activations import network_of, step_of
from tests.training.test_shapes import CASES as STILL
from tests.training.test_shapes import teacher as teacher

ENCODERS = ["bert", "roberta", "albert", "spanbert", "distilbert"]
WIDTH = 48


def _weights(q: Tensor, k: Tensor, scale: float) -> Tensor:
    """[heads, T, T] of one row."""
    return (torch.einsum("qhd,khd->hqk", q, k) * scale).softmax(-1)


def _rows(offsets: Tensor, most: int) -> list[slice]:
    ends = offsets.tolist()
    rows = [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]
    assert all(0 < row.stop - row.start <= most for row in rows)
    return rows


def _kept(seed: Tensor, number: int, q: Tensor, p: float) -> Tensor:
    draws = torch.Generator().manual_seed(int(seed[0]) + number)
    chosen = torch.rand(q.shape[1], len(q), len(q), generator=draws) >= p
    return chosen / (1 - p)


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, cum_q: Tensor, cum_k: Tensor, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, return_debug_mask: bool, *, scale: float, **rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    assert cum_q.dtype == torch.int32
    assert cum_q is cum_k
    assert not is_causal
    assert int(cum_q[-1]) == len(q)
    seed = torch.randint(1 << 30, (2,))
    rows = []
    for n, r in enumerate(_rows(cum_q, max_q)):
        weights = _weights(q[r], k[r], scale) * _kept(seed, n, q[r], dropout_p)
        rows.append(torch.einsum("hqk,khd->qhd", weights, v[r]))
    none = torch.empty(0)
    return torch.cat(rows), q.new_zeros(q.shape[1], len(q)), seed, none, none


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cum_q: Tensor,
    cum_k: Tensor, max_q: int, max_k: int, dropout_p: float, is_causal: bool, rng: Tensor,
    unused: Tensor, *, scale: float, **rest: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
    for n, r in enumerate(_rows(cum_q, max_q)):
        weights, keep = _weights(q[r], k[r], scale), _kept(rng, n, q[r], dropout_p)
        dv[r] = torch.einsum("hqk,qhd->khd", weights * keep, grad[r])
        inner = torch.einsum("qhd,khd->hqk", grad[r], v[r]) * keep
        scores = weights * (inner - (weights * inner).sum(-1, keepdim=True)) * scale
        dq[r] = torch.einsum("hqk,khd->qhd", scores, k[r])
        dk[r] = torch.einsum("hqk,qhd->khd", scores, q[r])
    return dq, dk, dv


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The kernel's operator on a CPU, and as if it were made for it."""
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(varlen, "takes", lambda device, dtype, head: True)
    library = torch.library.Library("aten", "IMPL")
    library.impl("_flash_attention_forward", flash_forward, "CPU")
    library.impl("_flash_attention_backward", flash_backward, "CPU")
    yield
    library._destroy()
    torch._dynamo.reset()


def prepared(case: str, attention: str, teacher: str = "") -> tuple[Network, Any, Any]:
    """A network in training, its objective, and what else is asked of it."""
    family, objective, fields, asked = STILL.get(case) or DROPPED[case]
    if objective == "distillation":
        asked = {**asked, "teacher": teacher}
    network = network_of(family, objective, fields)
    for weight in network.parameters():
        weight.data.mul_(3)  # sharp attention: a wrong row shows
    network.model.set_attn_implementation(attention)
    if attention == varlen.NAME:
        narrow(network.model)
    return network.train(), objective, asked


def outcome(network: Network, step: Any, batch: Batch) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Losses, and the gradients of all weights."""
    network.zero_grad()
    sums = step.loss(network, batch)
    torch.stack([sums[part] for part in step.parts]).sum().backward()
    return sums, [p.grad.clone() for p in network.parameters() if p.grad is not None]


def batch_of(step: Any, rows: int = 7, *, width: int | None = WIDTH, lists: bool = True) -> Batch:
    return StepBatches(step, Slicing(rows, rows, width=width, lists=lists), 7)[1][0]


def assert_the_same(case: str, store: TokenStore, width: int | None, teacher: str = "") -> None:
    plain, objective, asked = prepared(case, "sdpa", teacher)
    step = step_of(objective, asked, store)
    expected, gradients = outcome(plain, step, batch_of(step, width=None, lists=False))
    batch = batch_of(step, width=width)
    assert len(batch.inputs["cells"]) < batch.inputs["input_ids"].numel()
    losses, found = outcome(prepared(case, varlen.NAME, teacher)[0], step, batch)
    for part, loss in expected.items():
        torch.testing.assert_close(losses[part], loss, rtol=1e-5, atol=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    for gradient, right in zip(found, gradients, strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-3, atol=1e-5 * largest)


CASES = [*ENCODERS, "distilbert, taught"]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("width", [None, WIDTH])
@pytest.mark.parametrize("case", CASES)
def test_the_kernel_changes_neither_losses_nor_gradients(
    case: str, width: int | None, store: TokenStore, teacher: str
) -> None:
    assert_the_same(case, store, width, teacher)


@pytest.mark.parametrize("case", CASES)
def test_nor_does_what_is_there_without_it(case: str, store: TokenStore, teacher: str) -> None:
    assert_the_same(case, store, WIDTH, teacher)


def losses_of(
    case: str, store: TokenStore, steps: int, backend: Any = None, *, twice: bool = False
) -> list[float]:
    """Of some steps of an engine that attends this way, compiled if there is a backend."""
    family, objective, fields, asked = STILL.get(case) or DROPPED[case]
    compute = ComputeConfig(
        device="cpu",
        attention="varlen",
        compile=backend is not None,
        checkpoint_activations=twice,
    )
    network = network_of(family, objective, fields)
    engine = make_engine(make_accelerator(compute), network, OptimConfig(lr=1e-2), compute)
    if backend is not None:
        network.compile(backend=backend, dynamic=False)
    network.train()
    step = step_of(objective, asked, store)
    made = StepBatches(step, Slicing(16, 16, width=WIDTH, lists=True), 7)
    return [update(engine, step, made[n], 1.0, n, False).loss for n in range(steps)]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("case", ENCODERS)
def test_a_compiler_takes_the_kernel_whole(case: str, store: TokenStore) -> None:
    counter = CompileCounterWithBackend("aot_eager")
    found = losses_of(case, store, 4, counter)
    assert counters["graph_break"] == {}
    step = step_of(STILL[case][1], STILL[case][3], store)
    made = StepBatches(step, Slicing(16, 16, width=WIDTH, lists=True), 7)
    shapes = {
        tuple((name, tuple(t.shape)) for name, t in {**b.inputs, **b.targets}.items())
        for b in (made[n][0] for n in range(4))
    }
    print(case, counter.frame_count, len(shapes))
    assert counter.frame_count == len(shapes)
    assert found == pytest.approx(losses_of(case, store, 4), rel=1e-5)
