"""An encoder's layers computed at the positions that matter, and nowhere else.

All but attention treats each position by itself, so that padding, a fifth of BERT's original
sequences, can be left out of it. What the last layer computes for a position depends on the others
only through their keys and values: its queries, its output projection and its feed-forward, five
sixths of the layer, are wasted on positions that no head reads, 85 % of them if 15 % are masked.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions

from plmctl.models.encoder import PartialEncoder, columns_of, grid_of
from plmctl.models.fast import CPU_ATTENTION
from plmctl.models.fast.attention import RealPositions, cpu_attention
from plmctl.models.fast.required import require_attributes, require_parameters

# Share of a row's positions: if a head reads more, gathering them costs more than it saves.
_WORTH_IT = 0.7


class _Partial(PartialEncoder):
    """A stack of layers that can leave out padding and what no head reads."""

    _output: Any = BaseModelOutput
    needs: tuple[str, ...] = ()
    """Attributes of a layer that ``_last_layer`` uses; none: it is never called."""

    def at_positions(
        self, body: Any, positions: Tensor, inputs: dict[str, Tensor]
    ) -> tuple[dict[str, Any], Tensor]:
        """The inputs for ``encode``; on a CPU only: on a GPU the host would wait."""
        rows, length = inputs["input_ids"].shape
        if not self.needs or positions.device.type != "cpu" or self.unpadded is not None:
            return self._options(body, inputs["attention_mask"], None), positions
        wanted_BQ, slots_K = grid_of(positions, rows, length)
        options = self._options(body, inputs["attention_mask"], wanted_BQ)
        return options, slots_K if "wanted_BQ" in options else positions

    def at_first_tokens(self, body: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
        """The inputs for ``first_tokens_only``."""
        mask = inputs["attention_mask"].flatten(0, -2)  # a row of options is a row for each of them
        if not self.needs or mask.device.type != "cpu" or self.unpadded is not None:
            return self._options(body, mask, None)
        return self._options(body, mask, mask.new_zeros(len(mask), 1))

    def _options(self, body: Any, mask: Tensor, wanted_BQ: Tensor | None) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if body.config._attn_implementation == CPU_ATTENTION:
            options["real"] = RealPositions.of(mask)
        if wanted_BQ is not None and wanted_BQ.shape[1] <= _WORTH_IT * mask.shape[1]:
            options["wanted_BQ"] = wanted_BQ
        return options

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *rest: Any,
        real: RealPositions | None = None,
        wanted_BQ: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Run the layer; without ``real`` and ``wanted_BQ``, as transformers' own.

        Args:
            hidden_states: [B, L, H].
            attention_mask: [B, 1, L, L].
            real: What is not padding; the output is 0 elsewhere.
            wanted_BQ: [B, Q] columns of each row: the output is [B, Q, H].
        """
        if self.unpadded is not None:
            (index, starts), (rows, length) = self.unpadded, hidden_states.shape[:2]
            real = RealPositions(index, rows, length, starts)
        if real is None and wanted_BQ is None:
            library_layer: Any = super()
            return library_layer.forward(hidden_states, attention_mask, *rest, **options)
        x, layers = self._first_input(hidden_states), self.layers()
        if real is not None:
            x, options = real.flat(x), {**options, "real": real}
        for layer in layers[:-1]:
            x = layer(x, attention_mask, **options)
        if wanted_BQ is None:
            x = layers[-1](x, attention_mask, **options)
        x = x if real is None else real.padded(x)
        if wanted_BQ is not None:
            x = self._last_layer(layers[-1], x, attention_mask, wanted_BQ)
        return self._output(last_hidden_state=x)

    def layers(self) -> list[Any]:
        """All layers in the order of the forward pass."""
        whole: Any = self
        return list(whole.layer)

    def _first_input(self, hidden_BLE: Tensor) -> Tensor:
        return hidden_BLE

    @staticmethod
    def _last_layer(layer: Any, hidden_BLH: Tensor, mask: Tensor | None, wanted: Tensor) -> Tensor:
        """A layer's states [B, Q, H] at the columns ``wanted`` [B, Q]."""
        inner = layer.attention.self
        x_BQH = columns_of(hidden_BLH, wanted)
        dropout = inner.dropout.p if layer.training else 0.0
        attended = _attended(inner, x_BQH, hidden_BLH, mask, dropout)
        out: Tensor = layer.feed_forward_chunk(layer.attention.output(attended, x_BQH))
        return out


