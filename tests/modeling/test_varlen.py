"""Encoders without padding, by lists that are made on the host: the same network.

The kernel runs on a GPU only. Here its operator is given a CPU's implementation, written out row by
row, forward and backward; what calls it is the code that a GPU has.
"""

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from plmctl import objectives
from plmctl.config.optim import OptimConfig
from plmctl.config.run import ComputeConfig
from plmctl.corpus.store import TokenStore
from plmctl.modeling import varlen
from plmctl.modeling.batch import Batch
from plmctl.modeling.encoder import narrow
from plmctl.modeling.network import Network
from plmctl.modeling.recompute import recompute
from plmctl.training.engine import make_accelerator, make_engine
from plmctl.training.loader import Slicing, StepBatches, scoring_batches
from plmctl.training.shapes import listed
from plmctl.training.update import update
from tests.training.conftest import VOCAB
from tests.training.conftest import store as store
from tests.training.test_checkpointed_activations import CASES as DROPPED
from tests.training.test_checkpointed_activations import network_of, step_of
from tests.training.test_shapes import CASES as STILL
from tests.training.test_shapes import shapes
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
    seed = torch.randint(1 << 30, (2,)).to(torch.uint64)
    rows = []
    for n, r in enumerate(_rows(cum_q, max_q)):
        weights = _weights(q[r], k[r], scale) * _kept(seed, n, q[r], dropout_p)
        rows.append(torch.einsum("hqk,khd->qhd", weights, v[r]))
    unused, mask = torch.empty((), dtype=torch.uint64), torch.empty(0)
    return torch.cat(rows), q.new_zeros(q.shape[1], len(q)), seed, unused, mask


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


def prepared(
    case: str, attention: str, teacher: str = "", cases: dict[str, Any] = STILL
) -> tuple[Network, str, dict[str, Any]]:
    """A network in training, its objective, and what else is asked of it."""
    family, objective, fields, asked = cases[case]
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
    what: tuple[Any, ...],
    store: TokenStore,
    steps: int,
    backend: Any = None,
    *,
    twice: bool = False,
) -> list[float]:
    """Of some steps of an engine that attends this way, compiled if there is a backend."""
    family, objective, fields, asked = what
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


# Of the compiler, the backend that traces the operator and its backward as well takes a while.
BACKENDS = {"bert": "aot_eager", "roberta": "eager", "albert": "eager", "distilbert": "eager"}


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("case", BACKENDS)
def test_a_compiler_takes_the_kernel_whole(case: str, store: TokenStore) -> None:
    """Once for each shape."""
    counter = CompileCounterWithBackend(BACKENDS[case])
    found = losses_of(STILL[case], store, 3, counter)
    assert counters["graph_break"] == {}
    step = step_of(STILL[case][1], STILL[case][3], store)
    made = StepBatches(step, Slicing(16, 16, width=WIDTH, lists=True), 7)
    assert counter.frame_count == len(shapes([made[n][0] for n in range(3)]))
    assert found == pytest.approx(losses_of(STILL[case], store, 3), rel=1e-5)


def test_a_compiler_takes_what_is_there_without_it(store: TokenStore) -> None:
    """With dropout, and with layers that are computed twice."""
    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounterWithBackend("eager")
    losses_of(DROPPED["bert"], store, 1, counter, twice=True)
    assert counter.frame_count == 1
    assert counters["graph_break"] == {}


@pytest.mark.usefixtures("kernel")
def test_one_compilation_where_shapes_vary(store: TokenStore) -> None:
    counter = CompileCounterWithBackend("eager")
    compute = ComputeConfig(device="cpu", attention="varlen", compile=True)
    network = network_of(*STILL["roberta"][:3])
    engine = make_engine(make_accelerator(compute), network, OptimConfig(lr=1e-2), compute)
    network.compile(backend=counter, dynamic=True)
    network.train()
    step = step_of(*STILL["roberta"][1::2], store)
    for number in range(5):
        (batch,) = StepBatches(step, Slicing(3 + number, 8, lists=True), 7)[number]
        update(engine, step, [batch], 1.0, number, False)
    assert counter.frame_count <= 2
    assert counters["graph_break"] == {}


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("case", ["bert", "albert", "distilbert"])
def test_layers_computed_twice_draw_the_same(case: str, store: TokenStore) -> None:
    once, again = (gradients_of(case, store, twice=twice) for twice in (False, True))
    for gradient, other in zip(once, again, strict=True):
        assert torch.equal(gradient, other)


def gradients_of(case: str, store: TokenStore, *, twice: bool = False) -> list[Tensor]:
    family, objective, fields, asked = DROPPED[case]
    network = network_of(family, objective, fields)
    network.model.set_attn_implementation(varlen.NAME)
    narrow(network.model)
    if twice:
        recompute(network.model)
    step = step_of(objective, asked, store)
    torch.manual_seed(5)
    return outcome(network.train(), step, batch_of(step))[1]


@pytest.mark.parametrize("case", ["bert", "roberta"])
@pytest.mark.parametrize("there", [False, True])
def test_dropout_is_decided_by_the_seed(
    case: str, there: bool, store: TokenStore, request: pytest.FixtureRequest
) -> None:
    if there:
        request.getfixturevalue("kernel")
    family, objective, fields, asked = DROPPED[case]
    only = {case: (family, objective, {**fields, "hidden_dropout_prob": 0.0}, asked)}
    network, objective, asked = prepared(case, varlen.NAME, cases=only)
    step = step_of(objective, asked, store)
    batch = batch_of(step)

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        return float(step.loss(network, batch)["mlm"].detach())

    first = loss(1)
    assert first == loss(1) != loss(2)


