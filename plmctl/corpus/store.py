"""The token store: a tokenised corpus as flat memory-mapped arrays.

A store is a folder of shards. Each shard holds ``tokens`` (uint16, or uint32 over 65,536 ids),
``words`` (one bit a token: a word starts here), ``sentences`` and ``documents`` (sizes), all
little-endian; ``manifest.json`` lists the shards in corpus order. Reading copies nothing but what
is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plmctl.errors import DataError

Ints = NDArray[np.int64]


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest type that holds every id."""
    return np.dtype("<u2" if vocab_size <= 65_536 else "<u4")


@dataclass(frozen=True)
class TokenStore:
    """A corpus of documents of sentences of tokens, none of them empty.

    Attributes:
        sentences: [S+1] token index where each sentence starts; the last is the number of tokens.
        documents: [D+1] sentence index where each document starts; the last is S.
        vocab_size: Ids are below this.
        path: The folder, or None in memory.
        digest: Hash of what the store was made from.
    """

    sentences: Ints
    documents: Ints
    vocab_size: int
    path: Path | None
    digest: str
    _tokens: tuple[NDArray[np.unsignedinteger], ...] = field(repr=False)
    _words: tuple[NDArray[np.uint8], ...] = field(repr=False)

    @property
    def num_tokens(self) -> int:
        """Tokens in the store."""
        return int(self.sentences[-1])

    @property
    def num_sentences(self) -> int:
        """Sentences in the store."""
        return len(self.sentences) - 1

    @property
    def num_documents(self) -> int:
        """Documents in the store."""
        return len(self.documents) - 1

    @cached_property
    def _first(self) -> Ints:
        """[shards + 1] token index where each shard starts."""
        return np.concatenate([[0], np.cumsum([len(t) for t in self._tokens])]).astype(np.int64)

    def tokens(self, index: Ints) -> NDArray[np.int32]:
        """The tokens at ``index`` (any shape), read from wherever they lie."""
        out = np.empty(index.shape, dtype=np.int32)
        for shard, where in self._by_shard(index):
            out[where] = self._tokens[shard][index[where] - self._first[shard]]
        return out

    def word_starts(self, index: Ints) -> NDArray[np.bool_]:
        """Whether a word starts at each token of ``index`` (any shape)."""
        out = np.empty(index.shape, dtype=bool)
        for shard, where in self._by_shard(index):
            local = index[where] - self._first[shard]
            out[where] = (self._words[shard][local >> 3] >> (local & 7)) & 1
        return out

    def _by_shard(self, index: Ints) -> list[tuple[int, NDArray[np.bool_] | slice]]:
        if len(self._tokens) == 1:
            return [(0, slice(None))]
        shards = np.searchsorted(self._first, index, side="right") - 1
        return [(int(shard), shards == shard) for shard in np.unique(shards)]

    @classmethod
    def from_lists(
        cls,
        documents: Sequence[Sequence[Sequence[int]]],
        vocab_size: int,
        word_starts: Sequence[bool] | None = None,
    ) -> TokenStore:
        """A store in memory, for small texts.

        Args:
            documents: Documents of sentences of token ids; empty ones are left out.
            vocab_size: Ids are below this.
            word_starts: One a token, in order; by default every token starts a word.
        """
        kept = [[s for s in document if len(s)] for document in documents]
        kept = [document for document in kept if document]
        sizes = [len(sentence) for document in kept for sentence in document]
        flat = [token for document in kept for sentence in document for token in sentence]
        starts = np.ones(len(flat), bool) if word_starts is None else np.asarray(word_starts, bool)
        return cls(
            offsets(np.array(sizes, dtype=np.int64)),
            offsets(np.array([len(document) for document in kept], dtype=np.int64)),
            vocab_size,
            None,
            "",
            (np.array(flat, dtype=token_dtype(vocab_size)),),
            (np.packbits(starts, bitorder="little"),),
        )

    @classmethod
    def open(cls, folder: Path) -> TokenStore:
        """A store on disk; its tokens stay there until they are read.

        Raises:
            DataError: The folder holds no store.
        """
        try:
            manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{folder}: no token store here ({error})") from error
        dtype = token_dtype(manifest["vocab_size"])
        shards = [folder / shard["name"] for shard in manifest["shards"]]
        return cls(
            offsets(np.concatenate([np.fromfile(s / "sentences", "<u4") for s in shards])),
            offsets(np.concatenate([np.fromfile(s / "documents", "<u4") for s in shards])),
            manifest["vocab_size"],
            folder,
            manifest["digest"],
            tuple(np.memmap(s / "tokens", dtype, "r") for s in shards),
            tuple(np.memmap(s / "words", np.uint8, "r") for s in shards),
        )


def offsets(sizes: NDArray[np.integer]) -> Ints:
    """Starts of consecutive pieces, and the end: [n] sizes -> [n + 1]."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
