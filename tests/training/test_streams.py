"""Stateful rows: the recurrent state under every cut, stop and process."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from plmctl.corpus.store import TokenStore
from plmctl.errors import Preempted
from plmctl.evaluation.scoring import score
from plmctl.families.base import get_family
from plmctl.models.batch import Rows
from plmctl.models.network import Network, RecurrentState
from plmctl.tokenization.load import Vocab
from plmctl.training.data import StepBatches, scoring_batches, windows_of
from plmctl.training.loop import take_step
from plmctl.training.plan import Phase, Plan, Slicing
from tests.builders import cpu_engine, make_examples, make_network, stopping_at
from tests.training.conftest import Train, metrics, weights

HEADS = get_family("elmo").HEADS
WORDS = tuple(f"w{number}" for number in range(120))
VOCAB = Vocab(size=120, unk=2, bos=0, eos=1, words=WORDS)


def network(seed: int = 0, dropout: float = 0.0) -> Network:
    fields = {"projection_size": 16, "cell_size": 24, "dropout": dropout}
    return make_network("elmo", 120, HEADS, seed=seed, size="tiny", **fields)


def plan_of(
    store: TokenStore,
    *,
    steps: tuple[int, ...] = (6,),
    batch: int = 8,
    micro: int = 8,
    **fields: object,
) -> Plan:
    phases = []
    for number, count in enumerate(steps):
        step = make_examples("bilm", store, VOCAB, 10 + 5 * number, **fields)
        phases.append(Phase(step, count, Slicing(8, micro)))
    return Plan(tuple(phases), 7, lambda step: 1e-2, 1.0, 1, None, 1000)


def test_rows_read_on_where_they_stopped() -> None:
    steps = [windows_of(step, 23, 4) for step in range(12)]
    epochs, samples = np.stack(steps).transpose(1, 0, 2)
    assert epochs[:, 0].tolist() == [0] * 5 + [1] * 5 + [2] * 2
    assert samples[:5].T.tolist() == [[5 * r + k for k in range(5)] for r in range(4)]
    assert np.array_equal(samples[5:10], samples[:5])
    assert (epochs == epochs[:, :1]).all()


@pytest.mark.parametrize("fields", [{}, {"softmax": "sampled", "samples": 30}])
def test_loss_and_weights_do_not_depend_on_micro_batches(
    fields: dict, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """1x8 = 2x4 = 4x2 = 3 uneven pieces, over several windows of recurrent state."""
    results = {}
    for micro in (8, 4, 2, 3):
        engine = cpu_engine(network())
        run_plan(engine, plan_of(store, steps=(4,), micro=micro, **fields), tmp_path / f"{micro}")
        results[micro] = (
            metrics(tmp_path / f"{micro}"),
            weights(engine),
            engine.trained().recurrent_state,
        )
    whole, reference, recurrent_state = results[8]
    assert recurrent_state.slots.shape == (8, 2, 2, 16 + 24)
    assert (recurrent_state.slots.abs().amax((1, 2, 3)) > 0.01).all()
    for micro in (4, 2, 3):
        records, got, slots = results[micro]
        for record, expected in zip(records, whole, strict=True):
            assert record["loss"] == pytest.approx(expected["loss"], rel=2e-6)
        assert records[0]["grad_norm"] == pytest.approx(whole[0]["grad_norm"], rel=1e-5)
        assert torch.allclose(slots.slots, recurrent_state.slots, atol=1e-4)
        for name, expected in reference.items():
            assert torch.allclose(got[name], expected, rtol=1e-3, atol=5e-5), name


def test_two_processes_give_the_losses_of_one(store: TokenStore) -> None:
    """Each takes its rows of the same step; what they sum to is the step of one process."""
    step = plan_of(store).phases[0].examples
    alone, shared = network(), [network(), network()]
    for number in range(3):
        (whole,) = StepBatches(step, Slicing(8, 8), 7)[number]
        expected = step.loss(alone, whole)
        sums = dict.fromkeys(HEADS, 0.0)
        for rank in (0, 1):
            for batch in StepBatches(step, Slicing(8, 2, rank, 2), 7)[number]:
                for part, value in step.loss(shared[rank], batch).items():
                    sums[part] += value.item()
        for part in HEADS:
            assert sums[part] == pytest.approx(expected[part].item(), rel=1e-6)
    gathered = sum(shared_value(net.recurrent_state) for net in shared)
    for net in shared:
        net.recurrent_state.share(lambda mine: gathered)
        assert torch.allclose(net.recurrent_state.slots, alone.recurrent_state.slots, atol=1e-6)


def shared_value(recurrent_state: RecurrentState) -> torch.Tensor:
    """What a process gives to the sum over processes."""
    seen = []
    recurrent_state.share(lambda mine: seen.append(mine) or mine)
    return seen[0]


def test_after_a_resume_only_a_process_own_rows_count() -> None:
    """All rows were restored in every process; those of the others are old by now."""
    recurrent_state = RecurrentState(torch.full((4, 1), 9.0))
    recurrent_state.put(Rows(1, 2, 4, 0), torch.tensor([[1.0]]))
    recurrent_state.put(Rows(2, 3, 4, 0), torch.tensor([[2.0]]))
    assert shared_value(recurrent_state).flatten().tolist() == [0, 1, 2, 0]
    untouched = RecurrentState(torch.ones(4, 1))
    untouched.share(lambda mine: pytest.fail("nothing was put, so nothing is summed"))


@pytest.mark.parametrize("fields", [{}, {"softmax": "sampled", "samples": 30}])
def test_an_interrupted_run_is_the_uninterrupted_one(
    fields: dict, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """Two phases, dropout on, stopped by a signal: the same losses, weights and state."""
    whole = cpu_engine(network(dropout=0.1))
    run_plan(whole, plan_of(store, steps=(3, 4), micro=3, **fields), tmp_path / "whole")
    plan = plan_of(store, steps=(3, 4), micro=3, **fields)
    with pytest.raises(Preempted):
        run_plan(cpu_engine(network(dropout=0.1)), stopping_at(4, plan), tmp_path / "cut")
    assert 4 <= metrics(tmp_path / "cut")[-1]["step"] < 7
    second = cpu_engine(network(seed=99, dropout=0.1))
    assert run_plan(second, plan, tmp_path / "cut").step == 7
    expected, got = metrics(tmp_path / "whole"), metrics(tmp_path / "cut")
    exact = ("step", "loss", "loss/forward", "loss/backward", "grad_norm", "tokens")
    assert [{k: r[k] for k in exact} for r in got] == [{k: r[k] for k in exact} for r in expected]
    assert torch.equal(
        second.trained().recurrent_state.slots, whole.trained().recurrent_state.slots
    )
    for name, value in weights(second).items():
        assert torch.equal(value, weights(whole)[name]), name


def test_the_loss_is_the_mean_of_both_directions_and_so_is_its_gradient(store: TokenStore) -> None:
    step = plan_of(store).phases[0].examples
    (whole,) = StepBatches(step, Slicing(8, 8), 7)[0]
    reference = network()
    sums = step.loss(reference, whole)
    loss = sum(0.5 * sums[part] / whole.counts()[part] for part in HEADS)
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in reference.parameters() if p.grad is not None]).norm()
    done = take_step(cpu_engine(network()), step, [whole], None, 1)
    assert done.loss == pytest.approx(loss.item(), rel=1e-6)
    assert done.loss == pytest.approx(sum(done.losses.values()) / 2, rel=1e-9)
    assert done.grad_norm == pytest.approx(norm.item(), rel=1e-5)


def test_gradients_stop_at_the_window(store: TokenStore) -> None:
    step = plan_of(store).phases[0].examples
    net = network()
    for number in (0, 1):
        (batch,) = StepBatches(step, Slicing(8, 8), 7)[number]
        step.loss(net, batch)["forward"].backward()  # would raise if it went back a second time
        assert not net.recurrent_state.slots.requires_grad


def test_carried_windows_are_one_long_window(store: TokenStore) -> None:
    """Losses of four windows of 5 in a row = the loss of one of 20, in the order of the text."""
    short, long = (make_examples("bilm", store, VOCAB, n, shuffle=False) for n in (5, 20))
    net = network().eval()
    with torch.no_grad():
        zero = np.zeros(1, int)
        expected = long.loss(net, long.collate(zero, np.array([0])))
        sums = dict.fromkeys(HEADS, 0.0)
        for window in range(4):
            batch = short.collate(zero, np.array([window]))
            batch = replace(batch, rows=Rows(0, 1, 1, window))
            for part, value in short.loss(net, batch).items():
                sums[part] += value.item()
    for part in HEADS:
        assert sums[part] == pytest.approx(expected[part].item(), rel=1e-6)


def test_scoring_depends_on_no_micro_batch_and_leaves_the_state(store: TokenStore) -> None:
    engine = cpu_engine(network())
    step = plan_of(store).phases[0].examples
    (batch,) = StepBatches(step, Slicing(8, 8), 7)[0]
    step.loss(engine.network, batch)
    before = engine.trained().recurrent_state.slots.clone()
    figures = []
    for micro in (3, 32):
        batches = scoring_batches(step, Slicing(1, micro))
        figures.append(score(engine.accelerator, engine.network, step, batches))
    assert figures[0] == pytest.approx(figures[1], rel=1e-5)
    mean = sum(figures[0][f"loss/{part}"] for part in HEADS) / 2
    assert figures[0]["loss"] == pytest.approx(mean)
    assert torch.equal(engine.trained().recurrent_state.slots, before)
    scored = sum(len(b.targets["forward"]) for b in scoring_batches(step, Slicing(1, 5)))
    assert len(step) - 32 < scored <= len(step)


def test_a_few_scored_windows_are_of_all_of_the_text() -> None:
    text = TokenStore.from_lists([[[word] * 9] * 100 for word in (20, 40)], VOCAB.size)
    step = make_examples("bilm", text, VOCAB, 5, shuffle=False)
    batches = scoring_batches(step, Slicing(1, 32), len(step) // 4)
    scored = torch.cat([batch.targets["forward"].flatten() for batch in batches])
    assert 0.45 < (scored == 20).sum() / ((scored == 20) | (scored == 40)).sum() < 0.55
