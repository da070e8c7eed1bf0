"""The token store: a tokenised corpus as flat memory-mapped arrays.

A store is a folder: ``manifest.json``, ``sentences`` and ``documents`` (offsets, int64), and shards
in corpus order, each of ``tokens`` (uint16, or uint32 over 65,536 ids) and ``words`` (one bit per
token: a word starts here), all little-endian. Opening maps the offsets and touches no token; a
shard is mapped when one of its tokens is read, and a small store is then read whole into memory.
``find_damage`` compares the files with their hashes in the manifest.

Also: several stores with weights (``MixedStore``), and arrays that are computed from a store and
cached in files beside it (``cached_array``).
"""

from __future__ import annotations

import hashlib
import os
import resource
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

from plmctl.arrays import Ints
from plmctl.corpus.remote import RemoteStore
from plmctl.errors import DataError, read_error
from plmctl.files import read_checked, write_atomically
from plmctl.hashing import digest_of_files, digest_of_json, sample_of

# --- One store ---


SHARD_FILES = ("tokens", "words", "sentences", "documents")
"""Files of one side of a shard; the last two have the sizes of sentences and documents, uint32."""

OFFSET_FILES = ("sentences", "documents")


@dataclass(frozen=True)
class TokenStore:
    """A corpus of documents of sentences of tokens, none of them empty.

    Attributes:
        sentences: [S+1] token index where each sentence starts; the last is the number of tokens.
        documents: [D+1] sentence index where each document starts; the last is S.
        vocab_size: Largest id + 1, or more.
        path: The folder; None for a store in memory.
        digest: Hash of the tokens and offsets: equal where the data is equal.
    """

    sentences: Ints
    documents: Ints
    vocab_size: int
    path: Path | None
    digest: str
    _shards: tuple[_Shard, ...] = field(repr=False)

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

    def tokens(self, index: Ints) -> NDArray[np.int32]:
        """The tokens at ``index`` (any shape, any order)."""
        out = np.empty(index.shape, dtype=np.int32)
        return self._gather(index, out, lambda shard, local: shard.tokens[local])

    def word_starts(self, index: Ints) -> NDArray[np.bool_]:
        """Whether a word starts at each token of ``index`` (any shape, any order)."""
        out = np.empty(index.shape, dtype=bool)
        return self._gather(index, out, lambda s, local: (s.words[local >> 3] >> (local & 7)) & 1)

    def _gather(
        self, index: Ints, out: NDArray[Any], read: Callable[[_Shard, Ints], NDArray[Any]]
    ) -> NDArray[Any]:
        if len(self._parts) == 1:
            out[...] = read(self._parts[0], index)
            return out
        shards = np.searchsorted(self._first, index.ravel(), side="right") - 1
        order = np.argsort(shards.astype(np.min_scalar_type(len(self._first))), kind="stable")
        shards = shards[order]
        local = index.ravel()[order] - self._first[shards]
        sorted_ = np.empty(len(order), dtype=out.dtype)
        edges = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(order)]
        for start, end in pairwise(edges) if len(order) else []:
            sorted_[start:end] = read(self._parts[int(shards[start])], local[start:end])
        out.reshape(-1)[order] = sorted_  # `out` is new, so this is a view of it
        return out

    @cached_property
    def _parts(self) -> tuple[_Shard, ...]:
        """The shards; those of a small store as one in memory, from which a batch is one read."""
        small = len(self._shards) > 1 and self.num_tokens <= _SMALL
        if small and all(shard.remote is None for shard in self._shards):
            return (_joined(self._shards),)
        return self._shards

    @cached_property
    def _first(self) -> Ints:
        """[parts + 1] token index where each part starts."""
        return offsets(np.array([part.size for part in self._parts], dtype=np.int64))

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
            vocab_size: Largest id + 1, or more.
            word_starts: One per token, in order; by default every token starts a word.

        Raises:
            DataError: An id outside the vocabulary.
        """
        nonempty = [[s for s in document if len(s)] for document in documents]
        nonempty = [document for document in nonempty if document]
        sizes = [len(sentence) for document in nonempty for sentence in document]
        flat = [token for document in nonempty for sentence in document for token in sentence]
        ids = np.array(flat, dtype=np.int64)
        check_ids(ids, vocab_size)
        starts = np.ones(len(ids), bool) if word_starts is None else np.array(word_starts, bool)
        words = np.packbits(starts, bitorder="little")
        return cls(
            offsets(np.array(sizes, dtype=np.int64)),
            offsets(np.array([len(document) for document in nonempty], dtype=np.int64)),
            vocab_size,
            None,
            "",
            (_Shard(len(ids), None, (ids.astype(token_dtype(vocab_size)), words)),),
        )

    @classmethod
    def open(cls, folder: Path) -> TokenStore:
        """A store on disk, memory-mapped.

        Raises:
            DataError: The folder contains no store, or only a part of one.
        """
        manifest = read_checked(folder / "manifest.json")
        if manifest is None:
            raise DataError(
                f"{folder}: no token store here, or its manifest.json is damaged",
                "build it with `plmctl prepare`",
            )
        dtype = token_dtype(manifest["vocab_size"])
        remote = RemoteStore.of(folder.parent)
        return cls(
            _mapped(folder / "sentences", np.dtype("<i8"), manifest["sentences"] + 1),
            _mapped(folder / "documents", np.dtype("<i8"), manifest["documents"] + 1),
            manifest["vocab_size"],
            folder,
            manifest["digest"],
            tuple(
                _Shard(
                    s["tokens"],
                    (folder / s["path"], dtype),
                    remote=remote,
                    digest=s.get("digest", ""),
                )
                for s in manifest["shards"]
            ),
        )

    def __reduce__(self) -> str | tuple[Any, ...]:
        # A store on disk is opened again in another process: its tokens are never copied.
        return (TokenStore.open, (self.path,)) if self.path else super().__reduce__()


@dataclass(frozen=True, eq=False)
class _Shard:
    """Consecutive tokens: in memory, or in a folder, which is mapped at first use.

    The folder of a store at a URL is fetched then, if it is not there.
    """

    size: int
    place: tuple[Path, np.dtype[np.unsignedinteger]] | None
    memory: tuple[NDArray[np.unsignedinteger], NDArray[np.uint8]] | None = None
    remote: RemoteStore | None = None
    digest: str = ""

    @cached_property
    def _arrays(self) -> tuple[NDArray[Any], NDArray[Any]]:
        if self.memory is not None or self.place is None:
            return self.memory or (np.zeros(0, "<u2"), np.zeros(0, np.uint8))
        folder, dtype = self.place
        for tries_left in (2, 1, 0):
            if self.remote is not None:
                folder = self._fetched(folder, self.remote)
            try:
                tokens = _mapped(folder / "tokens", dtype, self.size)
                words = _mapped(folder / "words", np.dtype(np.uint8), -(-self.size // 8))
                _keep_mapped(self)
                return tokens, words
            except DataError:  # another process may have removed it to make room
                if self.remote is None or folder.is_dir() or not tries_left:
                    raise
        raise AssertionError  # the last try returns or raises

    def _fetched(self, folder: Path, remote: RemoteStore) -> Path:
        """The folder with the files of a remote shard."""
        folder = Path(os.path.normpath(folder))
        if not folder.is_dir():
            remote.fetch_shard(folder.relative_to(remote.folder).as_posix(), self.digest)
            # A map keeps the space of a removed file: let go of what was removed to make room.
            for other in [other for other in _mapped_shards if not other.is_there]:
                other.forget()
        with suppress(OSError):
            os.utime(folder)  # the most recently used shards are kept
        return folder

    @property
    def is_there(self) -> bool:
        """Whether the files are still in the folder."""
        return self.place is not None and self.place[0].is_dir()

    def forget(self) -> None:
        """Unmap the files; they are mapped again at the next use."""
        self.__dict__.pop("_arrays", None)
        _mapped_shards.pop(self, None)

    @property
    def tokens(self) -> NDArray[np.unsignedinteger]:
        """[size] ids."""
        return self._arrays[0]

    @property
    def words(self) -> NDArray[np.uint8]:
        """Bits of the word starts, the lowest first."""
        return self._arrays[1]


_SMALL = 1 << 24  # tokens: 34 MB if the vocabulary has at most 65,536 ids


def _joined(shards: Sequence[_Shard]) -> _Shard:
    """Shards as one, in memory; one after the other is mapped, so that few files are open."""
    tokens, starts = [], []
    for shard in shards:
        tokens.append(shard.tokens.copy())
        starts.append(np.unpackbits(shard.words, count=shard.size, bitorder="little"))
        shard.forget()
    words = np.packbits(np.concatenate(starts), bitorder="little")
    return _Shard(sum(map(len, tokens)), None, (np.concatenate(tokens), words))


_mapped_shards: WeakKeyDictionary[_Shard, None] = WeakKeyDictionary()
"""Shards that this process has mapped, the first one first."""

_MOST_MAPPED = 2_000  # shards; Linux lets a process have some 65,000 maps


def _keep_mapped(shard: _Shard) -> None:
    """Keep a shard mapped, and let go of the first ones if there are too many.

    A map holds an open file, and a shard has two: together at most half of those that a process may
    have, which are often 1,024.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = _MOST_MAPPED if limit == resource.RLIM_INFINITY else min(_MOST_MAPPED, limit // 4)
    too_many = len(_mapped_shards) + 1 - max(most, 1)
    for other in list(_mapped_shards)[: max(too_many, 0)]:
        other.forget()
    _mapped_shards[shard] = None


def _mapped(path: Path, dtype: np.dtype[Any], length: int) -> NDArray[Any]:
    """A file as an array, checked against the length that it was written with."""
    try:
        size = path.stat().st_size
    except OSError as error:
        missing = DataError(f"{path}: {error.strerror}", "remove the store and run again")
        raise read_error(error, missing) from error
    if size != length * dtype.itemsize:
        raise DataError(
            f"{path}: {size} bytes where {length * dtype.itemsize} were written",
            "the store is damaged: remove it and run again",
        )
    # A plain array over the map: indexing the memmap class itself is several times slower.
    return np.memmap(path, dtype, "r").view(np.ndarray)


def offsets(sizes: NDArray[np.integer]) -> Ints:
    """The starts of consecutive pieces, and the end: [n] sizes -> [n + 1]."""
    return np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])


