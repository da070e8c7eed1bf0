"""Examples of one or several sequences each, and the batches that a network takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import padded
from plmctl.errors import DataError
from plmctl.tasks._formats import Ids, Sequences

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from plmctl.corpus.tables import Row
    from plmctl.modeling.batch import Batch
    from plmctl.tasks import Use

_IGNORE = -100  # modeling.batch.IGNORE, whose module imports torch


@dataclass(frozen=True)
class Rows:
    """Examples of one sequence (a text), or of several (options; a pair in both orders).

    Attributes:
        examples: [N] the numbers of each one's sequences.
        ids: Of every sequence.
        segments: As ids; None where the network has none.
        pad_id: What padding is.
        cut: Examples that lost text.
        language: Whether next tokens are predicted too.
        several: Whether an example has a dimension of its sequences, be it one long.
    """

    examples: tuple[Ids, ...]
    ids: tuple[Ids, ...]
    segments: tuple[Ids, ...] | None
    pad_id: int
    cut: int
    language: bool
    several: bool

    @classmethod
    def of_views(
        cls, views: Sequence[Sequences], tokenizer: PreTrainedTokenizerBase, *, language: bool
    ) -> Rows:
        """Rows that are read once, or in several ways: each view has one sequence of every row."""
        rows = len(views[0].ids)
        return cls(
            tuple(tuple(range(row, row + rows * len(views), rows)) for row in range(rows)),
            tuple(ids for view in views for ids in view.ids),
            _joined([view.segments for view in views]),
            pad_of(tokenizer),
            sum(map(any, zip(*(view.cut for view in views), strict=True))),
            language,
            len(views) > 1,
        )

    @classmethod
    def of_groups(
        cls,
        sizes: Sequence[int],
        made: Sequences,
        tokenizer: PreTrainedTokenizerBase,
        *,
        language: bool,
    ) -> Rows:
        """Rows of one sequence an option; ``sizes`` are their numbers, in order."""
        ends = np.cumsum(sizes).tolist()
        examples = tuple(
            tuple(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)
        )
        cut = sum(any(made.cut[number] for number in example) for example in examples)
        return cls(
            examples, made.ids, made.segments, pad_of(tokenizer), cut, language, several=True
        )

    def __len__(self) -> int:
        """Examples."""
        return len(self.examples)

    def lengths(self) -> NDArray[np.int64]:
        """[N] tokens of each one's longest sequence."""
        return np.array([max(len(self.ids[k]) for k in example) for example in self.examples])

    def batch(self, samples: NDArray[np.int64], targets: Mapping[str, NDArray[Any]]) -> Batch:
        """The examples ``samples`` padded to the longest sequence of them.

        Args:
            samples: [B] their numbers.
            targets: Of the parts of the loss but the language model's.

        Returns:
            inputs: input_ids, attention_mask, and token_type_ids where there are segments, [B, L],
            or [B, S, L] of S sequences an example, where fewer are filled up with the first and
            ``options`` [B, S] is false; lm_cells [K], the cells whose next token is predicted.
            targets: as given, and lm [B] or [B, S], the number of tokens that each predicts.
        """
        import torch

        from plmctl.modeling.batch import Batch

        chosen = [self.examples[sample] for sample in samples]
        width = max(map(len, chosen))
        which = [k for example in chosen for k in (*example, *example[:1] * (width - len(example)))]
        there = np.arange(width) < np.array([len(example) for example in chosen])[:, None]
        ids, real = padded([self.ids[k] for k in which], self.pad_id)
        inputs: dict[str, NDArray[Any]] = {
            "input_ids": ids,
            "attention_mask": real.astype(np.int64),
        }
        if self.segments is not None:
            inputs["token_type_ids"], _ = padded([self.segments[k] for k in which], 0)
        shape = there.shape if self.several else (len(chosen),)
        inputs = {name: array.reshape(*shape, -1) for name, array in inputs.items()}
        if self.several:
            inputs["options"] = there
        asked = dict(targets)
        if self.language:
            has_next = np.zeros_like(real)
            has_next[:, :-1] = real[:, 1:] & there.reshape(-1, 1)
            inputs["lm_cells"] = np.flatnonzero(has_next)
            predicted = np.where(there.ravel(), has_next.sum(1), _IGNORE)
            asked["lm"] = predicted.reshape(shape)
        return Batch(
            {name: torch.from_numpy(array) for name, array in inputs.items()},
            {name: torch.from_numpy(array) for name, array in asked.items()},
            int(real.sum()),
            real.size,
        )


def readable(
    rows: Sequence[Row], columns: Sequence[str], use: Use
) -> tuple[list[Row], tuple[str, ...]]:
    """The rows that have a text, and why the others were dropped: only training drops rows.

    Raises:
        DataError: No row is left.
    """
    if use != "train":
        return list(rows), ()
    kept, dropped = [], []
    for row in rows:
        empty = [column for column in columns if not str(row.cell(column)).strip()]
        if empty:
            dropped.append(f"{row.origin}: column {empty[0]!r} is empty; expected a text")
        else:
            kept.append(row)
    if not kept:
        raise DataError(
            f"no training row has a text: {dropped[0]}" if dropped else "there are no training rows"
        )
    return kept, tuple(dropped)


def pad_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """The id that fills rows up."""
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return int(pad or 0)


def _joined(parts: Sequence[tuple[Ids, ...] | None]) -> tuple[Ids, ...] | None:
    found = [part for part in parts if part is not None]
    return tuple(row for part in found for row in part) if found else None
