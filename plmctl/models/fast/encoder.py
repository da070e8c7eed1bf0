"""An encoder's layers computed at the positions that matter, and nowhere else.

All but attention treats each position by itself, so that padding, a fifth of BERT's original
sequences, can be left out of it. What the last layer computes for a position depends on the others
only through their keys and values: its queries, its output projection and its feed-forward, five
sixths of the layer, are wasted on positions that no head reads, 85 % of them if 15 % are masked.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
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


# By name and not by class: importing all these models would take a twelfth of a second.
_STACKS: dict[str, tuple[str, type[_Partial]]] = {
    "transformers.models.albert.modeling_albert": ("AlbertTransformer", _Albert),
    "transformers.models.bert.modeling_bert": ("BertEncoder", _Bert),
    "transformers.models.camembert.modeling_camembert": ("CamembertEncoder", _Bert),
    "transformers.models.data2vec.modeling_data2vec_text": ("Data2VecTextEncoder", _Bert),
    "transformers.models.distilbert.modeling_distilbert": ("Transformer", _DistilBert),
    "transformers.models.electra.modeling_electra": ("ElectraEncoder", _Bert),
    "transformers.models.ernie.modeling_ernie": ("ErnieEncoder", _Bert),
    "transformers.models.roberta.modeling_roberta": ("RobertaEncoder", _Bert),
    "transformers.models.xlm_roberta.modeling_xlm_roberta": ("XLMRobertaEncoder", _Bert),
}
"""For a file of transformers: the class of its networks' list of layers, and what it becomes."""


def without_padding(config: PreTrainedConfig) -> bool:
    """Whether the layers of a network are among these, by its config."""
    return type(config).__module__.replace(".configuration_", ".modeling_") in _STACKS


def skip_unused_positions(model: nn.Module) -> None:
    """Let an encoder, in place, compute some positions only; nothing else changes.

    Raises:
        ImportError: It is one of those above, and not as it was.
    """
    for body in model.modules():
        if not isinstance(body, PreTrainedModel) or type(body).__module__ not in _STACKS:
            continue
        name, methods = _STACKS[type(body).__module__]
        if any(isinstance(module, _Partial) for module in body.modules()):
            continue
        stacks: list[Any] = [m for m in body.modules() if type(m).__name__ == name]
        if not stacks:
            raise ImportError(f"{type(body).__name__} has no {name}")
        for stack in stacks:
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
