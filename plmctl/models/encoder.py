"""An encoder at the positions that a head reads, and nowhere else where that is faster."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import Any

import torch
from torch import Tensor


class PartialEncoder(metaclass=ABCMeta):
    """An encoder's stack of layers that can compute fewer positions than all: ``models.fast``.

    Attributes:
        unpadded: What is not padding in the batch at hand, and where its rows start; see
            ``training.shapes.unpadded``. None: the stack finds out what it leaves out.
    """

    unpadded: tuple[Tensor, Tensor] | None = None

    @abstractmethod
    def at_positions(
        self, body: Any, positions: Tensor, inputs: dict[str, Tensor]
    ) -> tuple[dict[str, Any], Tensor]:
        """Options of ``body`` for the function ``encode``, and the positions in its output."""

    @abstractmethod
    def at_first_tokens(self, body: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
        """See the function ``first_tokens_only``."""


def encode(body: Any, positions: Tensor, **inputs: Tensor) -> tuple[Tensor, Tensor | None]:
    """The hidden states of an encoder at some positions.

    Args:
        body: BertModel, RobertaModel, AlbertModel or DistilBertModel.
        positions: [K] of the flattened batch.
        **inputs: The inputs of ``body``: input_ids [B, L], attention_mask [B, L] and others.

    Returns:
        [K, H], and the pooler's output [B, H] for each row's first token, if there is a pooler.
    """
    options, positions = options_at(body, positions, inputs)
    output = body(**inputs, **options)
    return output.last_hidden_state.flatten(0, 1)[positions], output.get("pooler_output")


def options_at(
    body: Any, positions: Tensor, inputs: dict[str, Tensor]
) -> tuple[dict[str, Any], Tensor]:
    """Further options of an encoder for fewer positions, and where these are in its output then.

    Args:
        body: An encoder, or the encoder and decoder of a network.
    """
    stack = _partial_stack(body)
    return ({}, positions) if stack is None else stack.at_positions(body, positions, inputs)


def first_tokens_only(body: Any, inputs: dict[str, Tensor]) -> dict[str, Any]:
    """Further options of an encoder, or of transformers' head on it, that reads first tokens only.

    With them the last hidden states are [B, 1, H], if that is faster.

    Args:
        body: As in ``encode``.
        inputs: input_ids and attention_mask, [..., L], and others.
    """
    stack = _partial_stack(body)
    return {} if stack is None else stack.at_first_tokens(body, inputs)


def _partial_stack(body: Any) -> PartialEncoder | None:
    for stack in body.children():
        if isinstance(stack, PartialEncoder):
            return stack
    return None


# --- Some positions of each row, as a grid ---


def grid_of(positions: Tensor, rows: int, length: int) -> tuple[Tensor, Tensor]:
    """A grid of the positions of every row, and where each position goes in it.

    Args:
        positions: [K], ascending.
        rows: B.
        length: L.

    Returns:
        wanted: [B, Q] columns of each row: the first one, which poolers read, then its positions;
        what is left over is the first one again.
        slots: [K] positions of the flattened [B, Q].
    """
    row_K, column_K = positions // length, positions % length
    counts = torch.bincount(row_K, minlength=rows)
    before = counts.cumsum(0) - counts
    place_K = 1 + torch.arange(len(positions), device=positions.device) - before[row_K]
    wanted = positions.new_zeros(rows, 1 + int(counts.max()))
    wanted[row_K, place_K] = column_K
    return wanted, row_K * wanted.shape[1] + place_K


def columns_of(hidden_BLH: Tensor, wanted_BQ: Tensor) -> Tensor:
    """The states [B, Q, H] at columns [B, Q]."""
    return hidden_BLH.gather(1, wanted_BQ[..., None].expand(-1, -1, hidden_BLH.shape[-1]))
