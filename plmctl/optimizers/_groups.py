"""Parameter groups.

The optimizers import it when they make one, so that reading a config needs no PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn


def trained(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that require gradients, tied ones once."""
    return [p for p in network.parameters() if p.requires_grad]


def decay_groups(
    network: nn.Module, weight_decay: float, *, without: Iterable[nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """Two groups: matrices and embeddings, with weight decay; biases and norms, without.

    Args:
        network: Its parameters that require gradients.
        weight_decay: The first group's.
        without: Parameters of another optimizer.
    """
    others = {id(p) for p in without}
    left = [p for p in trained(network) if id(p) not in others]
    groups = [
        {"params": [p for p in left if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in left if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
