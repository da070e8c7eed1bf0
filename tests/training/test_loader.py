import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.corpus.store import TokenStore
from plmctl.training.loader import Slicing, StepBatches, examples_of, scoring_batches
from tests.training.conftest import tiny_plan


@given(st.integers(1, 200), st.integers(1, 64), st.integers(0, 2**32))
@settings(deadline=None)
def test_an_epoch_has_every_sample_once(size: int, batch: int, seed: int) -> None:
    steps = -(-2 * size // batch)
    stream = np.concatenate([examples_of(step, size, batch, seed) for step in range(steps)], axis=1)
    for epoch in (0, 1):
        samples = stream[1][stream[0] == epoch]
        assert sorted(samples.tolist()) == list(range(size))


def test_a_far_step_needs_no_history() -> None:
    far = examples_of(10**6, 1000, 32, 7)
    assert far[0].min() == 10**6 * 32 // 1000
    assert np.array_equal(far, examples_of(10**6, 1000, 32, 7))


@given(st.integers(1, 5), st.integers(1, 40), st.integers(1, 20))
@settings(deadline=None)
def test_slices_of_all_processes_make_the_whole_step(world: int, rows: int, micro: int) -> None:
    rows += world
    samples = np.arange(rows)
    pieces = [Slicing(rows, micro, rank, world).mine(samples) for rank in range(world)]
    assert np.concatenate([p for rank in pieces for p in rank]).tolist() == samples.tolist()
    assert all(1 <= len(p) <= micro for rank in pieces for p in rank)


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp", "clm"])
def test_examples_do_not_depend_on_processes_or_micro_batches(
    objective: str, store: TokenStore
) -> None:
    """The same tokens and masks in the same order, however the step is cut."""
    step = tiny_plan(objective, store).phases[0].step

    def rows(world: int, micro: int, number: int) -> list[list[int]]:
        found = []
        for rank in range(world):
            for batch in StepBatches(step, Slicing(12, micro, rank, world), 7)[number]:
                found += [
                    [token for token in row if token] for row in batch.inputs["input_ids"].tolist()
                ]
        return found

    for number in (0, 41):
        reference = rows(1, 12, number)
        assert rows(1, 5, number) == reference
        assert rows(3, 2, number) == reference


def test_scoring_sees_every_sample_once(store: TokenStore) -> None:
    step = tiny_plan("clm", store).phases[0].step
    seen = sum(
        len(batch.inputs["input_ids"])
        for rank in range(3)
        for batch in scoring_batches(step, Slicing(1, 4, rank, 3))
    )
    assert seen == len(step)
    few = [b for rank in range(3) for b in scoring_batches(step, Slicing(1, 4, rank, 3), 2)]
    assert sum(len(b.inputs["input_ids"]) for b in few) == 2
