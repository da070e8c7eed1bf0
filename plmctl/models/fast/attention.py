"""Attention with dropout on a CPU, and without padding; masks that the host does not read.

``scaled_dot_product_attention`` has no fused kernel for dropout on a CPU: it falls back to plain
products with the slow draws of ``torch.dropout``. ``cpu_attention`` is the same arithmetic with
the draws of ``fast.layers``; without dropout it is PyTorch's own kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from plmctl.models.fast import CPU_ATTENTION
from plmctl.models.fast.layers import drop
from plmctl.models.fast.required import require_parameters

require_parameters(sdpa_attention_forward, "module", "query", "key", "value", "attention_mask")

# --- Attention on a CPU ---


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, dropout: float, scale: float
) -> Tensor:
    """softmax(query key^T scale + mask), with dropout, times value.

    Args:
        query: [B, heads, Q, d].
        key: [B, heads, K, d].
        value: [B, heads, K, d].
        mask: True where a query sees a key, or values to add; broadcast to [B, heads, Q, K].
        dropout: Share of the attention that is set to 0.
        scale: The scale of the products.

    Returns:
        [B, heads, Q, d].
    """
    query = query if scale == 1 else query * scale  # T5's is 1
    scores_BHQK = torch.matmul(query, key.transpose(-1, -2))
    if mask is not None and mask.dtype == torch.bool:
        scores_BHQK.masked_fill_(~mask, torch.finfo(scores_BHQK.dtype).min)
    elif mask is not None and mask.dtype == scores_BHQK.dtype:
        scores_BHQK += mask
    elif mask is not None:  # under autocast it is the wider of the two
        scores_BHQK = scores_BHQK + mask
    return torch.matmul(drop(scores_BHQK.softmax(-1), dropout), value)


def causal_mask(queries: int, keys: int) -> Tensor:
    """[Q, K], True where a key is not after its query."""
    return torch.ones(queries, keys, dtype=torch.bool).tril()


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
        output: tuple[Tensor, None] = library_attention(
            module, query, key, value, attention_mask, **options
        )
        return output
    is_causal = options.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", False)
    if attention_mask is None and is_causal and query.shape[2] > 1:
        attention_mask = causal_mask(query.shape[2], key.shape[2])
    bias: Tensor | None = options.get("position_bias")
    if bias is not None and attention_mask is not None:
        least = torch.finfo(bias.dtype).min
        seen = attention_mask.dtype == torch.bool
        bias = bias.masked_fill(~attention_mask, least) if seen else bias + attention_mask
    scaling: float | None = options.get("scaling")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    mask = attention_mask if bias is None else bias
    attended = attend(query, key, value, mask, dropout=dropout, scale=scale)
    return attended.transpose(1, 2).contiguous(), None


def use_cpu_attention(model: PreTrainedModel) -> None:
    """Let a model, in place, attend this way if it uses PyTorch's kernel."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(CPU_ATTENTION)


AttentionInterface.register(CPU_ATTENTION, cpu_attention)
AttentionMaskInterface.register(CPU_ATTENTION, sdpa_mask)


# --- The positions of a padded batch that are not padding: gathering and scattering ---


# Share of a batch's positions: with less padding, gathering and scattering cost what they save.
_LEAST_PADDING = 0.04


@dataclass(frozen=True)
class RealPositions:
    """The positions of a batch [B, L] that are not padding.

    Attributes:
        index: [T] of the flattened batch.
        rows: B.
        length: L.
    """

    index: Tensor
    rows: int
    length: int

    @classmethod
    def of(cls, mask: Tensor) -> RealPositions | None:
        """Those where a mask [B, L] is not 0; None: there is too little padding to gain anything.

        It waits for a GPU.
        """
        index = mask.flatten().nonzero().squeeze(1)
        if len(index) > (1 - _LEAST_PADDING) * mask.numel():
            return None
        return cls(index, mask.shape[0], mask.shape[1])

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
