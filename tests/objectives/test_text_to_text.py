"""T5's objectives as whole batches: exact lengths, published rates, the library's own loss."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError
from plmctl.evaluation.scoring import score
from plmctl.examples.inspection import means
from plmctl.models.base import Examples
from plmctl.models.batch import Batch
from plmctl.models.network import Network
from plmctl.tokenization.load import Vocab
from plmctl.training.data import StepBatches
from plmctl.training.loop import take_step
from plmctl.training.plan import Slicing
from plmctl.training.shapes import fixed
from tests.builders import cpu_engine, make_examples, make_network, outcome_of_step

SENTINELS = tuple(range(1099, 999, -1))
VOCAB = Vocab(size=1100, pad=0, eos=1, unk=2, sentinels=SENTINELS)
PACKED = ("prefix_lm", "deshuffling")
NAMES = ("span_corruption", "iid_denoising", *PACKED)


@pytest.fixture(scope="module")
def store() -> TokenStore:
    """300 documents of 1 to 900 tokens, ordinary ids only."""
    rng = np.random.default_rng(8)
    sizes = rng.integers(1, 900, 300)
    return TokenStore.from_lists([[rng.integers(3, 1000, n).tolist()] for n in sizes], 1100)


def make_objective(name: str, store: TokenStore, seq_len: int = 64, **fields: object) -> Examples:
    return make_examples(name, store, VOCAB, seq_len, 5, **fields)


def network(version: str = "v1.0", seed: int = 0, dropout: float = 0.0) -> Network:
    fields = {"version": version, "d_model": 64, "d_ff": 96, "dropout_rate": dropout}
    return make_network("t5", VOCAB.size, ("lm",), seed=seed, size="tiny", **fields)


def rows(objective: Examples, epoch: int, samples: np.ndarray) -> list[tuple[list[int], list[int]]]:
    """Input and target of each example of the rows, without padding."""
    return examples_of(objective.collate(np.full(len(samples), epoch), samples))


def examples_of(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The same of a batch: of rows of several examples, each of these."""
    ids, number = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    decoder = batch.inputs["decoder_input_ids"]
    labels = torch.full_like(decoder, -1).flatten()
    labels[batch.inputs["positions"]] = batch.targets["lm"]
    labels = labels.view_as(decoder)
    texts = batch.inputs.get("decoder_texts", (labels >= 0).long())
    return [
        (ids[row][number[row] == text].tolist(), labels[row][texts[row] == text].tolist())
        for row in range(len(ids))
        for text in range(1, int(number[row].max()) + 1)
    ]


def texts(store: TokenStore, objective: Examples) -> list[list[int]]:
    """The segments, in the order in which the rows have them."""
    order = objective.segments_of(np.zeros(len(objective), int), np.arange(len(objective)))[1]
    spans = zip(objective.starts[order], objective.ends[order], strict=True)
    return [store.tokens(np.arange(start, end)).tolist() for start, end in spans]


def test_span_corruption_fills_its_lengths_exactly(store: TokenStore) -> None:
    objective = make_objective("span_corruption", store, 512)
    full = np.flatnonzero(objective.ends - objective.starts == 568)
    assert len(full) > 100
    batch = objective.collate(np.zeros_like(full[:32]), full[:32])
    assert batch.inputs["input_ids"].shape == (32, 512)
    assert batch.inputs["decoder_input_ids"].shape == (32, 114)
    assert batch.inputs["attention_mask"].all()
    assert batch.tokens == batch.padded_tokens == 32 * (512 + 114)
    assert batch.counts() == {"lm": 32 * 114, "z_loss": 32 * 114}
    for source, target in rows(objective, 3, full[:32]):
        assert [i for i in source if i >= 1000] == list(SENTINELS[:28])
        assert [i for i in target if i >= 1000] == list(SENTINELS[:28])
        assert (source[-1], target[-1], target[0]) == (1, 1, SENTINELS[0])


def test_windows_hold_all_of_the_text(store: TokenStore) -> None:
    objective = make_objective("span_corruption", store, 512)
    assert (
        objective.ends - objective.starts
    ).sum() >= store.num_tokens - 3  # of three groups' last tokens