_PROJECTIONS = ("query", "key", "value", "scaling", "attention_head_size")
_OF_BERT = (
    *(f"attention.self.{name}" for name in (*_PROJECTIONS, "dropout.p")),
    "attention.output",
    "feed_forward_chunk",
)


class _Bert(_Partial):
    """BERT's and RoBERTa's, and those of their copies."""

    _output = BaseModelOutputWithPastAndCrossAttentions
    needs = _OF_BERT


class _DistilBert(_Partial):
    """Only padding is left out: its objective reads every token."""


class _Albert(_Partial):
    """Its layers share their weights."""

    needs = (
        *(f"attention.{name}" for name in (*_PROJECTIONS, "attention_dropout.p", "dense")),
        "attention.LayerNorm",
        "attention.output_dropout",
        "full_layer_layer_norm",
        "ff_chunk",
    )

    def _first_input(self, hidden_BLE: Tensor) -> Tensor:
        whole: Any = self
        projected: Tensor = whole.embedding_hidden_mapping_in(hidden_BLE)
        return projected

    def layers(self) -> list[Any]:
        """All layers in the order of the forward pass; shared ones several times."""
        whole: Any = self
        count, groups = whole.config.num_hidden_layers, whole.config.num_hidden_groups
        numbers = [int(number / (count / groups)) for number in range(count)]  # as transformers'
        return [layer for n in numbers for layer in whole.albert_layer_groups[n].albert_layers]

    @staticmethod
    def _last_layer(layer: Any, hidden_BLH: Tensor, mask: Tensor | None, wanted: Tensor) -> Tensor:
        inner = layer.attention
        x_BQH = columns_of(hidden_BLH, wanted)
        dropout = inner.attention_dropout.p if layer.training else 0.0
        attended = inner.dense(_attended(inner, x_BQH, hidden_BLH, mask, dropout))
        x_BQH = inner.LayerNorm(x_BQH + inner.output_dropout(attended))
        out: Tensor = layer.full_layer_layer_norm(layer.ff_chunk(x_BQH) + x_BQH)
        return out


# --- Networks that pass no options on to their layers: the wanted columns wait in the stack ---


# With half of the columns a step is as fast as with all of them; with the first ones alone, those
# of 4 layers take a sixth to a quarter less.
_ASKED_WORTH_IT = 0.4


