"""Attention with dropout on a CPU, where PyTorch has no fused kernel for it.

``scaled_dot_product_attention`` falls back to plain products there, with the slow draws of
``torch.dropout``. This is the same arithmetic with the draws of ``modeling.dropout``; without
dropout it is PyTorch's own kernel.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from plmctl.modeling.cells import Cells
from plmctl.modeling.dropout import drop

NAME = "plmctl_cpu"


def attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, dropout: float, scale: float
) -> Tensor:
    """softmax(query key^T scale + mask), with dropout, times value.

    Args:
        query: [B, heads, Q, d].
        key: [B, heads, K, d].
        value: [B, heads, K, d].
        mask: True where a query sees a key, or what is added; it spreads to [B, heads, Q, K].
        dropout: Share of the attention that is set to 0.
        scale: Of the products.

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


def causal(queries: int, keys: int) -> Tensor:
    """[Q, K], True where a key is not after its query."""
    return torch.ones(queries, keys, dtype=torch.bool).tril()


def forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls; see ``attend``.

    ``options`` are transformers': dropout, scaling, is_causal, and T5's position_bias. With
    ``cells`` (``modeling.encoder``) there is one row of what is real of a batch, [1, heads, T, d].

    Returns:
        [B, Q, heads, d], and no weights.
    """
    cells: Cells | None = options.pop("cells", None)
    if cells is not None:
        return on_the_grid(forward, cells, module, (query, key, value), attention_mask, **options)
    dropout: float = options.get("dropout", 0.0)
    if not dropout or key.shape[1] != query.shape[1]:
        theirs: Any = sdpa_attention_forward
        found: tuple[Tensor, None] = theirs(module, query, key, value, attention_mask, **options)
        return found
    asked = options.get("is_causal")
    is_causal = getattr(module, "is_causal", False) if asked is None else asked
    if attention_mask is None and is_causal and query.shape[2] > 1:
        attention_mask = causal(query.shape[2], key.shape[2])
    bias: Tensor | None = options.get("position_bias")
    if bias is not None and attention_mask is not None:
        least = torch.finfo(bias.dtype).min
        seen = attention_mask.dtype == torch.bool
        bias = bias.masked_fill(~attention_mask, least) if seen else bias + attention_mask
    asked_scale: float | None = options.get("scaling")
    scale = query.shape[-1] ** -0.5 if asked_scale is None else asked_scale
    mask = attention_mask if bias is None else bias
    attended = attend(query, key, value, mask, dropout=dropout, scale=scale)
    return attended.transpose(1, 2).contiguous(), None


def on_the_grid(
    attention: Callable[..., Any],
    cells: Cells,
    module: nn.Module,
    states: tuple[Tensor, Tensor, Tensor],
    mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """What is real of a batch, padded for an attention that knows nothing of it.

    Args:
        attention: A function that transformers calls.
        cells: What is real.
        module: The layer.
        states: Query, key and value, each [1, heads, T, d].
        mask: Of the batch.
        **options: transformers'.

    Returns:
        [1, T, heads, d], and no weights.
    """
    q, k, v = (cells.padded(x.transpose(1, 2)).transpose(1, 2) for x in states)
    attended, _ = attention(module, q, k, v, mask, **options)
    return cells.flat(attended), None


def use(model: PreTrainedModel) -> None:
    """Let a model attend this way, where its class can do with PyTorch's kernel."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


AttentionInterface.register(NAME, forward)
AttentionMaskInterface.register(NAME, sdpa_mask)
