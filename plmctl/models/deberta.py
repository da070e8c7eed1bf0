"""DeBERTa's network for masked tokens, with the enhanced mask decoder that transformers lacks.

What is saved is an ordinary folder of transformers: the decoder's positions, which only the
prediction of masked tokens uses, are a separate file beside the weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DebertaV2Config, DebertaV2ForMaskedLM
from transformers.modeling_outputs import MaskedLMOutput

from plmctl.models.beside import load_part, save_with_part
from plmctl.models.load import NewHeads, load_network

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

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__()
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)

    def forward(self, body: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Hidden states [B, L, H] in place of those of the last layer.

        Args:
            body: DebertaV2Model.
        """
        encoder = body.encoder
        first = states = body.embeddings(input_ids=input_ids, mask=attention_mask)
        mask = encoder.get_attention_mask(attention_mask)
        relative = {
            "relative_pos": encoder.get_rel_pos(states),
            "rel_embeddings": encoder.get_rel_embedding(),
        }
        for number, layer in enumerate(encoder.layer[:-1]):
            states, _ = layer(states, mask, **relative)
            if number == 0 and encoder.conv is not None:
                states = encoder.conv(first, states, attention_mask)
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        queries = states + self.position_embeddings(places)
        for _ in range(PASSES):
            queries, _ = encoder.layer[-1](states, mask, query_states=queries, **relative)
        return queries


class DebertaMaskedLM(DebertaV2ForMaskedLM):
    """DebertaV2ForMaskedLM, and the mask decoder if the config has it (``mask_decoder``)."""

    _keys_to_ignore_on_load_missing = [r"^mask_decoder\."]

    def __init__(self, config: DebertaV2Config) -> None:
        super().__init__(config)
        enhanced = getattr(config, "mask_decoder", False)
        self.mask_decoder = MaskDecoder(config) if enhanced else None
        self.post_init()

    def states(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The hidden states [B, L, H] that the head reads."""
        if self.mask_decoder is not None:
            decoded: Tensor = self.mask_decoder(self.deberta, input_ids, attention_mask)
            return decoded
        body: Any = self.deberta
        last: Tensor = body(input_ids, attention_mask=attention_mask).last_hidden_state
        return last

    def forward(  # type: ignore[override]  # what plmctl calls it with
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> MaskedLMOutput:
        """Logits [B, L, V] of all tokens."""
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        head: Any = self.cls
        return MaskedLMOutput(logits=head(self.states(input_ids, attention_mask)))

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
