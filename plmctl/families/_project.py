"""What a language model's forward makes of its hidden states: logits, unless it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

Project = Callable[..., Any]
"""From hidden states [..., H] and the output layer to what stands for the logits."""


def logits(hidden: Tensor, layer: nn.Linear) -> Any:
    """[..., V]."""
    return layer(hidden)
