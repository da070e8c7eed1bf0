"""Llama and its like in PyTorch's fused attention, without a mask that the host has to read.

Their own forward looks at the positions to know whether a row has several texts, as GPT-2's does:
see ``fast.decoder``.
"""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import Tensor, nn
from transformers import LlamaModel, Qwen3Model

from plmctl.models.decoder import LEFT_TO_RIGHT, FastDecoder, View
from plmctl.models.fast.decoder import counted, is_fused, seen, unfused_states
from plmctl.models.fast.required import require_attributes


class _RotaryLayers(FastDecoder, nn.ModuleList):
    def states(
        self, body: Any, embedded: Tensor, position_ids: Tensor | None, view: View = LEFT_TO_RIGHT
    ) -> Tensor:
        """The last hidden states, as transformers' own forward computes them."""
        if not is_fused(body):
            return unfused_states(body, embedded, position_ids, view)
        mask, options = seen(position_ids, view)
        turns = body.rotary_emb(embedded, position_ids=counted(embedded, position_ids))
        states = embedded
        for layer in self:
            states = layer(states, attention_mask=mask, position_embeddings=turns, **options)
        normed: Tensor = body.norm(states)
        return normed


def use_fast_rotary(model: nn.Module) -> None:
    """Give these networks in a model, in place, this forward, if all layers attend to all.

    Raises:
        ImportError: They are not as they were.
    """
    for body in model.modules():
        if not isinstance(body, LlamaModel | Qwen3Model):
            continue
        require_attributes(body, "layers", "rotary_emb", "norm")
        taken: Any = signature(body.layers[0].forward).parameters
        if missing := {"attention_mask", "position_embeddings"} - set(taken):
            raise ImportError(f"{type(body.layers[0]).__name__} takes no {' and '.join(missing)}")
        if set(getattr(body.config, "layer_types", None) or ()) <= {"full_attention"}:
            body.layers.__class__ = _RotaryLayers