class _Asked(PartialEncoder):
    """A stack that keeps, until its network is called, which columns its last layer computes.

    The network is called at once, by ``encode`` and by the heads.
    """

    needs: tuple[str, ...] = ()
    """Attributes of the last layer."""
    _asked_BQ: Tensor | None = None
    """Those of the next forward, which takes them away."""

    def at_positions(
        self, body: Any, positions: Tensor, inputs: dict[str, Tensor]
    ) -> tuple[dict[str, Any], Tensor]:
        """See the base class."""
        rows, length = inputs["input_ids"].shape
        wanted_BQ, slots_K = grid_of(positions, rows, length)
        fewer = wanted_BQ.shape[1] <= _ASKED_WORTH_IT * length and self.takes_fewer()
        self._asked_BQ = wanted_BQ if fewer else None
        return {}, slots_K if fewer else positions

    def at_first_tokens(self, body: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
        """See the base class."""
        pooling = getattr(body.config, "classifier_pooling", "cls")  # ModernBERT's may read all
        if pooling == "cls" and self.takes_fewer():
            mask = inputs["attention_mask"].flatten(0, -2)
            self._asked_BQ = mask.new_zeros(len(mask), 1)
        return {}

    def takes_fewer(self) -> bool:
        """Whether the last layer can compute fewer columns than it attends to."""
        return True

    def taken(self, rows: int) -> Tensor | None:
        """The wanted columns, once; None if another batch comes than was spoken of."""
        wanted_BQ, self._asked_BQ = self._asked_BQ, None
        return wanted_BQ if wanted_BQ is not None and len(wanted_BQ) == rows else None

    def layers(self) -> list[Any]:
        """All layers in the order of the forward pass."""
        whole: Any = self
        return list(whole.layer)


class _Deberta(_Asked):
    """Its layers take queries besides what they attend to."""

    needs = ("attention.self", "intermediate", "output")

    def takes_fewer(self) -> bool:
        """See the base class and ``fast.disentangled``."""
        return getattr(self.layers()[-1].attention.self, "takes_fewer_queries", False)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor, *rest: Any, **options: Any
    ) -> Any:
        """Run the layers; all hidden states but the last are left out if fewer are asked for."""
        whole, wanted_BQ = cast(Any, self), self.taken(len(hidden_states))
        if wanted_BQ is None:
            library_layers: Any = super()
            return library_layers.forward(hidden_states, attention_mask, *rest, **options)
        x, mask = hidden_states, whole.get_attention_mask(attention_mask)
        distances, vectors = whole.get_rel_pos(hidden_states), whole.get_rel_embedding()
        last = len(whole.layer) - 1
        for number, layer in enumerate(whole.layer):
            queries = None
            if number == last and (number or whole.conv is None):
                queries, mask = columns_of(x, wanted_BQ), attention_mask[:, None, None]
                distances = distances if distances is None else distances[0, wanted_BQ]
            x, _ = layer(
                x, mask, query_states=queries, relative_pos=distances, rel_embeddings=vectors
            )
            if number == 0 and whole.conv is not None:
                x = whole.conv(hidden_states, x, attention_mask)
                x = columns_of(x, wanted_BQ) if number == last else x
        return BaseModelOutput(last_hidden_state=x, hidden_states=(x,))


class _ModernBert(_Asked):
    """A list of layers, of which the last one is replaced."""

    needs = ("attn_norm", "attn.Wqkv", "attn.Wo", "attn.head_dim", "attn.out_drop", "mlp_norm",
             "mlp", "attn.attention_dropout")  # fmt: skip

    def layers(self) -> list[Any]:
        """All layers in the order of the forward pass."""
        whole: Any = self
        last = whole[-1]
        if not isinstance(last, _ModernBertLayer):
            last.__class__ = type("PartialLayer", (_ModernBertLayer, type(last)), {})
            last.stack = (self,)  # a tuple, so that it is no part of the layer
        return list(whole)


