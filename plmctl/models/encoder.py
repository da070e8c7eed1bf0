"""The hidden states of an encoder at the positions that a head reads."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import Any

from torch import Tensor


class PartialEncoder(metaclass=ABCMeta):
    """An encoder's stack of layers that can compute fewer positions than all: ``models.fast``."""

    @abstractmethod
    def encode(
        self, body: Any, positions: Tensor, **inputs: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """See the function ``encode``; ``body`` is the network that the stack belongs to."""


def encode(body: Any, positions: Tensor, **inputs: Tensor) -> tuple[Tensor, Tensor | None]:
    """The hidden states of an encoder at some positions.

    Args:
        body: BertModel, RobertaModel, AlbertModel or DistilBertModel.
        positions: [K] of the flattened batch.
        **inputs: The inputs of ``body``: input_ids [B, L], attention_mask [B, L] and others.

    Returns:
        [K, H], and the pooler's output [B, H] for each row's first token, if there is a pooler.
    """
    for stack in body.children():
        if isinstance(stack, PartialEncoder):
            return stack.encode(body, positions, **inputs)
    output = body(**inputs)
    return output.last_hidden_state.flatten(0, 1)[positions], output.get("pooler_output")
