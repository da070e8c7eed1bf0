"""An encoder's layers computed at the cells that matter, and nowhere else.

All but attention treats each cell by itself, so that padding, a fifth of BERT's faithful rows, can
be left out of it. And what the last layer gives for a cell depends on the other cells only through
their keys and values: its queries, its output projection and its feed-forward, five sixths of the
layer, are wasted on the cells that no head reads, 85 % of them where 15 % are masked. The
mathematics is the same, and so are the weights, their names, and the model that is saved.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.models.albert.modeling_albert import AlbertTransformer
from transformers.models.bert.modeling_bert import BertEncoder
from transformers.models.distilbert.modeling_distilbert import Transformer
from transformers.models.roberta.modeling_roberta import RobertaEncoder

from plmctl.models.fast.attention import CPU_ATTENTION, RealPositions, cpu_attention

# Of a row's cells: with more of them asked for, gathering costs more than it saves.
_WORTH_IT = 0.7


class _Narrow:
    """A stack of layers that can be asked to leave out padding and what no head reads."""

    _gives: Any = BaseModelOutput

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *rest: Any,
        cells: RealPositions | None = None,
        wanted_BQ: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """As transformers' own, where nothing is asked.

        Args:
            hidden_states: [B, L, H].
            attention_mask: [B, 1, L, L].
            *rest: As transformers'.
            cells: What is no padding; of the rest comes out 0.
            wanted_BQ: [B, Q] columns of each row: what comes out is [B, Q, H].
            **options: As transformers'.
        """
        if cells is None and wanted_BQ is None:
            theirs: Any = super()
            return theirs.forward(hidden_states, attention_mask, *rest, **options)
        x, layers = self._entered(hidden_states), self._layers()
        if cells is not None:
            x, options = cells.flat(x), {**options, "cells": cells}
        for layer in layers[:-1]:
            x = layer(x, attention_mask, **options)
        if wanted_BQ is None:
            x = layers[-1](x, attention_mask, **options)
        x = x if cells is None else cells.padded(x)
        if wanted_BQ is not None:
            x = self._at(layers[-1], x, attention_mask, wanted_BQ)
        return self._gives(last_hidden_state=x)

    def _entered(self, hidden_BLE: Tensor) -> Tensor:
        return hidden_BLE

    def _layers(self) -> list[Any]:
        whole: Any = self
        return list(whole.layer)

    @staticmethod
    def _at(layer: Any, hidden_BLH: Tensor, mask: Tensor | None, wanted_BQ: Tensor) -> Tensor:
        """A layer's states of the wanted cells, [B, Q, H]."""
        inner = layer.attention.self
        x_BQH = _gathered(hidden_BLH, wanted_BQ)
        dropout = inner.dropout.p if layer.training else 0.0
        attended = _attended(inner, x_BQH, hidden_BLH, mask, dropout)
        out: Tensor = layer.feed_forward_chunk(layer.attention.output(attended, x_BQH))
        return out


class _Bert(_Narrow, BertEncoder):
    _gives = BaseModelOutputWithPastAndCrossAttentions


class _Roberta(_Narrow, RobertaEncoder):
    _gives = BaseModelOutputWithPastAndCrossAttentions


class _DistilBert(_Narrow, Transformer):
    """Only padding is left out: its objective asks every token."""


class _Albert(_Narrow, AlbertTransformer):
    """Its layers share their weights."""

    def _entered(self, hidden_BLE: Tensor) -> Tensor:
        whole: Any = self
        entered: Tensor = whole.embedding_hidden_mapping_in(hidden_BLE)
        return entered

    def _layers(self) -> list[Any]:
        whole: Any = self
        count, groups = self.config.num_hidden_layers, self.config.num_hidden_groups
        numbers = [int(number / (count / groups)) for number in range(count)]  # as transformers'
        return [layer for n in numbers for layer in whole.albert_layer_groups[n].albert_layers]

    @staticmethod
    def _at(layer: Any, hidden_BLH: Tensor, mask: Tensor | None, wanted_BQ: Tensor) -> Tensor:
        inner = layer.attention
        x_BQH = _gathered(hidden_BLH, wanted_BQ)
        dropout = inner.attention_dropout.p if layer.training else 0.0
        attended = inner.dense(_attended(inner, x_BQH, hidden_BLH, mask, dropout))
        x_BQH = inner.LayerNorm(x_BQH + inner.output_dropout(attended))
        out: Tensor = layer.full_layer_layer_norm(layer.ff_chunk(x_BQH) + x_BQH)
        return out


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {
    AlbertTransformer: _Albert,
    BertEncoder: _Bert,
    RobertaEncoder: _Roberta,
    Transformer: _DistilBert,
}


