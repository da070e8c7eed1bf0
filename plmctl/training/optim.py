"""The optimizer of a config."""

from torch import nn
from torch.optim import AdamW, Optimizer

from plmctl.config.optim import OptimConfig


def make_optimizer(config: OptimConfig, network: nn.Module, *, fused: bool) -> Optimizer:
    """AdamW with weight decay on matrices and embeddings only.

    Biases and LayerNorm parameters, everything with one dimension, are not decayed: the usual
    exclusion, which for BERT's names is exactly google-research/bert's (optimization.py).

    Args:
        config: Learning rate, betas, epsilon, weight decay.
        network: Its parameters that require gradients are optimized.
        fused: One kernel for all parameters; pays on a GPU.
    """
    trained = [p for p in network.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    return AdamW(
        [group for group in groups if group["params"]],
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        fused=fused,
    )
