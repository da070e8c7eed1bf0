"""The contracts of the loop: the loss does not depend on how a step is cut, a run not on stops."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from plmctl.corpus.store import TokenStore
from plmctl.errors import PlmError, Preempted
from plmctl.training.data import Slicing, StepBatches
from plmctl.training.loop import update
from tests.training.conftest import Train, tiny_engine, tiny_network, tiny_plan, weights

OBJECTIVES = ["mlm", "mlm+nsp", "mlm+sop", "clm"]


def metrics(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_loss_and_weights_do_not_depend_on_micro_batches(
    objective: str, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    results = {}
    for micro in (16, 8, 4, 5):
        engine = tiny_engine(tiny_network(objective))
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
    step = plan.phases[0].step
    (whole,) = StepBatches(step, Slicing(16, 16), plan.seed)[0]
    logits = network(**whole.inputs)
    loss = sum(
        cross_entropy(logits[part].flatten(0, -2), whole.targets[part].flatten())
        for part in step.parts
    )
    loss.backward()
    expected = {n: p.grad.clone() for n, p in network.model.named_parameters()}

    engine = tiny_engine(tiny_network(objective))
    got = {}
    for name, parameter in engine.trained().network.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: got.__setitem__(name, p.grad.clone())
        )
    batches = StepBatches(step, Slicing(16, 3), plan.seed)[0]
    assert len(batches) == 6
    done = update(engine, step, batches, None, 1, False)
    assert done.loss == pytest.approx(loss.item(), rel=1e-6)
    for name, gradient in expected.items():
        assert torch.allclose(got[name], gradient, rtol=1e-4, atol=1e-6), name


def test_model_loss_is_transformers_own(store: TokenStore) -> None:
    """Gathering the masked positions gives the loss of BertForPreTraining over all positions."""
    network = tiny_network("mlm+nsp")
    step = tiny_plan("mlm+nsp", store).phases[0].step
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
    whole = tiny_engine(tiny_network(objective, dropout=0.1))
    plan = tiny_plan(objective, store, steps=(3, 5), micro=8)
    run_plan(whole, plan, tmp_path / "whole")

    plan = tiny_plan(objective, store, steps=(3, 5), micro=8)
    first = tiny_engine(tiny_network(objective, dropout=0.1))
    rate = plan.learning_rate

    def stop_at(step: int) -> float:
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return rate(step)

    object.__setattr__(plan, "learning_rate", stop_at)
    with pytest.raises(Preempted, match="run the same command again"):
        run_plan(first, plan, tmp_path / "cut")
    assert 4 <= metrics(tmp_path / "cut")[-1]["step"] < 8

    object.__setattr__(plan, "learning_rate", rate)
    second = tiny_engine(tiny_network(objective, seed=99, dropout=0.1))
    progress = run_plan(second, plan, tmp_path / "cut")
    assert progress.step == 8
    expected, got = metrics(tmp_path / "whole"), metrics(tmp_path / "cut")
    exact = ("step", "phase", "tokens", "loss", "lr", "grad_norm", "padding", "epoch")
    assert [{k: r[k] for k in exact} for r in got] == [{k: r[k] for k in exact} for r in expected]
    reference = weights(whole)
    for name, value in weights(second).items():
        assert torch.equal(value, reference[name]), name


def test_dropout_differs_between_steps(store: TokenStore, tmp_path: Path, run_plan: Train) -> None:
    engine = tiny_engine(tiny_network("clm", dropout=0.5), lr=1e-9)
    plan = tiny_plan("clm", store, steps=(1,), lr=1e-9)
    batches = StepBatches(plan.phases[0].step, Slicing(16, 16), 7)[0]
    losses = {update(engine, plan.phases[0].step, batches, None, key, False).loss for key in (1, 2)}
    again = update(engine, plan.phases[0].step, batches, None, 1, False).loss
    assert len(losses) == 2
    assert min(abs(again - loss) for loss in losses) < 1e-6


def test_a_loss_that_is_not_finite_stops_the_run(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    network = tiny_network("mlm")
    with torch.no_grad():
        network.model.bert.embeddings.LayerNorm.weight[0] = float("nan")
    with pytest.raises(PlmError, match="step 1: the loss is not finite; the state before"):
        run_plan(tiny_engine(network), tiny_plan("mlm", store), tmp_path)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_training_learns(objective: str, tmp_path: Path, run_plan: Train) -> None:
    """A corpus whose next word is certain: the loss falls far below its start."""
    documents = [[[6 + (s + i) % 20 for i in range(12)] for s in range(6)] for _ in range(10)]
    store = TokenStore.from_lists(documents, vocab_size=120)
    engine = tiny_engine(tiny_network(objective), lr=3e-3)
    plan = tiny_plan(objective, store, steps=(60,), lr=3e-3)
    run_plan(engine, plan, tmp_path)
    first, last = metrics(tmp_path)[0], metrics(tmp_path)[-1]
    assert last["loss"] < first["loss"] - 1.0
