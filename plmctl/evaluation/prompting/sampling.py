"""Drawing tokens so that a draw depends on its prompt alone.

The largest of logits with a standard Gumbel variable added to each is a draw from their softmax
(Gumbel, 1954). The variables are keyed by the seed, the number of the prompt and the place of the
token, so that neither the other rows of a batch nor a global generator matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.shaping.keys import fold, stream, uniform

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.evaluation.prompting.generation import Decoding


class KeyedGumbel:
    """Adds the variables: a logits processor of transformers.

    Args:
        seed: Any.
        numbers: Of the prompts, a row each.
        width: Tokens before the first that is drawn.
    """

    def __init__(self, seed: int, numbers: tuple[int, ...], width: int) -> None:
        self._keys = fold(seed, stream("generate"), np.array(numbers))
        self._width = width

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [B, V] with their variables."""
        import torch

        step = input_ids.shape[1] - self._width
        keys = fold(self._keys[:, None], step, np.arange(scores.shape[1]))
        with np.errstate(divide="ignore"):  # a variable of 0 is a token that is never drawn
            noise = -np.log(-np.log(uniform(keys)))
        return scores + torch.from_numpy(noise).to(scores)


def processors(decoding: Decoding, numbers: tuple[int, ...], width: int) -> list[Any]:
    """Temperature, top-k and top-p in transformers' order, then the draw."""
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    found: list[Any] = []
    if decoding.temperature not in (None, 1.0):
        found.append(TemperatureLogitsWarper(decoding.temperature))
    if decoding.top_k is not None:
        found.append(TopKLogitsWarper(decoding.top_k))
    if decoding.top_p is not None:
        found.append(TopPLogitsWarper(decoding.top_p))
    return [*found, KeyedGumbel(decoding.seed, numbers, width)]
