"""The contracts of the loop: how a step is cut up changes nothing, nor do stops and late losses."""

import json
import math
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from plmctl import registry
from plmctl.config.base import OptimizerConfig
from plmctl.config.sections import AverageConfig, ComputeConfig, OptimConfig
from plmctl.corpus.store import TokenStore
from plmctl.errors import PlmError, Preempted
from plmctl.examples.keys import fold
from plmctl.families.base import get_family
from plmctl.models.base import Examples
from plmctl.models.batch import Batch
from plmctl.models.network import Network
from plmctl.objectives.base import get_objective
from plmctl.run.stop import StopAsked, StopRequest
from plmctl.training import loop
from plmctl.training.average import Average, Averaging
from plmctl.training.checkpoint import Checkpoints, Trained, restore
from plmctl.training.data import StepBatches
from plmctl.training.distributed import summed_facts
from plmctl.training.engine import (
    Engine,
    enable_late_reading,
    make_accelerator,
    make_optimizer,
)
from plmctl.training.journal import Journal, Progress, Update
from plmctl.training.loop import apply_if_finite, compute_gradient, take_step, train
from plmctl.training.plan import Guard, Plan, Slicing
from tests.builders import (
    ChangedExamples,
    assert_cut_up_is_the_same,
    cpu_engine,
    json_lines,
    make_examples,
    make_model,
    make_network,
    stopping_at,
)
from tests.processes import in_two_processes
from tests.training.conftest import (
    VOCAB,
    Train,
    contents,
    events,
    exact,
    metrics,
    nothing,
    tiny_network,
    tiny_plan,
    trained,
    weights,
)
from tests.training.test_streams import network as bilm
from tests.training.test_streams import plan_of

# --- The loss does not depend on how a step is cut up, a run not on stops ---

OBJECTIVES = ["mlm", "mlm+nsp", "mlm+sop", "clm"]


@pytest.mark.parametrize(
    ("until", "save_at"), [(None, ()), (7, ()), (None, (2, 3, 11)), (9, (1, 8))]
)
def test_the_next_checkpoint_is_the_next_step_that_saves(
    until: int | None, save_at: tuple[int, ...], store: TokenStore
) -> None:
    plan = tiny_plan("clm", store, steps=(5, 8), save_every=4)
    plan = replace(plan, until=until, save_at=frozenset(save_at))
    for done in range(plan.last_step):
        later = range(done + 1, plan.last_step + 1)
        assert plan.next_save(done) == next(step for step in later if plan.save_due(step, None))


def test_loss_and_weights_do_not_depend_on_micro_batches(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """In a run and its log, of two loss terms; ``test_a_step_cut_up_is_the_same_step`` has more."""
    objective, results = "mlm+nsp", {}
    for micro in (16, 8, 4, 5):
        engine = cpu_engine(tiny_network(objective))
        run_plan(
            engine, tiny_plan(objective, store, steps=(2,), micro=micro), tmp_path / f"{micro}"
        )
        results[micro] = (metrics(tmp_path / f"{micro}"), weights(engine))
    whole, reference = results[16]
    for micro in (8, 4, 5):
        records, got = results[micro]
        assert records[0]["loss"] == pytest.approx(whole[0]["loss"], rel=1e-6)
        assert records[0]["grad_norm"] == pytest.approx(whole[0]["grad_norm"], rel=1e-5)
        assert records[0]["tokens"] == whole[0]["tokens"]
        for name, expected in reference.items():
            assert torch.allclose(got[name], expected, rtol=1e-3, atol=2e-5), name


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_gradient_is_that_of_the_mean_over_all_targets(objective: str, store: TokenStore) -> None:
    """Against one forward over the whole step, with the library's own mean loss."""
    network = tiny_network(objective)
    plan = tiny_plan(objective, store)
    step = plan.phases[0].examples
    (whole,) = StepBatches(step, Slicing(16, 16), plan.seed)[0]
    logits = network(**whole.inputs)
    loss = sum(
        cross_entropy(logits[part].flatten(0, -2), whole.targets[part].flatten())
        for part in step.loss_terms
    )
    loss.backward()
    expected = {n: p.grad.clone() for n, p in network.model.named_parameters()}

    engine = cpu_engine(tiny_network(objective))
    got = {}
    for name, parameter in engine.trained().network.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: got.__setitem__(name, p.grad.clone())
        )
    batches = StepBatches(step, Slicing(16, 3), plan.seed)[0]
    assert len(batches) == 6
    done = take_step(engine, step, batches, None, 1)
    assert done.loss == pytest.approx(loss.item(), rel=1e-6)
    for name, value in expected.items():
        assert torch.allclose(got[name], value, rtol=1e-4, atol=1e-6), name


