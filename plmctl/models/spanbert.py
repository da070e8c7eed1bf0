"""BERT with SpanBERT's span-boundary head (Joshi et al., 2020, arXiv:1907.10529).

What it saves is an ordinary BERT folder: the head, which only pretraining uses, is a separate file
beside the weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import BertConfig, BertForMaskedLM
from transformers import initialization as init
from transformers.activations import ACT2FN

from plmctl.models.beside import load_part, save_with_part
from plmctl.models.load import NewHeads, load_network

HEAD_FILE = "span_boundary.safetensors"

POSITION_SIZE = 200
"""Size of the position embeddings, as published."""

PLACES = 15
"""Tokens of a span that the head distinguishes, as published."""


class SpanBoundaryHead(nn.Module):
    """Predicts a token from the two tokens around its span and its place in the span.

    A two-layer network over [left; right; place], activation and LayerNorm after each layer, then
    the input embeddings and a separate bias. Source: facebookresearch/SpanBERT,
    ``BertPairTargetPredictionHead``.
    """

    def __init__(self, config: BertConfig, places: int) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.layer_norm_eps
        self.position_embeddings = nn.Embedding(places, POSITION_SIZE)
        self.linear1 = nn.Linear(2 * hidden + POSITION_SIZE, hidden)
        self.norm1 = nn.LayerNorm(hidden, eps=eps)
        self.linear2 = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden, eps=eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))
        self.act = ACT2FN[config.hidden_act]

    def forward(self, left_TH: Tensor, right_TH: Tensor, place: Tensor, words_VH: Tensor) -> Tensor:
        """Logits [T, V].

        Args:
            left_TH: Hidden states of the token before the span.
            right_TH: Hidden states of the token after it.
            place: [T] the target's place in its span, from 0.
        """
        both = torch.cat([left_TH, right_TH, self.position_embeddings(place)], dim=-1)
        hidden_TH = self.norm1(self.act(self.linear1(both)))
        hidden_TH = self.norm2(self.act(self.linear2(hidden_TH)))
        return linear(hidden_TH, words_VH, self.bias)


class SpanBert(BertForMaskedLM):
    """BertForMaskedLM and the span-boundary head."""

    _keys_to_ignore_on_load_missing = [r"^sbo\."]

    def __init__(self, config: BertConfig, places: int = PLACES) -> None:
        super().__init__(config)
        self.sbo = SpanBoundaryHead(config, places)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """A folder without the head: transformers initialises the bias of no module but its own."""
        super()._init_weights(module)
        if isinstance(module, SpanBoundaryHead):
            init.zeros_(module.bias)

    def save_pretrained(self, save_directory: str | Path, **options: Any) -> None:  # type: ignore[override]  # one way to save
        """Write a BERT folder, and the head beside it."""
        save_with_part(self, save_directory, "sbo", HEAD_FILE, "BertForMaskedLM", **options)

    @classmethod
    def from_folder(
        cls, folder: str, *, new_heads: NewHeads | None = None, **changes: Any
    ) -> SpanBert:
        """A BERT folder or Hub id, in float32, with its head.

        Args:
            folder: With the head's file, or without.
            new_heads: Called with a message if the folder lacks the head; None: an error.

        Raises:
            DataError: As ``load_network``; or the head does not fit.
        """
        model: SpanBert = load_network(cls, folder, new_heads=new_heads, **changes).network
        load_part(model, folder, "sbo", HEAD_FILE, new_heads)
        return model
