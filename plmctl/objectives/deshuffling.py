"""Deshuffling: restore the order of a text's tokens (T5 paper, section 3.3).

Each document is cut into segments of `seq_len` - 1 tokens; the input is a random order of them, the
target the segment. Source: google-research/text-to-text-transfer-transformer, preprocessors.py
(``permute_noise_tokens`` at noise density 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from plmctl.arrays import Ints
from plmctl.examples.keys import Keys
from plmctl.examples.noise import Ragged, shuffled
from plmctl.objectives._text_to_text import (
    Pair,
    TextToText,
    TextToTextConfig,
)

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore
    from plmctl.tokenization.load import Vocab


class Config(TextToTextConfig):
    """Restore the order of a text's shuffled tokens."""

    name: Literal["deshuffling"] = "deshuffling"


class Deshuffling(TextToText, config=Config):
    """Segments of one document each; ``seq_len`` counts the end token."""

    def __init__(
        self, config: Config, store: TokenStore, vocab: Vocab, seq_len: int, seed: int
    ) -> None:
        super().__init__(config, store, vocab, seed, size=seq_len - 1)

    def shape(self, ids: Ints, lengths: Ints, keys: Keys) -> Pair:
        """The tokens in random order, and as they are."""
        return Pair(Ragged(shuffled(ids, lengths, keys), lengths), Ragged(ids, lengths))

    def expected(self) -> dict[str, float]:
        """Input and target are equally long."""
        mean = float((self.ends - self.starts).mean() + 1) if len(self) else 0.0
        return {"mean_length": mean, "mean_target_length": mean}
