"""Completions scored by an encoder's pseudo-likelihood, for the lm-evaluation-harness.

The likelihood is that of ``likelihood.masked``, ``word_l2r``: what is here is where a completion
begins, and how a context is cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints
from plmctl.errors import DataError
from plmctl.evaluation.likelihood import masked
from plmctl.evaluation.likelihood.reader import open_reader
from plmctl.evaluation.likelihood.windows import pieces
from plmctl.evaluation.prompting.continuations import Continuation

if TYPE_CHECKING:
    from plmctl.evaluation.measures import Subject


class Masked:
    """An encoder with its masked-language-model head.

    Args:
        subject: The model.
        seq_len: Tokens at most, special ones included; None: its positions.

    Raises:
        ConfigError: The model has no such head.
    """

    def __init__(self, subject: Subject, seq_len: int | None = None) -> None:
        self._reader = open_reader(subject, ("masked",))
        self._room = min(seq_len or 2**31, self._reader.context) - 2

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Continuation]:
        """Score the tokens of each completion, all else seen; a context is cut from the left.

        Args:
            pairs: A context and its completion each.

        Raises:
            DataError: A completion without a token, or longer than the positions.
        """
        texts = [context + completion for context, completion in pairs]
        read = self._reader.tokens([[text] for text in texts])
        firsts = [
            self._first(text, context, completion)
            for text, (context, completion) in zip(texts, pairs, strict=True)
        ]
        over = [max(0, len(tokens.ids) - self._room) for tokens in read]
        cut = [
            (tokens.ids[less:], tokens.starts[less:], first - less)
            for tokens, first, less in zip(read, firsts, over, strict=True)
        ]
        found = self._scored(cut)
        parts = zip(found, over, strict=True)
        return [Continuation(*one, cut=less > 0) for one, less in parts]

    def rolled(self, text: str) -> list[Continuation]:
        """Every token of a text once, in windows that do not overlap."""
        (tokens,) = self._reader.tokens([[text]])
        windows = [
            (tokens.ids[start:end], tokens.starts[start:end], 0)
            for start, end in pieces(len(tokens.ids), self._room)
        ]
        return [Continuation(*one) for one in self._scored(windows)]

    def _first(self, text: str, context: str, completion: str) -> int:
        """The first token that has anything of the completion."""
        ends = [end for _, end in self._reader.offsets(text)]
        first = next((n for n, end in enumerate(ends) if end > len(context)), len(ends))
        count = len(ends) - first
        if not 1 <= count <= self._room:
            raise DataError(
                f"{completion[:40]!r}: {count} tokens, where the model takes 1 to {self._room}",
                "leave the item out",
            )
        return first

    def _scored(
        self, texts: Sequence[tuple[Ints, NDArray[np.bool_], int]]
    ) -> list[tuple[float, int, bool]]:
        """Of ids, word starts and the first scored place of each text: sum, tokens, greedy."""
        rows, places = [], []
        for number, (ids, starts, first) in enumerate(texts):
            place = np.arange(first, len(ids))
            until = masked.masked_until(starts, "word_l2r")[first:]
            places.append(np.stack([np.full_like(place, number), place + 1, until + 1]))
            rows.append(masked.framed(self._reader, ids))
        row, place, until = np.concatenate([np.zeros((3, 0), np.int64), *places], axis=1)
        sums, greedy = np.zeros(len(texts)), np.ones(len(texts), bool)
        for which, nll, likeliest in masked.scored(
            self._reader, masked.Copies(rows, row, place, until)
        ):
            np.subtract.at(sums, row[which], nll)
            np.logical_and.at(greedy, row[which], likeliest)
        counts = np.bincount(row, minlength=len(texts))
        return [
            (float(total), int(count), bool(right))
            for total, count, right in zip(sums, counts, greedy, strict=True)
        ]
