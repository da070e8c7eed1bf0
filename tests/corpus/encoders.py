"""Encoders small enough to say in a test what they give, and that other processes can import."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Placed = list[tuple[NDArray[np.int64], NDArray[np.bool_], Sequence[int]]]


class LetterEncoder:
    """One id a letter (its code point modulo 1,000); words start after spaces, which are lost."""

    fingerprint = "letters"
    vocab_size = 1_000
    keeps_white_space = False

    def stretches(self, text: str, size: int, lines: Sequence[int] = ()) -> list[str]:
        return [text]

    def with_places(self, texts: list[str], places: Sequence[Sequence[int]]) -> Placed:
        assert all(list(wanted) == [0] for wanted in places)  # each text is a sentence
        return [(*self._encode(text), [0]) for text in texts]

    def unknown_of(self, texts: list[str], ids: NDArray[np.int64]) -> dict[str, object]:
        return {}

    def _encode(self, text: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        words = text.split()
        starts = [at == 0 for word in words for at in range(len(word))]
        return self.ids("".join(words)), np.array(starts, dtype=bool)

    @staticmethod
    def ids(text: str) -> NDArray[np.int64]:
        return np.array([ord(letter) % 1_000 for letter in text], dtype=np.int64)


class SlowEncoder(LetterEncoder):
    """Slow enough to be killed at work."""

    def with_places(self, texts: list[str], places: Sequence[Sequence[int]]) -> Placed:
        time.sleep(0.1)
        return super().with_places(texts, places)


class StuckEncoder(LetterEncoder):
    """Says which process it is in and does not come back, once it meets a text that has an x."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def with_places(self, texts: list[str], places: Sequence[Sequence[int]]) -> Placed:
        if any("x" in text for text in texts):
            self.path.write_text(str(os.getpid()), encoding="utf-8")
            time.sleep(600)
        return super().with_places(texts, places)


class WrongEncoder(LetterEncoder):
    """Gives ids that its vocabulary does not have."""

    vocab_size = 50
