"""Losses, summed over their targets: the caller divides by the global count of targets.

A micro-batch's own count never divides anything. Sums are in nats and in float32. The first
section has what the objectives and ``Network`` call; then come the loss without stored logits
(``Projection``), T5's z-loss, ELMo's sampled softmax, and the losses of labelled texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, linear, pad

from plmctl.arrays import IGNORE

# --- Cross-entropy of the terms of a loss ---


def cross_entropy_sums(
    logits: Mapping[str, Tensor | Projection], targets: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Cross-entropy summed over the targets of each loss term, in nats and in float32.

    Args:
        logits: Of each loss term [..., classes], or the ``Projection`` that computes them.
        targets: Of each loss term [...] classes, IGNORE where there is no target.

    Returns:
        One scalar per loss term.
    """
    return {term: _cross_entropy_sum(logits[term], target) for term, target in targets.items()}


def sums_with_penalty(
    logits: Tensor | Projection, targets: Tensor, z_loss: float
) -> tuple[Tensor, Tensor]:
    """``cross_entropy_and_z``, also of logits that are not computed as a whole."""
    if isinstance(logits, Projection):
        if logits.is_large:
            return logits.losses(targets, z_loss)
        logits = logits.logits()
    return cross_entropy_and_z(logits, targets, z_loss)


def _cross_entropy_sum(logits: Tensor | Projection, targets: Tensor) -> Tensor:
    if isinstance(logits, Projection):
        if logits.is_large:
            return logits.losses(targets)[0]
        logits = logits.logits()
    return cross_entropy(
        logits.flatten(0, -2).float(), targets.flatten(), ignore_index=IGNORE, reduction="sum"
    )