META = torch.device("meta")


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("case", ENCODERS)
def test_a_step_never_waits(
    case: str, there: bool, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in test_no_waiting.py; the shapes of the operator's results are PyTorch's own there."""
    asked: list[torch.dtype] = []
    monkeypatch.setattr(varlen, "takes", lambda device, dtype, head: asked.append(dtype) or there)
    network, objective, fields = prepared(case, varlen.NAME)
    step = step_of(objective, fields, store)
    network.to(META)
    losses = step.loss(network, batch_of(step).to(META))
    torch.stack([losses[part] for part in step.parts]).sum().backward()
    assert asked
    assert sum(parameter.grad is None for parameter in network.parameters()) <= 1


@pytest.mark.usefixtures("kernel")
def test_what_is_in_padding_is_nothing_to_the_rest(store: TokenStore) -> None:
    """Not a bit of it: not the cells that fill a list, nor those that are left out."""
    network, objective, asked = prepared("bert", varlen.NAME)
    step = step_of(objective, asked, store)
    batch = batch_of(step)
    padding = batch.inputs["attention_mask"] == 0
    assert int((~padding).sum()) < len(batch.inputs["cells"]) < padding.numel()
    others = batch.inputs["input_ids"].masked_fill(padding, 77)
    changed = replace(batch, inputs={**batch.inputs, "input_ids": others})
    (losses, gradients), (found, same) = (outcome(network, step, b) for b in (batch, changed))
    assert losses == found
    for gradient, other in zip(gradients, same, strict=True):
        assert torch.equal(gradient, other)


def test_the_same_network_takes_batches_without_lists(store: TokenStore) -> None:
    """Validation."""
    network, objective, asked = prepared("bert", varlen.NAME)
    expected, _, _ = prepared("bert", "sdpa")
    step = step_of(objective, asked, store)
    (batch,) = scoring_batches(step, Slicing(9, 9, width=WIDTH, lists=True), 9)
    assert "cells" not in batch.inputs
    scores = step.score(network.eval(), batch)
    for part, score in step.score(expected.eval(), batch).items():
        torch.testing.assert_close(scores[part], score, rtol=1e-6, atol=0)


LENGTHS = st.lists(st.integers(1, 24), min_size=1, max_size=40)


@given(LENGTHS, st.booleans())
def test_every_cell_is_listed_once_and_every_row_is_apart(lengths: list[int], few: bool) -> None:
    mask = (torch.arange(24) < torch.tensor(lengths)[:, None]).long()
    batch = Batch({"input_ids": mask, "attention_mask": mask}, {}, sum(lengths), mask.numel())
    inputs = listed(batch, few=few).inputs
    padding = mask.numel() - sum(lengths)
    if "cells" not in inputs:
        assert few
        assert 0 < padding < 3
        return
    cells, ends = inputs["cells"].tolist(), inputs["offsets"].tolist()
    rows = [cells[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    assert (ends[0], ends[-1]) == (0, len(cells))
    assert len(set(cells)) == len(cells) <= mask.numel()
    for number, length in enumerate(lengths):
        assert rows[number] == list(range(24 * number, 24 * number + length))
    for row in rows[len(lengths) :]:
        assert 1 <= len(row) <= 24
        assert not mask.flatten()[row].any()
    assert few and padding or len(rows) == len(lengths)


@given(LENGTHS, st.randoms())
def test_lists_of_one_length_have_as_many_rows(lengths: list[int], draws: Random) -> None:
    found: dict[int, set[int]] = {}
    for _ in range(3):
        shorter = torch.tensor([max(1, size - draws.randint(0, 1)) for size in lengths])
        mask = (torch.arange(24) < shorter[:, None]).long()
        inputs = listed(Batch({"attention_mask": mask}, {}, 0, 0), few=True).inputs
        if "cells" in inputs and not mask.all():
            found.setdefault(len(inputs["cells"]), set()).add(len(inputs["offsets"]))
    assert all(len(rows) == 1 for rows in found.values())


def test_hardly_any_lengths_of_lists() -> None:
    """Micro-batches as a GPU has them: 512 rows of sentence pairs."""
    rng = np.random.default_rng(1)
    documents = [
        [rng.integers(6, 100, rng.integers(3, 60)).tolist() for _ in range(rng.integers(5, 40))]
        for _ in range(400)
    ]
    member = objectives.get("mlm+nsp")
    store = TokenStore.from_lists(documents, vocab_size=120)
    step = member.make(member.Config(name="mlm+nsp"), store, VOCAB, 128, 7)
    made = StepBatches(step, Slicing(512, 512, width=128, lists=True), 7)
    batches = [made[number][0] for number in range(8)]
    assert len(shapes(batches)) <= 3
    listed_cells = sum(len(batch.inputs["cells"]) for batch in batches)
    tokens = sum(batch.tokens for batch in batches)
    assert tokens <= listed_cells < 1.05 * tokens < sum(batch.cells for batch in batches)
