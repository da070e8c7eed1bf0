"""Which examples are in a step: a function of the step alone, each example once in an epoch."""

from contextlib import closing
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.arrays import exact_shares
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError, DataError
from plmctl.models.batch import Batch
from plmctl.objectives.clm import CausalLM, CausalWindows, Config
from plmctl.training.data import (
    Grouped,
    Mixture,
    StepBatches,
    StepLoader,
    examples_of,
    mixture,
    scoring_batches,
    step_digests,
    training_batches,
)
from plmctl.training.journal import Progress
from plmctl.training.memory import heaviest
from plmctl.training.plan import Slicing
from tests.builders import make_examples
from tests.training.conftest import VOCAB, tiny_plan

# --- Order, processes, micro-batches ---


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
    step = tiny_plan(objective, store).phases[0].examples

    def rows(world: int, micro: int, number: int) -> list[list[int]]:
        rows_seen = []
        for rank in range(world):
            for batch in StepBatches(step, Slicing(12, micro, rank, world), 7)[number]:
                rows_seen += [
                    [token for token in row if token] for row in batch.inputs["input_ids"].tolist()
                ]
        return rows_seen

    for number in (0, 41):
        reference = rows(1, 12, number)
        assert rows(1, 5, number) == reference
        assert rows(3, 2, number) == reference


