"""Deshuffling: restore the order of a text's tokens (T5 paper, section 3.3).

Each document is cut into segments of `seq_len` - 1 tokens; the input is a random order of them, the
target the segment. A row has as many segments as fit. Source:
google-research/text-to-text-transfer-transformer, preprocessors.py (``permute_noise_tokens`` at
noise density 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from plmctl.arrays import Bools, Ints
from plmctl.examples.keys import Keys, fold
from plmctl.examples.noise import Ragged, shuffled
from plmctl.objectives._text_to_text import PackedTextToText, Pair, Specials, TextToTextConfig

if TYPE_CHECKING:
    from plmctl.tokenization.load import Vocab


class Config(TextToTextConfig):
    """Restore the order of a text's shuffled tokens."""

    name: Literal["deshuffling"] = "deshuffling"


class Deshuffling(PackedTextToText[Config], config=Config):
    """The input is a text in random order, the target the text."""

    SAMPLES = "deshuffle"

    def sample(self, ids: Ints, starts: Bools, key: int, vocab: Vocab) -> tuple[Ints, Ints]:
        """The tokens of the sentence in random order."""
        return ids[np.argsort(fold(key, np.arange(len(ids))))], ids

    def shape(self, ids: Ints, lengths: Ints, keys: Keys, specials: Specials) -> Pair:
        """The tokens in random order, and as they are."""
        return Pair(Ragged(shuffled(ids, lengths, keys), lengths), Ragged(ids, lengths))

    def sizes(self, lengths: Ints, keys: Keys) -> tuple[Ints, Ints]:
        """Input and target are equally long."""
        return lengths, lengths

    def expected(self, lengths: Ints, rows: int) -> dict[str, float]:
        """All of the text, and an end token per segment."""
        tokens = float((lengths + 1).sum())
        return dict.fromkeys(("mean_length", "mean_target_length"), tokens / max(1, rows))
