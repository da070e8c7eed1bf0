"""DeBERTa's networks, with what transformers lacks.

For masked tokens: the enhanced mask decoder. What is saved is an ordinary folder of transformers:
the decoder's positions, which only the prediction of masked tokens uses, are a separate file
beside the weights.

For replaced tokens (the third version): the discriminator's head, and embeddings that the two
networks share although no gradient of the discriminator's loss reaches the generator's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import (
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    DebertaV2Model,
    DebertaV2PreTrainedModel,
)
from transformers.activations import ACT2FN
from transformers.modeling_outputs import MaskedLMOutput, TokenClassifierOutput

from plmctl.models.beside import load_part, save_with_part
from plmctl.models.encoder import columns_of, encode, grid_of
from plmctl.models.load import NewHeads, load_network
from plmctl.models.pair import Pair

# --- Masked tokens: the enhanced mask decoder ---


DECODER_FILE = "mask_decoder.safetensors"

PASSES = 2
"""How often the decoder applies the last layer, as published."""


class MaskDecoder(nn.Module):
    """The last layer, with queries that know where they are.

    The layers see relative positions alone. Here the absolute ones are added to the output of the
    last but one; this is the query of the last layer, whose output is the query of the same layer
    again. Keys and values are the output of the last but one both times. Source:
    microsoft/DeBERTa, apps/models/masked_language_model.py (``emd_context_layer``).
    """

    at_targets_only = False
    """Whether the layers can have fewer queries than keys: ``models.fast``."""

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def forward(
        self, body: Any, input_ids: Tensor, attention_mask: Tensor, positions: Tensor
    ) -> Tensor:
        """Hidden states [K, H] in place of those of the last layer.

        Args:
            body: DebertaV2Model.
            positions: [K] of the flattened batch, ascending.
        """
        encoder = body.encoder
        first = states = body.embeddings(input_ids=input_ids, mask=attention_mask)
        mask = encoder.get_attention_mask(attention_mask)
        distances, vectors = encoder.get_rel_pos(states), encoder.get_rel_embedding()
        for number, layer in enumerate(encoder.layer[:-1]):
            states, _ = layer(states, mask, relative_pos=distances, rel_embeddings=vectors)
            if number == 0 and encoder.conv is not None:
                states = encoder.conv(first, states, attention_mask)
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        queries = states + self.position_embeddings(places)
        if self.at_targets_only:
            wanted_BQ, positions = grid_of(positions, *input_ids.shape)
            queries, distances = columns_of(queries, wanted_BQ), distances[0, wanted_BQ]
            mask = attention_mask[:, None, None]
        for _ in range(PASSES):
            queries, _ = encoder.layer[-1](
                states,
                mask,
                query_states=queries,
                relative_pos=distances,
                rel_embeddings=vectors,
            )
        states_KH: Tensor = queries.flatten(0, 1)[positions]
        return states_KH


class DebertaMaskedLM(DebertaV2ForMaskedLM):
    """DebertaV2ForMaskedLM, and the mask decoder if the config has it (``mask_decoder``)."""

    _keys_to_ignore_on_load_missing = [r"^mask_decoder\."]

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__(config)
        enhanced = getattr(config, "mask_decoder", False)
        self.mask_decoder = MaskDecoder(config) if enhanced else None
        self.post_init()

    def states(self, input_ids: Tensor, attention_mask: Tensor, positions: Tensor) -> Tensor:
        """The hidden states [K, H] that the head reads at positions [K] of the flattened batch."""
        body: Any = self.deberta
        if self.mask_decoder is not None:
            decoded: Tensor = self.mask_decoder(body, input_ids, attention_mask, positions)
            return decoded
        return encode(body, positions, input_ids=input_ids, attention_mask=attention_mask)[0]

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> MaskedLMOutput:
        """Logits [B, L, V] of all tokens."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        head: Any = self.cls
        everywhere = torch.arange(input_ids.numel(), device=input_ids.device)
        logits_KV = head(self.states(input_ids, attention_mask, everywhere))
        return MaskedLMOutput(logits=logits_KV.unflatten(0, input_ids.shape))

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> None:  # type: ignore[override]  # one way to save
        """Write a folder of DebertaV2ForMaskedLM, and the mask decoder beside it."""
        plain = DebertaV2ForMaskedLM.__name__
        if self.mask_decoder is not None:
            save_with_part(self, save_directory, "mask_decoder", DECODER_FILE, plain, **options)
            return
        super().save_pretrained(save_directory, **options)
        self.config.architectures = [plain]
        self.config.save_pretrained(save_directory)

    @classmethod
    def from_folder(
        cls, folder: str, *, new_heads: NewHeads | None = None, **changes: Any
    ) -> DebertaMaskedLM:
        """A folder or Hub id, in float32, with its mask decoder if config.json says that it has it.

        Args:
            folder: With the decoder's file, or without.
            new_heads: Called with a message if the folder lacks a part; None: an error.

        Raises:
            DataError: As ``load_network``; or the decoder does not fit.
        """
        model: DebertaMaskedLM = load_network(cls, folder, new_heads=new_heads, **changes).network
        if model.mask_decoder is not None:
            load_part(model, folder, "mask_decoder", DECODER_FILE, new_heads)
        return model


