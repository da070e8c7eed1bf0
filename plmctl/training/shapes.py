"""Batches of a few shapes, for a network that is compiled once a shape.

Rows of a phase are of one length, but for batches that happen to have shorter rows only, and the
list of cells with a target is of another length in every batch of a masked objective. Both are
padded here, on the host: rows by cells that nobody sees, lists by cells whose target is IGNORE. The
losses and their counts stay, to the rounding of sums.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from plmctl.models.batch import IGNORE, Batch

# Lists of cells and what goes with them, and the loss terms that have a target for each.
_LISTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("positions",), ("mlm", "kl", "cosine", "lm", "z_loss")),
    (("left", "right", "place"), ("sbo",)),
)
_LIST_BITS = 3
_CELLS = ("positions", "left", "right")
_ROW_BITS, _ROW_MULTIPLE = 4, 8  # of a decoder's rows: 114 of span corruption become 120
_EVEN = 0.75  # share of a decoder's cells with a target, from which on its rows are of one length
_TARGET_BITS = 4  # of the number of its cells: the last is worth the least step of its targets


def fixed(batch: Batch, width: int) -> Batch:
    """The same batch in one of a few shapes.

    Args:
        batch: Of a pretraining objective, on the CPU.
        width: Of its rows, those of an encoder if there is one too; longer ones stay.
    """
    wide = _wide(batch, width)
    for lists, loss_terms in _LISTS:
        if lists[0] in wide.inputs:
            wide = _filled(wide, lists, tuple(part for part in loss_terms if part in wide.targets))
    return wide


def capacity(count: int, most: int) -> int:
    """What a list of ``count`` is padded to: up to its next three leading bits, at most ``most``.

    Steps are a quarter to an eighth of the number. The count of masked tokens of 32
    rows of sentence pairs spreads over a third of its mean, that of 512 rows over a twelfth: three
    capacities and two. The longer lists are an eighth longer on the average, and with them the
    heads, which are a twentieth of a base size's step; every further capacity would be one more
    compilation.
    """
    step = _step(count, _LIST_BITS)
    return min(-(-count // step) * step, most)


def _step(number: int, bits: int) -> int:
    """The worth of the last of a number's so many leading bits."""
    return 1 << max(0, number.bit_length() - bits)


def _wide(batch: Batch, width: int) -> Batch:
    """With its rows padded to their width, and the cells that are named numbered anew."""
    mask = batch.inputs.get("attention_mask")
    if mask is None:
        return batch
    decoded = batch.inputs.get("decoder_input_ids")
    cells = mask if decoded is None else decoded
    inputs, grown = dict(batch.inputs), 0
    for name, tensor in batch.inputs.items():
        if name == "decoder_input_ids":
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
    return replace(batch, inputs=inputs, cells=batch.cells + grown)


def _decoder_width(batch: Batch, width: int) -> int:
    """What a decoder's rows are padded to, where an encoder's are padded to ``width``.

    Those of span corruption are of nearly one length, far below the encoder's. A prefix ends
    anywhere, so that a batch's longest rest has any length close to the encoder's: the whole of it.
    """
    rows, longest = batch.inputs["decoder_input_ids"].shape
    if 2 * longest > width and len(batch.inputs["positions"]) < _EVEN * rows * longest:
        return max(longest, width)
    step = max(_ROW_MULTIPLE, _step(longest, _ROW_BITS))
    return -(-longest // step) * step


def _padded(rows_BL: Tensor, width: int) -> Tensor:
    """[B, width] with zeros at the end: any id will do, where the mask is 0."""
    return pad(rows_BL, (0, max(0, width - rows_BL.shape[1])))


def _filled(batch: Batch, lists: tuple[str, ...], loss_terms: tuple[str, ...]) -> Batch:
    """With lists [K] and their targets [K] padded to a capacity; the first of them in order."""
    table = batch.inputs.get("decoder_input_ids", batch.inputs["input_ids"])
    first = batch.inputs[lists[0]]
    room = capacity(len(first), table.numel())
    if "decoder_input_ids" in batch.inputs:  # of 16 prefixes, spread over half of their mean
        step = _step(table.numel(), _TARGET_BITS)
        room = min(-(-room // step) * step, table.numel())
    missing = room - len(first)
    if missing <= 0 or not loss_terms:
        return batch
    # Cells from everywhere: the gradients of one cell named a thousand times would be added one
    # after the other.
    spread = torch.arange(missing) * table.numel() // missing
    order = torch.cat([first, spread]).argsort(stable=True)
    inputs, targets = dict(batch.inputs), dict(batch.targets)
    for name in lists:
        extra = spread if name in _CELLS else torch.zeros_like(spread)
        inputs[name] = torch.cat([inputs[name], extra])[order]
    for part in loss_terms:
        targets[part] = torch.cat([targets[part], torch.full_like(spread, IGNORE)])[order]
    return replace(batch, inputs=inputs, targets=targets)
