"""Building token stores: independent shard tasks over processes, continued after an interruption.

A store is found by the hash of what it is made from: the sources' names, sizes and times, the
tokenizer, and the rules for documents, sentences and the split. Each task writes its shard beside
its place and renames it, so that a shard that is there is whole and is not made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from plmctl.corpus.document import Document
from plmctl.corpus.reading import Source, documents, ranges, resolve
from plmctl.corpus.sentences import choose_rule, split_sentences
from plmctl.corpus.split import share_of
from plmctl.corpus.store import token_dtype
from plmctl.errors import DataError

if TYPE_CHECKING:
    from plmctl.config.data import DataConfig

Encoded = list[tuple[NDArray[np.int64], NDArray[np.bool_]]]
Progress = Callable[[int, int], None]
"""``progress(done, total)``, in bytes of text."""

_TASK_BYTES = 16_000_000  # of text a shard: seconds of work, and tens of megabytes of memory
_BATCH_SENTENCES = 2_000  # encoded at once
_FORMAT = 1  # raised when the files' meaning changes


class TextEncoder(Protocol):
    """What turns sentences into ids; ``plmctl.tokenization.encode.Encoder`` is the real one."""

    fingerprint: str

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""

    def __call__(self, texts: list[str]) -> Encoded:
        """Ids and word starts of each text."""


@dataclass(frozen=True)
class Stores:
    """Where the stores of a corpus are."""

    train: Path
    valid: Path | None
    digest: str


@dataclass(frozen=True)
class _Task:
    """A shard to make: the documents of a source that begin in [start, end)."""

    folder: Path
    name: str
    source: Source
    start: int
    end: int | None
    config: DataConfig
    rule: str
    side: str
    """"both" splits by hash; "train" and "valid" take everything."""


def find(config: DataConfig, encoder: TextEncoder, *, root: Path) -> Stores | None:
    """The stores of a corpus if they are there and whole."""
    folder = root / _digest(config, encoder)
    if not (folder / "manifest.json").is_file():
        return None
    valid = folder / "valid"
    found = valid if (valid / "manifest.json").is_file() else None
    return Stores(folder / "train", found, folder.name)


def build(
    config: DataConfig,
    encoder: TextEncoder,
    *,
    root: Path,
    processes: int | None,
    progress: Progress,
) -> Stores:
    """The stores of a corpus: found, or made, or made to the end after an interruption.

    Args:
        config: Sources and rules.
        encoder: The tokenizer.
        root: Folder of all stores.
        processes: How many make shards; None: one a core; 1: this one.
        progress: Told of the bytes done.

    Raises:
        DataError: Bad input, with file and line, or a corpus with no text in it.
    """
    found = find(config, encoder, root=root)
    if found:
        return found
    folder = root / _digest(config, encoder)
    folder.mkdir(parents=True, exist_ok=True)
    rule = config.sentences
    if rule == "auto":
        rule = choose_rule(_opening(config))
    tasks = _tasks(config, folder, rule)
    _run(tasks, encoder, processes or os.cpu_count() or 1, progress)
    shards = [json.loads((folder / t.name / "shard.json").read_text()) for t in tasks]
    for side in ("train", "valid"):
        _collect(folder, side, shards, encoder.vocab_size)
    if not sum(shard["train"]["documents"] for shard in shards):
        shutil.rmtree(folder)
        held_out = sum(shard["valid"]["documents"] for shard in shards)
        raise DataError(
            f"no text to train on in {', '.join(config.train)}"
            + (f": the split held out all {held_out} documents" if held_out else ""),
            "is the path right, and `data.text` the column of the text?",
        )
    summary = {"format": _FORMAT, "sentences": rule, "sources": shards}
    _write(folder / "manifest.json", json.dumps(summary, indent=1, ensure_ascii=False))
    built = find(config, encoder, root=root)
    if built is None:
        raise DataError(f"{folder}: the sources changed while they were read", "run it again")
    return built


def _digest(config: DataConfig, encoder: TextEncoder) -> str:
    """The name of the stores' folder."""
    sides = [config.train, config.valid if isinstance(config.valid, tuple) else ()]
    facts = {
        "format": _FORMAT,
        "sources": [[_stamp(source) for source in resolve(names)] for names in sides],
        "valid": config.valid if isinstance(config.valid, float) else None,
        "text": config.text,
        "documents": config.documents,
        "sentences": config.sentences,
        "tokenizer": encoder.fingerprint,
    }
    text = json.dumps(facts, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _stamp(source: Source) -> tuple[str, int, int]:
    """Name, size and time, as ``make`` goes by: hashing a large corpus at each start is slow."""
    path = Path(source.name)
    if not path.exists():
        return source.name, 0, 0
    return str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns


def _opening(config: DataConfig) -> Iterator[str]:
    """The first texts of each source, to choose the sentence rule by."""
    for source in resolve(config.train)[:20]:
        for document in islice(documents(source, config), 20):
            yield document.text[:20_000]


def _tasks(config: DataConfig, folder: Path, rule: str) -> list[_Task]:
    own_valid = isinstance(config.valid, tuple)
    sides = [("train" if own_valid or not config.valid else "both", config.train)]
    if isinstance(config.valid, tuple):
        sides.append(("valid", config.valid))
    pieces = [
        (side, source, start, end)
        for side, names in sides
        for source in resolve(names)
        for start, end in ranges(source, config.documents, _TASK_BYTES)
    ]
    return [
        _Task(folder, f"shard-{number:05d}", source, start, end, config, rule, side)
        for number, (side, source, start, end) in enumerate(pieces)
    ]


def _run(tasks: list[_Task], encoder: TextEncoder, processes: int, progress: Progress) -> None:
    missing = [t for t in tasks if not (t.folder / t.name / "shard.json").is_file()]
    total = sum(map(_bytes, tasks))
    done = total - sum(map(_bytes, missing))
    progress(done, total)
    if processes == 1 or len(missing) <= 1:
        for task in missing:
            _make_shard(task, encoder)
            progress(done := done + _bytes(task), total)
        return
    # Spawned, not forked: the parent may have threads, and forking those can hang.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(_make_shard, task, encoder): task for task in missing}
        try:
            for future in as_completed(futures):
                future.result()
                progress(done := done + _bytes(futures[future]), total)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _bytes(task: _Task) -> int:
    path = Path(task.source.name)
    size = path.stat().st_size if path.is_file() else 1
    return (task.end if task.end is not None else size) - task.start


def _make_shard(task: _Task, encoder: TextEncoder) -> None:
    beside = task.folder / f".{task.name}.writing"
    shutil.rmtree(beside, ignore_errors=True)
    sides = {side: _ShardWriter(beside / side, encoder) for side in ("train", "valid")}
    hasher = hashlib.sha256()
    for document in documents(task.source, task.config, task.start, task.end):
        hasher.update(document.text.encode())
        side = task.side if task.side != "both" else _side(document, task.config)
        sides[side].add(split_sentences(document.text, task.rule))
    counts = {side: writer.close() for side, writer in sides.items()}
    facts = {
        "name": task.name,
        "source": task.source.name,
        "bytes": [task.start, task.end],
        "sha256": hasher.hexdigest(),
        **counts,
    }
    _write(beside / "shard.json", json.dumps(facts, ensure_ascii=False))
    beside.rename(task.folder / task.name)


def _side(document: Document, config: DataConfig) -> str:
    share = config.valid if isinstance(config.valid, float) else 0.0
    return "valid" if share_of(document.text) < share else "train"


class _ShardWriter:
    """Appends documents to a shard's files, encoding many sentences at once."""

    def __init__(self, folder: Path, encoder: TextEncoder) -> None:
        folder.mkdir(parents=True)
        self._encoder, self._vocab_size = encoder, encoder.vocab_size
        self._dtype = token_dtype(self._vocab_size)
        self._files = {n: (folder / n).open("wb") for n in ("tokens", "sentences", "documents")}
        self._words_file = folder / "words"
        self._words: list[NDArray[np.bool_]] = []
        self._waiting: list[list[str]] = []
        self._counts = {"documents": 0, "sentences": 0, "tokens": 0, "text_bytes": 0}

    def add(self, sentences: list[str]) -> None:
        """One document."""
        self._waiting.append(sentences)
        if sum(map(len, self._waiting)) >= _BATCH_SENTENCES:
            self._encode()

    def close(self) -> dict[str, int]:
        """What was written."""
        self._encode()
        for file in self._files.values():
            file.close()
        words = np.concatenate(self._words) if self._words else np.zeros(0, bool)
        np.packbits(words, bitorder="little").tofile(self._words_file)
        return self._counts

    def _encode(self) -> None:
        texts = [sentence for document in self._waiting for sentence in document]
        encoded = iter(self._encoder(texts))
        for document in self._waiting:
            pieces = [piece for piece in islice(encoded, len(document)) if len(piece[0])]
            if pieces:
                self._append(pieces)
        self._counts["text_bytes"] += sum(len(text.encode()) for text in texts)
        self._waiting = []

    def _append(self, pieces: Encoded) -> None:
        ids = np.concatenate([ids for ids, _ in pieces])
        if ids.max() >= self._vocab_size:
            raise DataError(f"id {ids.max()} is not below the vocabulary size {self._vocab_size}")
        self._files["tokens"].write(ids.astype(self._dtype).tobytes())
        self._files["sentences"].write(np.array([len(i) for i, _ in pieces], "<u4").tobytes())
        self._files["documents"].write(np.array([len(pieces)], "<u4").tobytes())
        self._words.append(np.concatenate([words for _, words in pieces]))
        self._counts["documents"] += 1
        self._counts["sentences"] += len(pieces)
        self._counts["tokens"] += len(ids)


def _collect(folder: Path, side: str, shards: list[dict[str, object]], vocab_size: int) -> None:
    """The manifest of one side: its shards that are not empty, in corpus order."""
    kept = [shard for shard in shards if shard[side]["documents"]]  # type: ignore[index]  # JSON
    if not kept:
        return
    manifest = {
        "format": _FORMAT,
        "digest": folder.name,
        "vocab_size": vocab_size,
        "shards": [{"name": f"../{shard['name']}/{side}"} for shard in kept],
    }
    (folder / side).mkdir(exist_ok=True)
    _write(folder / side / "manifest.json", json.dumps(manifest))


def _write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.writing")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
