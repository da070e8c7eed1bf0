"""Cross-entropy with the penalty on the softmax's normalizer that T5 was trained with."""

from torch import Tensor

from plmctl.modeling.batch import IGNORE


def cross_entropy_and_z(
    logits: Tensor, targets: Tensor, coefficient: float
) -> tuple[Tensor, Tensor]:
    """Sums over all targets, in float32: -log p(target), and coefficient * log(Z)^2.

    Z is the sum of the exponentiated logits; the penalty keeps its logarithm near zero, which holds
    logits in bf16's exact range. Source: mesh_tensorflow, layers.py
    (``softmax_cross_entropy_with_logits``, z_loss = 1e-4).

    Args:
        logits: [K, V].
        targets: [K], IGNORE where nothing is asked.
        coefficient: Of the penalty.
    """
    wide = logits.float()
    log_z = wide.logsumexp(-1)
    asked = targets != IGNORE
    right = wide.gather(-1, targets.clamp_min(0)[:, None]).squeeze(-1)
    nats = (log_z - right).where(asked, 0)
    return nats.sum(), coefficient * log_z.where(asked, 0).square().sum()
