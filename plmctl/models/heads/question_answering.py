"""ALBERT's head for questions that may have no answer (Lan et al., 2020, arXiv:1909.11942).

The end is predicted with the start known, and a separate logit says that there is no answer.
Source: google-research/albert, squad_utils.py, ``create_v2_model``.

Axes: B rows, L positions, H hidden size, K starts kept, E ends kept for each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AlbertConfig, AlbertModel, AlbertPreTrainedModel

BEAM = 5
"""Starts kept, and ends kept for each, as published."""


class AlbertForAnswerOrNone(AlbertPreTrainedModel):
    """ALBERT with start, end given start, and a logit of there being no answer."""

    base_model_prefix = "albert"

    def __init__(self, config: AlbertConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.albert = AlbertModel(config, add_pooling_layer=False)
        self.start = nn.Linear(width, 1)
        self.end_dense = nn.Linear(2 * width, width)
        self.end_norm = nn.LayerNorm(width, eps=1e-12)
        self.end = nn.Linear(width, 1)
        self.none_dense = nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(config.classifier_dropout_prob)
        self.none = nn.Linear(width, 1, bias=False)
        self.post_init()

    def forward(
        self, *, allowed: Tensor, start_positions: Tensor | None = None, **inputs: Tensor
    ) -> dict[str, Tensor]:
        """Logits of a batch.

        Args:
            allowed: [B, L] True where an answer may start or end: the context and position 0.
            start_positions: [B] the true starts; without them the best starts are tried.

        Returns:
            none: [B] logit of there being no answer. With starts: start and end, [B, L]. Without:
            first [B, K] and last [B, K, E], positions, and score [B, K, E], log-probabilities.
        """
        hidden_BLH = self.albert(**inputs).last_hidden_state
        start_BL = self.start(hidden_BLH).squeeze(-1).float().masked_fill(~allowed, -torch.inf)
        none_B = self._none(hidden_BLH, start_BL)
        if start_positions is not None:
            rows = torch.arange(len(hidden_BLH), device=hidden_BLH.device)
            known_B1H = hidden_BLH[rows, start_positions.clamp(min=0)].unsqueeze(1)
            end_BL = self._ends(hidden_BLH, known_B1H, allowed)[:, 0]
            return {"start": start_BL, "end": end_BL, "none": none_B}
        beams = min(BEAM, start_BL.shape[1])
        start_BK, first_BK = start_BL.log_softmax(-1).topk(beams)
        rows = torch.arange(len(hidden_BLH), device=hidden_BLH.device)[:, None]
        ends_BKL = self._ends(hidden_BLH, hidden_BLH[rows, first_BK], allowed).log_softmax(-1)
        end_BKE, last_BKE = ends_BKL.topk(beams)
        score_BKE = start_BK.unsqueeze(-1) + end_BKE
        return {"first": first_BK, "last": last_BKE, "score": score_BKE, "none": none_B}

    def _ends(self, hidden_BLH: Tensor, starts_BKH: Tensor, allowed: Tensor) -> Tensor:
        """[B, K, L] logits of the end for each of K starts."""
        shape = (-1, starts_BKH.shape[1], hidden_BLH.shape[1], -1)
        both = torch.cat(
            [hidden_BLH.unsqueeze(1).expand(shape), starts_BKH.unsqueeze(2).expand(shape)], dim=-1
        )
        inner = self.end_norm(torch.tanh(self.end_dense(both)))
        logits: Tensor = self.end(inner).squeeze(-1).float()
        return logits.masked_fill(~allowed.unsqueeze(1), -torch.inf)

    def _none(self, hidden_BLH: Tensor, start_BL: Tensor) -> Tensor:
        """[B], from [CLS] and from the vectors at the starts, weighted by their probabilities."""
        weights_BL = start_BL.softmax(-1).to(hidden_BLH.dtype)
        start_BH = torch.einsum("bl,blh->bh", weights_BL, hidden_BLH)
        both = torch.cat([start_BH, hidden_BLH[:, 0]], dim=-1)
        logits: Tensor = self.none(self.dropout(torch.tanh(self.none_dense(both))))
        return logits.squeeze(-1).float()