def test_decoders_read_the_target_shifted_right(store: TokenStore) -> None:
    batch = make_objective("prefix_lm", store).collate(np.zeros(8, int), np.arange(8))
    decoder, number = batch.inputs["decoder_input_ids"], batch.inputs["decoder_texts"]
    shifted = [decoder[row][number[row] == n].tolist() for row in range(8) for n in range(1, 99)]
    targets = [target for _, target in examples_of(batch)]
    assert [row for row in shifted if row] == [[0, *target[:-1]] for target in targets]
    assert all(target.index(1) == len(target) - 1 for target in targets)


def test_prefixes_and_continuations_are_the_text(store: TokenStore) -> None:
    objective = make_objective("prefix_lm", store, 512)
    sizes = []
    for text, (source, target) in zip(
        texts(store, objective), rows(objective, 0, np.arange(len(objective))), strict=True
    ):
        assert source[:-1] + target[:-1] == text
        assert source[-1] == target[-1] == 1
        assert len(source) > 1
        assert len(target) > 1
        sizes.append(len(source) - 1)
    documents = store.sentences[store.documents]
    assert set(np.searchsorted(documents, objective.starts, "right")) == set(
        np.searchsorted(documents, objective.ends - 1, "right")
    )  # no segment is of two documents


def test_prefix_lengths_are_uniform() -> None:
    """In segments of 511: 1..510, mean 255.5 (the original code's 4,000 rows: 1..510)."""
    store = TokenStore.from_lists([[[5] * 511]] * 3000, 1100)
    objective = make_objective("prefix_lm", store, 512)
    assert len(objective) == 3000  # two whole segments and their ends are more than a row has
    batch = objective.collate(np.zeros(3000, int), np.arange(3000))
    lengths = batch.inputs["attention_mask"].sum(1).numpy() - 1
    assert lengths.min() <= 3
    assert lengths.max() >= 508
    assert lengths.mean() == pytest.approx(255.5, abs=8)


def plain_rows(sizes: list[tuple[int, int]], room: int) -> list[list[int]]:
    """mesh_tensorflow's pack_dataset over lists: batches of ``room`` examples, one open row."""
    packed = []
    for first in range(0, len(sizes), room):
        row: list[int] = []
        filled = [0, 0]
        for number in range(first, min(first + room, len(sizes))):
            if any(f + size > room for f, size in zip(filled, sizes[number], strict=True)):
                packed.append(row)
                row, filled = [], [0, 0]
            row = [*row, number]
            filled = [f + size for f, size in zip(filled, sizes[number], strict=True)]
        packed.append(row)
    return packed


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("seq_len", [64, 512])
def test_rows_are_packed_as_in_the_original(name: str, seq_len: int, store: TokenStore) -> None:
    objective = make_objective(name, store, seq_len)
    for epoch in (0, 1):
        samples = np.arange(len(objective._rows(epoch)) - 1)[: len(objective)]
        _, order, row = objective.segments_of(np.full(len(samples), epoch), samples)
        sizes = [(len(s), len(t)) for s, t in rows(objective, epoch, samples)]
        expected = plain_rows(sizes, seq_len)
        assert np.bincount(row).tolist() == list(map(len, expected))
        if len(samples) == len(objective._rows(epoch)) - 1:
            assert sorted(order.tolist()) == list(range(len(objective.starts)))
    assert row.tolist() != objective.segments_of(np.zeros_like(samples), samples)[2].tolist()


def test_an_epoch_that_is_shorter_begins_again(store: TokenStore) -> None:
    objective = make_objective("prefix_lm", store, 64)
    shorter = next(n for n in range(1, 99) if len(objective._rows(n)) < len(objective._rows(0)))
    last = len(objective) - 1
    again = last % (len(objective._rows(shorter)) - 1)
    both = objective.collate(np.full(2, shorter), np.array([last, again]))
    assert torch.equal(both.inputs["input_ids"][0], both.inputs["input_ids"][1])


def test_deshuffling_asks_for_the_text(store: TokenStore) -> None:
    objective = make_objective("deshuffling", store)
    moved = 0
    for text, (source, target) in zip(
        texts(store, objective), rows(objective, 0, np.arange(len(objective))), strict=True
    ):
        assert target == [*text, 1]
        assert sorted(source[:-1]) == sorted(text)
        moved += source[:-1] != text
    assert moved > 0.95 * len(objective)


