"""A biaffine head: for every pair of words whether one is the head of the other, and by what.

Dozat and Manning (2017, arXiv:1611.01734), with two changes of HPLT's evaluation: scores are
divided by the square root of their width, and a word is the mean of its pieces, if so chosen.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from plmctl.models.any_head import options_of
from plmctl.models.elmo import ScalarMix

_NEVER = -1e9
"""The score of no word, and of a word as its own head; finite, so that no gradient is nan."""


class BiaffineHead(nn.Module):
    """Scores of heads and of relations.

    Args:
        encoder: The encoder's config.
        relations: How many there are, C.
        sizes: Of the vectors that arcs are scored by, A, and relations, R.
        mix: Whether it reads a learned mix of all layers, or the last one.
    """

    def __init__(
        self, encoder: Any, relations: int, sizes: tuple[int, int], dropout: float, *, mix: bool
    ) -> None:
        super().__init__()
        width, (arc, relation) = encoder.hidden_size, sizes
        self.mix = ScalarMix(encoder.num_hidden_layers + 1) if mix else None
        self.root = nn.Embedding(1, width)  # a learned vector: not every family begins a text
        self.dropout = nn.Dropout(dropout)

        def perceptron(size: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(width, size), nn.ReLU(), nn.Dropout(dropout))

        self.arc_dependent, self.arc_head = perceptron(arc), perceptron(arc)
        self.relation_dependent, self.relation_head = perceptron(relation), perceptron(relation)
        self.arc, self.arc_bias = nn.Linear(arc, arc, bias=False), nn.Linear(arc, 1, bias=False)
        self.relation = nn.Linear(relation, relations * relation, bias=False)
        self.of_dependent = nn.Linear(relation, relations)
        self.of_head = nn.Linear(relation, relations, bias=False)

    def forward(
        self, states: Tensor, starts: Tensor, ends: Tensor, heads: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Scores of words.

        Args:
            states: [B, L, H] of pieces.
            starts: [B, W] where the pieces of each word begin; as ``ends`` where there is no word.
            ends: [B, W] after its last piece.
            heads: [B, W] from 0, ROOT.

        Returns:
            arc [B, W, W + 1]: scores of each head. relation: with ``heads`` [B, W, C], scores of
            the relation to that head; else [B, W, W + 1] the best relation to each head.
        """
        place = torch.arange(states.shape[1], device=states.device)
        inside_BWL = (place >= starts[..., None]) & (place < ends[..., None])
        shares_BWL = inside_BWL / inside_BWL.sum(-1, keepdim=True).clamp_min(1)
        words_BWH = shares_BWL.to(states.dtype) @ states
        root_B1H = self.root.weight.to(states.dtype).expand(len(states), 1, -1)
        dependents_BWH = self.dropout(words_BWH)
        heads_BNH = torch.cat([root_B1H, dependents_BWH], 1)
        return {
            "arc": self._arcs(dependents_BWH, heads_BNH, ends > starts),
            "relation": self._relations(dependents_BWH, heads_BNH, heads),
        }

    def _arcs(self, dependents_BWH: Tensor, heads_BNH: Tensor, real_BW: Tensor) -> Tensor:
        of_BWA, to_BNA = self.arc_dependent(dependents_BWH), self.arc_head(heads_BNH)
        scores_BWN: Tensor = self.arc(of_BWA) @ to_BNA.mT / math.sqrt(to_BNA.shape[-1])
        scores_BWN = (scores_BWN + self.arc_bias(to_BNA).mT).float()
        itself_WN = torch.eye(real_BW.shape[1], device=real_BW.device, dtype=torch.bool)
        never_BWN = pad(itself_WN, (1, 0)) | ~pad(real_BW, (1, 0), value=True)[:, None]
        return scores_BWN.masked_fill(never_BWN, _NEVER)

    def _relations(
        self, dependents_BWH: Tensor, heads_BNH: Tensor, chosen_BW: Tensor | None
    ) -> Tensor:
        of_BWR, to_BNR = self.relation_dependent(dependents_BWH), self.relation_head(heads_BNH)
        if chosen_BW is not None:
            to_BWR = to_BNR.gather(1, chosen_BW[..., None].expand(-1, -1, of_BWR.shape[-1]))
            return self._relation_scores(of_BWR, to_BWR[:, :, None]).squeeze(-1)
        # A sentence at a time: the scores of all its pairs are many.
        pairs = zip(of_BWR, to_BNR, strict=True)
        return torch.stack([self._relation_scores(of, to[None]).argmax(1) for of, to in pairs])

    def _relation_scores(self, of: Tensor, to: Tensor) -> Tensor:
        """Scores [..., W, C, K] of dependents [..., W, R] with heads [..., W or 1, K, R]."""
        weight = self.relation(of).unflatten(-1, (-1, of.shape[-1])) / math.sqrt(of.shape[-1])
        scores: Tensor = weight @ to.mT + self.of_dependent(of)[..., None] + self.of_head(to).mT
        return scores


def parse(
    model: Any, *, starts: Tensor, ends: Tensor, heads: Tensor | None = None, **inputs: Tensor
) -> dict[str, Tensor]:
    """The scores of a network with this head; see ``BiaffineHead.forward``."""
    options, mix = options_of(model.encoder), model.head.mix
    if mix is not None and "character_ids" not in inputs:  # ELMo gives all layers unasked
        options["output_hidden_states"] = True
    read = model.encoder(**inputs, **options)
    states = read.last_hidden_state if mix is None else mix(read.hidden_states)
    scores: dict[str, Tensor] = model.head(states, starts, ends, heads)
    return scores
