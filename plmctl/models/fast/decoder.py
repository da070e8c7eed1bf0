"""GPT-1 and GPT-2 in PyTorch's fused attention, without a mask that the host has to read.

transformers does not use the fused kernel for GPT-1. GPT-2's own forward looks at the positions to
know whether a row has several texts, for which the host waits for a GPU; if compiled, it cannot
look, and makes a mask of T * T per row that keeps attention from its fastest kernel. On a CPU the
top layer of GPT-2 is computed at one position where a head reads no other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import GPT2Model, OpenAIGPTModel
from transformers.models.gpt2.modeling_gpt2 import GPT2Block
from transformers.models.openai.modeling_openai import Attention, Block

from plmctl.models.decoder import (
    LEFT_TO_RIGHT,
    FastDecoder,
    View,
    block_mask,
    cache_parameter,
    states_of_both_sides,
    until,
)
from plmctl.models.fast.attention import attend, cpu_attention
from plmctl.models.fast.required import require_attributes, require_parameters

require_parameters(Attention._attn, "q", "k", "v", "attention_mask", "output_attentions")
require_parameters(Block.forward, "x", "attention_mask")
# The second is the cache, which transformers renamed in 5.24; it is passed by place.
require_parameters(GPT2Block.forward, "hidden_states", cache_parameter(GPT2Block), "attention_mask")


# It is the class of the list of layers that changes: by the network's own class transformers knows
# which hidden states it can return.


class _Gpt2Layers(FastDecoder, nn.ModuleList):
    def states(
        self, body: Any, embedded: Tensor, position_ids: Tensor | None, view: View = LEFT_TO_RIGHT
    ) -> Tensor:
        """The last hidden states, as transformers' own forward computes them."""
        if not is_fused(body):
            return unfused_states(body, embedded, position_ids, view)
        mask, options = seen(position_ids, view)
        states = body.drop(embedded + body.wpe(counted(embedded, position_ids)))
        for block in self:
            states = block(states, None, mask, **options)
        normed: Tensor = body.ln_f(states)
        return normed


class _Gpt2LayersApart(_Gpt2Layers):
    """On a CPU, with whole weights: the top layer need not be called as a whole."""

    def states_at(
        self, body: Any, embedded: Tensor, column_B: Tensor, *, both_sides: bool = False
    ) -> Tensor:
        """Three quarters of the top layer, all but keys, values and queries, at one position."""
        if not is_fused(body):
            return super().states_at(body, embedded, column_B, both_sides=both_sides)
        rows_B, real = torch.arange(len(column_B)), until(column_B, embedded.shape[1])
        mask, options = seen(None, View(both_sides, real))
        states = body.drop(embedded + body.wpe(counted(embedded, None)))
        blocks: list[Any] = list(self)
        top = blocks.pop()
        for block in blocks:
            states = block(states, None, mask, **options)
        inner = top.attn
        query, key, value = inner.c_attn(top.ln_1(states)).split(inner.split_size, -1)
        query, key, value = (
            x.unflatten(-1, (-1, inner.head_dim)).transpose(1, 2)
            for x in (query[rows_B, column_B][:, None], key, value)
        )
        attended, _ = cpu_attention(
            inner,
            query,
            key,
            value,
            real[:, None, None],
            dropout=inner.attn_dropout.p if inner.training else 0.0,
            scaling=inner.scaling,
            is_causal=False,
        )
        at_BH = states[rows_B, column_B]
        at_BH = at_BH + inner.resid_dropout(inner.c_proj(attended.flatten(1)))
        normed: Tensor = body.ln_f(at_BH + top.mlp(top.ln_2(at_BH)))
        return normed


class _Gpt1Layers(FastDecoder, nn.ModuleList):
    def states(
        self, body: Any, embedded: Tensor, position_ids: Tensor | None, view: View = LEFT_TO_RIGHT
    ) -> Tensor:
        """The last hidden states; transformers' own forward takes no mask for packed rows."""
        if view.both_sides:
            raise NotImplementedError("the attention of GPT-1 is causal")
        mask = None if position_ids is None else block_mask(position_ids)
        places = body.positions_embed(counted(embedded, position_ids))
        states: Tensor = body.drop(embedded + places)
        for block in self:
            states = block(states, mask)[0]
        return states


