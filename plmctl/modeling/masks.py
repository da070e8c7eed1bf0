"""Masks of attention that are made without a look at what is in them."""

from typing import Any

from torch import Tensor
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask


def without_looking() -> None:
    """Let transformers, in this process, keep a mask of padding that hides nothing.

    It asks every batch whether its mask could be left out, and the answer has to come from the
    device: the host waits for all that it was given to do. Nearly every batch has some padding.
    """
    AttentionMaskInterface.register("sdpa", unseen)


def unseen(*inputs: Any, **options: Any) -> Tensor | None:
    """The mask for PyTorch's attention, of which nobody has asked whether it hides anything."""
    theirs: Any = sdpa_mask
    mask: Tensor | None = theirs(*inputs, **{**options, "allow_is_bidirectional_skip": False})
    return mask