# --- Replaced tokens: the discriminator, its generator, and the embeddings of both ---


class ReplacedTokenHead(nn.Module):
    """Says of each token, beside the first one, whether it was replaced.

    Source: microsoft/DeBERTa, apps/models/replaced_token_detection_model.py.
    """

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.classifier = nn.Linear(config.hidden_size, 1)
        self.act = ACT2FN[config.hidden_act]

    def forward(self, states_BLH: Tensor) -> Tensor:
        """Logits [B, L]."""
        normed_BLH = self.LayerNorm(states_BLH + states_BLH[:, :1])
        logits: Tensor = self.classifier(self.act(self.dense(normed_BLH))).squeeze(-1)
        return logits


class DebertaDiscriminator(DebertaV2PreTrainedModel):
    """DebertaV2Model and the head for replaced tokens, under the names of Microsoft's weights."""

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__(config)
        self.deberta = DebertaV2Model(config)
        self.mask_predictions = ReplacedTokenHead(config)
        self.post_init()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> TokenClassifierOutput:
        """Logits [B, L] of "replaced"."""
        body: Any = self.deberta
        states = body(input_ids, attention_mask=attention_mask).last_hidden_state
        return TokenClassifierOutput(logits=self.mask_predictions(states))

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> None:  # type: ignore[override]  # one way to save
        """Write a folder of DebertaV2Model, its table the sum of what it consists of."""
        words = self.deberta.embeddings.word_embeddings
        weights = self.state_dict()
        if isinstance(words, ShiftedEmbedding):
            weights["deberta.embeddings.word_embeddings.weight"] = words.whole()
        super().save_pretrained(save_directory, state_dict=weights, **options)
        self.config.architectures = [DebertaV2Model.__name__]
        self.config.save_pretrained(save_directory)


class ShiftedEmbedding(nn.Embedding):
    """Another network's table plus a difference, which alone has a gradient.

    Gradient-disentangled embedding sharing: He et al., 2021, arXiv:2111.09543, section 3.3.

    Attributes:
        weight: The difference [V, H].
    """

    def __init__(self, other: nn.Embedding, difference: Tensor) -> None:
        rows, width = difference.shape
        super().__init__(rows, width, padding_idx=other.padding_idx, _weight=difference)
        self._other = (other,)  # a tuple, so that it is no part of this network

    def forward(self, input: Tensor) -> Tensor:
        """The embeddings [..., H] of ids."""
        (other,) = self._other
        return embedding(input, other.weight.detach()) + super().forward(input)

    def whole(self) -> Tensor:
        """The sum [V, H]."""
        (other,) = self._other
        return (other.weight + self.weight).detach()


class DebertaPair(Pair):
    """A discriminator and its generator, which is as wide and has fewer layers."""

    config_class = DebertaV2Config

    DISCRIMINATOR = DebertaDiscriminator
    MASKED = DebertaMaskedLM

    @staticmethod
    def generator_config(config: DebertaV2Config) -> DebertaV2Config:
        """That of the generator: its layers are the share ``generator_layers``."""
        share = float(getattr(config, "generator_layers", None) or 0.5)
        layers = max(1, round(config.num_hidden_layers * share))
        fewer = {"num_hidden_layers": layers, "architectures": [DebertaV2ForMaskedLM.__name__]}
        return DebertaV2Config(**{**config.to_dict(), **fewer})

    @property
    def _own_embeddings(self) -> Any:
        return self.discriminator.deberta.embeddings

    @torch.no_grad()
    def start_alike(self) -> None:
        """One table for both, unless they share none."""
        if self._sharing != "none":
            table: Any = self.get_input_embeddings()
            table.weight.copy_(self._own_embeddings.word_embeddings.weight)

    @torch.no_grad()
    def share_embeddings(self) -> None:
        """Give the discriminator the table of the generator, or its difference from it."""
        table: Any = self.get_input_embeddings()
        own = self._own_embeddings
        if self._sharing == "shared":
            own.word_embeddings = table
        elif self._sharing == "gradient_disentangled":
            difference = own.word_embeddings.weight - table.weight
            own.word_embeddings = ShiftedEmbedding(table, difference)

    @property
    def _sharing(self) -> str:
        return str(getattr(self.config, "embedding_sharing", "gradient_disentangled"))

    @classmethod
    def load_generator(cls, folder: str, **changes: Any) -> Any:
        """The generator of a folder, with its mask decoder."""
        return DebertaMaskedLM.from_folder(folder, **changes)
