"""The optimizer of a config, and which parameters it decays."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from plmctl import registry
from plmctl.config.optim import OptimizerConfig


def make_optimizer(config: OptimizerConfig, network: nn.Module, *, fused: bool) -> Optimizer:
    """A new optimizer over the parameters that require gradients.

    Args:
        config: Of any member of ``plmctl/optimizers``.
        network: Whose parameters are optimized.
        fused: One kernel for all parameters, where there is one; pays on a GPU.
    """
    made: Optimizer = registry.load("optimizers", config.name).make(config, network, fused=fused)
    return made


def trained(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that require gradients, tied ones once."""
    return [p for p in network.parameters() if p.requires_grad]


def decay_groups(
    network: nn.Module, weight_decay: float, *, without: Iterable[nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """Matrices and embeddings, which are decayed; then biases and norms, which are not.

    Args:
        network: Its parameters that require gradients.
        weight_decay: Of the first group.
        without: Parameters that another optimizer has.
    """
    others = {id(p) for p in without}
    left = [p for p in trained(network) if id(p) not in others]
    groups = [
        {"params": [p for p in left if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in left if p.ndim < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
