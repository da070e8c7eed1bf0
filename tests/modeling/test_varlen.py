"""Encoders without padding, by lists that are made on the host: the same network."""

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.nn.functional import scaled_dot_product_attention

from plmctl.config.optim import OptimConfig
from plmctl.config.run import ComputeConfig
from plmctl.corpus.store import TokenStore
from plmctl.modeling import varlen
from plmctl.modeling.batch import Batch
from plmctl.modeling.encoder import narrow
from plmctl.modeling.network import Network
from plmctl.modeling.recompute import recompute
from plmctl.training.data import Slicing, StepBatches, scoring_batches
from plmctl.training.engine import make_accelerator, make_engine
from plmctl.training.loop import update
from tests.modeling.flash_on_cpu import flash_forward
from tests.modeling.flash_on_cpu import kernel as kernel
from tests.training.conftest import store as store
from tests.training.test_checkpointed_activations import CASES as DROPPED
from tests.training.test_checkpointed_activations import network_of, step_of
from tests.training.test_shapes import CASES as STILL
from tests.training.test_shapes import shapes
from tests.training.test_shapes import teacher as teacher

ENCODERS = ["bert", "roberta", "albert", "spanbert", "distilbert"]
WIDTH = 48


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


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_the_operator_here_is_pytorchs_attention_of_nested_rows() -> None:
    """Offsets mean the same there."""
    offsets = torch.tensor([0, 5, 6, 10, 17], dtype=torch.int32)
    states = [torch.randn(17, 2, 8) for _ in range(3)]
    found = flash_forward(*states, offsets, offsets, 7, 7, 0.0, False, False, scale=8**-0.5)[0]
    nested = [
        torch.nested.nested_tensor_from_jagged(x, offsets.long(), max_seqlen=7).transpose(1, 2)
        for x in states
    ]
    expected = scaled_dot_product_attention(*nested).transpose(1, 2).values()
    torch.testing.assert_close(found, expected)