def score_sums(logits: Mapping[str, Tensor], targets: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``cross_entropy_sums``, and ``<term>/correct``: how many targets have the largest logit."""
    sums = cross_entropy_sums(logits, targets)
    for term, target in targets.items():
        hits = (logits[term].argmax(-1) == target) & (target != IGNORE)
        sums[f"{term}/correct"] = hits.sum().to(torch.float32)
    return sums


# --- Cross-entropy of an output layer, some rows at a time: the logits need not exist ---
#
# The logits of a batch, [N, V], are the largest tensor of a small model's step, and PyTorch keeps
# three of their size: the logits, their log-softmax and its gradient. Here a few hundred rows at a
# time have their logits, their loss and at once the gradient of it, in one buffer. The sums are the
# same; only the order of their additions differs.


# Fewer logits than this fit where they are, and PyTorch's own loss is as fast.
_WORTH_IT = 1 << 24


# Rows at a time: the weight's gradient is added to once per chunk, which costs as much as H rows.
_FEWEST_ROWS = 256


_FEWEST_ON_A_GPU = 4096  # logits of 1 GB at most; fewer kernels, and less to compile


_ALIGNED = 64  # classes; see _width


def are_many(rows: int, classes: int) -> bool:
    """Whether so many logits are better not computed as a whole."""
    return rows * classes >= _WORTH_IT


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

        Z is the sum of the exponentiated logits. The second sum has no gradient: the
        first one has that of both, so that the two are to be added with equal weight, as they are.

        Args:
            targets: [...] classes, IGNORE where there is no target.
        """
        hidden_NH, layer = self.hidden.flatten(0, -2), self.layer
        apply: Any = _ProjectedLosses.apply
        entropy, penalty = apply(hidden_NH, layer.weight, layer.bias, targets.flatten(), z_loss)
        # PyTorch 2.11's compiler forgets that it has no gradient, and asks for it.
        return entropy, penalty.detach()

    @property
    def is_large(self) -> bool:
        """Whether the loss in pieces is better than logits; PyTorch's is as fast for few."""
        if type(self.layer) is not nn.Linear:  # an adapter's computes something else
            return False
        return are_many(self.hidden[..., 0].numel(), self.layer.out_features)


class _ProjectedLosses(torch.autograd.Function):
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
            width = _width(len(weight_VH), kind, dtype)
            losses, *gradients = _losses_and_gradients(
                hidden_NH, weight_VH, bias_V, targets_N, z_loss, dtype, width
            )
        ctx.save_for_backward(*gradients)
        entropy, penalty = losses.unbind()
        ctx.mark_non_differentiable(penalty)
        return entropy, penalty

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, factor: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        # In place: PyTorch refuses a second backward through the same graph, as it should.
        gradients = (None if g is None else g.mul_(factor) for g in ctx.saved_tensors)
        return *gradients, None, None


def _width(classes: int, device: str, dtype: torch.dtype) -> int:
    """How many classes the products of the output layer have, with some that cannot be predicted.

    The fast kernels of a GPU read 16 bytes at a time, so a row of logits must be a multiple of 8
    numbers of 2 bytes. GPT-2's 50,257 classes are not: on an H200 its three products then took 64
    of the 152 ms of a step.
    """
    if device != "cuda" or dtype.itemsize != 2 or classes % 8 == 0:
        return classes
    return -(-classes // _ALIGNED) * _ALIGNED


def _losses_and_gradients(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    z_loss: float,
    dtype: torch.dtype,
    width: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Both sums [2], and the gradients of their sum: [N, H], [V, H] and [V].

    Args:
        targets_N: Classes, or IGNORE.
        z_loss: Weight of the penalty.
        dtype: Of the products.
        width: Of the products, W: V, or more. The classes after V have the probability 0.
    """
    classes = len(weight_VH)
    d_hidden_NH = torch.empty_like(hidden_NH)
    d_weight_VH = torch.zeros_like(weight_VH)
    d_bias_V = None if bias_V is None else torch.zeros_like(bias_V)
    wide = torch.promote_types(dtype, torch.float32)
    losses = hidden_NH.new_zeros(2, dtype=wide)
    low_WH, low_W = weight_VH.to(dtype), None if bias_V is None else bias_V.to(dtype)
    if width > classes:
        low_WH = pad(low_WH, (0, 0, 0, width - classes))
        low_W = None if low_W is None else pad(low_W, (0, width - classes))
    has_target_N = targets_N != IGNORE
    targets_N = targets_N.clamp_min(0)[:, None]
    fewest = _FEWEST_ROWS if hidden_NH.device.type == "cpu" else _FEWEST_ON_A_GPU
    rows = max(fewest, hidden_NH.shape[1])
    for number in range(-(-len(hidden_NH) // rows)):  # so it is compiled for any N of as many
        some = slice(number * rows, (number + 1) * rows)
        low_RH = hidden_NH[some].to(dtype)
        logits_RW = linear(low_RH, low_WH, low_W).to(wide)
        if width > classes:
            logits_RW[:, classes:] = -math.inf
        has_target_R1 = has_target_N[some, None].to(wide)
        sums, d_logits_RW = _loss_in_place(logits_RW, targets_N[some], has_target_R1, z_loss)
        losses += sums
        if d_bias_V is not None:
            d_bias_V += d_logits_RW.sum(0)[:classes]
        d_low_RW = d_logits_RW.to(dtype)
        d_hidden_NH[some] = d_low_RW @ low_WH
        if dtype == d_weight_VH.dtype and width == classes:
            d_weight_VH.addmm_(d_low_RW.t(), low_RH)
        else:
            d_weight_VH += (d_low_RW.t() @ low_RH)[:classes]
    return losses, d_hidden_NH, d_weight_VH, d_bias_V


def _loss_in_place(
    logits_RW: Tensor, targets_R1: Tensor, has_target_R1: Tensor, z_loss: float
) -> tuple[Tensor, Tensor]:
    """Both sums [2] of some rows, and the gradient of their sum in the place of the logits.

    Args:
        logits_RW: Overwritten.
        has_target_R1: 1 where there is a target, else 0.
    """
    target_R1, largest_R1 = logits_RW.gather(-1, targets_R1), logits_RW.amax(-1, keepdim=True)
    d_logits_RW = logits_RW.sub_(largest_R1).exp_()  # only once: it is the slowest step
    total_R1 = d_logits_RW.sum(-1, keepdim=True)
    log_z_R1 = largest_R1 + total_R1.log()
    entropy = ((log_z_R1 - target_R1) * has_target_R1).sum()
    penalty = z_loss * (log_z_R1.square() * has_target_R1).sum()
    # The softmax, with the penalty's factor, less 1 at the target.
    factor_R1 = has_target_R1 / total_R1
    d_logits_RW.mul_(factor_R1 * (1 + 2 * z_loss * log_z_R1) if z_loss else factor_R1)
    d_logits_RW.scatter_add_(-1, targets_R1, -has_target_R1)
    return torch.stack([entropy, penalty]), d_logits_RW


# --- Distillation: a teacher's logits exist for some rows at a time ---


def distilled_sums(
    student_NV: Tensor,
    teacher_rows: Callable[[slice], Tensor],
    targets_N: Tensor,
    compared_N: Tensor,
    temperature: float,
) -> tuple[Tensor, Tensor]:
    """Sums in float32: cross-entropy of the targets, and KL(teacher || student) of compared rows.

    In the divergence both are softened by the temperature, whose square does not multiply it here.
    Besides the student's logits one tensor of their size is kept, the gradient.

    Args:
        student_NV: Logits.
        teacher_rows: Gives the teacher's logits [R, V] of a slice of the rows; it has no gradient.
        targets_N: Classes, or IGNORE.
        compared_N: Whether the divergence includes a row.
    """
    apply: Any = _DistilledLosses.apply
    sums: tuple[Tensor, Tensor] = apply(
        student_NV, teacher_rows, targets_N, compared_N, temperature
    )
    return sums


class _DistilledLosses(torch.autograd.Function):
    """The divergence's gradient is computed with it, while the teacher's logits are there."""

    @staticmethod
    def forward(
        ctx: Any,
        student_NV: Tensor,
        teacher_rows: Callable[[slice], Tensor],
        targets_N: Tensor,
        compared_N: Tensor,
        temperature: float,
    ) -> tuple[Tensor, Tensor]:
        entropy, divergence = student_NV.new_zeros(2, dtype=torch.float32).unbind()
        log_z_N1 = torch.empty_like(student_NV[:, :1], dtype=torch.float32)
        d_student_NV = None
        if ctx.needs_input_grad[0]:
            d_student_NV = torch.empty_like(student_NV, dtype=torch.float32)
        targets_N1 = targets_N[:, None]
        # Rows are zeroed, not selected: counting them would wait for the GPU.
        has_target_N1, compared_N1 = (targets_N1 != IGNORE).float(), compared_N[:, None].float()
        for some in _row_slices(student_NV):
            student_RV = student_NV[some].float()
            log_z_N1[some] = student_RV.logsumexp(-1, keepdim=True)
            target_R1 = student_RV.gather(-1, targets_N1[some].clamp_min(0))
            entropy = entropy + ((log_z_N1[some] - target_R1) * has_target_N1[some]).sum()
            log_s_RV, log_t_RV = student_RV / temperature, teacher_rows(some) / temperature
            log_s_RV.sub_(log_s_RV.logsumexp(-1, keepdim=True))
            log_t_RV.sub_(log_t_RV.logsumexp(-1, keepdim=True))
            share_RV = log_t_RV.exp()
            nats_R1 = log_t_RV.sub_(log_s_RV).mul_(share_RV).sum(-1, keepdim=True)
            divergence = divergence + (nats_R1 * compared_N1[some]).sum()
            if d_student_NV is not None:
                factor_R1 = compared_N1[some] / temperature
                torch.mul(log_s_RV.exp_().sub_(share_RV), factor_R1, out=d_student_NV[some])
        ctx.save_for_backward(student_NV, log_z_N1, targets_N1, has_target_N1, d_student_NV)
        return entropy, divergence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_entropy: Tensor, of_divergence: Tensor) -> tuple[Tensor | None, ...]:
        student_NV, log_z_N1, targets_N1, has_target_N1, d_student_NV = ctx.saved_tensors
        for some in _row_slices(student_NV):
            factor_R1 = has_target_N1[some] * of_entropy
            d_entropy_RV = (student_NV[some].float() - log_z_N1[some]).exp_().mul_(factor_R1)
            d_entropy_RV.scatter_add_(-1, targets_N1[some].clamp_min(0), -factor_R1)
            d_student_NV[some].mul_(of_divergence).add_(d_entropy_RV)
        return d_student_NV.to(student_NV.dtype), None, None, None, None


def _row_slices(logits_NV: Tensor) -> Iterator[slice]:
    """Rows that are computed together: as many as ``_losses_and_gradients`` takes."""
    rows = _FEWEST_ROWS if logits_NV.device.type == "cpu" else _FEWEST_ON_A_GPU
    return (slice(first, first + rows) for first in range(0, len(logits_NV), rows))


# --- T5's penalty on the softmax's normalizer ---


def cross_entropy_and_z(
    logits: Tensor, targets: Tensor, coefficient: float
) -> tuple[Tensor, Tensor]:
    """Sums over all targets, in float32: -log p(target), and coefficient * log(Z)^2.

    Z is the sum of the exponentiated logits; the penalty keeps its logarithm near zero, which holds
    logits in bf16's exact range. Source: mesh_tensorflow, layers.py
    (``softmax_cross_entropy_with_logits``, z_loss = 1e-4).

    Args:
        logits: [..., V].
        targets: [...], IGNORE where there is no target.
    """
    wide, targets = logits.flatten(0, -2).float(), targets.flatten()
    log_z = wide.logsumexp(-1)
    has_target = targets != IGNORE
    right = wide.gather(-1, targets.clamp_min(0)[:, None]).squeeze(-1)
    nats = (log_z - right).where(has_target, 0)
    return nats.sum(), coefficient * log_z.where(has_target, 0).square().sum()


# --- Sampled softmax: the true word and a sample of others (Jean et al., 2015; ELMo) ---


def sampled_logits(
    hidden_NH: Tensor, head: nn.Linear, targets_N: Tensor, candidates_S: Tensor, tries: Tensor
) -> Tensor:
    """Logits whose class 0 is the true word, the others the candidates.

    As TensorFlow's ``sampled_softmax_loss``: from every logit the log of the count that the sampler
    is expected to give is subtracted, and a candidate that is the true word is left out.

    Args:
        head: [V, H]; ids sorted by frequency.
        targets_N: True words.
        candidates_S: Distinct words of ``objectives.bilm.log_uniform``.
        tries: How many draws it took, a scalar.

    Returns:
        [N, 1 + S] in float32.
    """
    log_count_N, log_count_S = (
        _log_expected(ids, tries, head.out_features) for ids in (targets_N, candidates_S)
    )
    true_N = (hidden_NH * head.weight[targets_N]).sum(-1) + head.bias[targets_N]
    other_NS = nn.functional.linear(hidden_NH, head.weight[candidates_S], head.bias[candidates_S])
    hit_NS = candidates_S == targets_N[:, None]
    other_NS = (other_NS.float() - log_count_S).masked_fill(hit_NS, -math.inf)
    return torch.cat([(true_N.float() - log_count_N)[:, None], other_NS], dim=-1)


def _log_expected(ids: Tensor, tries: Tensor, size: int) -> Tensor:
    """Log of the chance that a word is among the candidates after so many draws.

    In float32, which every device has; the functions are those that lose no digits near 0.
    """
    chance = torch.log1p(1 / (ids.float() + 1)) / math.log(size + 1)
    return (-torch.expm1(tries.float() * torch.log1p(-chance))).log()


# --- Losses of labelled texts ---


def single_label_sum(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy of one class per row, in nats.

    Args:
        logits: [B, C].
        targets: [B] classes.
        weights: [C] what a target of each class counts for. They multiply losses and leave the
            count of targets alone.
        smoothing: Share of the target that is spread evenly over all classes.
    """
    losses = cross_entropy(logits.float(), targets, reduction="none", label_smoothing=smoothing)
    return (losses if weights is None else losses * weights[targets]).sum()


def multi_label_sum(
    logits: Tensor, targets: Tensor, weights: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """Binary cross-entropy of every label, in nats; each label of each row is a target.

    Args:
        logits: [B, C].
        targets: [B, C], 1.0 where a row has the label.
        weights: [C, 2] what a target counts for: the label is absent, it is there.
        smoothing: As in ``single_label_sum``, of two classes.
    """
    soft = targets * (1 - smoothing) + smoothing / 2
    losses = binary_cross_entropy_with_logits(logits.float(), soft, reduction="none")
    if weights is not None:
        losses = losses * torch.where(targets > 0.5, weights[:, 1], weights[:, 0])
    return losses.sum()


def squared_error_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Squared differences of logits [B, 1] to targets [B]."""
    return (logits.float().squeeze(-1) - targets).square().sum()


def next_token_sums(
    logits: Tensor, ids: Tensor, positions: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor]:
    """The language model of texts: a text's mean over its own tokens, summed over texts.

    So GPT-1's loss is averaged: a long text counts for as much as a short one.

    Args:
        logits: [K, V] at every token that has a next one.
        ids: [S, L].
        positions: [K] where these tokens stand in the flattened ids.
        counts: [S] how many of them a text has.

    Returns:
        The cross-entropies in nats, and the shares of right first guesses.
    """
    targets, text = ids.flatten()[positions + 1], positions // ids.shape[1]
    losses = cross_entropy(logits.float(), targets, reduction="none")
    hits = (logits.argmax(-1) == targets).float()
    return (losses / counts[text]).sum(), (hits / counts[text]).sum()