def skip_unused_positions(model: nn.Module) -> None:
    """Let an encoder, in place, be asked for some cells; nothing else changes."""
    for module in model.modules():
        if type(module) in _CLASSES:
            module.__class__ = _CLASSES[type(module)]


def encode(body: Any, positions: Tensor, **inputs: Tensor) -> tuple[Tensor, Tensor | None]:
    """An encoder's states of the cells that are asked for.

    Args:
        body: BertModel, RobertaModel, AlbertModel or DistilBertModel.
        positions: [K] cells of the flattened batch.
        **inputs: Of ``body``: input_ids [B, L], attention_mask [B, L] and others.

    Returns:
        [K, H], and what the pooler makes of each row's first cell, [B, H], if there is one.
    """
    rows, length = inputs["input_ids"].shape
    stack = _stack(body)
    asked: dict[str, Any] = {}
    slots_K = positions
    # Not on a GPU, which all of this would wait for.
    if isinstance(stack, _Narrow):
        if body.config._attn_implementation == CPU_ATTENTION:
            asked["cells"] = RealPositions.of(inputs["attention_mask"])
        wanted_BQ, slots_of_wanted_K = _slots(positions, rows, length)
        if wanted_BQ.shape[1] <= _WORTH_IT * length and not isinstance(stack, _DistilBert):
            asked["wanted_BQ"], slots_K = wanted_BQ, slots_of_wanted_K
    given = body(**inputs, **asked)
    return given.last_hidden_state.flatten(0, 1)[slots_K], given.get("pooler_output")


def _stack(body: Any) -> Any:
    return body.transformer if hasattr(body, "transformer") else body.encoder


def _slots(positions: Tensor, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Where each position goes in a grid of the positions of every row.

    Args:
        positions: [K], ascending.
        rows: B.
        length: L.

    Returns:
        wanted: [B, Q] columns of each row: the first cell, which poolers read, then its positions;
        what is left is the first cell again.
        slots: [K] cells of the flattened [B, Q].
    """
    row_K, column_K = positions // length, positions % length
    counts = torch.bincount(row_K, minlength=rows)
    before = counts.cumsum(0) - counts
    place_K = 1 + torch.arange(len(positions), device=positions.device) - before[row_K]
    wanted = positions.new_zeros(rows, 1 + int(counts.max()))
    wanted[row_K, place_K] = column_K
    return wanted, row_K * wanted.shape[1] + place_K


def _gathered(hidden_BLH: Tensor, wanted_BQ: Tensor) -> Tensor:
    return hidden_BLH.gather(1, wanted_BQ[..., None].expand(-1, -1, hidden_BLH.shape[-1]))


def _attended(
    inner: Any, x_BQH: Tensor, hidden_BLH: Tensor, mask: Tensor | None, dropout: float
) -> Tensor:
    """What some cells gather from all cells of their row, [B, Q, H]."""
    if mask is not None:  # [B, 1, L or 1, L]: which keys a row has, the same for all its queries
        mask = mask[:, :, :1]
    attended, _ = cpu_attention(
        inner,
        _heads(inner.query(x_BQH), inner),
        _heads(inner.key(hidden_BLH), inner),
        _heads(inner.value(hidden_BLH), inner),
        mask,
        dropout=dropout,
        scaling=inner.scaling,
    )
    return attended.flatten(2)


def _heads(x: Tensor, inner: Any) -> Tensor:
    """[B, L, H] to [B, heads, L, d]."""
    return x.view(*x.shape[:-1], -1, inner.attention_head_size).transpose(1, 2)