def is_fused(body: Any) -> bool:
    """Whether its attention is a fused kernel."""
    attention = str(body.config._attn_implementation)
    return attention == "sdpa" or attention.startswith("plmctl")


def unfused_states(body: Any, embedded: Tensor, position_ids: Tensor | None, view: View) -> Tensor:
    """The last hidden states by transformers' own forward, which makes the mask."""
    if view.both_sides:
        return states_of_both_sides(body, embedded, position_ids, view.real)
    run = body(inputs_embeds=embedded, position_ids=position_ids, use_cache=False)
    states: Tensor = run.last_hidden_state
    return states


def seen(position_ids: Tensor | None, view: View) -> tuple[Tensor | None, dict[str, bool]]:
    """The boolean mask of fused attention, and the options of a layer that say what no mask means.

    Without a mask, attention is causal unless ``is_causal`` says otherwise.
    """
    both_sides, real = view
    options = {"is_causal": False} if both_sides else {}
    if both_sides and real is not None:  # then a row is one text
        return (real != 0)[:, None, None], options
    mask = None if position_ids is None else block_mask(position_ids, both_sides=both_sides)
    return mask, options


def counted(embedded: Tensor, position_ids: Tensor | None) -> Tensor:
    """[B, T] or [1, T] the positions of embeddings [B, T, H]."""
    if position_ids is not None:
        return position_ids
    return torch.arange(embedded.shape[1], device=embedded.device)[None]


class _FusedAttention(Attention):
    """GPT-1's causal attention in one kernel, which stores no matrix of [B, heads, T, T]."""

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
            attention_mask: None: causal. Boolean [B, 1, T, T]: where a query sees a key, causality
                included. Anything else is transformers' own mask, for its own code.
            output_attentions: Whether the weights are returned, which a fused kernel cannot.
        """
        boolean = attention_mask is None or attention_mask.dtype == torch.bool
        if output_attentions or not boolean:
            library_attention: Any = super()._attn
            attended: list[Tensor] = library_attention(q, k, v, attention_mask, output_attentions)
            return attended
        dropout = self.attn_dropout.p if self.training else 0.0
        if dropout and q.device.type == "cpu" and not torch.compiler.is_compiling():
            scale, causal = q.shape[-1] ** -0.5, attention_mask is None
            keys = k.transpose(-1, -2)
            return [attend(q, keys, v, attention_mask, dropout=dropout, scale=scale, causal=causal)]
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


def use_fast_decoder(model: nn.Module) -> None:
    """Give the GPT networks in a model, in place, these forwards; weights and names stay."""
    bodies: list[Any] = [
        module for module in model.modules() if isinstance(module, GPT2Model | OpenAIGPTModel)
    ]
    for body in bodies:
        places = "wpe" if isinstance(body, GPT2Model) else "positions_embed"
        require_attributes(body, places, "drop", "h")
    for body in bodies:
        body.h.__class__ = _Gpt2Layers if isinstance(body, GPT2Model) else _Gpt1Layers
        for block in body.h:
            if type(block.attn) is Attention:
                block.attn.__class__ = _FusedAttention


def use_parts_of_layers(model: nn.Module) -> None:
    """Let GPT-2, in place, compute its top layer at one position for heads that read no other.

    Raises:
        ImportError: Its layers are not as they were.
    """
    for module in model.modules():
        if type(module) is _Gpt2Layers:
            top: Any = module[-1]
            require_attributes(top, "ln_1", "ln_2", "mlp", *(f"attn.{name}" for name in _OF_GPT2))
            module.__class__ = _Gpt2LayersApart


_OF_GPT2 = (
    "c_attn", "c_proj", "split_size", "head_dim", "scaling", "attn_dropout.p", "resid_dropout",
)  # fmt: skip
