"""A text to read and a text to write, as a network takes them: on two sides, or in one sequence.

An encoder-decoder (T5) reads the source, and its decoder the target shifted right by one. A network
that reads from left to right (GPT) reads the source, what parts the texts, and the target; only the
target's tokens, the end token included, are learnt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import padded
from plmctl.tasks import _decoding
from plmctl.tasks._ends import ended, id_of
from plmctl.tasks._formats import Layout, encode, layout_of
from plmctl.tasks._rows import pad_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from plmctl.modeling.batch import Batch

Ids = tuple[tuple[int, ...], ...]
Cut = NDArray[np.bool_]


class Sides(Protocol):
    """How a network takes source and target."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's own."""

    @property
    def end(self) -> int:
        """The id that ends a target."""

    def sources(self, texts: Sequence[str], longest: int) -> tuple[Ids, Cut]:
        """Ids of sources, with what stands around them of ``longest`` at most; which lost text."""

    def targets(self, texts: Sequence[str], longest: int) -> tuple[Ids, Cut]:
        """Ids of targets with their end tokens, of ``longest`` at most, and which lost text."""

    def batch(self, sources: Sequence[Any], targets: Sequence[Any] | None) -> Batch:
        """Rows as a network takes them; without targets where they are to be answered."""

    def generated(self, model: Any, batch: Batch, **decoding: Any) -> Tensor:
        """Ids that are written to each row [B, T]; see ``_decoding.generated``."""

    def label_scores(self, model: Any, batch: Batch, labels: Ids) -> Tensor:
        """The log-probability of each label as the whole target, [B, C]."""


def sides_of(tokenizer: PreTrainedTokenizerBase) -> Sides:
    """What the model of a tokenizer's folder takes."""
    from plmctl.modeling.auto import config_of

    two = config_of(tokenizer.name_or_path).is_encoder_decoder
    return TwoSides(tokenizer) if two else OneSequence(tokenizer, _layout(tokenizer))


def _layout(tokenizer: PreTrainedTokenizerBase) -> Layout:
    """What stands around source and target in one sequence.

    GPT-1: ``_start_ source _delimiter_ target _classify_``, as pairs in its paper. GPT-2 and GPT-3:
    a line break between, and the end-of-text token after; nothing is published.
    """
    found = layout_of(tokenizer, pair=True)
    return Layout(found.before, found.between, found.after or (id_of(tokenizer.eos_token_id),))


@dataclass(frozen=True)
class TwoSides:
    """Of an encoder-decoder."""

    tokenizer: PreTrainedTokenizerBase

    @property
    def end(self) -> int:
        """The tokenizer's end token."""
        return id_of(self.tokenizer.eos_token_id)

    def sources(self, texts: Sequence[str], longest: int) -> tuple[Ids, Cut]:
        """With end tokens."""
        return ended(self.tokenizer, texts, longest)

    def targets(self, texts: Sequence[str], longest: int) -> tuple[Ids, Cut]:
        """With end tokens."""
        return ended(self.tokenizer, texts, longest)

    def batch(self, sources: Sequence[Any], targets: Sequence[Any] | None) -> Batch:
        """Each side padded to its longest.

        Returns:
            inputs: input_ids, attention_mask [B, L], and where there are targets decoder_input_ids
            [B, T], the padding token first, and positions [K]; targets: lm [K]. Tokens and cells
            are those of both sides.
        """
        pad = id_of(self.tokenizer.pad_token_id)
        ids, real = padded(sources, pad)
        inputs = {"input_ids": ids, "attention_mask": real.astype(np.int64)}
        if targets is None:
            return _batch(inputs, None, int(real.sum()), real.size)
        wanted, asked = padded(targets, pad)
        shifted = np.full_like(wanted, pad)
        shifted[:, 1:] = wanted[:, :-1]
        inputs |= {"decoder_input_ids": shifted, "positions": np.flatnonzero(asked)}
        return _batch(inputs, wanted[asked], int(real.sum() + asked.sum()), real.size + asked.size)

    def generated(self, model: Any, batch: Batch, **decoding: Any) -> Tensor:
        """See ``_decoding.generated``."""
        return _decoding.generated(model, self._read(batch), **decoding)

    def label_scores(self, model: Any, batch: Batch, labels: Ids) -> Tensor:
        """See ``_decoding.label_scores``."""
        return _decoding.label_scores(model, self._read(batch), labels)

    def _read(self, batch: Batch) -> dict[str, Tensor]:
        return {name: batch.inputs[name] for name in ("input_ids", "attention_mask")}