def test_iid_noise_has_the_published_statistics() -> None:
    """Segments of 511: mean noise 76.3 +- 7.9, input 500.6, target 143.5 (4,000 of the original).

    Expected: 511 * 0.15 = 76.65; runs 0.15 + 510 * 0.1275 = 65.2; text runs 65.9; one end each.
    """
    rng = np.random.default_rng(1)
    store = TokenStore.from_lists([[rng.integers(3, 1000, 511).tolist()] for _ in range(128)], 1100)
    objective = make_objective("iid_denoising", store, 512)
    assert len(objective) == 128
    tallies = [objective.tally(np.full(128, epoch), np.arange(128)) for epoch in range(30)]
    statistics = {
        name: sum(t[name][0] for t in tallies) / sum(t[name][1] for t in tallies)
        for name in tallies[0]
    }
    assert statistics["noise_share"] * 511 == pytest.approx(76.65, abs=0.5)
    assert statistics["mean_length"] == pytest.approx(500.6, abs=0.5)
    assert statistics["mean_target_length"] == pytest.approx(143.5, abs=1.0)


@pytest.mark.parametrize("style", ["bert", "mass", "drop_tokens"])
def test_variants_of_iid_denoising(style: str, store: TokenStore) -> None:
    objective = make_objective("iid_denoising", store, 512, style=style)
    hidden = random = total = 0
    for text, (source, target) in zip(
        texts(store, objective), rows(objective, 1, np.arange(len(objective))), strict=True
    ):
        total += len(text)
        if style == "drop_tokens":
            assert sorted(source[:-1] + target[:-1]) == sorted(text)
            hidden += len(target) - 1
            continue
        assert target == [*text, 1]
        assert len(source) == len(target)
        changed = [(s, t) for s, t in zip(source, target, strict=True) if s != t]
        hidden += len(changed)
        random += sum(s != SENTINELS[0] for s, _ in changed)
    assert hidden / total == pytest.approx(0.15, abs=0.005)
    assert random / hidden == pytest.approx(0.1 if style == "bert" else 0.0, abs=0.015)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("version", ["v1.0", "v1.1"])
def test_loss_is_the_librarys_own(name: str, version: str, store: TokenStore) -> None:
    """Of every example alone, without the others of its row; and of padded shapes."""
    if name in PACKED:
        store = TokenStore.from_lists([[list(range(3, 5 + n))] for n in range(80)], 1100)
    net, objective = network(version), make_objective(name, store)
    batch = objective.collate(np.zeros(16, int), np.arange(16))
    alone = examples_of(batch)
    assert (len(alone) > 16) == (name in PACKED)
    sources, targets = (
        [torch.tensor(side) for side in sides] for sides in zip(*alone, strict=True)
    )
    labels = pad_sequence(targets, batch_first=True, padding_value=-100)
    ids = pad_sequence(sources, batch_first=True, padding_value=0)
    with torch.inference_mode():
        sums = objective.loss(net, batch)
        theirs = net.model(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels)
    ours = sums["lm"].item() / batch.counts()["lm"]
    assert ours == pytest.approx(theirs.loss.item(), rel=1e-6)
    net.zero_grad()
    wide = objective.loss(net, fixed(batch, 72))
    assert wide["lm"].item() == pytest.approx(sums["lm"].item(), rel=1e-6)
    wide["lm"].backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())
    log_z = theirs.logits[labels != -100].logsumexp(-1)
    assert sums["z_loss"].item() == pytest.approx(1e-4 * log_z.square().sum().item(), rel=1e-5)
    # Logits start with a variance of one, which costs half a nat over the uniform guess.
    assert ours == pytest.approx(math.log(1152) + 0.5, abs=0.25)


