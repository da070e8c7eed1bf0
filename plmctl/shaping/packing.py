"""Cutting token streams into rows: whole sentences for masked models, windows for causal ones."""

import numpy as np
from numpy.typing import NDArray

from plmctl.shaping.rows import CLS, PAD, SEP, Layout

Ints = NDArray[np.int64]


def document_blocks(sentences: Ints, documents: Ints, block: int) -> tuple[Ints, Ints]:
    """Greedy runs of whole sentences of at most ``block`` tokens that never cross a document.

    A sentence longer than ``block`` is cut into pieces of ``block``, so that no text is lost.

    Args:
        sentences: [S+1] token position where each sentence starts.
        documents: [D+1] sentence index where each document starts.
        block: Tokens a row, special tokens not counted.

    Returns:
        starts, ends: token positions, each [rows].
    """
    return whole_blocks(*_cut_long(sentences, documents, block), block)


def whole_blocks(sentences: Ints, documents: Ints, block: int) -> tuple[Ints, Ints]:
    """As ``document_blocks``, but a sentence longer than ``block`` is a row of its own, uncut."""
    last = np.repeat(documents[1:], np.diff(documents))
    reach = np.searchsorted(sentences, sentences[:-1] + block, side="right") - 1
    following = np.minimum(np.maximum(reach, np.arange(len(reach)) + 1), last).tolist()
    first, at = [], 0
    while at < len(following):
        first.append(at)
        at = following[at]
    starts = sentences[np.asarray(first, dtype=np.int64)]
    return starts, np.append(starts[1:], sentences[-1:])


def _cut_long(sentences: Ints, documents: Ints, block: int) -> tuple[Ints, Ints]:
    pieces = np.maximum(1, -(-np.diff(sentences) // block))
    first = np.concatenate([[0], np.cumsum(pieces)])  # piece index where each sentence starts
    within = np.arange(first[-1]) - np.repeat(first[:-1], pieces)
    starts = np.repeat(sentences[:-1], pieces) + block * within
    return np.append(starts, sentences[-1]), first[documents]


class LineStream:
    """A corpus as fairseq reads it for RoBERTa, never copied: a separator ends every sentence.

    Documents are parted by one more separator, which is a line of its own (fairseq's empty line).

    Args:
        sentences: [S+1] token position where each sentence starts.
        documents: [D+1] sentence index where each document starts.
        part: Whether there are separators between documents.
    """

    def __init__(self, sentences: Ints, documents: Ints, *, part: bool) -> None:
        ends = sentences[1:] + np.arange(1, len(sentences))
        if part:  # document d starts d separators later
            inner = documents[1:-1]
            ends = ends + np.repeat(np.arange(len(documents) - 1), np.diff(documents))
            ends = np.insert(ends, inner, ends[inner - 1] + 1)
        self.lines: Ints = np.concatenate([[0], ends])
        """[N+1] stream position where each line starts."""
        self._documents = np.array([0, len(ends)]) if part else documents

    def blocks(self, block: int) -> tuple[Ints, Ints]:
        """Rows of at most ``block`` cells, separators counted: greedy runs of whole lines.

        With separators between documents rows run on into the next document (FULL-SENTENCES,
        fairseq's ``complete``), without they end with it (DOC-SENTENCES, ``complete_doc``).

        Returns:
            starts, ends: stream positions, each [rows].
        """
        return document_blocks(self.lines, self._documents, block)

    def layout(self, starts: Ints, ends: Ints, multiple: int = 8) -> Layout:
        """Rows ``[CLS] block``, where a block has separators of its own; one segment.

        Args:
            starts: [B] stream positions.
            ends: [B] exclusive ends.
            multiple: The width is the longest row rounded up to this.
        """
        lengths = 1 + ends - starts
        width = -(-int(lengths.max()) // multiple) * multiple
        positions = starts[:, None] + np.arange(-1, width - 1)
        line = np.searchsorted(self.lines, np.minimum(positions, self.lines[-1] - 1), "right") - 1
        # Each line before has one separator, so that many cells of the stream are no tokens.
        source = np.where(positions == self.lines[line + 1] - 1, SEP, positions - line)
        source[:, 0] = CLS
        source[positions >= ends[:, None]] = PAD
        return Layout(source, np.zeros_like(source), lengths)


class DocumentStream:
    """A corpus as one endless row of tokens with a separator after every document, never copied.

    Args:
        documents: [D+1] token position where each document starts; the last is the token count.
    """

    def __init__(self, documents: Ints) -> None:
        self._tokens = documents
        # Document d starts d separators later in the stream than in the store.
        self._starts = documents + np.arange(len(documents))

    def __len__(self) -> int:
        return int(self._starts[-1])

    def locate(self, positions: Ints) -> tuple[Ints, NDArray[np.bool_]]:
        """Where stream positions lie in the store.

        Args:
            positions: Stream positions, any shape.

        Returns:
            Token positions in the store (any valid one at a separator), and whether each position
            is a separator.
        """
        document = np.searchsorted(self._starts, positions, side="right") - 1
        token = self._tokens[document] + positions - self._starts[document]
        separator = token == self._tokens[document + 1]
        return np.where(separator, token - 1, token), separator