def test_model_loss_is_transformers_own(store: TokenStore) -> None:
    """Gathering the masked positions gives the loss of BertForPreTraining over all positions."""
    network = tiny_network("mlm+nsp")
    step = tiny_plan("mlm+nsp", store).phases[0].examples
    (batch,) = StepBatches(step, Slicing(16, 16), 7)[0]
    sums = step.loss(network, batch)
    ours = sum(sums[part].item() / count for part, count in batch.counts().items())
    labels = torch.full_like(batch.inputs["input_ids"], -100).flatten()
    labels[batch.inputs["positions"]] = batch.targets["mlm"]
    inputs = {k: v for k, v in batch.inputs.items() if k != "positions"}
    theirs = network.model(
        **inputs,
        labels=labels.view_as(inputs["input_ids"]),
        next_sentence_label=batch.targets["nsp"],
    ).loss
    assert ours == pytest.approx(theirs.item(), rel=1e-6)


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm+sop", "clm"])
def test_an_interrupted_run_is_the_uninterrupted_one(
    objective: str, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """Two phases, dropout on, stopped by a signal in the second: same losses, same weights."""
    whole = cpu_engine(tiny_network(objective, dropout=0.1))
    plan = tiny_plan(objective, store, steps=(3, 5), micro=8)
    run_plan(whole, plan, tmp_path / "whole")

    plan = tiny_plan(objective, store, steps=(3, 5), micro=8)
    first = cpu_engine(tiny_network(objective, dropout=0.1))
    with pytest.raises(Preempted, match="run the same command again"):
        run_plan(first, stopping_at(4, plan), tmp_path / "cut")
    assert 4 <= metrics(tmp_path / "cut")[-1]["step"] < 8

    second = cpu_engine(tiny_network(objective, seed=99, dropout=0.1))
    progress = run_plan(second, plan, tmp_path / "cut")
    assert progress.step == 8
    expected, got = metrics(tmp_path / "whole"), metrics(tmp_path / "cut")
    exact = ("step", "phase", "tokens", "loss", "lr", "grad_norm", "padding", "epoch")
    assert [{k: r[k] for k in exact} for r in got] == [{k: r[k] for k in exact} for r in expected]
    reference = weights(whole)
    for name, value in weights(second).items():
        assert torch.equal(value, reference[name]), name


def test_dropout_differs_between_steps(store: TokenStore, tmp_path: Path, run_plan: Train) -> None:
    engine = cpu_engine(tiny_network("clm", dropout=0.5), lr=1e-9)
    plan = tiny_plan("clm", store, steps=(1,), lr=1e-9)
    batches = StepBatches(plan.phases[0].examples, Slicing(16, 16), 7)[0]
    losses = {take_step(engine, plan.phases[0].examples, batches, None, key).loss for key in (1, 2)}
    again = take_step(engine, plan.phases[0].examples, batches, None, 1).loss
    assert len(losses) == 2
    assert min(abs(again - loss) for loss in losses) < 1e-6


def test_a_loss_that_is_not_finite_stops_the_run(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    network = tiny_network("mlm")
    with torch.no_grad():
        network.model.bert.embeddings.LayerNorm.weight[0] = float("nan")
    with pytest.raises(PlmError, match="step 1: the loss is not finite; the state before"):
        run_plan(cpu_engine(network), tiny_plan("mlm", store), tmp_path)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_training_learns(objective: str, tmp_path: Path, run_plan: Train) -> None:
    """A corpus whose next word is certain: the loss falls far below its start."""
    documents = [[[6 + (s + i) % 20 for i in range(12)] for s in range(6)] for _ in range(10)]
    store = TokenStore.from_lists(documents, vocab_size=120)
    engine = cpu_engine(tiny_network(objective), lr=3e-3)
    plan = tiny_plan(objective, store, steps=(60,), lr=3e-3)
    run_plan(engine, plan, tmp_path)
    first, last = metrics(tmp_path)[0], metrics(tmp_path)[-1]
    assert last["loss"] < first["loss"] - 1.0


# --- Loss and gradient do not depend on how a step is cut: RoBERTa, SpanBERT, DistilBERT ---

CASES = {
    "roberta, full sentences": ("roberta", "mlm", {"packing": "full_sentences"}),
    "roberta, as published": (
        "roberta",
        "mlm",
        {"packing": "doc_sentences", "count": "probabilistic", "mask_specials": True},
    ),
    "roberta, pairs": ("roberta", "mlm", {"packing": "segment_pair"}),
    "spanbert": ("spanbert", "mlm+sbo", {"sbo_weight": 0.5}),
    "spanbert, masked tokens": ("spanbert", "mlm", {}),
    "distilbert, masked tokens": ("distilbert", "mlm", {}),
    "distilbert": ("distilbert", "distillation", {}),
    "distilbert, taught alone": ("distilbert", "distillation", {"mlm_weight": 0.0}),
    "distilbert, masked only": ("distilbert", "distillation", {"kl_tokens": "masked"}),
}
SMALL = {"hidden_size": 32, "num_attention_heads": 2}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("teacher")
    model = make_model("bert", VOCAB.size, ("mlm",), seed=1, size="tiny", **SMALL)
    with torch.no_grad():  # a teacher with opinions
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return str(folder)


def network_of(family: str, objective: str) -> Network:
    fields = (
        {"dim": 32, "n_heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
        if family == "distilbert"
        else {**SMALL, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    )
    terms = get_objective(objective).LOSS_TERMS
    assert set(terms) <= set(get_family(family).HEADS)
    return make_network(family, VOCAB.size, terms, size="tiny", **fields)


def step_of(objective: str, fields: dict, store: TokenStore, teacher: str) -> Examples:
    if objective == "distillation":
        fields = {**fields, "teacher": teacher}
    return make_examples(objective, store, VOCAB, 48, **fields)


@pytest.mark.parametrize("case", CASES)
def test_a_step_cut_up_is_the_same_step(case: str, store: TokenStore, teacher: str) -> None:
    family, objective, fields = CASES[case]
    step = step_of(objective, fields, store, teacher)

    def make() -> Engine:
        return cpu_engine(network_of(family, objective))

    assert_cut_up_is_the_same(make, step, (16, 8, 5, 1), 1e-6)


@pytest.mark.parametrize(
    "case", ["roberta, full sentences", "spanbert", "distilbert, taught alone"]
)
def test_the_loss_falls(case: str, store: TokenStore, teacher: str) -> None:
    """A few steps on one batch: the heads are connected to what they are scored on."""
    family, objective, fields = CASES[case]
    step = step_of(objective, fields, store, teacher)
    engine = cpu_engine(network_of(family, objective), lr=3e-3)
    batches = StepBatches(step, Slicing(16, 16), 7)[0]
    losses = [take_step(engine, step, batches, None, 1).losses for _ in range(25)]
    for part in (part for part in step.loss_terms if step.weights[part]):
        assert losses[-1][part] < 0.9 * losses[0][part], part


# --- Failed steps: what is saved, left out or passed over, and that a resume decides alike ---


@dataclass(frozen=True)
class Poisoned(ChangedExamples):
    """One batch has a loss that is ``times`` what it should be."""

    batch: torch.Tensor
    times: float

    def loss(self, network: object, batch: object) -> dict[str, torch.Tensor]:
        ids = batch.inputs["input_ids"]
        bad = ids.shape == self.batch.shape and torch.equal(ids, self.batch)
        factor = self.times if bad else 1.0
        return {part: value * factor for part, value in self.step.loss(network, batch).items()}


def poisoned(store: TokenStore, at: int, times: float, guard: Guard, steps: int = 24) -> Plan:
    """A plan whose step ``at``, from 0, goes wrong."""
    plan = tiny_plan("clm", store, steps=(steps,), batch=4, micro=4, lr=1e-3, save_every=5)
    (phase,) = plan.phases
    (batch,) = source(plan)[at]
    bad = replace(phase, examples=Poisoned(phase.examples, batch.inputs["input_ids"], times))
    return replace(plan, phases=(bad,), guard=guard)


def source(plan: Plan) -> StepBatches:
    return StepBatches(plan.phases[0].examples, plan.phases[0].slicing, int(fold(plan.seed, 0)))


def dropping() -> Engine:
    made = cpu_engine(tiny_network("clm", dropout=0.1), lr=1e-3)
    averaging = Averaging(AverageConfig(name="last", over=20, every=1), 24)
    return replace(made, average=Average(made.trained().network, averaging))


def test_a_loss_that_is_not_finite_leaves_the_state_before_it_and_its_examples(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    plan = poisoned(store, 7, math.nan, Guard())
    first = dropping()
    with pytest.raises(PlmError, match="(?s)step 8: the loss is not finite.*--batch 8"):
        run_plan(first, plan, tmp_path / "a")
    assert all(value.isfinite().all() for value in weights(first).values())
    assert (tmp_path / "a" / "checkpoints" / "step-000007").is_dir()
    noted = json.loads((tmp_path / "a" / "divergence" / "step-000008.json").read_text())
    assert [noted["epochs"], noted["samples"]] == source(plan).examples(7).tolist()
    assert noted["loss"] is None
    assert events(tmp_path / "a")[-2:] == ["diverged", "saved"]
    assert [line["step"] for line in metrics(tmp_path / "a")] == list(range(1, 8))

    # The same command with divergence.nonfinite=skip: what a run with it from the start does.
    skipping = replace(plan, guard=Guard(nonfinite="skip"))
    second, whole = dropping(), dropping()
    run_plan(second, skipping, tmp_path / "a")
    run_plan(whole, skipping, tmp_path / "b")
    assert exact(tmp_path / "a") == exact(tmp_path / "b")
    assert metrics(tmp_path / "b")[7]["loss"] is None
    assert events(tmp_path / "b").count("skipped") == 1
    reference = weights(whole)
    for name, value in weights(second).items():
        assert torch.equal(value, reference[name]), name


def test_a_step_that_is_left_out_changes_no_weight(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    guard = Guard(spike=3.0, on_spike="skip")
    short = poisoned(store, 20, 50.0, guard, steps=20)
    long = replace(poisoned(store, 20, 50.0, guard, steps=21))
    before, after = dropping(), dropping()
    run_plan(before, short, tmp_path / "short")
    run_plan(after, long, tmp_path / "long")
    reference = weights(before)
    for name, value in weights(after).items():
        assert torch.equal(value, reference[name]), name
    assert metrics(tmp_path / "long")[20]["loss"] > 100


def test_a_rollback_passes_over_the_data_and_survives_a_stop(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    plan = poisoned(store, 21, 50.0, Guard(spike=3.0))
    whole = dropping()
    progress = run_plan(whole, plan, tmp_path / "whole")
    assert progress.rollbacks == 1
    assert progress.shift == 2 * 4  # steps 20 and 21, of four examples
    assert events(tmp_path / "whole").count("rolled_back") == 1
    assert [line["step"] for line in metrics(tmp_path / "whole")] == list(range(1, 25))
    assert max(line["loss"] for line in metrics(tmp_path / "whole")) < 10

    for until in (21, 23):  # before the spike, off the rhythm of the checkpoints; and after it
        cut, folder = dropping(), tmp_path / f"cut-{until}"
        with pytest.raises(Preempted):
            run_plan(cut, replace(plan, until=until), folder)
        again = dropping()
        run_plan(again, plan, folder)
        assert exact(folder) == exact(tmp_path / "whole")
        reference = weights(whole)
        for name, value in weights(again).items():
            assert torch.equal(value, reference[name]), name


def test_data_after_a_rollback_is_that_of_the_steps_after_the_spike(store: TokenStore) -> None:
    plan = tiny_plan("clm", store, steps=(24,), batch=4)
    plain, phase = source(plan), plan.phases[0]
    shifted = StepBatches(phase.examples, phase.slicing, int(fold(plan.seed, 0)), shift=8)
    for step in (0, 5, 20):
        assert np.array_equal(shifted.examples(step), plain.examples(step + 2))


@pytest.mark.parametrize(
    ("loss", "norm", "guard", "verdict"),
    [
        (1.0, 1.0, Guard(), "good"),
        (math.inf, 1.0, Guard(), "stop"),
        (1.0, math.nan, Guard(), "stop"),
        (1.0, math.nan, Guard(nonfinite="skip"), "skip"),
        (1.9, 1.0, Guard(spike=2.0), "good"),
        (2.1, 1.0, Guard(spike=2.0), "rollback"),
        (2.1, 1.0, Guard(spike=2.0, on_spike="stop"), "stop"),
        (2.1, 1.0, Guard(spike=2.0, patience=0), "stop"),
    ],
)
def test_verdicts(loss: float, norm: float, guard: Guard, verdict: str) -> None:
    done = Update({"lm": loss}, norm, 1, 1, False, loss)
    calm = Progress(recent=(1.0,) * 16)
    assert guard.verdict(done, calm, scaled=False)[0] == verdict
    if math.isfinite(loss):  # before there are losses enough, nothing is a spike
        expected = verdict if not math.isfinite(norm) else "good"
        assert guard.verdict(done, Progress(recent=(1.0,) * 15), scaled=False)[0] == expected
    if math.isnan(norm):
        assert guard.verdict(done, calm, scaled=True)[0] == "good"


def test_a_stop_during_validation_is_made_up_for(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """One save, no validation line; after the resume it is there, once."""
    plan = replace(tiny_plan("clm", store, steps=(6,)), validate_every=2)
    signals = iter([False, True])

    def validate(step: int, *, stop: StopRequest | None = None) -> dict[str, float]:
        if next(signals, False):
            os.kill(os.getpid(), signal.SIGUSR1)
        assert stop is not None
        if stop.received:
            raise StopAsked
        return {"valid/loss": 1.0}

    with pytest.raises(Preempted, match="after step 4 of 6"):
        run_plan(dropping(), plan, tmp_path, validate)
    assert events(tmp_path) == ["started", "saved"]
    run_plan(dropping(), plan, tmp_path, validate)
    lines = metrics(tmp_path)
    assert [line["step"] for line in lines if "valid/loss" in line] == [2, 4, 6]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5, 6]


def test_scoring_stops_between_batches(store: TokenStore) -> None:
    from plmctl.evaluation.scoring import score

    tiny, plan = dropping(), tiny_plan("clm", store)
    stop, seen = StopRequest(), []

    def batches():
        for index in range(4):
            seen.append(index)
            yield from source(plan)[index]
            if index == 1:
                stop.received = signal.SIGTERM

    with pytest.raises(StopAsked):
        score(tiny.accelerator, tiny.network, plan.phases[0].examples, batches(), stop)
    assert seen == [0, 1, 2]


# --- Losses that are read late: the same run, to the last byte, as with every step read at once ---

LOGS, SAVES, VALIDATES = 10, 7, 8

OTHERS = [name for name in registry.names("optimizers") if name != "adamw"]


def engine(network: Network, *, late: bool, optim: OptimizerConfig | None = None) -> Engine:
    """With the kernel that a GPU has as well, and that can leave out an update by itself."""
    tiny, optim = cpu_engine(network), optim or OptimConfig(lr=1e-3)
    fused = tiny.accelerator.prepare(make_optimizer(optim, network, fused=True))
    average = Average(tiny.trained().network, Averaging(AverageConfig(name="ema", every=2), 25))
    tiny = replace(tiny, optimizer=fused, average=average)
    return enable_late_reading(tiny) if late else tiny


def plan_for(store: TokenStore, *, steps: tuple[int, ...] = (25,), objective: str = "clm") -> Plan:
    plan = tiny_plan(objective, store, steps=steps, batch=4, micro=4, save_every=SAVES)
    rising = replace(plan, learning_rate=lambda step: 1e-4 * (step + 1))
    return replace(rising, log_every=LOGS, validate_every=VALIDATES)


def logged(folder: Path) -> list[dict[str, Any]]:
    timed = ("tokens_per_second", "samples_per_second", "data_wait", "memory_gb", "time")
    path = folder / "metrics.jsonl"
    lines = map(json.loads, path.read_text().splitlines() if path.exists() else ())
    return [{key: value for key, value in line.items() if key not in timed} for line in lines]


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run has left, less the times."""
    lines = json_lines(folder / "events")
    return {
        "metrics": logged(folder),
        "events": [line | {"time": None} for line in lines],
        "divergence": {p.name: p.read_bytes() for p in sorted(folder.glob("divergence/*"))},
        "checkpoints": {p.name: contents(p) for p in sorted(folder.glob("checkpoints/*"))},
    }


def scores(engine: Engine) -> Callable[..., dict[str, float]]:
    """Of the weights: a validation that finds others tells."""

    def validate(step: int, *, stop: object = None) -> dict[str, float]:
        return {"valid/loss": sum(float(p.sum()) for p in weights(engine).values())}

    return validate


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The steps after which the loop has read."""
    seen: list[int] = []
    real = loop._synchronise

    def noting(run: Any, pending: Any, *, applied: bool) -> Any:
        seen.append(pending[-1].before.step + 1)
        return real(run, pending, applied=applied)

    monkeypatch.setattr(loop, "_synchronise", noting)
    return seen


@pytest.mark.parametrize("objective", ["clm", "mlm+nsp"])
def test_a_run_that_reads_late_is_the_run_that_reads_at_once(
    objective: str, store: TokenStore, tmp_path: Path, run_plan: Train, readings: list[int]
) -> None:
    """Two phases, dropout, a rate that changes; logged, saved and validated at odd steps."""
    due = {s for s in range(1, 26) if not (s % LOGS and s % SAVES and s % VALIDATES)} | {25}
    for late, expected in ((False, set(range(1, 26))), (True, due)):
        readings.clear()
        prepared = engine(tiny_network(objective, dropout=0.1), late=late)
        plan = plan_for(store, steps=(12, 13), objective=objective)
        run_plan(prepared, plan, tmp_path / str(late), scores(prepared))
        assert readings == sorted(expected)
    assert outcome(tmp_path / "True") == outcome(tmp_path / "False")
    assert [line["step"] for line in logged(tmp_path / "True") if "loss" in line] == [10, 20, 25]


def wrong(plan: Plan, steps: tuple[int, ...], times: float) -> Plan:
    """The plan with steps, from 0, whose loss is ``times`` what it should be."""
    (phase,) = plan.phases
    step, batches = phase.examples, source(plan)
    for number in steps:
        step = Poisoned(step, batches[number][0].inputs["input_ids"], times)
    return replace(plan, phases=(replace(phase, examples=step),))


@pytest.mark.parametrize("times", [math.nan, 1e35])  # 1e35: the loss is finite, its gradient not
@pytest.mark.parametrize("bad", [(0,), (6,), (9,), (12,), (11, 12)])
def test_a_step_that_is_not_finite_leaves_what_it_leaves_where_it_is_read_at_once(
    bad: tuple[int, ...], times: float, store: TokenStore, tmp_path: Path, run_plan: Train,
    readings: list[int],
) -> None:  # fmt: skip
    """The first step, one that is saved, one that is logged, one that nobody reads; two."""
    plan = wrong(plan_for(store, steps=(17,)), bad, times)
    engines = {}
    for late in (False, True):
        engines[late] = engine(tiny_network("clm", dropout=0.1), late=late)
        with pytest.raises(PlmError, match=f"step {bad[0] + 1}: the (loss|gradient) is not finite"):
            run_plan(engines[late], plan, tmp_path / str(late), scores(engines[late]))
    assert readings[-1] in (7, 8, 10, 14)  # the next step after the bad one whose loss is needed
    read_late = outcome(tmp_path / "True")
    # A skipped first step leaves zeros as states.
    for checkpoint in read_late["checkpoints"].values():
        checkpoint.pop("optimizer.safetensors", None) if bad == (0,) else None
    at_once = outcome(tmp_path / "False")
    for checkpoint in at_once["checkpoints"].values():
        checkpoint.pop("optimizer.safetensors", None) if bad == (0,) else None
    assert read_late == at_once
    assert len(read_late["divergence"]) == 1
    assert any(
        "loss" in file["reason"] for file in map(json.loads, read_late["divergence"].values())
    ) == math.isnan(times)
    for name, value in weights(engines[True]).items():
        assert torch.equal(value, weights(engines[False])[name]), name


@pytest.mark.parametrize(
    "optim",
    [
        OptimConfig(lr=1e-3, bias_correction=False),
        OptimConfig(lr=1e-3, bias_correction="rate"),
        *(registry.load("optimizers", name).Config(name=name, lr=1e-3) for name in OTHERS),
    ],
    ids=["bert", "gpt1", *OTHERS],
)
def test_every_optimizer_of_a_gpu_can_be_read_late(
    optim: OptimizerConfig, store: TokenStore, tmp_path: Path, run_plan: Train, readings: list[int]
) -> None:
    """The counts in the checkpoint of the stop are without the updates that were left out."""
    plan = wrong(plan_for(store, steps=(17,)), (10,), math.nan)
    for late in (False, True):
        readings.clear()
        prepared = engine(tiny_network("clm", dropout=0.1), late=late, optim=optim)
        with pytest.raises(PlmError, match="step 11: the loss is not finite"):
            run_plan(prepared, plan, tmp_path / str(late), scores(prepared))
    assert readings == [7, 8, 10, 14]
    assert outcome(tmp_path / "True") == outcome(tmp_path / "False")


def test_the_optimizer_leaves_out_what_follows_until_the_host_has_looked(
    store: TokenStore, tmp_path: Path, run_plan: Train, readings: list[int]
) -> None:
    """Between steps 8 and 12, which are read, nothing changes after a bad step 10 but the flag."""
    plan = wrong(plan_for(store, steps=(12,)), (9,), math.nan)
    plan = replace(plan, log_every=1000, validate_every=None, save_every=8)
    prepared = engine(tiny_network("clm"), late=True)
    assert prepared.found_nonfinite is not None
    seen = {}
    rate = plan.learning_rate

    def looking(step: int) -> float:
        seen[step] = float(prepared.found_nonfinite), weights(prepared)
        return rate(step)

    with pytest.raises(PlmError, match="step 10: the loss is not finite"):
        run_plan(prepared, replace(plan, learning_rate=looking), tmp_path)
    assert readings == [8, 12]
    assert [seen[step][0] for step in (9, 10, 11)] == [0.0, 1.0, 1.0]
    for step in (10, 11):
        assert all(torch.equal(value, seen[step][1][name]) for name, value in seen[9][1].items())


@pytest.mark.parametrize("how", ["until", "signal"])
def test_an_interrupted_run_that_reads_late_is_the_uninterrupted_one(
    how: str, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """Stopped between two readings."""
    plan = plan_for(store)
    cut = stopping_at(12, plan) if how == "signal" else replace(plan, until=13)
    with pytest.raises(Preempted, match="after step 13 of 25, checkpoint saved"):
        run_plan(engine(tiny_network("clm", dropout=0.1), late=True), cut, tmp_path / "cut")
    again = engine(tiny_network("clm", seed=9, dropout=0.1), late=True)
    run_plan(again, plan, tmp_path / "cut")
    run_plan(engine(tiny_network("clm", dropout=0.1), late=False), plan, tmp_path / "whole")
    ours, theirs = outcome(tmp_path / "cut"), outcome(tmp_path / "whole")
    assert ours["metrics"] == theirs["metrics"]
    last = "step-000025"
    assert ours["checkpoints"][last] == theirs["checkpoints"][last]


@dataclass(frozen=True)
class BadWindow(ChangedExamples):
    """Streams of which one window has no loss."""

    window: int
    streamed: bool = True

    def loss(self, network: Network, batch: Any) -> dict[str, torch.Tensor]:
        factor = math.nan if batch.rows.window == self.window else 1.0
        return {part: value * factor for part, value in self.step.loss(network, batch).items()}


@pytest.mark.parametrize("window", [0, 4])
def test_rows_that_go_on_go_on_from_before_a_step_that_was_left_out(
    window: int, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    plan = plan_of(store, steps=(8,), micro=3)
    bad = replace(plan.phases[0], examples=BadWindow(plan.phases[0].examples, window))
    plan = replace(plan, phases=(bad,), log_every=7, guard=Guard("skip"))
    for late in (False, True):
        run_plan(engine(bilm(dropout=0.1), late=late), plan, tmp_path / str(late))
    assert outcome(tmp_path / "True") == outcome(tmp_path / "False")
    assert events(tmp_path / "True").count("skipped") == 1


@dataclass(frozen=True)
class Big(ChangedExamples):
    """A step of which one micro-batch of four examples does not fit in memory."""

    batch: torch.Tensor

    def loss(self, network: Network, batch: Any) -> dict[str, torch.Tensor]:
        if torch.equal(batch.inputs["input_ids"], self.batch):
            return {"lm": torch.empty(2**60)}  # the allocator itself refuses
        return self.step.loss(network, batch)


def test_out_of_memory_after_steps_that_nobody_has_read(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    plan = plan_for(store, steps=(17,))
    large = source(plan)[12][0].inputs["input_ids"]
    big = Big(plan.phases[0].examples, large)
    plan = replace(plan, auto_micro_batch=True, phases=(replace(plan.phases[0], examples=big),))
    for late in (False, True):
        run_plan(engine(tiny_network("clm"), late=late), plan, tmp_path / str(late))
    assert outcome(tmp_path / "True") == outcome(tmp_path / "False")
    assert events(tmp_path / "True").count("smaller") == 1


def test_what_needs_every_loss_reads_every_step(
    store: TokenStore, tmp_path: Path, run_plan: Train, readings: list[int]
) -> None:
    """Guards that need every loss, and an optimizer whose kernel cannot leave out an update."""
    plan = plan_for(store, steps=(6,))
    run_plan(engine(tiny_network("clm"), late=True), plan, tmp_path / "late")
    assert readings == [6]
    readings.clear()
    for name, guard in (("spikes", Guard(spike=3.0)), ("skips", Guard("skip"))):
        judged = replace(plan, guard=guard)
        run_plan(engine(tiny_network("clm"), late=True), judged, tmp_path / name)
    plain = enable_late_reading(cpu_engine(tiny_network("clm")))
    assert plain.found_nonfinite is None
    run_plan(plain, plan, tmp_path / "plain")
    assert readings == 3 * [*range(1, 7)]


def test_no_more_than_a_few_steps_stay_unread(
    store: TokenStore, tmp_path: Path, run_plan: Train, readings: list[int]
) -> None:
    plan = replace(plan_for(store, steps=(70,)), log_every=1000, save_every=1000)
    plan = replace(plan, validate_every=None)
    run_plan(engine(tiny_network("clm"), late=True), plan, tmp_path, nothing)
    assert readings == [32, 64, 70]


# --- The host of a GPU waits for nothing in a step, and several hosts agree without one ---


@dataclass(frozen=True)
class Regression:
    """A step of two parts that reads nothing from the device; ``peeks``: it does."""

    peeks: bool = False
    loss_terms: tuple[str, ...] = ("far", "near")
    weights: ClassVar[dict[str, float]] = {"far": 1.0, "near": 1.0}

    def loss(self, network: nn.Module, batch: Batch) -> dict[str, torch.Tensor]:
        error = (network(batch.inputs["x"])[:, 0] - batch.targets["far"]).square().sum()
        if self.peeks:
            error.item()
        return {"far": error, "near": error.sqrt()}


def test_a_step_is_computed_and_applied_on_a_device_that_tells_nothing() -> None:
    """On PyTorch's device without data, which refuses every read: so no step of a GPU waits."""
    device = torch.device("meta")
    network = nn.Linear(4, 1, device=device)
    accelerator = make_accelerator(ComputeConfig(device="cpu"))
    accelerator.state._shared_state["device"] = device
    flag = torch.zeros((), device=device)
    meta_engine = Engine(
        accelerator, network, torch.optim.SGD(network.parameters(), 0.1), found_nonfinite=flag
    )
    target = torch.arange(3)
    batches = [Batch({"x": torch.ones(3, 4)}, {"far": target, "near": target}, 12, 12)] * 2
    computed = compute_gradient(meta_engine, Regression(), batches, 1.0, 5, stopping=False)
    apply_if_finite(meta_engine, computed)
    assert computed.values.shape == (3,)
    assert (computed.targets, computed.tokens) == ({"far": 6, "near": 6}, 24)
    with pytest.raises(RuntimeError, match="meta"):
        computed.read()
    with pytest.raises(RuntimeError, match="meta"):
        compute_gradient(meta_engine, Regression(peeks=True), batches, 1.0, 5, stopping=False)
    make_accelerator(ComputeConfig(device="cpu"))  # the state is of all accelerators


@pytest.mark.parametrize("fused", [True, False])
def test_the_count_of_updates_comes_back_where_the_kernel_reads_it(
    fused: bool, tmp_path: Path
) -> None:
    """A fused kernel counts on the device; any other asks the host, who waits for no device."""
    folder = Checkpoints(tmp_path, 3).save(3, trained(), {})
    network = trained().network.to("meta")
    optimizer = torch.optim.AdamW(network.parameters(), fused=fused)
    restore(folder, Trained(network, optimizer))
    for state in optimizer.state.values():
        assert state["exp_avg"].device.type == "meta"
        assert state["step"].device.type == ("meta" if fused else "cpu")


def _one_of_two(folder: Path, store: TokenStore, rank: int) -> None:
    """A process; the second one has a step that is not finite."""
    for late in (False, True):
        plan = plan_for(store)
        (phase,) = plan.phases
        mine = replace(phase, slicing=replace(phase.slicing, rank=rank, world=2))
        plan = replace(plan, phases=(mine,))
        if rank == 1:
            plan = wrong(plan, (12,), math.nan)

        prepared = engine(tiny_network("clm", dropout=0.1), late=late)
        prepared = replace(prepared, network=prepared.accelerator.prepare(prepared.network))
        assert (prepared.hosts is not None) == late
        assert summed_facts(prepared.hosts, prepared.accelerator, [rank + 1, 2**40]) == [3, 2**41]
        run = folder / str(late)
        run.mkdir(exist_ok=True)
        with Journal(run, title="t", total_steps=25, trackers=(), quiet=rank > 0) as journal:
            checkpoints = Checkpoints(run / "checkpoints", 3)
            with suppress(PlmError):
                train(prepared, plan, checkpoints, journal, nothing)
        values = {name: value.numpy() for name, value in weights(prepared).items()}
        np.savez(run / f"weights-{rank}.npz", **values)


def test_processes_that_read_late_are_those_that_read_at_once(
    store: TokenStore, tmp_path: Path
) -> None:
    """One process has a step that is not finite: both stop with the state before it."""
    in_two_processes(partial(_one_of_two, tmp_path, store), tmp_path)
    late, at_once = outcome(tmp_path / "True"), outcome(tmp_path / "False")
    assert late == at_once
    assert set(late["checkpoints"]) == {"step-000007", "step-000012"}
    assert [name for name in events(tmp_path / "True") if name != "saved"] == [
        "started", "diverged",
    ]  # fmt: skip
    reference = np.load(tmp_path / "False" / "weights-0.npz")
    for rank in (0, 1):
        got = np.load(tmp_path / "True" / f"weights-{rank}.npz")
        assert all(np.array_equal(got[name], value) for name, value in reference.items())


def test_an_optimizer_is_armed_only_where_its_kernel_has_the_flag() -> None:
    network = tiny_network("clm")
    armed = engine(network, late=True)
    assert armed.found_nonfinite is armed.trained().optimizer.found_inf
    assert armed.hosts is None  # one process
    plain = replace(armed, optimizer=torch.optim.AdamW(network.parameters(), fused=False))
    assert enable_late_reading(plain).found_nonfinite is None
