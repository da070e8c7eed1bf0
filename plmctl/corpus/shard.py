"""One shard of a token store: a piece of a source, read, cut, encoded and written.

A shard is made beside its place and renamed, so that one that is there is whole. What is in it
depends on its task alone, so any process may make it, and make it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from plmctl.corpus.plan import Piece
from plmctl.corpus.reading import documents
from plmctl.corpus.sentences import Rule, split_sentences
from plmctl.corpus.source import Source
from plmctl.corpus.split import share_of
from plmctl.corpus.store import check_ids, token_dtype
from plmctl.errors import PlmError

if TYPE_CHECKING:
    from plmctl.config.data import TextConfig

Encoded = list[tuple[NDArray[np.int64], NDArray[np.bool_]]]
"""Ids, and whether a word starts at each, of each text."""
Side = Literal["train", "valid"]

FACTS = "facts.json"
COUNTS = ("documents", "sentences", "tokens", "bytes", "dropped")
"""What is counted: dropped are documents without a token, bytes are of the text that was kept."""

_BATCH_CHARACTERS = 500_000  # encoded at once: megabytes, where a document may be a gigabyte


class TextEncoder(Protocol):
    """What turns sentences into ids; ``plmctl.tokenization.encode.Encoder`` is the real one."""

    fingerprint: str

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""

    def __call__(self, texts: list[str]) -> Encoded:
        """Ids and word starts of each text."""


@dataclass(frozen=True)
class Task:
    """A shard to make.

    Attributes:
        folder: Its place.
        source: What is read.
        piece: Which part of it.
        config: How documents are found.
        rule: How sentences are cut.
        side: Where its documents go; None decides by their hash.
        share: Documents whose hash is below this are held out, if ``side`` is None.
    """

    folder: Path
    source: Source
    piece: Piece
    config: TextConfig
    rule: Rule
    side: Side | None
    share: float

    @property
    def facts(self) -> dict[str, Any] | None:
        """What the shard holds, if it is there."""
        try:
            facts: dict[str, Any] = json.loads((self.folder / FACTS).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return facts if facts["range"] == self._range else None

    @property
    def _range(self) -> list[int | None]:
        return [self.piece.start, self.piece.end]

    def make(self, encoder: TextEncoder, beside: Path) -> None:
        """Write the shard.

        Args:
            encoder: The tokenizer.
            beside: A folder for this build's unfinished work, on the same file system.

        Raises:
            DataError: Bad input, with file and line, or ids outside the vocabulary.
            PlmError: It cannot be written.
        """
        unfinished = beside / self.folder.name
        try:
            self._write(encoder, unfinished)
            if self.facts is None:
                shutil.rmtree(self.folder, ignore_errors=True)  # of another range of the source
            unfinished.rename(self.folder)
        except OSError as error:
            # Another build of the same store may have finished this shard, or all, at this moment.
            if self.facts is None:
                raise cannot_write(error, self.folder) from error

    def _write(self, encoder: TextEncoder, folder: Path) -> None:
        writers: dict[Side, _Writer] = {}
        vocab_size = encoder.vocab_size
        for side in ("train", "valid"):
            (folder / side).mkdir(parents=True)
            writers[side] = _Writer(folder / side, encoder, vocab_size)
        part = documents(self.source, self.config, self.piece.start, self.piece.end)
        for document in part:
            held_out = self.side is None and share_of(document.text) < self.share
            side = self.side or ("valid" if held_out else "train")
            writers[side].add(split_sentences(document.text, self.rule))
        facts: dict[str, Any] = {"range": self._range}
        facts |= {side: writer.close() for side, writer in writers.items()}
        if self.piece.start == 0:  # one shard of a source has the hash of the whole
            facts["sha256"] = [_sha256(path) for path in self.source.files]
        write_json(folder / FACTS, facts)


class _Writer:
    """Appends documents to the files of one side of a shard."""

    def __init__(self, folder: Path, encoder: TextEncoder, vocab_size: int) -> None:
        self._encoder, self._vocab_size = encoder, vocab_size
        self._dtype = token_dtype(self._vocab_size)
        self._files: dict[str, IO[bytes]] = {
            name: (folder / name).open("wb")
            for name in ("tokens", "words", "sentences", "documents")
        }
        self._hash = hashlib.blake2b(digest_size=16)
        self._counts = dict.fromkeys(COUNTS, 0)
        self._bits = np.zeros(0, dtype=bool)  # word starts that do not fill a byte yet
        self._waiting: list[list[str]] = []
        self._characters = 0

    def add(self, sentences: list[str]) -> None:
        """One document."""
        self._waiting.append(sentences)
        self._characters += sum(map(len, sentences))
        if self._characters >= _BATCH_CHARACTERS:
            self._encode()

    def close(self) -> dict[str, int | str]:
        """What was written; it is on the disk by then."""
        self._encode()
        self._put("words", np.packbits(self._bits, bitorder="little"))
        for file in self._files.values():
            file.flush()
            if file.tell():  # half of the files of a corpus without a validation text are empty
                os.fsync(file.fileno())
            file.close()
        return {**self._counts, "digest": self._hash.hexdigest()}

    def _encode(self) -> None:
        texts = [sentence for document in self._waiting for sentence in document]
        sizes = np.array([size for batch in _batches(texts) for size in self._write(batch)], "<u4")
        document = np.repeat(np.arange(len(self._waiting)), list(map(len, self._waiting)))
        kept = np.bincount(document[sizes > 0], minlength=len(self._waiting))  # its sentences
        self._put("sentences", sizes[sizes > 0])
        self._put("documents", kept[kept > 0].astype("<u4"))
        self._counts["documents"] += int(np.count_nonzero(kept))
        self._counts["dropped"] += int(np.count_nonzero(kept == 0))
        self._counts["sentences"] += int(kept.sum())
        self._counts["tokens"] += int(sizes.sum())
        self._waiting, self._characters = [], 0

    def _write(self, texts: list[str]) -> list[int]:
        """Tokens of each text, written one after the other."""
        encoded = self._encoder(texts)
        ids = np.concatenate([ids for ids, _ in encoded])
        check_ids(ids, self._vocab_size)
        self._put("tokens", ids.astype(self._dtype))
        bits = np.concatenate([self._bits, *(words for _, words in encoded)])
        whole = len(bits) // 8 * 8
        self._put("words", np.packbits(bits[:whole], bitorder="little"))
        self._bits = bits[whole:]
        sizes = [len(ids) for ids, _ in encoded]
        written = (text for text, size in zip(texts, sizes, strict=True) if size)
        self._counts["bytes"] += sum(len(text.encode()) for text in written)
        return sizes

    def _put(self, name: str, array: NDArray[Any]) -> None:
        data = array.tobytes()
        self._files[name].write(data)
        self._hash.update(data)


def _batches(texts: list[str]) -> Iterator[list[str]]:
    """Consecutive texts, about ``_BATCH_CHARACTERS`` at once."""
    batch: list[str] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def cannot_write(error: OSError, folder: Path) -> PlmError:
    """The error for a full disk, a folder that is not ours, and the like."""
    return PlmError(
        f"{error.filename or folder}: {error.strerror or error}",
        "mend that, or choose another folder with `data.store`, and run the same command again: "
        "what is done is kept",
    )


def write_json(path: Path, values: object) -> None:
    """Write a file that is there whole or not at all."""
    write_whole(path, [json.dumps(values, ensure_ascii=False, indent=1).encode()])


def write_whole(path: Path, parts: Iterable[bytes]) -> None:
    """Write beside its place, flush, rename."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
