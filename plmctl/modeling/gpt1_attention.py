"""GPT-1's attention through PyTorch's fused kernel, which transformers does not do for this model.

The module's weights and their names are untouched: only what is computed between them changes, and
a saved model loads with transformers' own class.
"""

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel
from transformers.models.openai.modeling_openai import Attention

from plmctl.modeling.attention import attend, causal

M = TypeVar("M", bound=PreTrainedModel)


class FusedAttention(Attention):
    """Causal attention in one kernel: no matrix of [B, heads, T, T] is kept for the backward."""

    def _attn(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        attention_mask: Tensor | None = None,
        output_attentions: bool = False,
    ) -> list[Tensor]:
        """Attention of ``q`` [B, heads, T, d] to ``k`` [B, heads, d, T] and ``v`` as ``q``.

        Args:
            q: Queries.
            k: Keys, transposed.
            v: Values.
            attention_mask: None: causal. Boolean [B, 1, T, T]: where a query sees a key, causality
                included. Anything else is transformers' own mask, and its own code does it.
            output_attentions: Whether the weights are asked for, which a fused kernel has not.
        """
        boolean = attention_mask is None or attention_mask.dtype == torch.bool
        if output_attentions or not boolean:
            theirs: Any = super()._attn
            attended: list[Tensor] = theirs(q, k, v, attention_mask, output_attentions)
            return attended
        dropout = self.attn_dropout.p if self.training else 0.0
        if dropout and q.device.type == "cpu" and not torch.compiler.is_compiling():
            seen = causal(q.shape[-2], k.shape[-1]) if attention_mask is None else attention_mask
            scale = q.shape[-1] ** -0.5
            keys = k.transpose(-1, -2)
            return [attend(q, keys, v, seen, dropout=dropout, scale=scale)]
        return [
            scaled_dot_product_attention(
                q,
                k.transpose(-1, -2),
                v,
                attn_mask=attention_mask,
                dropout_p=dropout,
                is_causal=attention_mask is None,
            )
        ]


def fuse(model: M) -> M:
    """The same model, of any of GPT-1's heads, with fused attention."""
    whole: Any = model
    for block in whole.transformer.h:
        block.attn.__class__ = FusedAttention
    return model


def block_mask(position_ids: Tensor) -> Tensor:
    """Where a query sees a key: not after it, and not before position 0 of its own text.

    Args:
        position_ids: [B, T], beginning again at 0 at every text.

    Returns:
        [B, 1, T, T], B * T * T bytes.
    """
    length = position_ids.shape[1]
    # A row's first text may begin anywhere, so that counting the zeros numbers the texts.
    text_BT = (position_ids == 0).cumsum(1)
    same_BTT = text_BT[:, :, None] == text_BT[:, None, :]
    causal_TT = torch.ones(length, length, dtype=torch.bool, device=position_ids.device).tril()
    return (same_BTT & causal_TT)[:, None]