@dataclass(frozen=True)
class OneSequence:
    """Of a network that reads from left to right."""

    tokenizer: PreTrainedTokenizerBase
    layout: Layout

    @property
    def end(self) -> int:
        """GPT-1's ``_classify_``, or the end-of-text token."""
        return self.layout.after[-1]

    def sources(self, texts: Sequence[str], longest: int) -> tuple[Ids, Cut]:
        """With what stands before the source and between it and the target."""
        before, between = self.layout.before, self.layout.between
        encoded, cut = self._kept(texts, longest - len(before) - len(between))
        return tuple((*before, *row, *between) for row in encoded), cut

    def targets(self, texts: Sequence[str], longest: int) -> tuple[Ids, Cut]:
        """With end tokens."""
        encoded, cut = self._kept(texts, longest - len(self.layout.after))
        return tuple((*row, *self.layout.after) for row in encoded), cut

    def batch(self, sources: Sequence[Any], targets: Sequence[Any] | None) -> Batch:
        """Rows padded at their ends.

        Returns:
            inputs: input_ids, attention_mask [B, L]; prompts [B], the lengths of the sources; and
            where there are targets positions [K], the cells that predict their tokens;
            targets: lm [K].
        """
        rows = sources if targets is None else list(map(_joined, sources, targets))
        ids, real = padded(rows, pad_of(self.tokenizer))
        read = np.array([len(source) for source in sources], dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": real.astype(np.int64), "prompts": read}
        if targets is None:
            return _batch(inputs, None, int(real.sum()), real.size)
        asked = (np.arange(ids.shape[1]) >= read[:, None]) & real
        inputs["positions"] = np.flatnonzero(asked) - 1  # each is predicted from the cell before
        return _batch(inputs, ids[asked], int(real.sum()), real.size)

    def generated(self, model: Any, batch: Batch, **decoding: Any) -> Tensor:
        """See ``heads.writer.generated``."""
        from plmctl.modeling.heads.writer import Prompts, generated

        read = Prompts(batch.inputs["input_ids"], batch.inputs["prompts"])
        return generated(model, read, end=self.end, **decoding)

    def label_scores(self, model: Any, batch: Batch, labels: Ids) -> Tensor:
        """See ``heads.writer.label_scores``."""
        from plmctl.modeling.heads.writer import Prompts, label_scores

        read = Prompts(batch.inputs["input_ids"], batch.inputs["prompts"])
        return label_scores(model, read, labels)

    def _kept(self, texts: Sequence[str], room: int) -> tuple[list[list[int]], Cut]:
        encoded = encode(self.tokenizer, texts)
        cut = np.array([len(row) > max(1, room) for row in encoded], dtype=bool)
        return [row[: max(1, room)] for row in encoded], cut


def _joined(source: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    return (*source, *target)


def _batch(
    inputs: dict[str, NDArray[Any]], wanted: NDArray[Any] | None, tokens: int, cells: int
) -> Batch:
    import torch

    from plmctl.modeling.batch import Batch

    made = {name: torch.from_numpy(array) for name, array in inputs.items()}
    targets = {} if wanted is None else {"lm": torch.from_numpy(wanted)}
    return Batch(made, targets, tokens, cells)
