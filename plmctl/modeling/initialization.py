"""Initial weights as published, where the library's differ."""

import torch
from torch import nn


@torch.no_grad()
def truncated_normal_(model: nn.Module, std: float) -> None:
    """Every weight matrix and embedding ~ N(0, std), cut at two standard deviations (BERT).

    Biases and LayerNorm parameters are left as they are (zero and one). Source:
    google-research/bert, modeling.py (``create_initializer``).
    """
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            nn.init.trunc_normal_(parameter, std=std, a=-2 * std, b=2 * std)
