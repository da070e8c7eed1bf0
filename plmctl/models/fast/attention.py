"""Attention with dropout on a CPU, and without padding; masks that the host does not read.

``scaled_dot_product_attention`` has no fused kernel for dropout on a CPU: it falls back to plain
products with the slow draws of ``torch.dropout``. ``cpu_attention`` computes it head by head,
without copies, with the draws of ``fast.layers``; without dropout it is PyTorch's own kernel.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from plmctl.models.fast import CPU_ATTENTION, UNPADDED_ATTENTION
from plmctl.models.fast.layers import draw_kept
from plmctl.models.fast.required import require_parameters

require_parameters(sdpa_attention_forward, "module", "query", "key", "value", "attention_mask")

# --- Attention on a CPU ---


# Scores that are computed at once: 2 MB, which stay in the processor's caches.
_SCORES = 1 << 19

# Queries of a causal attention that are computed at once, with the keys up to the last of them.
_CAUSAL_QUERIES = 64

# Up to so many keys PyTorch's kernel is faster in float32 than in bfloat16, where it makes a small
# product for every 32 queries: 17 ms against 25 with 128 keys, 150 against 130 with 512.
_FEW_KEYS = 256


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    dropout: float,
    scale: float,
    causal: bool = False,
) -> Tensor:
    """softmax(query key^T scale + bias), with dropout, times value.

    Each head is read where a projection to [B, L, heads, d] has put it. PyTorch's product of all
    heads would first copy its inputs, and then their gradients.

    Args:
        query: [B, heads, Q, d].
        key: [B, heads, K, d].
        value: [B, heads, K, d].
        mask: True where a query sees a key, at least one; broadcast to [B, heads, Q, K].
        bias: Values to add; broadcast in the same way.
        dropout: Share of the attention that is set to 0.
        causal: A query sees no key after its own place; without a mask, and Q is K.

    Returns:
        [B, heads, Q, d]; in memory [B, Q, heads, d].
    """
    apply: Any = _Attention.apply
    attended: Tensor = apply(query, key, value, mask, bias, dropout, scale, causal)
    return attended.transpose(1, 2)


class _Attention(torch.autograd.Function):
    """Piece by piece; keeps the attention before dropout, and a byte per element for dropout."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        dropout: float,
        scale: float,
        causal: bool,
    ) -> Tensor:
        rows, heads, queries, _ = query.shape
        shape = rows, heads, queries, key.shape[2]
        # Values are added where a query sees no key, too: `masked_fill_` takes eight times as long.
        added = [
            x.expand(shape) for x in (bias, _least_where_not(mask, query.dtype)) if x is not None
        ]
        keep, ctx.kept_scale = draw_kept(shape, dropout)
        ctx.pieces, ctx.scale = _pieces(*shape, causal), scale
        ctx.bias_shape = None if bias is None else bias.shape
        out = value.new_empty(rows, queries, heads, value.shape[3])
        all_weights = []
        for b, h, q, k in ctx.pieces:
            scores = _wide(torch.bmm(query[b, h, q], key[b, h, k].transpose(1, 2)))
            if scale != 1:  # T5's is 1
                scores *= scale
            for values in added:
                scores += values[b, h, q, k]
            if causal:  # a query of this piece sees all keys before the piece
                scores[:, :, q] += _not_later(q.stop - q.start, scores.dtype)
            weights = scores.softmax(-1)
            kept = torch.mul(weights, keep[b, h, q, k], out=scores).to(value.dtype)
            out[b, q, h] = torch.bmm(kept, value[b, h, k])
            all_weights.append(weights)
        ctx.save_for_backward(query, key, value, keep, *all_weights)
        return out.mul_(ctx.kept_scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, keep, *all_weights = ctx.saved_tensors
        d_query, d_key, d_value = (
            x.new_empty(x.transpose(1, 2).shape).transpose(1, 2) for x in (query, key, value)
        )
        d_bias = None
        if ctx.needs_input_grad[4]:
            d_bias = all_weights[0].new_zeros(ctx.bias_shape)
        gradient = gradient * ctx.kept_scale
        for (b, h, q, k), weights in zip(ctx.pieces, all_weights, strict=True):
            given, kept = gradient[b, q, h], keep[b, h, q, k]
            dropped = (weights * kept).to(value.dtype)
            _set_or_add(d_value[b, h], k, torch.bmm(dropped.transpose(1, 2), given))
            d_weights = _wide(torch.bmm(given, value[b, h, k].transpose(1, 2))).mul_(kept)
            d_scores: Tensor = torch.ops.aten._softmax_backward_data(
                d_weights, weights, -1, weights.dtype
            )
            if d_bias is not None:
                part = _part(d_bias, b, h, q, k)
                part += d_scores.sum_to_size(part.shape)
            if ctx.scale != 1:
                d_scores *= ctx.scale
            d_scores = d_scores.to(query.dtype)
            d_query[b, h, q] = torch.bmm(d_scores, key[b, h, k])
            _set_or_add(d_key[b, h], k, torch.bmm(d_scores.transpose(1, 2), query[b, h, q]))
        return d_query, d_key, d_value, None, d_bias, None, None, None


def _least_where_not(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """What hides a score when it is added: 0 where a mask is True, else the least number."""
    if mask is None:
        return None
    dtype = torch.promote_types(dtype, torch.float32)
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


def _not_later(count: int, dtype: torch.dtype) -> Tensor:
    """The same for so many queries and their own keys, of which they see none that is later."""
    return torch.full((count, count), torch.finfo(dtype).min, dtype=dtype).triu_(1)


_Piece = tuple[slice, int, slice, slice]


def _pieces(rows: int, heads: int, queries: int, keys: int, causal: bool) -> list[_Piece]:
    """Rows, head, queries and keys of each piece; of a row's pieces the first has all keys."""
    step = _CAUSAL_QUERIES if causal else max(queries, 1)
    blocks = [slice(start, min(start + step, queries)) for start in range(0, queries, step)]
    count = max(1, _SCORES // max(1, min(step, queries) * keys))
    return [
        (slice(row, min(row + count, rows)), head, block, slice(0, block.stop if causal else keys))
        for head in range(heads)
        for row in range(0, rows, count)
        for block in reversed(blocks)
    ]


def _wide(x: Tensor) -> Tensor:
    """A product in 16 bits in 32, for the softmax."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _set_or_add(total: Tensor, keys: slice, part: Tensor) -> None:
    """Gather what pieces give to the keys of a head, [rows, K, d]; the first one has all keys."""
    if keys.stop == total.shape[1]:
        total.copy_(part)
    else:
        total[:, keys] += part


def _part(bias: Tensor, b: slice, h: int, q: slice, k: slice) -> Tensor:
    """What a piece adds to its scores: of a bias that is broadcast, all."""
    places = zip((b, slice(h, h + 1), q, k), bias.shape, strict=True)
    return bias[tuple(one if size > 1 else slice(None) for one, size in places)].squeeze(1)


def cpu_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls; see ``attend``.

    ``options`` are transformers': dropout, scaling, is_causal, and T5's position_bias. With
    ``real`` (``fast.encoder``) there is one row of what is not padding, [1, heads, T, d].

    Returns:
        [B, Q, heads, d], and no weights.
    """
    real: RealPositions | None = options.pop("real", None)
    if real is not None:
        q, k, v = (real.padded(x.transpose(1, 2)).transpose(1, 2) for x in (query, key, value))
        padded, _ = cpu_attention(module, q, k, v, attention_mask, **options)
        return real.flat(padded), None
    dropout: float = options.get("dropout", 0.0)
    if not dropout or key.shape[1] != query.shape[1]:
        library_attention: Any = sdpa_attention_forward
        added = options.get("position_bias") is not None
        added |= attention_mask is not None and attention_mask.dtype != torch.bool
        wide = query.dtype == torch.bfloat16 and key.shape[2] <= _FEW_KEYS and not added
        with torch.autocast("cpu", enabled=False) if wide else nullcontext():
            q, k, v = (x.float() if wide else x for x in (query, key, value))
            output: Tensor = library_attention(module, q, k, v, attention_mask, **options)[0]
        return output.to(query.dtype) if wide else output, None
    causal = options.get("is_causal")
    if causal is None:
        causal = getattr(module, "is_causal", False)
    bias: Tensor | None = options.get("position_bias")
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        bias = attention_mask if bias is None else bias + attention_mask
    scaling: float | None = options.get("scaling")
    attended = attend(
        query,
        key,
        value,
        attention_mask if attention_mask is None or attention_mask.dtype == torch.bool else None,
        bias,
        dropout=dropout,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        causal=bool(causal) and attention_mask is None and query.shape[2] > 1,
    )
    return attended.transpose(1, 2), None


def use_cpu_attention(model: PreTrainedModel) -> None:
    """Let a model, in place, attend this way if it uses PyTorch's kernel."""
    if model.config._attn_implementation == "sdpa":
        set_attention(model, CPU_ATTENTION)


def set_attention(model: PreTrainedModel, name: str) -> None:
    """Let a model attend by a function of transformers' registry, and the networks in it.

    A pair of networks has a config of each, of which old versions set the first only.
    """
    for body in model.modules():
        if isinstance(body, PreTrainedModel):
            body.set_attn_implementation(name)


AttentionInterface.register(CPU_ATTENTION, cpu_attention)
AttentionMaskInterface.register(CPU_ATTENTION, sdpa_mask)


# --- Attention of texts one after the other, without padding, on a GPU ---


def unpadded_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls, by PyTorch's ``varlen_attn``.

    ``options`` are transformers'; without ``real``, as in a validation, the rows have their
    padding. On a CPU, which has no such kernel, it is a loop over the texts: the reference.

    Returns:
        [B, Q, heads, d], and no weights.
    """
    real: RealPositions | None = options.pop("real", None)
    if real is None or real.starts is None:
        library_attention: Any = sdpa_attention_forward
        output, _ = library_attention(module, query, key, value, attention_mask, **options)
        return output, None
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    attended = attend_texts(q, k, v, real.starts, real.length, options.get("scaling"))
    return attended[None], None


def attend_texts(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, longest: int, scale: float | None
) -> Tensor:
    """The attention of each text to itself, in bf16 or fp16 on a GPU.

    Args:
        query: [T, heads, d], as key and value.
        starts: int32 [R + 1], where the texts start, and the end.
        longest: Length of the longest text, or more.
    """
    if query.device.type != "cpu":
        from torch.nn.attention.varlen import varlen_attn

        return cast(
            Tensor, varlen_attn(query, key, value, starts, starts, longest, longest, scale=scale)
        )
    out = torch.empty_like(query)
    for first, end in pairwise(starts.tolist()):
        q, k, v = (x[None, first:end].transpose(1, 2) for x in (query, key, value))
        attended = scaled_dot_product_attention(q, k, v, scale=scale)
        out[first:end] = attended[0].transpose(0, 1)
    return out


AttentionInterface.register(UNPADDED_ATTENTION, unpadded_attention)


# --- The positions of a padded batch that are not padding: gathering and scattering ---


# Share of a batch's positions: with less padding, gathering and scattering cost what they save.
_LEAST_PADDING = 0.04
# For bf16 on a CPU, oneDNN compiles a kernel for each number of positions it has not met: 20 % of
# the time of a small RoBERTa. Rounded up to this, numbers come again.
_BF16_MULTIPLE = 64


@dataclass(frozen=True)
class RealPositions:
    """The positions of a batch [B, L] that are not padding, or all but a few of it.

    Attributes:
        index: [T] of the flattened batch.
        rows: B.
        length: L.
        starts: int32 [R + 1]: where the texts start in the index, and its end, for a kernel that
            attends to texts of many lengths; None: there is none.
    """

    index: Tensor
    rows: int
    length: int
    starts: Tensor | None = None

    @classmethod
    def of(cls, mask: Tensor) -> RealPositions | None:
        """The positions where a mask [B, L] is not 0; None: too little padding to gain anything.

        Under bf16 also as much padding as makes their number a round one. It waits for a GPU.
        """
        real = mask.flatten() != 0
        count = int(real.sum())
        if count > (1 - _LEAST_PADDING) * mask.numel():
            return None
        if torch.is_autocast_enabled("cpu"):
            padding = (~real).nonzero().squeeze(1)
            real[padding[: -count % _BF16_MULTIPLE]] = True
        return cls(real.nonzero().squeeze(1), mask.shape[0], mask.shape[1])

    def flat(self, x: Tensor) -> Tensor:
        """[B, L, ...] to one row without padding, [1, T, ...]."""
        apply: Any = _Gather.apply
        real: Tensor = apply(x.flatten(0, 1), self.index)
        return real[None]

    def padded(self, x: Tensor) -> Tensor:
        """[1, T, ...] to [B, L, ...], 0 at padding."""
        apply: Any = _Scatter.apply
        rows: Tensor = apply(x[0], self.index, self.rows * self.length)
        return rows.view(self.rows, self.length, *x.shape[2:])


# Each is the other's backward. PyTorch's own would add, row by row, where setting is enough.


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.index, ctx.size = index, len(x)
        return x[index]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _scattered(gradient, ctx.index, ctx.size), None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, size: int) -> Tensor:
        ctx.index = index
        return _scattered(x, index, size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.index], None, None


def _scattered(x: Tensor, index: Tensor, size: int) -> Tensor:
    out = x.new_zeros(size, *x.shape[1:])
    out[index] = x
    return out


# --- Masks for a GPU that are made without reading them ---


def use_unread_masks() -> None:
    """Let transformers, in this process, keep a padding mask that hides nothing.

    By itself it checks for every batch whether the mask can be left out, for which the host waits
    for the device to finish all its work. Nearly every batch has some padding.
    """
    AttentionMaskInterface.register("sdpa", unread_mask)


def unread_mask(*inputs: Any, **options: Any) -> Tensor | None:
    """The mask for PyTorch's attention, without the check whether it hides anything."""
    library_mask: Any = sdpa_mask
    mask: Tensor | None = library_mask(*inputs, **{**options, "allow_is_bidirectional_skip": False})
    return mask


AttentionMaskInterface.register(UNPADDED_ATTENTION, unread_mask)