@pytest.mark.parametrize("version", ["v1.0", "v1.1"])
@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradient_do_not_depend_on_micro_batches(
    name: str, version: str, store: TokenStore
) -> None:
    """One forward over the whole step with the library's mean loss, beside micro-batches of 3."""
    objective, whole = make_objective(name, store), network(version)
    (batch,) = StepBatches(objective, Slicing(16, 16), 7)[0]
    logits = whole(**batch.inputs)["lm"]
    penalty = 1e-4 * logits.logsumexp(-1).square().mean()
    loss = cross_entropy(logits, batch.targets["lm"]) + penalty
    loss.backward()
    expected = {n: p.grad.clone() for n, p in whole.model.named_parameters()}

    done, got = outcome_of_step(cpu_engine(network(version), 3e-3), objective, 16, 3)
    assert done.loss == pytest.approx(loss.item(), rel=1e-6)
    assert done.losses["z_loss"] == pytest.approx(penalty.item(), rel=1e-5)
    for part, gradient in expected.items():
        assert torch.allclose(got[part], gradient.double(), rtol=1e-4, atol=1e-6), part


@pytest.mark.slow
def test_training_learns() -> None:
    """A text whose every token follows from the one before."""
    documents = [[[3 + (s + i) % 40 for i in range(400)]] for s in range(40)]
    objective = make_objective("span_corruption", TokenStore.from_lists(documents, 1100), 48)
    engine = cpu_engine(network(), 3e-3)
    losses = [
        take_step(engine, objective, StepBatches(objective, Slicing(16, 16), 7)[n], 1.0, n).losses[
            "lm"
        ]
        for n in range(60)
    ]
    assert losses[-1] < losses[0] - 2


def test_without_the_penalty_there_is_one_part(store: TokenStore) -> None:
    objective = make_objective("prefix_lm", store, z_loss=0.0)
    batch = objective.collate(np.zeros(4, int), np.arange(4))
    assert objective.loss_terms == tuple(batch.targets) == ("lm",)
    assert set(objective.loss(network(), batch)) == {"lm"}


def test_scores_name_no_accuracy_of_the_penalty(store: TokenStore) -> None:
    objective, engine = make_objective("span_corruption", store), cpu_engine(network(), 3e-3)
    batches = [objective.collate(np.zeros(8, int), np.arange(8))]
    scores = score(engine.accelerator, engine.network, objective, iter(batches))
    assert set(scores) == {"loss", "loss/lm", "loss/z_loss", "accuracy/lm"}
    assert scores["loss"] == pytest.approx(scores["loss/lm"] + scores["loss/z_loss"])


def test_statistics_are_what_is_expected(store: TokenStore) -> None:
    for name in NAMES:
        objective = make_objective(name, store, 128)
        statistics = means(
            objective.tally(np.zeros(len(objective), int), np.arange(len(objective)))
        )
        for statistic, value in objective.expected().items():
            assert statistics[statistic] == pytest.approx(value, rel=0.05), (name, statistic)


def test_examples_for_reading(store: TokenStore) -> None:
    rows = make_objective("span_corruption", store).example(0, 3).rows
    assert [p.kind for p in rows["input"]].count("special") == 4  # three spans and the end
    assert {p.kind for p in rows["target"]} == {"special", "target"}


def test_a_tokenizer_without_what_is_needed(store: TokenStore) -> None:
    bare = Vocab(size=1100, unk=2)
    few = Vocab(size=1100, pad=0, eos=1, sentinels=SENTINELS[:10])
    for name in NAMES:
        with pytest.raises(ConfigError, match="a padding token, an end token"):
            make_examples(name, store, bare, 64)
    with pytest.raises(ConfigError, match="sentinels"):
        make_examples("span_corruption", store, Vocab(size=1100, pad=0, eos=1), 64)
    with pytest.raises(ConfigError, match="needs 28 sentinels .* and the tokenizer has 10"):
        make_examples("span_corruption", store, few, 512)
    assert len(make_examples("span_corruption", store, few, 64))


def test_short_text_gives_short_rows() -> None:
    """Two tokens are the shortest text with noise; a text of one token is left out."""
    store = TokenStore.from_lists([[[7, 8]]], 1100)
    assert rows(make_objective("span_corruption", store), 0, np.array([0])) == [
        ([7, SENTINELS[0], 1], [SENTINELS[0], 8, 1])
    ]
    for name in NAMES:
        assert len(make_objective(name, TokenStore.from_lists([[[7]]], 1100))) == 0