@pytest.mark.parametrize("tokens", [1, 4_096, 1 << 20])
def test_an_error_in_a_step_comes_at_its_turn(
    tokens: int, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many steps are made at once, and all before it are those that are made alone."""
    phase = tiny_plan("mlm", store, steps=(9,)).phases[0]

    class Damaged(StepBatches):
        def __getitem__(self, index: int) -> list[Batch]:
            if index == 5:
                raise DataError("the store is damaged")
            return [replace(b, padded_tokens=tokens) for b in super().__getitem__(index)]

    steps = Damaged(phase.examples, phase.slicing, seed=3)
    for quick in (0.0, 60.0):
        monkeypatch.setattr("plmctl.training.data._QUICK", quick)
        batches, seen = training_batches(steps, 1, 9, workers=0), []
        with pytest.raises(DataError, match="the store is damaged"):
            seen.extend(batches)
        assert len(seen) == 4
        for step, ours in enumerate(seen, start=1):
            for one, alone in zip(ours, steps[step], strict=True):
                assert torch.equal(one.inputs["input_ids"], alone.inputs["input_ids"])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_rate_that_changes_is_that_of_its_step(workers: int, store: TokenStore) -> None:
    """Over both phases, in worker processes, after a resume, and in any micro-batches."""
    rate = {"start": 0.6, "end": 0.1}
    plan = tiny_plan("mlm", store, steps=(3, 3))
    examples = make_examples("mlm", store, VOCAB, 32, rate=rate)
    phases = tuple(replace(phase, examples=examples) for phase in plan.phases)
    plan = replace(plan, phases=phases, workers=workers)

    def share(batches: list[Batch]) -> float:
        return sum(len(b.targets["mlm"]) for b in batches) / sum(b.tokens for b in batches)

    for first in (0, 4):
        loader = StepLoader(plan)
        with closing(loader):
            for step in range(first, 6):
                _, _, batches = loader.next_step(Progress(step=step))
                assert share(batches) == pytest.approx(0.6 - step * 0.1, abs=0.02)
    digests = [
        list(step_digests(plan, 6, world=world, micro=micro))
        for world, micro in ((1, 16), (2, 16), (1, 3))
    ]
    assert digests[0] == digests[1] == digests[2]
    fixed = replace(phases[0], examples=phases[0].examples.at_step(0, 2))
    other = replace(plan, phases=(fixed, phases[1]))
    assert next(step_digests(other, 1, world=1, micro=16)) == digests[0][0]
    assert share([heaviest(phases[0], 7, 16)]) == pytest.approx(0.6, abs=0.02)


def test_all_corpora_of_a_mixture_have_the_rate_of_the_step() -> None:
    made = mixed("mlm", rate={"start": 0.6, "end": 0.1}).at_step(0, 2)
    batch = StepBatches(made, Slicing(24, 24), 7)[0]
    for one in batch:
        assert len(one.targets["mlm"]) / one.tokens == pytest.approx(0.6, abs=0.05)


def test_scoring_sees_every_sample_once(store: TokenStore) -> None:
    step = tiny_plan("clm", store).phases[0].examples
    seen = sum(
        len(batch.inputs["input_ids"])
        for rank in range(3)
        for batch in scoring_batches(step, Slicing(1, 4, rank, 3))
    )
    assert seen == len(step)
    few = [b for rank in range(3) for b in scoring_batches(step, Slicing(1, 4, rank, 3), 2)]
    assert sum(len(b.inputs["input_ids"]) for b in few) == 2


@pytest.mark.parametrize("name", ["mlm", "mlm+nsp", "mlm+sop", "mlm+sbo", "clm"])
def test_a_few_scored_samples_are_of_all_of_the_text(name: str) -> None:
    """A text of two subjects: the first quarter of its samples is of the first one alone."""
    subjects = [[[[word] * 9] * 12] * 100 for word in (20, 40)]
    store = TokenStore.from_lists(subjects[0] + subjects[1], VOCAB.size)
    examples = make_examples(name, store, VOCAB, 32)
    ids = torch.cat([
        batch.inputs["input_ids"].flatten()
        for batch in scoring_batches(examples, Slicing(1, 64), len(examples) // 4)
    ])  # fmt: skip
    first = (ids == 20).sum() / ((ids == 20) | (ids == 40)).sum()
    assert 0.45 < first < 0.55


@given(st.lists(st.integers(1, 30), min_size=1, max_size=30), st.integers(1, 3))
@settings(deadline=None)
def test_scoring_by_length_sees_every_row_once(sizes: list[int], world: int) -> None:
    documents = [[[10 + number] * size] for number, size in enumerate(sizes)]
    step = make_examples("mlm", TokenStore.from_lists(documents, VOCAB.size), VOCAB, 32)
    seen: list[list[int]] = []
    for rank in range(world):
        batches = scoring_batches(step, Slicing(1, 4, rank, world), lengths=np.array(sizes))
        rows = [row for batch in batches for row in batch.inputs["attention_mask"].sum(1).tolist()]
        assert rows == sorted(rows)
        seen.append(rows)
    assert sorted(sum(seen, [])) == sorted(size + 2 for size in sizes)  # [CLS] and [SEP]
    assert max(map(sum, seen)) <= min(map(sum, seen)) + 32 * world


# --- Length-grouped steps are a shuffle of every epoch, and a function of the step alone ---


@pytest.mark.slow
@given(st.integers(1, 400), st.integers(1, 40), st.integers(0, 2**32))
@settings(deadline=None, max_examples=60)
def test_an_epoch_of_grouped_steps_has_every_sample_once(size: int, batch: int, seed: int) -> None:
    lengths = np.random.default_rng(size).integers(1, 60, size)
    steps = -(-2 * size // batch)
    grouped = Grouped(lengths, batch, seed)
    parts = [grouped[step] for step in range(steps)]
    assert all(part.shape == (2, batch) for part in parts)
    stream = np.concatenate(parts, axis=1)
    for epoch in (0, 1):
        samples = stream[1][stream[0] == epoch]
        assert sorted(samples.tolist()) == list(range(size))


def test_steps_belong_to_the_same_epochs_as_ungrouped_ones() -> None:
    lengths = np.random.default_rng(0).integers(1, 60, 333)
    grouped = Grouped(lengths, 32, 7)
    for step in range(40):
        assert np.array_equal(grouped[step][0], examples_of(step, 333, 32, 7)[0])


def padding(parts: list[np.ndarray], lengths: np.ndarray) -> float:
    """The share of a padded batch that is padding."""
    rows = [lengths[part[1]] for part in parts]
    return 1 - sum(r.sum() for r in rows) / sum(len(r) * r.max() for r in rows)


def test_there_is_little_padding_in_every_epoch() -> None:
    lengths = np.random.default_rng(1).geometric(0.05, 5000)
    plain = padding([examples_of(s, 5000, 32, 3) for s in range(450)], lengths)
    grouped = Grouped(lengths, 32, 3)
    for first in (0, 157, 313):  # the first steps of three epochs
        steps = range(first, first + 150)
        assert padding([grouped[s] for s in steps], lengths) < plain / 6


def test_steps_are_in_no_order_of_length_and_change_with_epoch_and_seed() -> None:
    lengths = np.arange(6400)
    grouped = Grouped(lengths, 32, 5)
    means = [lengths[grouped[s][1]].mean() for s in range(200)]
    assert abs(np.corrcoef(means, range(200))[0, 1]) < 0.25
    one, again, other = (
        set(Grouped(lengths, 32, seed)[step][1]) for step, seed in ((3, 5), (203, 5), (3, 6))
    )
    assert one != again
    assert one != other


@pytest.mark.parametrize("step", [10**6, 10**6 + 1])
def test_a_far_grouped_step_needs_no_history(step: int) -> None:
    lengths = np.random.default_rng(2).integers(1, 60, 1000)
    there = Grouped(lengths, 32, 7)[step]
    assert there[0].min() == step * 32 // 1000


@given(st.integers(1, 300), st.integers(1, 40), st.lists(st.integers(0, 60), max_size=12))
@settings(deadline=None, max_examples=60)
def test_windows_that_are_kept_do_not_change_a_step(size: int, batch: int, order: list) -> None:
    lengths = np.random.default_rng(size).integers(1, 60, size)
    grouped = Grouped(lengths, batch, 7)
    for step in order:
        assert np.array_equal(grouped[step], Grouped(lengths, batch, 7)[step])


# --- Mixtures: exact shares, every sample once before any comes again, nothing kept ---

NAMES = ("clm", "mlm", "mlm+nsp")


def some_store(first: int, documents: int) -> TokenStore:
    """A corpus whose tokens tell it from the others: ``first`` to ``first + 30``."""
    rng = np.random.default_rng(first)
    return TokenStore.from_lists(
        [
            [rng.integers(first, first + 30, rng.integers(3, 15)).tolist() for _ in range(12)]
            for _ in range(documents)
        ],
        vocab_size=120,
    )


def mixed(
    objective: str = "clm", weights: tuple[float, ...] = (0.6, 0.3, 0.1), **fields: object
) -> Mixture:
    stores = [some_store(10, 20), some_store(45, 4), some_store(80, 9)]
    steps = [make_examples(objective, store, VOCAB, 32, **fields) for store in stores]
    return mixture(("web", "books", "wiki"), steps, weights, 3)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=8), st.integers(0, 10**6))
def test_shares_are_exact(weights: list[float], total: int) -> None:
    counts = exact_shares(weights, total)
    assert counts.sum() == total
    assert np.abs(counts - np.array(weights) / sum(weights) * total).max() < 1 + 1e-6


def test_shares_of_gpt3() -> None:
    """The table's weights, which sum to 101, over 300B tokens: how often each corpus is seen.

    The table itself has 0.44, 2.9, 1.9, 0.43 and 3.4, from weights before rounding.
    """
    counts = exact_shares((60, 22, 8, 8, 3), 300 * 10**9)
    sizes = np.array([410, 19, 12, 55, 3]) * 10**9
    assert counts / sizes == pytest.approx([0.44, 3.4, 2.0, 0.43, 3.0], rel=0.06)


def test_an_epoch_has_exactly_its_shares() -> None:
    mixture = mixed()
    samples = np.arange(len(mixture))
    assert len(mixture) == sum(len(step) for step in mixture.parts)
    for epoch in (0, 1, 17):
        source, _, _ = mixture.locate(np.full_like(samples, epoch), samples)
        assert np.bincount(source).tolist() == mixture.counts.tolist()
    share = mixture.counts / len(mixture)
    assert share == pytest.approx([0.6, 0.3, 0.1], abs=1 / len(mixture))


def test_all_of_a_corpus_comes_before_any_of_it_again() -> None:
    mixture = mixed()
    epochs, samples = np.divmod(np.arange(6 * len(mixture)), len(mixture))
    source, within, number = mixture.locate(epochs, samples)
    for at, step in enumerate(mixture.parts):
        mine = source == at
        seen = within[mine] * len(step) + number[mine]
        assert len(np.unique(seen)) == len(seen)  # no sample twice in a pass of the corpus
        for whole in range(within[mine].max()):  # and every pass but the last is complete
            assert (within[mine] == whole).sum() == len(step)
        assert within[mine].max() == (6 * mixture.counts[at] - 1) // len(step)
    # books: 30 % of the samples, with far less text than web, is seen more often.
    assert within[source == 1].max() > 2 * within[source == 0].max()


def test_a_prefix_is_mixed_and_passes_differ() -> None:
    """Validation scores the first samples of epoch 0: they come from all."""
    mixture = mixed()
    source, _, number = mixture.locate(np.zeros(60, np.int64), np.arange(60))
    assert np.bincount(source, minlength=3).min() > 0
    assert number[source == 0].tolist() != sorted(number[source == 0].tolist())
    first, second = (
        mixture.locate(np.full(60, epoch), np.arange(60))[0].tolist() for epoch in (0, 1)
    )
    assert first != second


@pytest.mark.parametrize("name", NAMES)
def test_steps_do_not_depend_on_processes_or_micro_batches(name: str) -> None:
    mixture = mixed(name)

    def rows(world: int, micro: int, number: int) -> list[list[int]]:
        rows_seen = []
        for rank in range(world):
            for batch in StepBatches(mixture, Slicing(24, micro, rank, world), 7)[number]:
                ids = batch.inputs["input_ids"]
                assert len(ids) <= micro
                origins = {
                    (int(t) - 10) // 35
                    for t in batch.targets[mixture.loss_terms[0]].flatten()
                    if t >= 10
                }
                assert len(origins) == 1  # a batch never mixes corpora
                rows_seen += [[t for t in row if t] for row in ids.tolist()]
        return sorted(rows_seen)

    for number in (0, 9):
        reference = rows(1, 24, number)
        assert len(reference) == 24
        assert rows(1, 5, number) == reference
        assert rows(3, 4, number) == reference


def test_a_far_step_of_a_mixture_needs_no_history() -> None:
    mixture = mixed()
    far = StepBatches(mixture, Slicing(24, 24), 7)[10**7]
    again = StepBatches(mixed(), Slicing(24, 24), 7)[10**7]
    assert sum(len(b.inputs["input_ids"]) for b in far) == 24
    for one, other in zip(far, again, strict=True):
        assert one.inputs["input_ids"].tolist() == other.inputs["input_ids"].tolist()


def test_scoring_sees_every_sample_of_a_mixture_once() -> None:
    mixture = mixed("mlm")
    for limit in (None, 17, 2):
        seen = sum(
            len(batch.inputs["input_ids"])
            for rank in range(3)
            for batch in scoring_batches(mixture, Slicing(1, 4, rank, 3), limit)
        )
        assert seen == (limit or len(mixture))


def test_a_mixed_batch_is_refused() -> None:
    mixture = mixed()
    with pytest.raises(ValueError, match="split"):
        mixture.collate(np.zeros(60, np.int64), np.arange(60))


def test_a_weight_of_nothing() -> None:
    with pytest.raises(ConfigError, match="weight of wiki"):
        mixed(weights=(0.6, 0.4, 1e-9))


@pytest.mark.parametrize("name", NAMES)
def test_statistics_show_the_shares(name: str) -> None:
    mixture = mixed(name)
    samples = np.arange(len(mixture))
    tallies = mixture.tally(np.zeros_like(samples), samples)
    expected = mixture.expected()
    for corpus, share in (("web", 0.6), ("books", 0.3), ("wiki", 0.1)):
        total, cases = tallies[f"share_{corpus}"]
        assert total / cases == pytest.approx(expected[f"share_{corpus}"])
        assert total / cases == pytest.approx(share, abs=0.03)
    assert mixture.example(0, 3).note.endswith(("[web]", "[books]", "[wiki]"))


class Halved(CausalWindows):
    """A step whose part counts for half of the loss."""

    weights: ClassVar = {"lm": 0.5}


def test_loss_terms_have_the_weights_of_their_objective() -> None:
    plain = mixed()
    assert plain.weights["lm"] == 1.0
    objective, store = CausalLM(Config()), some_store(10, 20)
    halved = [Halved(objective, store, 32, VOCAB.eos) for _ in plain.parts]
    assert mixture(plain.names, halved, (1, 1, 1), 3).weights["lm"] == 0.5


# --- The examples of a step, however it is cut up: equal hashes, and hashes that can differ ---


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp", "mlm+sop", "clm"])
def test_digests_do_not_depend_on_processes_or_micro_batches(
    objective: str, store: TokenStore
) -> None:
    plan = tiny_plan(objective, store, steps=(4, 3))
    whole = list(step_digests(plan, 7, world=1, micro=16))
    assert len(set(whole)) == 7
    for world, micro in ((2, 16), (3, 2), (1, 5), (16, 1)):
        assert list(step_digests(plan, 7, world=world, micro=micro)) == whole
    assert list(step_digests(plan, 5, world=2, micro=3)) == whole[:5]


def test_another_seed_has_other_examples(store: TokenStore) -> None:
    plan = tiny_plan("clm", store, steps=(3,))
    ours = list(step_digests(plan, 3, world=1, micro=16))
    theirs = list(step_digests(replace(plan, seed=8), 3, world=1, micro=16))
    assert not set(ours) & set(theirs)
