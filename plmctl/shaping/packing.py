"""Cutting token streams into rows: whole sentences for masked models, windows for causal ones."""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def document_blocks(sentences: Ints, documents: Ints, block: int) -> tuple[Ints, Ints]:
    """Greedy runs of whole sentences of at most ``block`` tokens that never cross a document.

    RoBERTa's DOC-SENTENCES (fairseq ``complete_doc``). A sentence longer than ``block`` is cut into
    pieces of ``block``, so that no text is lost.

    Args:
        sentences: [S+1] token position where each sentence starts.
        documents: [D+1] sentence index where each document starts.
        block: Tokens a row, special tokens not counted.

    Returns:
        starts, ends: token positions, each [rows].
    """
    sentences, documents = _cut_long(sentences, documents, block)
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


class DocumentStream:
    """A corpus as one endless row of tokens, never copied.

    Args:
        documents: [D+1] token position where each document starts; the last is the token count.
        separated: Whether a separator stands after every document, and counts as its last token.
    """

    def __init__(self, documents: Ints, *, separated: bool = True) -> None:
        self._tokens, self._separated = documents, separated
        # Document d starts d separators later in the stream than in the store.
        self._starts = documents + np.arange(len(documents)) if separated else documents

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
        document = self._document(positions)
        token = self._tokens[document] + positions - self._starts[document]
        separator = token == self._tokens[document + 1]
        return np.where(separator, token - 1, token), separator

    def offsets(self, positions: Ints) -> Ints:
        """How far each stream position is from the start of its document, any shape."""
        return positions - self._starts[self._document(positions)]

    def _document(self, positions: Ints) -> Ints:
        return np.searchsorted(self._starts, positions, side="right") - 1
