"""Heads on the last token of a text, of GPT-1, GPT-2 and GPT-3.

The weights are those of transformers' classes; what is computed between them is here, since theirs
takes the last token that is not the padding token, which passes over a text's own end-of-text, and
has neither GPT-1's dropout before the head nor its language model beside it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from plmctl.modeling.left_to_right import hidden_states


def is_decoder(model: Any) -> bool:
    """Whether a network reads from left to right: its heads look at a text's last token."""
    return str(model.config.model_type) in ("openai-gpt", "gpt2")


def classify(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    lm_cells: Tensor | None = None,
    options: Tensor | None = None,
) -> dict[str, Tensor]:
    """Logits of a ``GPT2ForSequenceClassification`` or ``OpenAIGPTForSequenceClassification``.

    Args:
        model: One of these.
        input_ids: [B, L], or [B, 2, L] for a pair in both orders, whose vectors are added.
        attention_mask: As input_ids, 0 at padding, which is at the end.
        lm_cells: [K] cells of the flattened batch whose next token is predicted; None: of none.
        options: Not used: a pair has both its orders.

    Returns:
        label: [B, C]; lm: [K, V], from the token embeddings, which GPT-1 ties.
    """
    states, last = _read(model, input_ids, attention_mask)
    vector = last.view(*input_ids.shape[:-1], -1)
    vector = vector.sum(1) if input_ids.dim() == 3 else vector
    if model.config.model_type == "openai-gpt":
        vector = dropout(vector, model.config.summary_first_dropout, model.training)
    logits = {"label": model.score(vector)}
    if lm_cells is not None:
        logits["lm"] = _next_token(model, states, lm_cells)
    return logits


def choose(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    options: Tensor,
    lm_cells: Tensor | None = None,
) -> dict[str, Tensor]:
    """Logits of a ``GPT2DoubleHeadsModel`` or ``OpenAIGPTDoubleHeadsModel``.

    Args:
        model: One of these.
        input_ids: [B, O, L], a text an option.
        attention_mask: As input_ids, 0 at padding, which is at the end.
        options: [B, O], false where an item has fewer options.
        lm_cells: As in ``classify``.

    Returns:
        choice: [B, O], minus infinity where there is no option; lm: [K, V].
    """
    states, last = _read(model, input_ids, attention_mask)
    vectors = last.view(*input_ids.shape[:2], -1)
    rate = model.config.summary_first_dropout
    if model.training and rate > 0:  # one mask an item, so that its options are compared fairly
        vectors = vectors * dropout(torch.ones_like(vectors[:, :1]), rate)
    scores = model.multiple_choice_head.summary(vectors).squeeze(-1)
    logits = {"choice": scores.masked_fill(~options, float("-inf"))}
    if lm_cells is not None:
        logits["lm"] = _next_token(model, states, lm_cells)
    return logits


@torch.no_grad()
def add_rows(model: Any, ids: list[int], deviation: float = 0.02) -> None:
    """Give new tokens their embeddings, drawn from N(0, ``deviation``) by the global generator.

    Args:
        model: With token embeddings, tied ones if it has an output matrix.
        ids: Of the new tokens, which may be rows that the matrix already has room for.
        deviation: Of GPT-1's embeddings.
    """
    if (size := max(ids) + 1) > model.get_input_embeddings().num_embeddings:
        with torch.random.fork_rng(devices=[]):  # transformers' own draws, which are replaced
            model.resize_token_embeddings(size, mean_resizing=False)
    table = model.get_input_embeddings().weight
    table[ids] = nn.init.normal_(torch.empty(len(ids), table.shape[1]), std=deviation)


def _read(model: Any, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """States [S * L, H] of S texts, and the state [S, H] of each one's last token.

    Padding is at the end, where no token of a causal network sees it: without a mask.
    """
    ids, lengths = input_ids.flatten(0, -2), attention_mask.flatten(0, -2).sum(1)
    states = hidden_states(model, ids)
    rows = torch.arange(len(ids), device=ids.device)
    return states.flatten(0, 1), states[rows, lengths - 1]


def _next_token(model: Any, states: Tensor, cells: Tensor) -> Tensor:
    return linear(states[cells], model.get_input_embeddings().weight)
