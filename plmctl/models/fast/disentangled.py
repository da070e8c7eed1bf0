"""DeBERTa's attention with the relative positions that a row has, and to as many queries as asked.

transformers computes the products with all 512 relative positions, whose vectors it projects and
copies for every row of a batch. A row of 64 tokens has 127 of them, and they are the same for all
rows. The queries may be fewer than the keys, as those of the mask decoder, which reads a few
positions of each row.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers.models.deberta_v2.modeling_deberta_v2 import (
    DisentangledSelfAttention,
    make_log_bucket_position,
)

from plmctl.models.deberta import MaskDecoder
from plmctl.models.fast.required import require_attributes, require_parameters


def use_needed_positions(model: nn.Module) -> None:
    """Let DeBERTa's layers, in place, compute what a row needs; weights and their names stay.

    Raises:
        ImportError: The layers are not as they were.
    """
    for module in model.modules():
        if type(module) is DisentangledSelfAttention and module.relative_attention:
            require_parameters(
                type(module).forward,
                "hidden_states",
                "attention_mask",
                "output_attentions",
                "query_states",
                "relative_pos",
                "rel_embeddings",
            )
            require_attributes(module, *_NEEDS)
            module.__class__ = NeededPositions
        if isinstance(module, MaskDecoder):
            module.at_targets_only = True


_NEEDS = (
    *("query_proj", "key_proj", "value_proj", "share_att_key", "pos_att_type", "pos_dropout"),
    *("dropout", "num_attention_heads", "pos_ebd_size"),
    *("position_buckets", "max_relative_positions"),
)


class NeededPositions(DisentangledSelfAttention):
    """The attention with these products."""

    @property
    def takes_fewer_queries(self) -> bool:
        """Whether it is DeBERTa's published form; any other is left to transformers."""
        return set(self.pos_att_type) == {"c2p", "p2c"}

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> Any:
        """Attend, or let transformers do it.

        Args:
            hidden_states: [B, L, H].
            attention_mask: [B, 1, L or 1, L], 0 where a query does not see a key.
            query_states: [B, Q, H]; None: ``hidden_states``.
            relative_pos: [1 or B, Q, L] the number of the distance from query to key.
            rel_embeddings: [2 * span, H].

        Returns:
            [B, Q, H], and None.
        """
        if not self.takes_fewer_queries or output_attentions or relative_pos is None:
            return super().forward(
                hidden_states,
                attention_mask,
                output_attentions,
                query_states,
                relative_pos,
                rel_embeddings,
            )
        assert rel_embeddings is not None
        span: int = self.pos_ebd_size
        far = self._farthest(hidden_states.shape[1])
        first, end = max(0, span - far), min(2 * span, span + far + 1)
        table_RH = self.pos_dropout(rel_embeddings[first:end])
        place_B1QL = (relative_pos + span).clamp(0, 2 * span - 1).sub(first)[:, None]
        states = hidden_states if query_states is None else query_states
        scale = 1 / math.sqrt(3 * self.query_proj.out_features // self.num_attention_heads)
        query = self._heads(self.query_proj(states)) * scale
        key = self._heads(self.key_proj(hidden_states))
        shared = self.share_att_key
        of_key = self._heads((self.key_proj if shared else self.pos_key_proj)(table_RH))
        of_query = self._heads((self.query_proj if shared else self.pos_query_proj)(table_RH))
        place = place_B1QL.expand(len(states), self.num_attention_heads, -1, -1)
        scores = query @ key.mT
        scores = scores + (query @ of_key.mT).gather(3, place)
        scores = scores + ((of_query * scale) @ key.mT).gather(2, place)
        lowest = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(attention_mask == 0, lowest)
        weights = self.dropout(scores.softmax(-1))
        value = self._heads(self.value_proj(hidden_states))
        return (weights @ value).transpose(1, 2).flatten(2), None

    def _farthest(self, length: int) -> int:
        """The number of the largest distance in a row."""
        distance = torch.tensor([length - 1])
        if self.position_buckets > 0:
            longest = self.max_relative_positions
            distance = make_log_bucket_position(distance, self.position_buckets, longest)
        return int(distance)

    def _heads(self, x: Tensor) -> Tensor:
        """[..., L, H] to [..., heads, L, d]."""
        heads: Tensor = x.unflatten(-1, (self.num_attention_heads, -1)).transpose(-2, -3)
        return heads
