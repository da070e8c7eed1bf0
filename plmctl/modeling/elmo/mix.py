"""The layers of ELMo as one vector a word."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class ScalarMix(nn.Module):
    """``gamma * sum_j softmax(w)_j * h_j`` (Peters et al., 2018, equation 1), learnt with a task.

    Weights start equal and gamma at 1.

    Args:
        layers: How many there are.
        layer_norm: Bring each layer to mean 0 and variance 1 over the batch's words first.
    """

    def __init__(self, layers: int = 3, *, layer_norm: bool = False) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.layer_norm = layer_norm

    def forward(self, layers: Sequence[Tensor], mask: Tensor | None = None) -> Tensor:
        """The mix.

        Args:
            layers: Each [B, T, H].
            mask: [B, T], 0 where there is no word; read by ``layer_norm`` alone.

        Returns:
            [B, T, H].
        """
        shares = self.weights.softmax(0)
        if self.layer_norm:
            layers = [_normalized(layer, mask) for layer in layers]
        mixed: Tensor = self.gamma * torch.stack(
            [share * layer for share, layer in zip(shares, layers, strict=True)]
        ).sum(0)
        return mixed


def _normalized(layer_BTH: Tensor, mask_BT: Tensor | None) -> Tensor:
    """One mean and one variance over all words and features."""
    if mask_BT is None:
        mask_BT = layer_BTH.new_ones(layer_BTH.shape[:2])
    live = mask_BT.to(layer_BTH.dtype).unsqueeze(-1)
    count = live.sum() * layer_BTH.shape[-1]
    mean = (layer_BTH * live).sum() / count
    variance = (((layer_BTH - mean) * live) ** 2).sum() / count
    return (layer_BTH - mean) / (variance + 1e-12).sqrt()
