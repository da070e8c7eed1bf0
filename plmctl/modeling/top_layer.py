"""The top layer of an encoder computed at the cells that have a target, and nowhere else.

What the last layer gives for a cell depends on the other cells only through their keys and values.
So its queries, its output projection and its feed-forward, five sixths of the layer, are wasted on
the cells that no head reads: 85 % of them where 15 % are masked. The mathematics is the same, and
so are the weights, their names, and the model that is saved.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.models.albert.modeling_albert import AlbertTransformer
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.roberta.modeling_roberta import RobertaLayer

from plmctl.modeling import attention

# Of a row's cells: with more of them asked for, gathering costs more than it saves.
_WORTH_IT = 0.7


class _Narrow:
    """A layer that can be asked for some of a row's cells."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *rest: Any,
        **options: Any,
    ) -> Tensor:
        """As transformers' own, or where ``wanted_BQ`` [B, Q] names cells, at those: [B, Q, H]."""
        wanted_BQ: Tensor | None = options.pop("wanted_BQ", None)
        if wanted_BQ is not None:
            return _at(self, hidden_states, attention_mask, wanted_BQ)
        theirs: Any = super()
        whole: Tensor = theirs.forward(hidden_states, attention_mask, *rest, **options)
        return whole


class _BertTop(_Narrow, BertLayer):  # type: ignore[no-untyped-call]  # transformers' own base
    pass


class _RobertaTop(_Narrow, RobertaLayer):  # type: ignore[no-untyped-call]
    pass


class _AlbertTop(AlbertTransformer):
    """Its layers share their weights, so that the stack is asked, not the last of its layers."""

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None = None, **options: Any
    ) -> Any:
        wanted_BQ: Tensor | None = options.pop("wanted_BQ", None)
        theirs: Any = super()
        if wanted_BQ is None:
            return theirs.forward(hidden_states, attention_mask, **options)
        whole: Any = self
        count, groups = self.config.num_hidden_layers, self.config.num_hidden_groups
        numbers = [int(number / (count / groups)) for number in range(count)]  # as transformers'
        layers = [layer for n in numbers for layer in whole.albert_layer_groups[n].albert_layers]
        hidden_states = whole.embedding_hidden_mapping_in(hidden_states)
        for layer in layers[:-1]:
            hidden_states = layer(hidden_states, attention_mask, **options)
        top = _at_of_albert(layers[-1], hidden_states, attention_mask, wanted_BQ)
        return BaseModelOutput(last_hidden_state=top)


_CLASSES: dict[type[nn.Module], type[nn.Module]] = {BertLayer: _BertTop, RobertaLayer: _RobertaTop}


def narrow(model: nn.Module) -> None:
    """Let the top layer of an encoder, in place, be asked for some cells; nothing else changes."""
    for module in model.modules():
        if type(module) is AlbertTransformer:
            module.__class__ = _AlbertTop
        layers = getattr(module, "layer", None)
        if isinstance(layers, nn.ModuleList) and len(layers) and type(layers[-1]) in _CLASSES:
            layers[-1].__class__ = _CLASSES[type(layers[-1])]


def encode(body: Any, positions: Tensor, **inputs: Tensor) -> tuple[Tensor, Tensor | None]:
    """An encoder's states of the cells that are asked for.

    Args:
        body: BertModel, RobertaModel or AlbertModel.
        positions: [K] cells of the flattened batch.
        **inputs: Of ``body``: input_ids [B, L] and others.

    Returns:
        [K, H], and what the pooler makes of each row's first cell, [B, H], if there is one.
    """
    rows, length = inputs["input_ids"].shape
    top = getattr(body.encoder, "layer", [body.encoder])[-1]
    narrowed = isinstance(top, (_Narrow, _AlbertTop))
    # Counting waits for a GPU, where nothing is narrowed.
    wanted_BQ, slots_K = _slots(positions, rows, length) if narrowed else (None, positions)
    if wanted_BQ is None or wanted_BQ.shape[1] > _WORTH_IT * length:
        whole = body(**inputs)
        return whole.last_hidden_state.flatten(0, 1)[positions], whole.pooler_output
    some = body(**inputs, wanted_BQ=wanted_BQ)
    return some.last_hidden_state.flatten(0, 1)[slots_K], some.pooler_output


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


def _at(layer: Any, hidden_BLH: Tensor, mask: Tensor | None, wanted_BQ: Tensor) -> Tensor:
    """The layer's states of the wanted cells, [B, Q, H]."""
    inner = layer.attention.self
    x_BQH = _gathered(hidden_BLH, wanted_BQ)
    dropout = inner.dropout.p if layer.training else 0.0
    attended = _attended(inner, x_BQH, hidden_BLH, mask, dropout)
    out: Tensor = layer.feed_forward_chunk(layer.attention.output(attended, x_BQH))
    return out


def _at_of_albert(layer: Any, hidden_BLH: Tensor, mask: Tensor | None, wanted_BQ: Tensor) -> Tensor:
    """As ``_at``."""
    inner = layer.attention
    x_BQH = _gathered(hidden_BLH, wanted_BQ)
    dropout = inner.attention_dropout.p if layer.training else 0.0
    attended = inner.dense(_attended(inner, x_BQH, hidden_BLH, mask, dropout))
    x_BQH = inner.LayerNorm(x_BQH + inner.output_dropout(attended))
    out: Tensor = layer.full_layer_layer_norm(layer.ff_chunk(x_BQH) + x_BQH)
    return out


def _gathered(hidden_BLH: Tensor, wanted_BQ: Tensor) -> Tensor:
    return hidden_BLH.gather(1, wanted_BQ[..., None].expand(-1, -1, hidden_BLH.shape[-1]))


def _attended(
    inner: Any, x_BQH: Tensor, hidden_BLH: Tensor, mask: Tensor | None, dropout: float
) -> Tensor:
    """What some cells gather from all cells of their row, [B, Q, H]."""
    if mask is not None:  # [B, 1, L or 1, L]: which keys a row has, the same for all its queries
        mask = mask[:, :, :1]
    attended, _ = attention.forward(
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
