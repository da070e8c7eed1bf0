"""From sentences and documents to rows: where each row starts and ends, and its layout.

Everything here is index arrays over the token store. Edges say which tokens are in a row (whole
sentences, lines, streams of documents, segments of one length); a layout says what stands at each
place of a padded batch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Bools, Ints
from plmctl.characters import SPACES

# --- Rows of whole sentences, lines, and streams of documents ---


_TOGETHER = 1 << 18
"""Sentences at once: 30 MB."""


def block_edges(
    sentences: Ints, documents: Ints, block: int, *, cut: bool = True
) -> Iterator[Ints]:
    """Greedy runs of whole sentences of at most ``block`` tokens that never cross a document.

    Args:
        sentences: [S+1] token position where each sentence starts.
        documents: [D+1] sentence index where each document starts.
        block: Tokens per row, special tokens not counted.
        cut: A sentence longer than ``block`` is cut into pieces of ``block``, so that no text is
            lost; else it is a row of its own.

    Yields:
        In parts [rows + 1] the token position where each row starts, which is where the one before
        it ends; the last is where the last row ends.
    """
    first, position, count = 0, int(sentences[0]), len(sentences) - 1
    while first < count:
        last = min(first + max(_TOGETHER, block + 1), count)  # no row is longer than this
        starts = sentences[first : last + 1].copy()
        starts[0] = position  # the row before may have ended within the sentence
        bounds = _within(documents, first, last)
        ends = np.repeat(bounds[1:], np.diff(bounds)) - first
        if cut:
            starts, ends = _cut_long(starts, ends, block)
        rows = _greedy(starts, ends, block)
        if last < count:
            position = int(starts[rows.pop()])  # which may continue in the next stretch
            first += int(np.searchsorted(sentences[first:last], position, side="right")) - 1
        else:
            first = count
        yield starts[rows]
    yield sentences[-1:]


def _greedy(starts: Ints, ends: Ints, block: int) -> list[int]:
    """The pieces that start a row: each row takes what fits up to the end of its document.

    Args:
        starts: [N+1] token position where each piece starts.
        ends: [N] the piece with which the next document starts, for each piece.
        block: Tokens per row.
    """
    reach = np.searchsorted(starts, starts[:-1] + block, side="right") - 1
    return _row_starts(np.minimum(np.maximum(reach, np.arange(len(reach)) + 1), ends))


def _row_starts(following: Ints) -> list[int]:
    """The pieces that start a row; ``following`` [N] has the start of the row after one of each."""
    next_start = following.tolist()
    rows, at = [], 0
    while at < len(next_start):
        rows.append(at)
        at = next_start[at]
    return rows


def _cut_long(sentences: Ints, ends: Ints, block: int) -> tuple[Ints, Ints]:
    """Sentences [N+1] and where their documents end [N]; long sentences are cut into pieces."""
    pieces = np.maximum(1, -(-np.diff(sentences) // block))
    first = np.concatenate([[0], np.cumsum(pieces)])  # piece index where each sentence starts
    within = np.arange(first[-1]) - np.repeat(first[:-1], pieces)
    starts = np.repeat(sentences[:-1], pieces) + block * within
    return np.append(starts, sentences[-1]), np.repeat(first[ends], pieces)


def _within(documents: Ints, first: int, last: int) -> Ints:
    """The bounds of the documents of sentences [first, last), clipped to them."""
    start = np.searchsorted(documents, first, side="right") - 1
    end = np.searchsorted(documents, last, side="left")
    return np.clip(documents[start : end + 1], first, last)


def line_edges(starts: Ints, ends: Ints, documents: Ints, *, separated: bool) -> Iterator[Ints]:
    """A corpus as fairseq reads it for RoBERTa: a separator ends every sentence.

    One more separator stands between documents. It is a separate line (fairseq's empty line).

    Args:
        starts: [S] token position where each sentence starts.
        ends: [S] where it ends; tokens between two sentences are left out.
        documents: [D+1] sentence index where each document starts.

    Yields:
        In parts [N+1] the stream position where each line starts; the last is where all end.
    """
    end = np.zeros(1, dtype=np.int64)
    yield end
    for first in range(0, len(starts), _TOGETHER):
        last = min(first + _TOGETHER, len(starts))
        sizes = ends[first:last] - starts[first:last] + 1
        if separated:
            inner = documents[1:-1]
            inner = inner[slice(*np.searchsorted(inner, [first, last]))] - first
            sizes = np.insert(sizes, inner, 1)
        lines = end + np.cumsum(sizes)
        yield lines
        end = lines[-1:]


class LineStream:
    """The lines of ``line_edges``, whose tokens are never copied.

    Args:
        lines: [N+1] stream position where each line starts.
        starts: [S] token position where each sentence starts.
        documents: [D+1] sentence index where each document starts.
    """

    def __init__(self, lines: Ints, starts: Ints, documents: Ints, *, separated: bool) -> None:
        self.lines, self._starts = lines, starts
        self._documents = np.array([0, len(lines) - 1]) if separated else documents
        inner = documents[1:-1] if separated else documents[:0]
        self._between = inner + np.arange(len(inner))  # the lines that are separators only

    def edges(self, block: int) -> Iterator[Ints]:
        """Rows of at most ``block`` tokens, separators counted: greedy runs of whole lines.

        With separators between documents rows run on into the next document (FULL-SENTENCES,
        fairseq's ``complete``), without they end with it (DOC-SENTENCES, ``complete_doc``).

        Yields:
            As ``block_edges``, of stream positions.
        """
        return block_edges(self.lines, self._documents, block)

    def layout(self, starts: Ints, ends: Ints, multiple: int = 8) -> RowLayout:
        """Rows ``[CLS] block``, with the separators within the block; one segment.

        Args:
            starts: [B] stream positions.
            ends: [B] exclusive ends.
            multiple: The width is the longest row rounded up to this.
        """
        lengths = 1 + ends - starts
        width = -(-int(lengths.max()) // multiple) * multiple
        positions = starts[:, None] + np.arange(-1, width - 1)
        line = np.searchsorted(self.lines, np.minimum(positions, self.lines[-1] - 1), "right") - 1
        token = self._starts[line - np.searchsorted(self._between, line)] - self.lines[line]
        source = np.where(positions == self.lines[line + 1] - 1, SEP, positions + token)
        source[:, 0] = CLS
        source[positions >= ends[:, None]] = PAD
        return RowLayout(source, np.zeros_like(source), lengths)


def document_edges(sentences: Ints, documents: Ints, *, separated: bool) -> Iterator[Ints]:
    """A corpus as one endless row of tokens.

    Args:
        sentences: [S+1] token position where each sentence starts.
        documents: [D+1] sentence index where each document starts.
        separated: Whether a separator stands after every document, and counts as its last token.

    Yields:
        In parts [D+1] the stream position where each document starts; the last is where all end.
    """
    for first in range(0, len(documents), _TOGETHER):
        starts = sentences[documents[first : first + _TOGETHER]]
        # Document d starts d separators later in the stream than in the store.
        yield starts + np.arange(first, first + len(starts)) if separated else starts


class DocumentStream:
    """The stream of ``document_edges``, whose tokens are never copied.

    Args:
        starts: [D+1] stream position where each document starts.
        separated: Whether the last token of every document is a separator.
    """

    def __init__(self, starts: Ints, *, separated: bool = True) -> None:
        self._starts, self._separated = starts, separated

    def __len__(self) -> int:
        return int(self._starts[-1])

    def locate(self, positions: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """The store's positions of stream positions.

        Args:
            positions: Stream positions, any shape.

        Returns:
            Token positions in the store (any valid one at a separator), and whether each position
            is a separator.
        """
        if not self._separated:
            return positions, np.zeros(positions.shape, dtype=bool)
        document = self._document(positions)
        separator = positions + 1 == self._starts[document + 1]
        return positions - document - separator, separator

    def offsets(self, positions: Ints) -> Ints:
        """How far each stream position is from the start of its document, any shape."""
        return positions - self._starts[self._document(positions)]

    def _document(self, positions: Ints) -> Ints:
        return np.searchsorted(self._starts, positions, side="right") - 1


# --- Text without the white space at its edges ---


class WhiteSpace:
    """Finds the white space at the edges of text in byte-level BPE, as ``str.strip`` does.

    Several characters may be one token, and several tokens one character.

    Args:
        pieces: Ids whose bytes all occur in white space, each with its bytes.
        vocab_size: Largest id + 1.
    """

    def __init__(self, pieces: Sequence[tuple[int, bytes]], vocab_size: int) -> None:
        self._steps = {by: _steps(pieces, vocab_size, by) for by in (1, -1)}

    def stripped(
        self, starts: Ints, ends: Ints, tokens: Callable[[Ints], NDArray[np.integer]]
    ) -> tuple[Ints, Ints]:
        """The spans without the white space at both edges; of only white space, a token remains.

        Args:
            starts: [N] where each span starts.
            ends: [N] where it ends.
        """
        spans = {1: starts.copy(), -1: ends.copy()}
        for by, edge in spans.items():
            first, room = edge - (by < 0), spans[-1] - spans[1] - 1
            partial, read, left = np.zeros(len(edge), np.int64), 0, np.flatnonzero(room > 0)
            while len(left):
                partial[left] = self._steps[by][partial[left], tokens(first[left] + by * read)]
                read += 1
                whole = left[partial[left] == 0]
                edge[whole] = first[whole] + by * read + (by < 0)
                left = left[(partial[left] >= 0) & (room[left] > read)]
        return spans[1], spans[-1]


def _steps(pieces: Sequence[tuple[int, bytes]], vocab_size: int, by: int) -> NDArray[np.int8]:
    """What of a character has been read after one more id; -1: the text is no white space.

    Args:
        pieces: As for ``WhiteSpace``.
        vocab_size: Largest id + 1.
        by: 1 to read forwards, -1 to read backwards.

    Returns:
        [beginnings, V]: the number of a beginning of a character; 0 is that of no byte.
    """
    spaces = [space[::by] for space in SPACES]
    partial = sorted({space[:size] for space in spaces for size in range(len(space))}, key=len)
    whole = re.compile(b"(?:%s)*" % b"|".join(map(re.escape, spaces)))
    steps = np.full((len(partial), vocab_size), -1, dtype=np.int8)
    for (state, before), (id_, data) in product(enumerate(partial), pieces):
        rest = whole.sub(b"", before + data[::by], count=1)
        if rest in partial:
            steps[state, id_] = partial.index(rest)
    return steps


# --- Segments of one length, the last of each text shorter (T5) ---
#
# Source: google-research/text-to-text-transfer-transformer, t5/data/preprocessors.py
# (``reduce_concat_tokens``, ``split_tokens``).


CONCATENATED = 128
"""Documents that T5 concatenates, with nothing between them, before it cuts segments."""

_DOCUMENTS_TOGETHER = 1 << 18
"""Documents that are cut together."""


def segment_edges(
    sentences: Ints, documents: Ints, size: int, shortest: int, group: int = 1
) -> Iterator[Ints]:
    """Consecutive segments of each text: one document, or several concatenated ones.

    The original first takes one random chunk of 65,536 tokens of each longer document, to bound its
    memory. Here all of the text is used.

    Args:
        sentences: [S+1] token position where each sentence starts.
        documents: [D+1] sentence index where each document starts.
        size: Tokens per segment; the last of a text is shorter.
        shortest: Segments of fewer tokens are left out.

    Yields:
        In parts [2 * segments] the token positions where each starts and ends, in turn.
    """
    count, together = len(documents) - 1, max(1, _DOCUMENTS_TOGETHER // group) * group
    for first in range(0, count, together):
        last = min(first + together, count)
        bounds = np.append(documents[first:last:group], documents[last])
        yield _cut_evenly(sentences[bounds], size, shortest)


def _cut_evenly(bounds: Ints, size: int, shortest: int) -> Ints:
    pieces = -(-np.diff(bounds) // size)
    first = np.concatenate([[0], np.cumsum(pieces)])
    within = np.arange(first[-1]) - np.repeat(first[:-1], pieces)
    starts = np.repeat(bounds[:-1], pieces) + size * within
    ends = np.minimum(starts + size, np.repeat(bounds[1:], pieces))
    fit = ends - starts >= shortest
    return np.stack([starts[fit], ends[fit]], axis=1).reshape(-1)


# --- Several inputs and targets per row (T5) ---
#
# Source: tensorflow/mesh, mesh_tensorflow/transformer/dataset.py (``pack_dataset``).


def packed_starts(inputs: Ints, targets: Ints, room: int) -> Ints:
    """Greedy rows of consecutive examples: a row ends where an input or a target does not fit.

    As in the source, a row also ends after each ``room`` examples.

    Args:
        inputs: [N] tokens of the input of each example, at most ``room``.
        targets: [N] tokens of its target, the same.
        room: Tokens of inputs, and of targets, per row.

    Returns:
        [rows] the example that each row starts with.
    """
    number = np.arange(len(inputs))
    following = np.minimum((number // room + 1) * room, len(inputs))
    for sizes in (inputs, targets):
        starts = np.concatenate([[0], np.cumsum(sizes)])
        reach = np.searchsorted(starts, starts[:-1] + room, side="right") - 1
        following = np.minimum(following, np.maximum(reach, number + 1))
    return np.array(_row_starts(following), dtype=np.int64)


def packed(ids: Ints, real: Bools, row: Ints, pad: int) -> tuple[Ints, Ints]:
    """Examples side by side in rows.

    Args:
        ids: [E, W] an example per row.
        real: [E, W] which of them are its tokens.
        row: [E] the row that each goes to, ascending; every row from 0 on has one.

    Returns:
        [B, L] ids, and the number of the example within its row, from 1; 0 at padding.
    """
    lengths = real.sum(axis=1)
    ends, first = np.cumsum(lengths), np.searchsorted(row, np.arange(row[-1] + 1))
    begins = ends - lengths
    shift = np.repeat(begins[first[row]], lengths)
    place = np.repeat(row, lengths), np.arange(ends[-1]) - shift
    shape = (len(first), int(place[1].max()) + 1)
    rows, numbers = np.full(shape, pad, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    rows[place] = ids[real]
    numbers[place] = np.repeat(np.arange(len(row)) - first[row] + 1, lengths)
    return rows, numbers


# --- Padded rows with special tokens, as index arrays ---
#
# A layout says where in the token store each position of a batch comes from: a token position, or
# one of the negative codes below. Filling it in is one gather.


PAD, CLS, SEP = -1, -2, -3


@dataclass(frozen=True)
class RowLayout:
    """The rows of a batch, before their tokens are read.

    Shapes: source and segments [B, L], lengths [B].
    """

    source: Ints
    """A token position of the store, or PAD, CLS, SEP."""
    segments: Ints
    """0 for [CLS] A [SEP], 1 for B [SEP], 0 for padding."""
    lengths: Ints
    """[B] tokens that are not padding."""


def layout(starts: list[Ints], ends: list[Ints], multiple: int = 8) -> RowLayout:
    """Rows ``[CLS] span [SEP]`` with one span, ``[CLS] A [SEP] B [SEP]`` with two.

    Args:
        starts: One array [B] of token positions for each span.
        ends: Their exclusive ends.
        multiple: The width is the longest row rounded up to this, which suits vector units.

    Returns:
        The layout, padded on the right.
    """
    sizes = [end - start for start, end in zip(starts, ends, strict=True)]
    lengths = np.sum(sizes, axis=0) + 1 + len(sizes)
    width = -(-int(lengths.max()) // multiple) * multiple
    column = np.arange(width)[None, :]
    source = np.full((len(lengths), width), PAD, dtype=np.int64)
    segments = np.zeros_like(source)
    source[:, 0] = CLS
    at = np.ones((len(lengths), 1), dtype=np.int64)
    for which, (start, size) in enumerate(zip(starts, sizes, strict=True)):
        past = at + size[:, None]
        own = (column >= at) & (column <= past)
        np.copyto(source, column + (start[:, None] - at), where=own)
        source[np.arange(len(past)), past[:, 0]] = SEP
        if which:
            np.copyto(segments, which, where=own)
        at = past + 1
    return RowLayout(source, segments, lengths)


def fill(source: Ints, tokens: NDArray[np.int32], specials: dict[int, int]) -> Ints:
    """Ids of a layout.

    Args:
        source: [B, L] of a layout.
        tokens: [B, L] ids at ``maximum(source, 0)``.
        specials: The id for each negative code.

    Returns:
        [B, L] ids.
    """
    ids = tokens.astype(np.int64)
    for code, special in specials.items():
        ids[source == code] = special
    return ids
