"""Batches of few different shapes, for a network that is compiled once per shape.

The rows of a phase have one length, except in batches of shorter rows only; the list of positions
with a target has another length in every batch of a masked objective. Both are padded here, on the
host: rows with positions that attention masks, lists with positions whose target is IGNORE. The
losses and their counts are the same, up to the rounding of sums.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from plmctl.models.batch import IGNORE, Batch

# Lists of positions and their companions, and the loss terms that have a target for each entry.
_LISTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("positions",), ("mlm", "kl", "cosine", "lm", "z_loss")),
    (("left", "right", "place"), ("sbo",)),
)
_LIST_BITS = 3
_CELLS = ("positions", "left", "right")
_ROW_BITS, _ROW_MULTIPLE = 4, 8  # of a decoder's rows: 114 of span corruption become 120
_EVEN = 0.75  # share of a decoder's positions with a target, above which its rows count as even
_TARGET_BITS = 4  # leading bits of the number of its positions that set the step of its targets


def fixed(batch: Batch, width: int) -> Batch:
    """The same batch, padded to one of few shapes.

    Args:
        batch: A batch of a pretraining objective, on the CPU.
        width: Length of its rows (an encoder's, if there is one); longer rows stay.
    """
    wide = _wide(batch, width)
    for lists, loss_terms in _LISTS:
        if lists[0] in wide.inputs:
            wide = _filled(wide, lists, tuple(term for term in loss_terms if term in wide.targets))
    return wide


def capacity(count: int, most: int) -> int:
    """The padded length of a list of ``count``: rounded up to three leading bits, at most ``most``.

    Steps are a quarter to an eighth of the number. The count of masked tokens of 32 rows of
    sentence pairs varies by a third of its mean, that of 512 rows by a twelfth: three capacities
    and two. Lists are an eighth longer on average, and with them the work of the heads, which are a
    twentieth of a base size's step; each further capacity would be one more compilation.
    """
    step = _step(count, _LIST_BITS)
    return min(-(-count // step) * step, most)


def _step(number: int, bits: int) -> int:
    """The value of the last of the first ``bits`` leading bits of a number."""
    return 1 << max(0, number.bit_length() - bits)


def _wide(batch: Batch, width: int) -> Batch:
    """With its rows padded, and the positions in its lists renumbered."""
    mask = batch.inputs.get("attention_mask")
    if mask is None:
        return batch
    decoded = batch.inputs.get("decoder_input_ids")
    cells = mask if decoded is None else decoded
    inputs, grown = dict(batch.inputs), 0
    for name, tensor in batch.inputs.items():
        if name in ("decoder_input_ids", "decoder_texts"):
            inputs[name] = _padded(tensor, _decoder_width(batch, width))
        elif tensor.shape == mask.shape:
            inputs[name] = _padded(tensor, width)
    for name in ("attention_mask", "decoder_input_ids"):
        grown += inputs[name].numel() - batch.inputs[name].numel() if name in inputs else 0
    before = cells.shape[1]
    after = inputs["attention_mask" if decoded is None else "decoder_input_ids"].shape[1]
    for name in _CELLS:
        if name in inputs:
            inputs[name] = inputs[name] // before * after + inputs[name] % before
    return replace(batch, inputs=inputs, padded_tokens=batch.padded_tokens + grown)


def _decoder_width(batch: Batch, width: int) -> int:
    """The padded length of a decoder's rows, if an encoder's are padded to ``width``.

    Span corruption's targets have nearly one length, far below the encoder's. A prefix ends
    anywhere, so a batch's longest target may be nearly as long as the encoder's rows: ``width``.
    """
    rows, longest = batch.inputs["decoder_input_ids"].shape
    if 2 * longest > width and len(batch.inputs["positions"]) < _EVEN * rows * longest:
        return max(longest, width)
    step = max(_ROW_MULTIPLE, _step(longest, _ROW_BITS))
    return -(-longest // step) * step


def _padded(rows_BL: Tensor, width: int) -> Tensor:
    """[B, width] with zeros at the end; the mask is 0 there too."""
    return pad(rows_BL, (0, max(0, width - rows_BL.shape[1])))


def _filled(batch: Batch, lists: tuple[str, ...], loss_terms: tuple[str, ...]) -> Batch:
    """With lists [K] and their targets [K] padded to a capacity; the first list stays sorted."""
    table = batch.inputs.get("decoder_input_ids", batch.inputs["input_ids"])
    first = batch.inputs[lists[0]]
    room = capacity(len(first), table.numel())
    if "decoder_input_ids" in batch.inputs:  # for 16 prefixes it varies by half of its mean
        step = _step(table.numel(), _TARGET_BITS)
        room = min(-(-room // step) * step, table.numel())
    missing = room - len(first)
    if missing <= 0 or not loss_terms:
        return batch
    # Padding repeats positions from everywhere: gradients of one position that is repeated a
    # thousand times would be added one after the other.
    spread = torch.arange(missing) * table.numel() // missing
    order = torch.cat([first, spread]).argsort(stable=True)
    inputs, targets = dict(batch.inputs), dict(batch.targets)
    for name in lists:
        extra = spread if name in _CELLS else torch.zeros_like(spread)
        inputs[name] = torch.cat([inputs[name], extra])[order]
    for term in loss_terms:
        targets[term] = torch.cat([targets[term], torch.full_like(spread, IGNORE)])[order]
    return replace(batch, inputs=inputs, targets=targets)
