"""Texts as ids that end with the end token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ids = tuple[tuple[int, ...], ...]


def ended(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], longest: int
) -> tuple[Ids, NDArray[np.bool_]]:
    """Ids with an end token each, and which texts [N] were cut.

    Args:
        tokenizer: One that has an end token.
        texts: N of them.
        longest: Ids of a text, the end token included; what is more is cut off its end.
    """
    if not texts:
        return (), np.zeros(0, dtype=bool)
    encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    end = id_of(tokenizer.eos_token_id)
    cut = np.array([len(row) >= longest for row in encoded])
    return tuple((*row[: longest - 1], end) for row in encoded), cut


def id_of(found: Any) -> int:
    """The id of a token that the tokenizer must have.

    Raises:
        ConfigError: It has not.
    """
    if not isinstance(found, int):
        raise ConfigError(
            "the model's tokenizer has no padding token or no end token",
            "train one with `family: t5`",
        )
    return found