def token_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest type that holds every id."""
    return np.dtype("<u2" if vocab_size <= 65_536 else "<u4")


def check_ids(ids: NDArray[np.integer], vocab_size: int) -> None:
    """Refuse ids outside the vocabulary.

    Raises:
        DataError: An id outside [0, vocab_size).
    """
    if len(ids) and (ids.max() >= vocab_size or ids.min() < 0):
        wrong = ids.max() if ids.max() >= vocab_size else ids.min()
        raise DataError(
            f"token id {wrong} is outside the vocabulary of {vocab_size:,}",
            "the tokenizer's folder is inconsistent: train it again or fetch it again",
        )


def find_damage(
    folder: Path, manifest: dict[str, Any], *, unchanged: Callable[[list[Path]], bool]
) -> list[Path]:
    """The parts of a store whose files have changed since they were written.

    Args:
        unchanged: Whether size and time of these files are as they were when every byte was
            compared; then only a sample of them is compared.

    Returns:
        Folders of shards, and the files of offsets.
    """
    parts = [
        (folder / shard["path"], [folder / shard["path"] / name for name in SHARD_FILES], shard)
        for shard in manifest["shards"]
    ]
    offsets_of = [folder / name for name in OFFSET_FILES]
    parts.append((folder / OFFSET_FILES[0], offsets_of, manifest["offsets"]))
    damaged = []
    for part, paths, known in parts:
        try:
            whole = sample_of(paths) == known["sample"] and (
                unchanged(paths) or digest_of_files(paths) == known["digest"]
            )
        except OSError:
            whole = False
        if not whole:
            damaged.append(part)
    return damaged


# --- Several stores with their weights ---


@dataclass(frozen=True)
class MixedStore:
    """Corpora that are mixed in training.

    Attributes:
        weights: Relative shares of the samples; they need not sum to one.
    """

    names: tuple[str, ...]
    stores: tuple[TokenStore, ...]
    weights: tuple[float, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens in all stores."""
        return sum(store.num_tokens for store in self.stores)

    @property
    def num_sentences(self) -> int:
        """Sentences in all stores."""
        return sum(store.num_sentences for store in self.stores)

    @property
    def num_documents(self) -> int:
        """Documents in all stores."""
        return sum(store.num_documents for store in self.stores)


