"""Text to ids and word starts, for the token store."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plmctl.errors import ConfigError


class Encoder:
    """Encodes texts without special tokens; text that looks like one is only text.

    It can be sent to another process: the tokenizer itself is loaded where it is used.

    Args:
        source: A tokenizer folder, or a Hub id, whose ``tokenizer.json`` is then fetched.

    Raises:
        ConfigError: There is no ``tokenizer.json``.
    """

    def __init__(self, source: str) -> None:
        self._path = _tokenizer_file(source)
        with self._path.open("rb") as file:
            self.fingerprint = hashlib.file_digest(file, "sha256").hexdigest()

    def __getstate__(self) -> dict[str, object]:
        return {"_path": self._path, "fingerprint": self.fingerprint}

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_file(str(self._path))
        tokenizer.encode_special_tokens = True
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    @property
    def vocab_size(self) -> int:
        """Largest id + 1."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    def __call__(self, texts: list[str]) -> list[tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """Ids of each text, and whether a word of the pre-tokenizer starts at each id."""
        encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [(np.array(e.ids, dtype=np.int64), _starts(e.word_ids)) for e in encodings]


def _starts(words: list[int | None]) -> NDArray[np.bool_]:
    numbers = np.array([-2 if word is None else word for word in words], dtype=np.int64)
    return np.asarray(np.diff(numbers, prepend=-1) != 0)


def _tokenizer_file(source: str) -> Path:
    path = Path(source) / "tokenizer.json"
    if path.is_file():
        return path
    if Path(source).exists() or source.startswith((".", "/")) or source.count("/") > 1:
        raise ConfigError(
            f"{source}: no tokenizer.json here", "train one with `plmctl train-tokenizer`"
        )
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(source, "tokenizer.json"))
    except (OSError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise ConfigError(
            f"{source}: no such folder, and no such tokenizer on the Hub could be reached",
            "train one with `plmctl train-tokenizer`",
        ) from error
