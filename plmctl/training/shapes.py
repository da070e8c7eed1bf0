"""Batches of few different shapes, for a network that is compiled once per shape.

The rows of a phase have one length, except in batches of shorter rows only; the list of positions
with a target has another length in every batch of a masked objective. Both are padded here, on the
host: rows with positions that attention masks, lists with entries whose target is IGNORE. The
losses and their counts are the same, up to the rounding of sums. What may be padded so is said by
the batch (``Batch.lists``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from plmctl.arrays import IGNORE
from plmctl.models.batch import UNPADDED, Batch, TargetList

_LIST_BITS = 3
_ROW_BITS, _ROW_MULTIPLE = 4, 8  # of a decoder's rows: 114 of span corruption become 120
_EVEN = 0.75  # share of a decoder's positions with a target, above which its rows count as even
_TARGET_BITS = 4  # target counts are rounded up to this many significant bits
_DECODER = "decoder_input_ids"
_REAL_BITS = 5  # the count of what is not padding: up to a sixteenth more


def fixed(batch: Batch, width: int) -> Batch:
    """The same batch, padded to one of few shapes; as it is if it does not say what its lists are.

    Args:
        batch: A batch of a pretraining objective, on the CPU.
        width: Length of its rows (an encoder's, if there is one); longer rows stay.
    """
    if batch.lists is None:
        return batch
    wide = _wide(batch, batch.lists, width)
    for one in batch.lists:
        wide = _filled(wide, one)
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


def _wide(batch: Batch, lists: Sequence[TargetList], width: int) -> Batch:
    """Pad the rows to ``width``, and renumber the positions in the lists."""
    mask, decoded = batch.inputs.get("attention_mask"), batch.inputs.get(_DECODER)
    if mask is None:
        return batch
    own = mask if decoded is None else decoded  # the rows of the targets
    after = width if decoded is None else _decoder_width(batch, width)
    inputs = {
        name: _padded(tensor, decoded, after)
        if name.startswith("decoder_") and decoded is not None
        else _padded(tensor, mask, width)
        for name, tensor in batch.inputs.items()
    }
    targets = {term: _padded(target, own, after, IGNORE) for term, target in batch.targets.items()}
    before, after = own.shape[1], max(own.shape[1], after)
    for name in (name for one in lists for name in one.positions):
        inputs[name] = inputs[name] // before * after + inputs[name] % before
    grown = sum(
        inputs[name].numel() - batch.inputs[name].numel()
        for name in ("attention_mask", _DECODER)
        if name in inputs
    )
    return replace(batch, inputs=inputs, targets=targets, padded_tokens=batch.padded_tokens + grown)


def _decoder_width(batch: Batch, width: int) -> int:
    """The padded length of a decoder's rows, if an encoder's are padded to ``width``.

    Span corruption's targets have nearly one length, far below the encoder's. A prefix ends
    anywhere, so a batch's longest target may be nearly as long as the encoder's rows: ``width``.
    """
    rows, longest = batch.inputs[_DECODER].shape
    listed = max((len(target) for target in batch.targets.values()), default=0)
    if 2 * longest > width and listed < _EVEN * rows * longest:
        return max(longest, width)
    step = max(_ROW_MULTIPLE, _step(longest, _ROW_BITS))
    return -(-longest // step) * step


def _padded(tensor: Tensor, rows_BL: Tensor, width: int, fill: int = 0) -> Tensor:
    """A tensor [B, L, ...] as [B, width, ...], filled at the end; one without these rows stays."""
    missing = width - rows_BL.shape[1]
    if missing <= 0 or tensor.shape[:2] != rows_BL.shape:
        return tensor
    return pad(tensor, (*(0, 0) * (tensor.ndim - 2), 0, missing), value=fill)


def _filled(batch: Batch, one: TargetList) -> Batch:
    """Pad a list [K] to a capacity; its first positions stay sorted."""
    table = batch.inputs.get(_DECODER, batch.inputs["input_ids"])
    first = batch.inputs[one.positions[0]]
    most = max(table.numel(), len(first))
    room = capacity(len(first), most)
    if _DECODER in batch.inputs:  # for 16 prefixes it varies by half of its mean
        step = _step(table.numel(), _TARGET_BITS)
        room = min(-(-room // step) * step, most)
    missing = room - len(first)
    if missing <= 0:
        return batch
    # Padding repeats positions from everywhere: gradients of one position that is repeated a
    # thousand times would be added one after the other.
    spread = torch.arange(missing) * table.numel() // missing
    order = torch.cat([first, spread]).argsort(stable=True)

    def filled(tensor: Tensor, value: int) -> Tensor:
        return torch.cat([tensor, tensor.new_full((missing, *tensor.shape[1:]), value)])[order]

    inputs, targets = dict(batch.inputs), dict(batch.targets)
    for name in one.positions:
        inputs[name] = torch.cat([inputs[name], spread])[order]
    for name in one.inputs:
        inputs[name] = filled(inputs[name], 0)
    for term in one.targets:
        targets[term] = filled(targets[term], IGNORE)
    return replace(batch, inputs=inputs, targets=targets)


def unpadded(batch: Batch) -> Batch:
    """The same batch, with what is not padding: the host knows it, a GPU would have to be asked.

    ``UNPADDED`` are two more inputs: positions [T] of the flattened rows, those of each row in turn
    and then some padding, so that few numbers T occur; and int32 [R + 1], where each row starts
    among them, then the padding in rows no longer than the others, and the end.
    """
    mask = batch.inputs.get("attention_mask")
    if mask is None:
        return batch
    rows_BL = mask.flatten(0, -2) != 0
    length, real = rows_BL.shape[1], rows_BL.flatten()
    count = int(real.sum())
    step = _step(count, _REAL_BITS)
    room = min(-(-count // step) * step, real.numel())
    padding = (~real).nonzero().squeeze(1)[: room - count]
    index = torch.cat([real.nonzero().squeeze(1), padding])
    most = -(-_step(room, _REAL_BITS) // length)
    after = (count + torch.arange(1, most + 1) * length).clamp_max(room)
    ends = torch.cat([rows_BL.sum(1).cumsum(0), after])
    starts = torch.cat([ends.new_zeros(1), ends]).int()
    return replace(
        batch, inputs={**batch.inputs, **dict(zip(UNPADDED, (index, starts), strict=True))}
    )