Corpus = TokenStore | MixedStore


def stores_of(corpus: Corpus) -> tuple[TokenStore, ...]:
    """The stores of a mixture, or the corpus itself."""
    return corpus.stores if isinstance(corpus, MixedStore) else (corpus,)


def mixed_digest(digests: list[str], weights: list[float]) -> str:
    """A digest of a mixture: equal where the data and the weights are equal."""
    text = " ".join(f"{digest}:{weight!r}" for digest, weight in zip(digests, weights, strict=True))
    return hashlib.sha256(text.encode()).hexdigest()


# --- Arrays that are computed from a store, cached in files beside it and mapped ---
#
# Computing which sentences are in which row takes time and memory in proportion to the corpus. The
# result depends only on the store and a few numbers, so the first process that needs it writes it.
# Other processes, workers and later starts map the same file, and the system can free its pages.


_FORMAT = 1  # increase this if a rule gives other rows than before

_END = struct.Struct("<8sQ16sI")  # mark, bytes, hash of the inputs, CRC-32 of the bytes

_MARK = b"plm rows"

_MAX_FILES = 8  # per store: for two lengths, passes 0, this and the next one, and for biLM

_CRC_CHUNK = 1 << 24  # bytes

_LEFT_BEHIND = 3600  # seconds after which an unfinished file is removed

