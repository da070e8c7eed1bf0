"""GPT-1, GPT-2 and GPT-3: hidden states for any head, and GPT-1's attention in one fused kernel.

The modules' weights and their names are untouched: only what is computed between them changes, and
a saved model loads with transformers' own class.
"""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import PreTrainedModel
from transformers.models.openai.modeling_openai import Attention

from plmctl.models.fast.attention import attend, causal_mask

# --- Hidden states, without a mask that the host has to read ---


def hidden_states(model: Any, input_ids: Tensor, position_ids: Tensor | None = None) -> Tensor:
    """The last states, as transformers' own forward computes them.

    GPT-1's own cannot take a mask for several texts in a row. GPT-2's looks at the positions to
    know whether a row has several, for which the host waits for a GPU; and where it is compiled it
    cannot look, and makes a mask of T * T a row that keeps attention from its fastest kernel.

    Args:
        model: Of transformers, with any head on a ``transformer`` of model type "openai-gpt", its
            attention fused, or "gpt2".
        input_ids: [B, T]. Padding is at the end, where no real token sees it: there is no mask.
        position_ids: [B, T], beginning again at 0 where attention shall not look back any further;
            None: each row is one text.

    Returns:
        [B, T, H].
    """
    whole, gpt1 = model.transformer, model.config.model_type == "openai-gpt"
    states_BTH: Tensor = model.get_input_embeddings()(input_ids)
    if not gpt1 and not _masked_here(model.config._attn_implementation):
        # A cache would cost memory, and switches transformers' own handling of packed rows off; of
        # ids without a mask it warns where the config has a padding token.
        run = whole(inputs_embeds=states_BTH, position_ids=position_ids, use_cache=False)
        theirs_BTH: Tensor = run.last_hidden_state
        return theirs_BTH
    mask, places = None, position_ids
    if position_ids is None:
        places = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
    else:
        mask = block_mask(position_ids)
    embed = whole.positions_embed if gpt1 else whole.wpe
    states_BTH = whole.drop(states_BTH + embed(places))
    for block in whole.h:
        states_BTH = block(states_BTH, mask)[0] if gpt1 else block(states_BTH, None, mask)
    return states_BTH if gpt1 else whole.ln_f(states_BTH)


def _masked_here(attention: str | None) -> bool:
    """Whether GPT-2 gets its mask here, or none where each row is one text: PyTorch's kernels."""
    return attention == "sdpa" or str(attention).startswith("plmctl")


# --- GPT-1's attention through PyTorch's fused kernel, which transformers does not use for it ---


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
            seen = (
                causal_mask(q.shape[-2], k.shape[-1]) if attention_mask is None else attention_mask
            )
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


def fuse_gpt1_attention(model: M) -> M:
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
