"""Sentence pairs of BERT and ALBERT: one pass of ``create_instances_from_document`` over a corpus.

The procedure (google-research/bert and google-research/albert, create_pretraining_data.py) walks
through each document separately: collect sentences up to a target length and split them into A and
B. Half of the time BERT replaces B by sentences of another document, putting the unused ones back,
and ALBERT swaps A and B. Only the steps within a document depend on each other, so many documents
advance together here, one instance per round, in NumPy. Every draw is keyed by document and round:
how many documents advance together bounds the memory and changes nothing else.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Bools, Ints
from plmctl.examples.keys import Keys, below, fold, stream, uniform

Records = NDArray[np.void]
"""[instances] pairs of ``record_type``, as they are cached."""
Decide = Callable[[Bools, Bools], tuple[Bools, Bools]]
"""Of single-sentence chunks and the outcome of a fair coin: where B is random, and where A and B
are swapped."""

_DOCUMENT_TRIES = 10  # draws of another document before the same one is accepted, as in the source
_TOGETHER = (1 << 18, 1 << 21)
"""Most documents and sentences that advance together: about 100 MB. Fewer would be slower for long
documents, since each batch of documents has as many rounds as its longest one."""
_FEW = 1 << 13
"""Chunks whose pairs are made at once, at least: fewer cost more calls, more cost memory."""


@dataclass(frozen=True)
class Pairs:
    """The places of the two segments of each instance in the token store.

    Every field has shape [instances]; starts and ends are token positions, ends exclusive.
    """

    a_start: Ints
    a_end: Ints
    b_start: Ints
    b_end: Ints
    label: Ints
    """0: B follows A; 1: B is random, or A follows B (the convention of BERT, of ALBERT and of
    transformers)."""
    forced: Bools
    """The chunk had one sentence, so that B had to be random."""

    def __len__(self) -> int:
        return len(self.label)

    @classmethod
    def of(cls, records: Records) -> Self:
        """The pairs of records."""
        a, b = (records[name].astype(np.int64) for name in ("a_start", "b_start"))
        return cls(
            a,
            a + records["a_size"],
            b,
            b + records["b_size"],
            records["label"].astype(np.int64),
            records["forced"].astype(bool),
        )

    def records(self, dtype: np.dtype[Any]) -> Records:
        """The pairs in a few bytes each."""
        records = np.empty(len(self), dtype)
        records["a_start"], records["a_size"] = self.a_start, self.a_end - self.a_start
        records["b_start"], records["b_size"] = self.b_start, self.b_end - self.b_start
        records["label"], records["forced"] = self.label, self.forced
        return records


def record_type(tokens: int, seq_len: int) -> np.dtype[Any]:
    """The type of a cached pair: 14 bytes, if the corpus has fewer than 2**32 tokens."""
    start, size = ("<u4" if tokens < 1 << 32 else "<i8"), ("<u2" if seq_len < 1 << 16 else "<u4")
    fields = [("a_start", start), ("b_start", start), ("a_size", size), ("b_size", size)]
    return np.dtype([*fields, ("label", "u1"), ("forced", "?")])


def next_sentence_pairs(
    sentences: Ints, documents: Ints, seq_len: int, key: Keys, *, short_seq_prob: float = 0.1
) -> Iterator[Records]:
    """All pairs of one pass over the corpus, in corpus order, a stretch of documents at a time.

    Args:
        sentences: [S+1] token position where each sentence starts.
        documents: [D+1] sentence index where each document starts.
        seq_len: Length of a finished input, [CLS] and two [SEP] included.
        key: Key of this pass; another key gives other lengths, splits and random partners.
        short_seq_prob: Share of documents cut to a random shorter target length.

    Yields:
        Pairs, truncated so that len(A) + len(B) <= seq_len - 3, neither empty.
    """
    return _all(
        (sentences, documents),
        seq_len - 3,
        key,
        short_seq_prob,
        lambda single, coin: (single | coin, np.zeros_like(coin)),
    )


def sentence_order_pairs(
    sentences: Ints,
    documents: Ints,
    seq_len: int,
    key: Keys,
    *,
    short_seq_prob: float = 0.1,
    single: Literal["other_document", "skip"] = "other_document",
) -> Iterator[Records]:
    """All pairs of one pass over the corpus, as ``next_sentence_pairs``; half of them swapped.

    Args:
        sentences: [S+1] token position where each sentence starts.
        documents: [D+1] sentence index where each document starts.
        seq_len: Length of a finished input, [CLS] and two [SEP] included.
        short_seq_prob: Share of documents cut to a random shorter target length.
        single: How a chunk of one sentence is used. other_document: B is from another document
            and the label is 1, as in ALBERT's code; skip: it makes no pair, so that the label is
            about order alone, as in ALBERT's paper.

    Yields:
        Pairs, truncated so that len(A) + len(B) <= seq_len - 3, neither empty.
    """
    all_pairs = _all(
        (sentences, documents),
        seq_len - 3,
        key,
        short_seq_prob,
        lambda single, coin: (single, coin & ~single),
    )
    return (records[~records["forced"]] if single == "skip" else records for records in all_pairs)


def _all(
    corpus: tuple[Ints, Ints], room: int, key: Keys, short_seq_prob: float, decide: Decide
) -> Iterator[Records]:
    """The pairs of one pass: A and B have at most ``room`` tokens together."""
    dtype = record_type(int(corpus[0][-1]), room + 3)
    yield np.empty(0, dtype)  # of a corpus without documents
    for documents in _stretches(corpus[1]):
        target = _targets(documents, room, key, short_seq_prob)
        parts, owners = [], []
        for chunks in _together(_rounds(corpus, documents, target, key, decide)):
            parts.append(truncate(_pairs(corpus, chunks), chunks.draws, room).records(dtype))
            owners.append(chunks.document)
        order = np.argsort(np.concatenate(owners), kind="stable")
        yield np.concatenate(parts)[order]


def _stretches(documents: Ints) -> Iterator[Ints]:
    """The documents, as many at a time as may advance together."""
    count, (most, sentences) = len(documents) - 1, _TOGETHER
    first = 0
    while first < count:
        last = int(np.searchsorted(documents, documents[first] + sentences, side="right")) - 1
        last = max(first + 1, min(last, first + most, count))
        yield np.arange(first, last)
        first = last


@dataclass(frozen=True)
class _Chunks:
    """Sentences of documents before a partner is drawn; every field is [chunks].

    Attributes:
        target: Tokens of A and B together.
        start: The first sentence.
        split: The sentence after A.
        end: The sentence after the chunk.
        random: Whether B is from another document.
        swapped: Whether B comes first.
    """

    document: Ints
    target: Ints
    start: Ints
    split: Ints
    end: Ints
    random: Bools
    swapped: Bools
    draws: Keys


def _rounds(
    corpus: tuple[Ints, Ints], document: Ints, target: Ints, key: Keys, decide: Decide
) -> Iterator[_Chunks]:
    """Round by round, the next chunk of each document that is not at its end.

    Args:
        corpus: Where sentences and documents start.
        document: [N] those that advance together, in order.
        target: [N] tokens of A and B together.
    """
    sentences, documents = corpus
    at, end, round_ = documents[document], documents[document + 1], 0
    while len(document):  # a round takes at least one sentence of each document
        draws = fold(key, stream("pairs"), document, round_)
        chunk_end = _reach(sentences, at, target, end)
        size = chunk_end - at
        split = at + np.where(size == 1, 1, 1 + below(fold(draws, 0), np.maximum(size - 1, 1)))
        random, swapped = decide(size == 1, uniform(fold(draws, 1)) < 0.5)
        yield _Chunks(document, target, at, split, chunk_end, random, swapped, draws)
        at = np.where(random, split, chunk_end)  # sentences that a random B displaced come again
        unfinished = at < end
        at, end, document, target = (x[unfinished] for x in (at, end, document, target))
        round_ += 1


def _together(rounds: Iterator[_Chunks]) -> Iterator[_Chunks]:
    """The chunks of many rounds at once: a few long documents have hundreds of small rounds."""
    waiting: list[_Chunks] = []
    count = 0
    for chunks in rounds:
        waiting.append(chunks)
        count += len(chunks.document)
        if count >= _FEW:
            yield _joined(waiting)
            waiting, count = [], 0
    if waiting:
        yield _joined(waiting)


def _joined(chunks: list[_Chunks]) -> _Chunks:
    names = [field.name for field in fields(_Chunks)]
    return _Chunks(*(np.concatenate([getattr(one, name) for one in chunks]) for name in names))


def _pairs(corpus: tuple[Ints, Ints], chunks: _Chunks) -> Pairs:
    """The pairs of chunks, not truncated; random partners are drawn."""
    sentences, documents = corpus
    at, split, random, swapped = chunks.start, chunks.split, chunks.random, chunks.swapped
    b_start, b_end = split.copy(), chunks.end.copy()
    wanted = chunks.target - (sentences[split] - sentences[at])
    b_start[random], b_end[random] = _elsewhere(
        sentences, documents, chunks.document[random], wanted[random], chunks.draws[random]
    )
    return Pairs(
        sentences[np.where(swapped, b_start, at)],
        sentences[np.where(swapped, b_end, split)],
        sentences[np.where(swapped, at, b_start)],
        sentences[np.where(swapped, split, b_end)],
        (random | swapped).astype(np.int64),
        chunks.end - at == 1,
    )


def _targets(documents: Ints, room: int, key: Keys, short_seq_prob: float) -> Ints:
    """The target length of each document: drawn once per document and pass, not per instance."""
    draws = fold(key, stream("target"), documents)
    short = uniform(fold(draws, 0)) < short_seq_prob
    return np.where(short, 2 + below(fold(draws, 1), room - 1), room)


def _reach(sentences: Ints, start: Ints, tokens: Ints, limit: Ints) -> Ints:
    """The end of the shortest run of whole sentences from ``start`` with at least ``tokens``.

    Bisection from ``start`` on: a search through all sentences misses the cache at every step.
    """
    wanted = sentences[start] + tokens
    low, high = start + 1, np.minimum(limit, start + np.maximum(tokens, 1))  # no sentence is empty
    while (low < high).any():
        middle = (low + high) >> 1
        short = sentences[middle] < wanted
        low = np.where(short, np.minimum(middle + 1, high), low)
        high = np.where(short, high, middle)
    return low


def _elsewhere(
    sentences: Ints, documents: Ints, document: Ints, wanted: Ints, draws: Keys
) -> tuple[Ints, Ints]:
    """Sentences [start, end) of a random other document, at least ``wanted`` tokens of them."""
    other = document.copy()
    for attempt in range(_DOCUMENT_TRIES):
        again = np.flatnonzero(other == document)
        if not len(again):
            break
        other[again] = below(fold(draws[again], 2, attempt), len(documents) - 1)
    start = documents[other] + below(fold(draws, 3), documents[other + 1] - documents[other])
    return start, _reach(sentences, start, wanted, documents[other + 1])


def truncate(pairs: Pairs, draws: Keys, room: int) -> Pairs:
    """Remove single tokens from the longer segment (B on ties) until the pair fits.

    How many each side loses follows from the lengths; each lost token comes from the front or the
    back with probability one half, so the number lost in front is binomial.
    """
    a, b = pairs.a_end - pairs.a_start, pairs.b_end - pairs.b_start
    excess = np.maximum(a + b - room, 0)
    until_equal = np.minimum(excess, np.abs(a - b))
    rest = excess - until_equal  # from here on they take turns, B first
    cut_a = np.where(a > b, until_equal, 0) + rest // 2
    cut_b = np.where(a > b, 0, until_equal) + (rest + 1) // 2
    front_a, front_b = _heads(cut_a, fold(draws, 4)), _heads(cut_b, fold(draws, 5))
    return Pairs(
        pairs.a_start + front_a,
        pairs.a_end - (cut_a - front_a),
        pairs.b_start + front_b,
        pairs.b_end - (cut_b - front_b),
        pairs.label,
        pairs.forced,
    )


def _heads(tosses: Ints, draws: Keys) -> Ints:
    """How many of so many tosses of a fair coin are heads: a bit of a random word is a toss."""
    heads = np.zeros_like(tosses)
    left, word = np.flatnonzero(tosses), 0
    while len(left):
        wanted = np.minimum(tosses[left] - 64 * word, 64)
        bits = fold(draws[left], word) >> (64 - wanted).astype(np.uint64)
        heads[left] += np.bitwise_count(bits)
        word += 1
        left = left[tosses[left] > 64 * word]
    return heads
