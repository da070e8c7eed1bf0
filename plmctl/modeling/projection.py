"""Logits that need not exist: the cross-entropy of an output layer, some rows at a time.

The logits of a batch, [N, V], are the largest tensor of a small model's step, and PyTorch keeps
three of their size: the logits, their log-softmax and its gradient. Here a few hundred rows at a
time have their logits, their loss and at once the gradient of it, in one buffer. The sums are the
same; only the order of their additions differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from plmctl.modeling.batch import IGNORE

# Fewer logits than this fit where they are, and PyTorch's own loss is as fast.
_WORTH_IT = 1 << 24

# Rows at a time: the weight's gradient is added to once a chunk, which costs as much as H rows.
_FEWEST_ROWS = 256
_FEWEST_ON_A_GPU = 4096  # logits of 1 GB at most; fewer kernels, and less to compile


@dataclass(frozen=True)
class Projection:
    """An output layer and what it is given: logits that have not been computed.

    Attributes:
        hidden: [..., H].
        layer: From H to V, with or without a bias.
    """

    hidden: Tensor
    layer: nn.Linear

    def logits(self) -> Tensor:
        """[..., V]."""
        return cast(Tensor, self.layer(self.hidden))

    def losses(self, targets: Tensor, z_loss: float = 0.0) -> tuple[Tensor, Tensor]:
        """Sums over the targets, in float32: -log p(target), and ``z_loss`` * log(Z)^2.

        Z is the sum of the exponentiated logits. The second sum carries no gradient of its own: the
        first one has that of both, so that the two are to be added with equal weight, as they are.

        Args:
            targets: [...] classes, IGNORE where nothing is asked.
            z_loss: Weight of the penalty.
        """
        hidden_NH, layer = self.hidden.flatten(0, -2), self.layer
        apply: Any = _Losses.apply
        losses: tuple[Tensor, Tensor] = apply(
            hidden_NH, layer.weight, layer.bias, targets.flatten(), z_loss
        )
        return losses

    @property
    def is_large(self) -> bool:
        """Whether the loss in pieces is better than logits; PyTorch's is as fast for few."""
        if type(self.layer) is not nn.Linear:  # an adapter's computes something else
            return False
        return self.hidden[..., 0].numel() * self.layer.out_features >= _WORTH_IT


class _Losses(torch.autograd.Function):
    """The gradient is computed with the loss, for a factor of 1, while the logits are there."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        z_loss: float,
    ) -> tuple[Tensor, Tensor]:
        kind = hidden_NH.device.type
        lowered = torch.is_autocast_enabled(kind)
        dtype = torch.get_autocast_dtype(kind) if lowered else weight_VH.dtype
        with torch.autocast(kind, enabled=False):
            losses, *gradients = _run(hidden_NH, weight_VH, bias_V, targets_N, (z_loss, dtype))
        ctx.save_for_backward(*gradients)
        entropy, penalty = losses.unbind()
        ctx.mark_non_differentiable(penalty)
        return entropy, penalty

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        # In place: PyTorch refuses a second backward through the same graph, as it should.
        made = (None if g is None else g.mul_(factor) for g in ctx.saved_tensors)
        return *made, None, None


def _run(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    how: tuple[float, torch.dtype],
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Both sums [2], and the gradients of their sum: [N, H], [V, H] and [V].

    Args:
        hidden_NH: What the layer is given.
        weight_VH: Of the layer.
        bias_V: Of the layer.
        targets_N: Classes, or IGNORE.
        how: Weight of the penalty, and what products are computed in.
    """
    z_loss, dtype = how
    d_hidden_NH = torch.empty_like(hidden_NH)
    d_weight_VH = torch.zeros_like(weight_VH)
    d_bias_V = None if bias_V is None else torch.zeros_like(bias_V)
    wide = torch.promote_types(dtype, torch.float32)
    losses = hidden_NH.new_zeros(2, dtype=wide)
    low_VH, low_V = weight_VH.to(dtype), None if bias_V is None else bias_V.to(dtype)
    asked_N = targets_N != IGNORE
    targets_N = targets_N.clamp_min(0)[:, None]
    fewest = _FEWEST_ROWS if hidden_NH.device.type == "cpu" else _FEWEST_ON_A_GPU
    rows = max(fewest, hidden_NH.shape[1])
    for first in range(0, len(hidden_NH), rows):
        some = slice(first, first + rows)
        low_RH = hidden_NH[some].to(dtype)
        logits_RV = linear(low_RH, low_VH, low_V).to(wide)
        asked_R1 = asked_N[some, None].to(wide)
        sums, d_logits_RV = _loss_in_place(logits_RV, targets_N[some], asked_R1, z_loss)
        losses += sums
        if d_bias_V is not None:
            d_bias_V += d_logits_RV.sum(0)
        d_low_RV = d_logits_RV.to(dtype)
        d_hidden_NH[some] = d_low_RV @ low_VH
        if dtype == d_weight_VH.dtype:
            d_weight_VH.addmm_(d_low_RV.t(), low_RH)
        else:
            d_weight_VH += d_low_RV.t() @ low_RH
    return losses, d_hidden_NH, d_weight_VH, d_bias_V


def _loss_in_place(
    logits_RV: Tensor, targets_R1: Tensor, asked_R1: Tensor, z_loss: float
) -> tuple[Tensor, Tensor]:
    """Both sums [2] of some rows, and the gradient of their sum in the place of the logits.

    Args:
        logits_RV: Overwritten.
        targets_R1: Classes.
        asked_R1: 1 where there is a target, else 0.
        z_loss: Weight of the penalty.
    """
    target_R1, largest_R1 = logits_RV.gather(-1, targets_R1), logits_RV.amax(-1, keepdim=True)
    d_logits_RV = logits_RV.sub_(largest_R1).exp_()  # once: it is the dearest of these
    total_R1 = d_logits_RV.sum(-1, keepdim=True)
    log_z_R1 = largest_R1 + total_R1.log()
    entropy = ((log_z_R1 - target_R1) * asked_R1).sum()
    penalty = z_loss * (log_z_R1.square() * asked_R1).sum()
    # The softmax, with the penalty's factor, less 1 at the target.
    factor_R1 = asked_R1 / total_R1
    d_logits_RV.mul_(factor_R1 * (1 + 2 * z_loss * log_z_R1) if z_loss else factor_R1)
    d_logits_RV.scatter_add_(-1, targets_R1, -asked_R1)
    return torch.stack([entropy, penalty]), d_logits_RV