ArrayParts = Iterable[NDArray[Any]]


def cached_array(
    store: TokenStore, rule: Sequence[object], dtype: DTypeLike, make: Callable[[], ArrayParts]
) -> NDArray[Any]:
    """The array that ``make`` computes, read from a cache file if it exists.

    If the store is in memory, or its folder cannot be written, the array is in memory too.

    Args:
        rule: All other inputs: names and numbers.
        make: Computes consecutive parts [n] of the array.

    Returns:
        [N], read-only.
    """
    dtype = np.dtype(dtype)
    if store.path is None:
        return _join_parts(make(), dtype)
    inputs = [_FORMAT, store.digest, dtype.descr, *rule]
    origin = bytes.fromhex(digest_of_json(inputs, size=16))
    path = store.path / "rows" / origin[:8].hex()
    array = _open_cached(path, dtype, origin)
    if array is None:
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, _file_bytes(make(), dtype, origin), several_writers=True)
        except OSError:  # a full disk, or no write access
            return _join_parts(make(), dtype)
        array = _open_cached(path, dtype, origin)
        _remove_old_arrays(path.parent)
    return _join_parts(make(), dtype) if array is None else array


def _join_parts(parts: ArrayParts, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *(p.astype(dtype, copy=False) for p in parts)])


def _file_bytes(parts: ArrayParts, dtype: np.dtype[Any], origin: bytes) -> Iterator[bytes]:
    """The bytes of a file: the elements, then a record to check them by."""
    size = check = 0
    for part in parts:
        data = part.astype(dtype, copy=False).tobytes()
        size += len(data)
        check = zlib.crc32(data, check)
        yield data
    yield _END.pack(_MARK, size, origin, check)


def _open_cached(path: Path, dtype: np.dtype[Any], origin: bytes) -> NDArray[Any] | None:
    """The array of a file; None if it does not exist, is damaged, or has other inputs."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END) - _END.size
            if size < 0 or size % dtype.itemsize:
                return None
            file.seek(size)
            mark, wanted, saved_origin, check = _END.unpack(file.read())
            if (mark, wanted, saved_origin) != (_MARK, size, origin):
                return None
            if not size:
                return np.empty(0, dtype)
            array = np.memmap(file, dtype, "r", shape=(size // dtype.itemsize,))
    except OSError:
        return None
    data, crc = array.view(np.uint8), 0
    for at in range(0, len(data), _CRC_CHUNK):  # a second per gigabytes, once per process
        crc = zlib.crc32(data[at : at + _CRC_CHUNK].data, crc)
    if crc != check:
        return None
    with suppress(OSError):
        os.utime(path)  # the most recently used files are kept
    # A plain array over the map: indexing the memmap class itself is several times slower.
    return array.view(np.ndarray)


def _remove_old_arrays(folder: Path) -> None:
    """Remove all but the most recently used files. A process that has mapped one keeps it."""
    with suppress(OSError):
        ages = {path: path.stat().st_mtime for path in folder.iterdir()}
        whole = [path for path in ages if not path.name.startswith(".")]
        old = sorted(whole, key=lambda path: ages[path], reverse=True)[_MAX_FILES:]
        unfinished = ages.keys() - set(whole)
        old += [path for path in unfinished if ages[path] < time.time() - _LEFT_BEHIND]
        for path in old:
            path.unlink(missing_ok=True)
