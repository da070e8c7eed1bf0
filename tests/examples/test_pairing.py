"""BERT's pairs, held to the original's statistics and to a plain loop over lists."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.examples import pairing
from plmctl.examples.keys import fold
from plmctl.examples.masking import count_exact
from plmctl.examples.pairing import Pairs, next_sentence_pairs, sentence_order_pairs, truncate

# What google-research/bert's create_pretraining_data.py gave on Shakespeare's plays (181 documents)
# with an 8k WordPiece vocabulary: dupe factor 10 at length 128, 5 at length 512.
REFERENCE = {
    128: {
        "passes": 10,
        "max_predictions": 20,
        "instances": 36_041,
        "forced": 0.0835,
        "random_given_multi": 0.4997,
        "random": 0.5415,
        "mean_len": 104.18,
        "full": 0.7000,
        "mean_a": 48.65,
        "mean_b": 52.53,
        "masked": 0.14864,
        "predictions": 15.484,
    },
    512: {
        "passes": 5,
        "max_predictions": 77,
        "instances": 5_913,
        "forced": 0.0609,
        "random_given_multi": 0.5071,
        "random": 0.5371,
        "mean_len": 340.99,
        "full": 0.5009,
        "mean_a": 152.16,
        "mean_b": 185.83,
        "masked": 0.15030,
        "predictions": 51.251,
    },
}
Corpus = tuple[np.ndarray, np.ndarray]


def corpus_of(documents: list[list[int]]) -> Corpus:
    """Offsets of a corpus given as sentence lengths."""
    sentences = np.concatenate([[0], np.cumsum([n for doc in documents for n in doc])])
    return sentences, np.concatenate([[0], np.cumsum([len(doc) for doc in documents])])


def synthetic(seed: int = 0, documents: int = 150) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randint(3, 40) for _ in range(rng.randint(1, 120))] for _ in range(documents)]


def plain_pairs(documents: list[list[int]], seq_len: int, rng: random.Random) -> list[tuple]:
    """The published procedure over sentence lengths: (length, label, single-sentence chunk)."""
    room, pairs = seq_len - 3, []
    for index, document in enumerate(documents):
        target = rng.randint(2, room) if rng.random() < 0.1 else room
        chunk: list[int] = []
        i = 0
        while i < len(document):
            chunk.append(document[i])
            if i == len(document) - 1 or sum(chunk) >= target:
                a_end = rng.randint(1, len(chunk) - 1) if len(chunk) > 1 else 1
                a, single = sum(chunk[:a_end]), len(chunk) == 1
                if single or rng.random() < 0.5:
                    label, b = 1, 0
                    for _ in range(10):
                        other = rng.randrange(len(documents))
                        if other != index:
                            break
                    for size in documents[other][rng.randrange(len(documents[other])) :]:
                        b += size
                        if b >= target - a:
                            break
                    i -= len(chunk) - a_end
                else:
                    label, b = 0, sum(chunk[a_end:])
                pairs.append((min(a + b, room) + 3, label, single))
                chunk = []
            i += 1
    return pairs


def joined(records: Iterator[np.ndarray]) -> Pairs:
    return Pairs.of(np.concatenate(list(records)))


def statistics(passes: list[Pairs], seq_len: int, max_predictions: int) -> dict[str, float]:
    def column(name: str) -> np.ndarray:
        return np.concatenate([getattr(pairs, name) for pairs in passes])

    a, b = column("a_end") - column("a_start"), column("b_end") - column("b_start")
    length, label, forced = a + b + 3, column("label"), column("forced")
    counts = count_exact(length, 0.15, max_predictions)
    return {
        "instances": len(label),
        "forced": forced.mean(),
        "random_given_multi": label[~forced].mean(),
        "random": label.mean(),
        "mean_len": length.mean(),
        "full": (length == seq_len).mean(),
        "mean_a": a.mean(),
        "mean_b": b.mean(),
        "masked": counts.sum() / length.sum(),
        "predictions": counts.mean(),
        "min": min(a.min(), b.min()),
    }


@pytest.mark.slow
@pytest.mark.parametrize("seq_len", [128, 512])
def test_statistics_of_the_original_code(seq_len: int, shared_data: Path) -> None:
    from tokenizers import BertWordPieceTokenizer

    folder = shared_data / "parity" / "objectives"
    tokenizer = BertWordPieceTokenizer(str(folder / "vocab.txt"), lowercase=True)
    text = (folder / "shakespeare_docs.txt").read_text(encoding="utf-8")
    documents = []
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.strip()]
        sizes = [len(e.ids) for e in tokenizer.encode_batch(lines, add_special_tokens=False)]
        documents.append([size for size in sizes if size])
    expected = REFERENCE[seq_len]
    corpus = corpus_of([document for document in documents if document])
    # The original's statistics are one run of it. One draw of a target length decides a whole
    # document, so that a mean length moves by 2-6 % from seed to seed: several runs say whether the
    # original's could be one of ours, and one of them comes within 2 % of it in every mean.
    runs = [
        statistics(
            [
                joined(next_sentence_pairs(*corpus, seq_len, fold(run, n)))
                for n in range(expected["passes"])
            ],
            seq_len,
            expected["max_predictions"],
        )
        for run in range(8)
    ]
    assert min(run["min"] for run in runs) >= 1
    for run in runs:
        assert run["masked"] == pytest.approx(expected["masked"], abs=0.002)
        assert run["random_given_multi"] == pytest.approx(expected["random_given_multi"], abs=0.02)
    means = ("mean_len", "mean_a", "mean_b", "predictions", "instances")
    worst = [max(abs(run[name] / expected[name] - 1) for name in means) for run in runs]
    assert min(worst) < 0.02
    for name in (
        "mean_len",
        "mean_a",
        "mean_b",
        "predictions",
        "instances",
        "forced",
        "random",
        "full",
    ):
        values = np.array([run[name] for run in runs])
        assert abs(expected[name] - values.mean()) < 3 * values.std(ddof=1), name


def test_reference_statistics_are_the_fixtures(shared_data: Path) -> None:
    for seq_len, expected in REFERENCE.items():
        path = shared_data / "parity" / "objectives" / f"bert{seq_len}.json"
        original = json.loads(path.read_text())
        assert expected["instances"] == original["instances"]
        assert expected["mean_len"] == pytest.approx(original["mean_len"], abs=0.01)
        assert expected["masked"] == pytest.approx(original["masked_per_token"], abs=1e-5)


@pytest.mark.parametrize("seq_len", [64, 256])
def test_same_distribution_as_the_plain_loop(seq_len: int) -> None:
    documents, repeats = synthetic(), 12
    rng = random.Random(1)
    plain = np.array(
        [row for _ in range(repeats) for row in plain_pairs(documents, seq_len, rng)], dtype=float
    )
    passes = [
        joined(next_sentence_pairs(*corpus_of(documents), seq_len, fold(5, n)))
        for n in range(repeats)
    ]
    got = statistics(passes, seq_len, 1000)
    assert got["instances"] == pytest.approx(len(plain), rel=0.03)
    assert got["mean_len"] == pytest.approx(plain[:, 0].mean(), rel=0.02)
    assert got["random"] == pytest.approx(plain[:, 1].mean(), abs=0.015)
    assert got["forced"] == pytest.approx(plain[:, 2].mean(), abs=0.015)
    assert got["full"] == pytest.approx((plain[:, 0] == seq_len).mean(), abs=0.02)


sizes = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=2, max_size=8)


@settings(max_examples=60, deadline=None)
@given(sizes, st.integers(5, 40), st.integers(0, 2**32))
def test_every_pair_is_well_formed(documents: list[list[int]], seq_len: int, key: int) -> None:
    sentences, starts = corpus_of(documents)
    pairs = joined(next_sentence_pairs(sentences, starts, seq_len, fold(key)))
    a, b = pairs.a_end - pairs.a_start, pairs.b_end - pairs.b_start
    assert a.min() >= 1
    assert b.min() >= 1
    assert (a + b).max() <= seq_len - 3
    tokens = sentences[starts]
    document_of_a = np.searchsorted(tokens, pairs.a_start, side="right")
    document_of_b = np.searchsorted(tokens, pairs.b_start, side="right")
    follows = pairs.label == 0
    assert (document_of_a[follows] == document_of_b[follows]).all()
    # A segment never crosses the end of its document.
    assert (pairs.a_end <= tokens[document_of_a]).all()
    assert (pairs.b_end <= tokens[document_of_b]).all()
    # B follows A with at most what truncation took from A's end and B's front in between.
    untouched = follows & (a + b < seq_len - 3)
    assert (pairs.b_start[untouched] == pairs.a_end[untouched]).all()
    assert (pairs.label[pairs.forced] == 1).all()


def test_every_sentence_is_used_and_put_back() -> None:
    documents = synthetic(3, documents=20)
    sentences, starts = corpus_of(documents)
    pairs = joined(next_sentence_pairs(sentences, starts, 4096, fold(1)))
    covered = np.zeros(sentences[-1], dtype=bool)
    for row in range(len(pairs)):
        covered[pairs.a_start[row] : pairs.a_end[row]] = True
        if pairs.label[row] == 0:
            covered[pairs.b_start[row] : pairs.b_end[row]] = True
    assert covered.all()  # nothing is truncated at this length, so nothing may be skipped


def test_the_target_length_is_drawn_once_a_document() -> None:
    documents = [[5] * 400 for _ in range(60)]
    pairs = joined(next_sentence_pairs(*corpus_of(documents), 103, fold(2)))
    length = pairs.a_end - pairs.a_start + pairs.b_end - pairs.b_start
    document = np.searchsorted(np.arange(61) * 2000, pairs.a_start, side="right")
    # A random B may end with its document; the others of a document are all full or all short,
    # but for the last chunk.
    follows = pairs.label == 0
    kinds = [set((length[(document == d) & follows] >= 96)[:-1]) for d in range(1, 61)]
    assert all(len(kind) == 1 for kind in kinds)
    short = sum(kind == {False} for kind in kinds)
    assert 1 <= short <= 15  # a tenth of 60, give or take three standard deviations


def test_another_key_gives_other_pairs_and_the_same_key_the_same() -> None:
    corpus = corpus_of(synthetic())
    first, again, other = (joined(next_sentence_pairs(*corpus, 64, fold(k))) for k in (1, 1, 2))
    assert np.array_equal(first.a_end, again.a_end)
    assert np.array_equal(first.b_start, again.b_start)
    assert len(first) != len(other) or not np.array_equal(first.b_start, other.b_start)


def test_truncation_by_hand() -> None:
    def pair(a: int, b: int) -> tuple[int, int]:
        array = np.array
        pairs = Pairs(
            array([0]), array([a]), array([100]), array([100 + b]), array([0]), array([0])
        )
        cut = truncate(pairs, fold(3, [0]), 10)
        return int(cut.a_end[0] - cut.a_start[0]), int(cut.b_end[0] - cut.b_start[0])

    assert pair(4, 5) == (4, 5)
    assert pair(12, 3) == (7, 3)  # only the longer one loses
    assert pair(3, 20) == (3, 7)
    assert pair(8, 8) == (5, 5)  # in turns, B first
    assert pair(8, 7) == (5, 5)  # A down to 7, then B, A, B, A
    assert pair(9, 9) == (5, 5)


@pytest.mark.parametrize("cut", [1, 10, 64, 65, 300])
def test_truncation_cuts_front_and_back_alike(cut: int) -> None:
    n = 20_000
    room = 400
    full = np.full(n, room // 2 + cut)
    pairs = Pairs(np.zeros(n, int), full, full * 0 + 1000, full + 1000, full * 0, full < 0)
    truncated = truncate(pairs, fold(9, np.arange(n)), room)
    fronts = truncated.a_start - pairs.a_start, truncated.b_start - pairs.b_start
    for front in fronts:  # binomial(cut, 1/2)
        assert front.min() >= 0
        assert front.max() <= cut
        assert front.mean() == pytest.approx(cut / 2, abs=4 * np.sqrt(cut / 4 / n))
        assert front.var() == pytest.approx(cut / 4, rel=0.05)
    assert abs(np.corrcoef(*fronts)[0, 1]) < 0.03  # each token by itself
    # Both ends together give up what there is too much.
    assert (pairs.a_end - truncated.a_end + fronts[0] == cut).all()


@settings(max_examples=40, deadline=None)
@given(
    sizes,
    st.integers(5, 40),
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(1, 9),
    st.integers(0, 2**32),
)
def test_pairs_do_not_depend_on_how_many_are_made_together(
    documents: list[list[int]], seq_len: int, most: int, sentences: int, few: int, key: int
) -> None:
    corpus = corpus_of(documents)

    def all_pairs() -> list[bytes]:
        ways = (
            next_sentence_pairs(*corpus, seq_len, fold(key)),
            sentence_order_pairs(*corpus, seq_len, fold(key)),
            sentence_order_pairs(*corpus, seq_len, fold(key), single="skip"),
        )
        return [np.concatenate(list(way)).tobytes() for way in ways]

    together = all_pairs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairing, "_TOGETHER", (most, sentences))
        patch.setattr(pairing, "_FEW", few)
        assert all_pairs() == together


def test_few_documents_advance_together() -> None:
    corpus = corpus_of([[1] * n for n in (3, 1, 9, 2, 2, 2)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairing, "_TOGETHER", (2, 5))
        stretches = [stretch.tolist() for stretch in pairing._stretches(corpus[1])]
    assert stretches == [[0, 1], [2], [3, 4], [5]]  # a long one is by itself


@pytest.mark.parametrize("tokens", [1000, 2**32, 2**40])
def test_a_kept_pair_is_the_pair(tokens: int) -> None:
    ends = np.array([tokens - 1, tokens - 70_000 if tokens > 70_000 else 9])
    pairs = Pairs(ends - 9, ends, ends - 8, ends - 1, np.array([1, 0]), np.array([True, False]))
    again = Pairs.of(pairs.records(pairing.record_type(tokens, 128)))
    for name, column in vars(pairs).items():
        assert getattr(again, name).dtype == column.dtype
        assert getattr(again, name).tolist() == column.tolist()
    assert pairing.record_type(2**32 - 1, 128).itemsize == 14