class _ModernBertLayer:
    stack: tuple[_ModernBert]

    def __call__(self, hidden_states: Tensor, *inputs: Any, **options: Any) -> Any:
        """Take the wanted columns once: the forward may run again in the backward pass."""
        library_call: Any = super()
        wanted_BQ = self.stack[0].taken(len(hidden_states))
        return library_call.__call__(hidden_states, *inputs, **options, wanted_BQ=wanted_BQ)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: Any = None,
        *,
        wanted_BQ: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """The layer's states [B, L, H], or those at the columns that are asked for [B, Q, H]."""
        whole = cast(Any, self)
        if wanted_BQ is None:
            library_layer: Any = super()
            out: Tensor = library_layer.forward(
                hidden_states, attention_mask, position_embeddings, **options
            )
            return out
        inner, x_BQH = whole.attn, columns_of(hidden_states, wanted_BQ)
        normed_BLH = whole.attn_norm(hidden_states)
        width, bias = inner.Wqkv.weight.shape[0] // 3, inner.Wqkv.bias
        parts = (slice(width), slice(width, None))
        inputs = (columns_of(normed_BLH, wanted_BQ), normed_BLH)
        query, both = (
            linear(x, inner.Wqkv.weight[part], None if bias is None else bias[part])
            for x, part in zip(inputs, parts, strict=True)
        )
        key, value = both.chunk(2, -1)
        query, key, value = (
            x.unflatten(-1, (-1, inner.head_dim)).transpose(1, 2) for x in (query, key, value)
        )
        cos, sin = position_embeddings
        cos_BQd, sin_BQd = (columns_of(x.expand(len(x_BQH), -1, -1), wanted_BQ) for x in (cos, sin))
        query, key = _rotated(query, cos_BQd, sin_BQd), _rotated(key, cos, sin)
        if attention_mask is not None:
            rows = attention_mask.expand(len(x_BQH), -1, hidden_states.shape[1], -1)
            places = wanted_BQ[:, None, :, None].expand(-1, rows.shape[1], -1, rows.shape[3])
            attention_mask = rows.gather(2, places)
        dropout = inner.attention_dropout if whole.training else 0.0
        scale = inner.head_dim**-0.5
        attended, _ = cpu_attention(
            inner, query, key, value, attention_mask, dropout=dropout, scaling=scale
        )
        x_BQH = x_BQH + inner.out_drop(inner.Wo(attended.flatten(2)))
        states: Tensor = x_BQH + whole.mlp(whole.mlp_norm(x_BQH))
        return states


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[B, heads, L, d] by rotary positions, in float32 as transformers does."""
    first, second = x.float().chunk(2, -1)
    turned = torch.cat([-second, first], -1)
    wide: Tensor = x.float() * cos[:, None] + turned * sin[:, None]
    return wide.to(x.dtype)


# By name and not by class: importing all these models would take a twelfth of a second.
_STACKS: dict[str, tuple[str, type[_Partial | _Asked]]] = {
    "transformers.models.albert.modeling_albert": ("AlbertTransformer", _Albert),
    "transformers.models.bert.modeling_bert": ("BertEncoder", _Bert),
    "transformers.models.camembert.modeling_camembert": ("CamembertEncoder", _Bert),
    "transformers.models.data2vec.modeling_data2vec_text": ("Data2VecTextEncoder", _Bert),
    "transformers.models.deberta_v2.modeling_deberta_v2": ("DebertaV2Encoder", _Deberta),
    "transformers.models.distilbert.modeling_distilbert": ("Transformer", _DistilBert),
    "transformers.models.electra.modeling_electra": ("ElectraEncoder", _Bert),
    "transformers.models.ernie.modeling_ernie": ("ErnieEncoder", _Bert),
    "transformers.models.modernbert.modeling_modernbert": ("ModuleList", _ModernBert),
    "transformers.models.roberta.modeling_roberta": ("RobertaEncoder", _Bert),
    "transformers.models.xlm_roberta.modeling_xlm_roberta": ("XLMRobertaEncoder", _Bert),
}
"""For a file of transformers: the class of its networks' list of layers, and what it becomes."""


def without_padding(config: PreTrainedConfig) -> bool:
    """Whether the layers of a network are among these, by its config."""
    module = type(config).__module__.replace(".configuration_", ".modeling_")
    return issubclass(_STACKS.get(module, ("", PartialEncoder))[1], _Partial)


def skip_unused_positions(model: nn.Module) -> None:
    """Let an encoder, in place, compute some positions only; nothing else changes.

    Raises:
        ImportError: It is one of those above, and not as it was.
    """
    for body in model.modules():
        if not isinstance(body, PreTrainedModel) or type(body).__module__ not in _STACKS:
            continue
        name, methods = _STACKS[type(body).__module__]
        if any(isinstance(module, PartialEncoder) for module in body.modules()):
            continue
        stacks: list[Any] = [m for m in body.modules() if type(m).__name__ == name]
        if not stacks:
            raise ImportError(f"{type(body).__name__} has no {name}")
        for stack in stacks:
            if name != "ModuleList":
                require_parameters(type(stack).forward, "hidden_states", "attention_mask")
            for layer in methods.layers(stack):
                require_attributes(layer, *methods.needs)
            stack.__class__ = type(f"Partial{name}", (methods, type(stack)), {})


def _attended(
    inner: Any, x_BQH: Tensor, hidden_BLH: Tensor, mask: Tensor | None, dropout: float
) -> Tensor:
    """The attention of some positions to all positions of their row, [B, Q, H]."""
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
