"""One shard of a token store: a piece of a source, read, encoded and written.

A shard is made beside its place and renamed, so that one that is there is whole. What is in it
depends on its task alone, so any process may make it, and make it again.

The text is kept: a tokenizer that keeps white space gets each document as it is, and a sentence is
a stretch of its tokens, with the white space that stands before it. To one that drops white space
(WordPiece, SentencePiece's words) each sentence is given by itself, which gives the same ids.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from plmctl.corpus.plan import Piece
from plmctl.corpus.reading import documents
from plmctl.corpus.sentences import Rule, sentence_starts, split_sentences
from plmctl.corpus.source import Source
from plmctl.corpus.split import share_of
from plmctl.corpus.store import SHARD_FILES, check_ids, token_dtype
from plmctl.errors import PlmError
from plmctl.files import read_checked, write_checked
from plmctl.hashing import digest_of, sample_of, sha256_of

if TYPE_CHECKING:
    from plmctl.config.data import TextConfig

Side = Literal["train", "valid"]
SIDES: tuple[Side, ...] = ("train", "valid")

FACTS = "facts.json"
COUNTS = ("documents", "sentences", "tokens", "bytes", "dropped")
"""What is counted: dropped are documents without a token, bytes are of the text that was kept."""

_BATCH_CHARACTERS = 500_000  # encoded at once: megabytes, where a document may be a gigabyte


class TextEncoder(Protocol):
    """What turns text into ids; ``plmctl.tokenization.encode.Encoder`` is the real one."""

    fingerprint: str

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""

    @property
    def keeps_white_space(self) -> bool:
        """Whether white space changes the ids, so that a text has to be encoded as it is."""

    def stretches(self, text: str, size: int) -> list[str]:
        """The text in consecutive parts of about ``size`` characters that may be encoded apart."""

    def with_places(
        self, texts: list[str], places: Sequence[Sequence[int]]
    ) -> list[tuple[NDArray[np.int64], NDArray[np.bool_], Sequence[int]]]:
        """Of each text: its ids, whether a word starts at each, and the first token at each place.

        ``places`` are characters of the text, ascending.
        """


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
        """What the shard holds, if it is there and its files have their sizes."""
        facts = read_checked(self.folder / FACTS)
        if facts is None or facts["range"] != self._range:
            return None
        return facts if all(self._is_whole(facts[side], side) for side in SIDES) else None

    def _is_whole(self, facts: dict[str, Any], side: Side) -> bool:
        paths = [self.folder / side / name for name in SHARD_FILES]
        return all(path.is_file() for path in paths) and facts["sample"] == sample_of(paths)

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
        for side in SIDES:
            (folder / side).mkdir(parents=True)
            writers[side] = _Writer(folder / side, encoder, vocab_size)
        part = documents(self.source, self.config, self.piece.start, self.piece.end)
        for document in part:
            held_out = self.side is None and share_of(document.text) < self.share
            side = self.side or ("valid" if held_out else "train")
            writers[side].add(document.text, self.rule)
        facts: dict[str, Any] = {"range": self._range}
        facts |= {side: writer.close() for side, writer in writers.items()}
        if self.piece.start == 0:  # one shard of a source has the hash of the whole
            facts["sha256"] = [sha256_of(path) for path in self.source.files]
        write_checked(folder / FACTS, facts)


class _Writer:
    """Appends documents to the files of one side of a shard."""

    def __init__(self, folder: Path, encoder: TextEncoder, vocab_size: int) -> None:
        self._encoder, self._vocab_size = encoder, vocab_size
        self._dtype = token_dtype(self._vocab_size)
        self._paths = [folder / name for name in SHARD_FILES]
        self._files = {path.name: path.open("wb") for path in self._paths}
        self._hashes = {name: hashlib.blake2b(digest_size=16) for name in SHARD_FILES}
        self._counts = dict.fromkeys(COUNTS, 0)
        self._bits = np.zeros(0, dtype=bool)  # word starts that do not fill a byte yet
        self._texts: list[str] = []  # to be encoded one by one
        self._places: list[list[int]] = []  # where sentences start in each
        self._documents: list[int] = []  # texts of each document
        self._characters = 0

    def add(self, text: str, rule: Rule) -> None:
        """One document."""
        if not self._encoder.keeps_white_space:
            texts = split_sentences(text, rule)
            self._places += [[0]] * len(texts)
        elif starts := sentence_starts(text, rule):
            texts = self._encoder.stretches(text, _BATCH_CHARACTERS)
            ends = np.cumsum([0, *map(len, texts)])
            cuts = np.searchsorted(starts, ends)  # a sentence is in the stretch where it starts
            self._places += [
                [start - int(begin) for start in starts[first:last]]
                for begin, first, last in zip(ends, cuts, cuts[1:], strict=False)
            ]
        else:
            texts = []  # nothing but white space
        self._texts += texts
        self._documents.append(len(texts))
        self._characters += sum(map(len, texts))
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
        digest = digest_of([made.hexdigest() for made in self._hashes.values()])
        return {**self._counts, "digest": digest, "sample": sample_of(self._paths)}

    def _encode(self) -> None:
        """Encode what waits, and write it."""
        starts: list[NDArray[np.int64]] = []  # tokens at which sentences start, of each text
        ends = [0]  # tokens up to the end of each text
        at = 0
        for texts in _batches(self._texts):
            places = self._places[len(starts) : len(starts) + len(texts)]
            for size, found in self._write(texts, places):
                starts.append(ends[-1] + np.asarray(found, dtype=np.int64))
                ends.append(ends[-1] + size)
        sentences, documents = [], []
        for count in self._documents:
            first, at = at, at + count
            bounds = np.append(np.concatenate([_NOTHING, *starts[first:at]]), ends[at])
            sizes = np.diff(bounds)  # a sentence without a token is left out
            sentences.append(sizes[sizes > 0])
            documents.append(len(sentences[-1]))
        kept = np.array(documents, dtype="<u4")
        self._put("sentences", np.concatenate([_NOTHING, *sentences]).astype("<u4"))
        self._put("documents", kept[kept > 0])
        self._counts["documents"] += int(np.count_nonzero(kept))
        self._counts["dropped"] += int(np.count_nonzero(kept == 0))
        self._counts["sentences"] += int(kept.sum())
        self._counts["tokens"] += ends[-1]
        self._texts, self._places, self._documents, self._characters = [], [], [], 0

    def _write(
        self, texts: list[str], places: list[list[int]]
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """Write the tokens of texts; how many each has, and the first token at each place."""
        encoded = self._encoder.with_places(texts, places)
        ids = np.concatenate([ids for ids, _, _ in encoded])
        check_ids(ids, self._vocab_size)
        self._put("tokens", ids.astype(self._dtype))
        bits = np.concatenate([self._bits, *(words for _, words, _ in encoded)])
        whole = len(bits) // 8 * 8
        self._put("words", np.packbits(bits[:whole], bitorder="little"))
        self._bits = bits[whole:]
        for text, (found, _, at) in zip(texts, encoded, strict=True):
            self._counts["bytes"] += len(text.encode()) if len(found) else 0
            yield len(found), at

    def _put(self, name: str, array: NDArray[Any]) -> None:
        data = array.tobytes()
        self._files[name].write(data)
        self._hashes[name].update(data)


_NOTHING = np.zeros(0, dtype=np.int64)


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
