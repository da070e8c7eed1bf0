"""Sentence pairs of BERT and ALBERT: one pass of ``create_instances_from_document`` over a corpus.

The procedure (google-research/bert and google-research/albert, create_pretraining_data.py) walks
through each document on its own: collect sentences up to a target length and split them into A and
B. Half of the time BERT replaces B by sentences of another document, putting the unused ones back,
and ALBERT swaps A and B. Only the steps within a document depend on each other, so all documents
advance together here, one instance a round, in NumPy.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plmctl.shaping.keys import Keys, below, fold, stream, uniform

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Decide = Callable[[Bools, Bools], tuple[Bools, Bools]]
"""Of single-sentence chunks and the outcome of a fair coin: where B is random, and where A and B
are swapped."""

_DOCUMENT_TRIES = 10  # draws of another document before the same one is accepted, as in the source


@dataclass(frozen=True)
class Pairs:
    """Where the two segments of each instance lie in the token store.

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


def next_sentence_pairs(
    sentences: Ints, documents: Ints, seq_len: int, key: Keys, *, short_seq_prob: float = 0.1
) -> Pairs:
    """All pairs of one pass over the corpus, in corpus order.

    Args:
        sentences: [S+1] token position where each sentence starts.
        documents: [D+1] sentence index where each document starts.
        seq_len: Length of a finished input, [CLS] and two [SEP] included.
        key: Key of this pass; another key gives other lengths, splits and random partners.
        short_seq_prob: Share of documents cut to a random shorter target length.

    Returns:
        The pairs, truncated so that len(A) + len(B) <= seq_len - 3, neither empty.
    """
    return _walk(
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
) -> Pairs:
    """All pairs of one pass over the corpus, in corpus order; half of them swapped.

    Args:
        sentences: [S+1] token position where each sentence starts.
        documents: [D+1] sentence index where each document starts.
        seq_len: Length of a finished input, [CLS] and two [SEP] included.
        key: Key of this pass.
        short_seq_prob: Share of documents cut to a random shorter target length.
        single: What becomes of a chunk of one sentence. other_document: B is from another document
            and the label is 1, as in ALBERT's code; skip: it gives no pair, so that the label is
            about order alone, as in ALBERT's paper.

    Returns:
        The pairs, truncated so that len(A) + len(B) <= seq_len - 3, neither empty.
    """
    pairs = _walk(
        (sentences, documents),
        seq_len - 3,
        key,
        short_seq_prob,
        lambda single, coin: (single, coin & ~single),
    )
    if single == "other_document":
        return pairs
    return Pairs(*(getattr(pairs, field.name)[~pairs.forced] for field in fields(Pairs)))


def _walk(
    corpus: tuple[Ints, Ints], room: int, key: Keys, short_seq_prob: float, decide: Decide
) -> Pairs:
    """The pairs of one pass: A and B have at most ``room`` tokens together."""
    sentences, documents = corpus
    target = _targets(len(documents) - 1, room, key, short_seq_prob)
    at, document = documents[:-1].copy(), np.arange(len(documents) - 1)
    rounds = []
    for round_ in range(len(sentences)):  # a round takes at least one sentence of each document
        if not len(document):
            break
        draws = fold(key, stream("pairs"), document, round_)
        chunk_end = _reach(sentences, at, target[document], documents[document + 1])
        size = chunk_end - at
        split = at + np.where(size == 1, 1, 1 + below(fold(draws, 0), np.maximum(size - 1, 1)))
        random, swapped = decide(size == 1, uniform(fold(draws, 1)) < 0.5)
        wanted = target[document] - (sentences[split] - sentences[at])
        other_start, other_end = _elsewhere(sentences, documents, document, wanted, draws)
        a = at, split
        b = np.where(random, other_start, split), np.where(random, other_end, chunk_end)
        bounds = [np.where(swapped, y, x) for x, y in zip(a + b, b + a, strict=True)]
        label = (random | swapped).astype(np.int64)
        rounds.append((document, *(sentences[bound] for bound in bounds), label, size == 1))
        at = np.where(random, split, chunk_end)  # sentences that a random B displaced come again
        going_on = at < documents[document + 1]
        at, document = at[going_on], document[going_on]
    order = np.argsort(np.concatenate([r[0] for r in rounds]), kind="stable")
    columns = [np.concatenate([r[i] for r in rounds])[order] for i in range(1, 7)]
    return _truncate(Pairs(*columns), room, key)


def _targets(documents: int, room: int, key: Keys, short_seq_prob: float) -> Ints:
    """The target length of each document: drawn once a document and pass, not once an instance."""
    draws = fold(key, stream("target"), np.arange(documents))
    short = uniform(fold(draws, 0)) < short_seq_prob
    return np.where(short, 2 + below(fold(draws, 1), room - 1), room)


def _reach(sentences: Ints, start: Ints, tokens: Ints, limit: Ints) -> Ints:
    """The end of the shortest run of whole sentences from ``start`` with at least ``tokens``."""
    end = np.searchsorted(sentences, sentences[start] + tokens)
    return np.minimum(np.maximum(end, start + 1), limit)


def _elsewhere(
    sentences: Ints, documents: Ints, document: Ints, wanted: Ints, draws: Keys
) -> tuple[Ints, Ints]:
    """Sentences [start, end) of a random other document, at least ``wanted`` tokens of them."""
    tries = below(fold(draws[:, None], 2, np.arange(_DOCUMENT_TRIES)), len(documents) - 1)
    first = np.argmax(tries != document[:, None], axis=1)
    accepted = (tries != document[:, None]).any(axis=1)
    other = tries[np.arange(len(document)), np.where(accepted, first, _DOCUMENT_TRIES - 1)]
    start = documents[other] + below(fold(draws, 3), documents[other + 1] - documents[other])
    return start, _reach(sentences, start, wanted, documents[other + 1])


def _truncate(pairs: Pairs, room: int, key: Keys) -> Pairs:
    """Take single tokens off the longer segment (B on ties) until the pair fits.

    How many each side loses follows from the lengths; each lost token comes from the front or the
    back with probability one half, so the number lost in front is binomial.
    """
    a, b = pairs.a_end - pairs.a_start, pairs.b_end - pairs.b_start
    excess = np.maximum(a + b - room, 0)
    until_equal = np.minimum(excess, np.abs(a - b))
    rest = excess - until_equal  # from here on they take turns, B first
    cut_a = np.where(a > b, until_equal, 0) + rest // 2
    cut_b = np.where(a > b, 0, until_equal) + (rest + 1) // 2
    generator = np.random.Generator(np.random.Philox(key=int(fold(key, stream("truncate")))))
    front_a, front_b = generator.binomial(cut_a, 0.5), generator.binomial(cut_b, 0.5)
    return Pairs(
        pairs.a_start + front_a,
        pairs.a_end - (cut_a - front_a),
        pairs.b_start + front_b,
        pairs.b_end - (cut_b - front_b),
        pairs.label,
        pairs.forced,
    )
