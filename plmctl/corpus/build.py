"""Building token stores: independent shard tasks in several processes, resumed if interrupted.

``root/<key>/`` holds the stores of one corpus and tokenizer: ``train/``, ``valid/``, ``shards/``
and ``manifest.json``, which is written last. The key is a hash of everything that decides the
content: the sources by name, size and time (as for ``make``, because hashing a large corpus at
every start is slow), the tokenizer, and the rules. The manifest has the SHA-256 of each source, and
each store a digest of its content, which is the same on every machine. Separate validation files
have a separate store, so that the training text is not encoded again when they change.

Every start compares the stores with their hashes (``store.find_damage``): all bytes the first time
on a machine and if a file's size or time has changed since, otherwise a sample of them. Damaged or
missing parts are built again.

One document, from file to store: ``build_stores`` -> ``_make_shards`` (the tasks) -> ``ShardTask``
(reads the document, decides its side) -> ``_ShardWriter`` (sentences, ids, files) ->
``_write_stores`` (offsets over all shards, manifest).
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import platform
import shutil
import signal
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from plmctl.addresses import shown
from plmctl.arrays import Ints, text_batches
from plmctl.config.sections import MANY_DOCUMENTS
from plmctl.corpus.document import Document, hash_of
from plmctl.corpus.languages import check_detectable, is_other
from plmctl.corpus.marks import notes_on
from plmctl.corpus.near_copies import (
    PERMUTATIONS,
    SKETCH,
    check_library,
    minhashes_of,
    near_copies,
    sketches_of,
    to_move,
)
from plmctl.corpus.reading import (
    SourcePiece,
    Unit,
    check_marks,
    cut_source,
    documents,
    opening,
    unit_of,
)
from plmctl.corpus.remote import (
    INDEX_FILES,
    RemoteFile,
    RemoteRoot,
    RemoteStore,
    is_url,
    stamp_of,
)
from plmctl.corpus.repeated_lines import counts_of, repeated, without_lines
from plmctl.corpus.sentences import (
    Rule,
    SentenceRule,
    decide,
    sentence_spans,
    sentence_starts,
    split_sentences,
)
from plmctl.corpus.source import Source, resolve, size_of
from plmctl.corpus.store import OFFSET_FILES, SHARD_FILES, check_ids, find_damage, token_dtype
from plmctl.corpus.words import WordRule, count_words, word_rule
from plmctl.cpus import usable_cpus
from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.files import flush, read_checked, write_atomically, write_checked, write_error
from plmctl.hashing import digest_of, digest_of_files, digest_of_json, sample_of, sha256_of

if TYPE_CHECKING:
    from plmctl.config.sections import DataConfig, TextConfig


# --- The sides of a split, and the encoder ---


Side = Literal["train", "valid"]

SIDES: tuple[Side, ...] = ("train", "valid")

FACTS = "facts.json"

COUNTS = ("documents", "sentences", "tokens", "bytes", "dropped")
"""Counts of a side: dropped are documents without a token; bytes are those of the kept text.

"""

LEFT_OUT = ("duplicates", "other_languages", "repeated_lines")
"""Counts of what options leave out, each only with its option: documents that came before,
documents in other languages, lines that many documents have."""

_BATCH_CHARACTERS = 500_000  # encoded together: a single document may be a gigabyte


class TextEncoder(Protocol):
    """Encodes text to ids, as ``plmctl.tokenization.encode.Encoder`` does."""

    fingerprint: str

    @property
    def vocab_size(self) -> int:
        """Largest id + 1."""

    @property
    def keeps_white_space(self) -> bool:
        """Whether white space changes the ids, so that text must be encoded unchanged."""

    def stretches(self, text: str, size: int, lines: Sequence[int] = ()) -> list[str]:
        """Consecutive parts of a text, of about ``size`` characters, to be encoded separately.

        ``lines`` are the characters where a line begins, which is encoded as if it were alone.
        """

    def with_places(
        self, texts: list[str], places: Sequence[Sequence[int]]
    ) -> list[tuple[NDArray[np.int64], NDArray[np.bool_], Sequence[int]]]:
        """The ids of each text, whether a word starts at each, and the first token at each place.

        ``places`` are positions of characters in the text, ascending.
        """

    def with_words(
        self, texts: list[str], places: Sequence[Sequence[int]], words: Sequence[Ints]
    ) -> list[tuple[NDArray[np.int64], NDArray[np.bool_], Sequence[int]]]:
        """Like ``with_places``; ``words`` are the characters of each text where its words start."""

    def unknown_of(self, texts: list[str], ids: NDArray[np.int64]) -> Mapping[str, Any]:
        """What the tokenizer does not know of texts: numbers by name, and ``examples``.

        ``ids`` are those of the texts, one text after the other.
        """


# --- Finding and building the stores of a corpus ---


Progress = Callable[[int, int], None]
"""``progress(done, total)``, in bytes of the sources."""

Notice = Callable[[str], None]
"""Called with a line for the user."""

_MAX_PIECE = 16_000_000  # bytes per shard: seconds of work, and tens of megabytes of memory

_MIN_PIECE = 500_000

_PIECES = 32  # shards of a small corpus, so that all processes have work and progress is visible

_FEW_SOURCES = 64  # up to here each source has its own shards; more small ones share shards

_SAMPLED_SOURCES = 16  # from which the rule for sentences is chosen

_OPENING = 50_000  # characters of each of them

_FORMAT = 3  # increased when the meaning of the files changes, so that older stores are not used

_EARLIER = 2  # format 2 cut text into sentences and dropped the white space between them


Root = Path | RemoteRoot
"""The folder of all stores, or its URL."""


@dataclass(frozen=True)
class Stores:
    """The folders of the stores of a corpus.

    Attributes:
        train: A folder for ``TokenStore.open``.
        valid: The same for the held-out documents; None without any.
        digest: Hash of the content of both.
        manifest: Sources with their hashes, the rule for sentences, and the counts of each side.
    """

    train: Path
    valid: Path | None
    digest: str
    manifest: dict[str, Any]

    @property
    def words(self) -> int | None:
        """Words of the training text; None: they were not counted."""
        counted: int | None = self.manifest.get("words", {}).get("train")
        return counted

    @property
    def word_rule(self) -> WordRule:
        """How words were counted, or why not."""
        words = self.manifest.get("words")
        if words is None:
            return WordRule("", "an earlier version of plmctl built the store: prepare it again")
        return WordRule(words["rule"], words["reason"])

    @property
    def sentences(self) -> SentenceRule:
        """How the text was cut into sentences, and why."""
        return SentenceRule(self.manifest["sentences"], self.manifest["reason"])


def find_stores(
    config: DataConfig, encoder: TextEncoder, *, root: Root, every_byte: bool = False
) -> Stores | None:
    """The stores of a corpus; None if they do not exist, or are damaged.

    Args:
        every_byte: Compare every byte of a store with its hashes, even if it seems unchanged.

    Raises:
        DataError: A source does not exist, or has other text with the same size and time.
    """
    own = _own_text(config, config.train)
    train = _open_stores(_folder(root, _key(own, encoder, _FORMAT)), every_byte)
    if train is not None:
        _refuse_changed(train, own.train)
    if train is None or not isinstance(config.valid, tuple):
        return train
    own = _own_text(config, config.valid, train.sentences)
    valid = _open_stores(_folder(root, _key(own, encoder, _FORMAT)), every_byte)
    if valid is None:
        return None
    _refuse_changed(valid, own.train)
    return _with_valid(train, valid)


def build_stores(
    config: DataConfig,
    encoder: TextEncoder,
    *,
    root: Root,
    processes: int | None,
    progress: Progress,
    notice: Notice,
    words_needed: bool = False,
    every_byte: bool = False,
    executor: Executor | None = None,
) -> Stores:
    """The stores of a corpus, which are built, or completed, if they do not exist yet.

    The result does not depend on the number of processes or on interruptions, byte for byte.

    Args:
        processes: How many processes build shards; None: one per core; 1: this process.
        progress: Called with the bytes done and the total.
        notice: Called if a store is damaged, or was built by an earlier version.
        words_needed: Count words also where it takes long; see ``word_rule``.
        every_byte: As for ``find_stores``.
        executor: Other machines that build the shards instead.

    Raises:
        DataError: Bad input, with file and line, or a corpus without text.
        PlmError: A worker process was killed, or the folder cannot be written.
    """
    by = Workers(processes, executor)
    stamps = cache(_stamps)  # the files are looked at once here, and once more at the end

    def make(config: DataConfig, purpose: str) -> Stores:
        folder = _folder(root, _key(config, encoder, _FORMAT, stamps))
        stores = _open_stores(folder, every_byte)
        if stores is not None:
            _refuse_changed(stores, config.train)
            return stores
        stores = _build_one(config, encoder, folder, by, progress, notice, purpose, words_needed)
        if _key(config, encoder, _FORMAT) != folder.name:
            raise DataError(
                f"{folder}: the sources changed while they were read", "run the same command again"
            )
        _refuse_changed(stores, config.train)  # nothing yet: what they are is recorded
        return stores

    own = _own_text(config, config.train)
    if isinstance(root, Path) and not (root / _key(own, encoder, _FORMAT, stamps)).exists():
        for sentences in {config.sentences, "auto"}:  # the objective may have replaced "auto"
            before = config.model_copy(update={"sentences": sentences})
            earlier = root / _key(before, encoder, _EARLIER, stamps)
            if earlier.is_dir():
                notice(
                    f"{earlier} was built by an earlier version of plmctl, which dropped the white "
                    "space between sentences: encoding the text again (you may delete that folder)"
                )
    train = make(own, "train")
    if not isinstance(config.valid, tuple):
        return train
    return _with_valid(train, make(_own_text(config, config.valid, train.sentences), "validate"))


def _own_text(
    config: DataConfig, names: tuple[str, ...], sentences: SentenceRule | None = None
) -> DataConfig:
    """The config of a text with a separate store; ``sentences`` is the rule of the other text."""
    own = isinstance(config.valid, tuple)
    changes: dict[str, object] = {"train": names, "valid": None if own else config.valid}
    if sentences is not None:
        changes["sentences"] = sentences.rule
    return config.model_copy(update=changes)


def _with_valid(train: Stores, valid: Stores) -> Stores:
    """The stores of a training text and of a separate validation text."""
    digest = digest_of([train.digest, valid.digest])
    manifest = {
        **train.manifest,
        "digest": digest,
        "valid": valid.manifest["train"],
        "sources": train.manifest["sources"] + valid.manifest["sources"],
        "notes": train.manifest.get("notes", [])
        + [f"validation text: {note}" for note in valid.manifest.get("notes", [])],
    }
    if train.words is not None:
        manifest["words"] = train.manifest["words"] | {"valid": valid.words}
    return Stores(train.train, valid.train, digest, manifest)


def _folder(root: Root, key: str) -> Path:
    """The folder of a store; for a store at a URL, that of its local copy."""
    return root / key if isinstance(root, Path) else root.store(key).folder


def _open_stores(folder: Path, every_byte: bool) -> Stores | None:
    remote = RemoteStore.of(folder)
    if remote is not None:
        remote.fetch_index()
    manifest = read_checked(folder / "manifest.json")
    if manifest is None or _find_damaged(folder, every_byte):
        return None
    valid = folder / "valid" if manifest["valid"]["documents"] else None
    return Stores(folder / "train", valid, manifest["digest"], manifest)


def _refuse_changed(stores: Stores, names: tuple[str, ...]) -> None:
    """Refuse a store whose files have other text than it was built from, with the same times.

    The key has their sizes and times, and a time can be set back. Their inodes and the times of
    their last change, which nobody can set, are recorded on each machine; when those differ, the
    files are hashed, once.

    Raises:
        DataError: With the file.
    """
    files = [one for one in resolve(names) if one.is_file and isinstance(one.path, Path)]
    facts = [os.stat(one.name) for one in files]
    now = digest_of_json([[fact.st_ino, fact.st_ctime_ns] for fact in facts])
    record = _record_of(stores.train.parent)
    before = read_checked(record) or {}
    if before.get(_SOURCES) == now:
        return
    known = {one["name"]: one.get("sha256") for one in stores.manifest["sources"]}
    for one in files if _SOURCES in before else ():
        if known.get(one.name) not in (None, sha256_of(Path(one.name))):
            raise DataError(
                f"{one.name}: its text changed, but neither its size nor its time did, by which "
                "token stores are found",
                f"give it the time of now (`touch {one.name}`), and run the same command again",
            )
    with suppress(OSError):  # without write access, as below
        write_checked(record, {**before, _SOURCES: now})


_SOURCES = "sources"


def _record_of(folder: Path) -> Path:
    """What this machine has checked of a store."""
    return folder / f".checked-{platform.node()}.json"


def _find_damaged(folder: Path, every_byte: bool) -> list[Path]:
    """The damaged or missing parts: folders of shards, files of offsets, manifests."""
    remote = RemoteStore.of(folder)
    record = _record_of(folder)
    checked = read_checked(record) or {}
    before = {} if every_byte else checked
    now: dict[str, Any] = {}

    def unchanged(paths: list[Path]) -> bool:
        stats = [path.stat() for path in paths]
        name = str(paths[0].relative_to(folder))
        now[name] = [[fact.st_size, fact.st_mtime_ns, fact.st_ino] for fact in stats]
        return bool(now[name] == before.get(name))

    damaged, digests = [], []
    manifest = read_checked(folder / "manifest.json") or {}
    for side in SIDES:
        known = read_checked(folder / side / "manifest.json")
        digests.append("" if known is None else known["digest"])
        if known is not None:
            parts = find_damage(folder / side, known, unchanged=unchanged)
            if remote is not None:  # its local copy may lack shards, and is no proof of damage
                hashes = {s["path"]: s["digest"] for s in known["shards"]} if every_byte else {}
                parts = [
                    part
                    for part in parts
                    if not remote.repair(part, hashes.get(os.path.relpath(part, folder / side)))
                ]
            damaged += parts
        elif manifest.get(side, {}).get("documents", 1):
            damaged.append(folder / side / "manifest.json")
    if not damaged and manifest.get("digest") != digest_of(digests):
        damaged.append(folder / "manifest.json")
    if not damaged and any(now[name] != before.get(name) for name in now):
        with suppress(OSError):  # without write access, every start compares every byte
            write_checked(record, {**checked, **now})
    return damaged


def _key(
    config: DataConfig,
    encoder: TextEncoder,
    version: int,
    stamps: Callable[[tuple[str, ...]], list[Any]] | None = None,
) -> str:
    sides = [config.train, config.valid if isinstance(config.valid, tuple) else ()]
    named = {"valid", "text", "documents", "sentences"}
    # Options that are not used are no part of the key, so that older stores keep their names.
    named |= {"word_mark"} if config.words == "marked" else set()
    named |= {"duplicates"} if config.duplicates != "keep" else set()
    named |= {"near_copies"} if _moves(config) else set()
    named |= {"languages"} if config.languages else set()
    named |= {"repeated_lines"} if config.repeated_lines != "keep" else set()
    named |= {"separator"} if config.separator is not None else set()
    rules = config.model_dump(mode="json", include=named)
    by_lines = version > _EARLIER and config.sentences in ("auto", "line")
    if by_lines and encoder.keeps_white_space:
        rules["lines"] = "alone"  # before, the first word of an indented line included a space
    known = [(stamps or _stamps)(names) for names in sides]
    return digest_of_json([version, rules, known, encoder.fingerprint])


def _stamps(names: tuple[str, ...]) -> list[Any]:
    """Name, kind, and size and time of the files, of each source."""
    folders = cache(os.path.realpath)
    return [
        [_full_name(source, folders), source.kind, _file_stamps(source)]
        for source in resolve(names)
    ]


def _full_name(source: Source, real_folder: Callable[[str], str]) -> str:
    """The path of a source without links; thousands of files are in few folders."""
    if source.kind in ("hf", "ms", "sample") or is_url(source.name):
        return source.name
    folder, name = os.path.split(source.name)
    if name in ("", ".", "..") or os.path.islink(source.name):
        return os.path.realpath(source.name)
    return os.path.join(real_folder(folder), name)


def _file_stamps(source: Source, *, fresh: bool = False) -> list[list[int | str]]:
    """Size and time of each file of a source, or its stamp at a URL."""
    return [stamp_of(path, fresh=fresh) for path in source.files]


# --- From shards to stores ---


def _build_one(
    config: DataConfig,
    encoder: TextEncoder,
    folder: Path,
    by: Workers,
    progress: Progress,
    notice: Notice,
    purpose: str,
    words_needed: bool,
) -> Stores:
    remote = RemoteStore.of(folder)
    if (folder / "manifest.json").exists():
        damaged = _find_damaged(folder, every_byte=True) or [folder / "manifest.json"]
        names = [str(path.resolve().relative_to(folder.resolve())) for path in damaged]
        shown = folder if remote is None else remote.url
        notice(f"{shown} is damaged ({', '.join(names[:3])}): building that part again")
        (folder / "manifest.json").unlink(missing_ok=True)
        for path in damaged:
            if remote is not None and path.parent.parent.name == "shards":
                remote.remove(f"shards/{path.parent.name}/{FACTS}")
            if path.is_dir():
                shutil.rmtree(path.resolve().parent, ignore_errors=True)  # both sides of a shard
    decision, rule, tasks = _make_shards(config, encoder, folder, by, progress, words_needed)
    facts = [task.facts or {} for task in tasks]
    _check_text(config, facts, folder, purpose)
    if config.duplicates != "keep":
        counts = [_total_counts(facts, side) for side in SIDES]
        repeated = sum(count["duplicates"] for count in counts)
        total = repeated + sum(count["documents"] + count["dropped"] for count in counts)
        notice(
            f"duplicates: {repeated:,} of {total:,} documents dropped "
            f"(data.duplicates: {config.duplicates})"
        )
    if config.languages:
        count = sum(_total_counts(facts, side)["other_languages"] for side in SIDES)
        wanted = ", ".join(config.languages)
        notice(f"languages: {count:,} documents dropped (data.languages: {wanted})")
    if config.repeated_lines != "keep":
        count = sum(_total_counts(facts, side)["repeated_lines"] for side in SIDES)
        notice(f"repeated lines: {count:,} dropped (data.repeated_lines: {config.repeated_lines})")
    if _moves(config):
        notice(
            f"near copies: {len(tasks[0].moved):,} held-out documents are trained on "
            "(data.near_copies: together)"
        )
    notes = _notes(config, tasks, facts)
    try:
        _write_stores(folder, encoder, decision, rule, tasks, facts, remote, notes)
    except FileNotFoundError:
        # Another process may have just finished this store and removed the temporary files.
        if _open_stores(folder, every_byte=False) is None:
            raise
    built = _open_stores(folder, every_byte=False)
    if built is None:
        raise DataError(
            f"{folder}: damaged while it was written", "run the same command again to continue"
        )
    return built


def _decide_rules(
    config: DataConfig, sources: list[Source], words_needed: bool
) -> tuple[SentenceRule, WordRule]:
    """How the text is cut into sentences, and how its words are counted."""
    looked_at = sources[:: max(1, len(sources) // _SAMPLED_SOURCES)]
    openings = [opening(source, config, _OPENING) for source in looked_at]
    size = sum(size_of(source) for source in sources)
    words = word_rule(openings, size, needed=words_needed)
    if config.sentences != "auto":
        return SentenceRule(config.sentences, "data.sentences"), words
    kinds = [source.kind for source in looked_at]
    files = [text for text, kind in zip(openings, kinds, strict=True) if kind == "text"]
    return decide(openings, files), words


def _shard_tasks(
    config: DataConfig, sources: list[Source], folder: Path, decision: SentenceRule, words: WordRule
) -> list[ShardTask]:
    """The shards in corpus order; they depend only on the sources."""
    share = config.valid if isinstance(config.valid, float) else 0.0
    side: Side | None = None if share else "train"
    rules = decision.rule, words.name
    shared = (RemoteStore.of(folder.parent), config.languages)
    return [
        ShardTask(folder / f"{number:05d}", tuple(parts), config, *rules, side, share, *shared)
        for number, parts in enumerate(_plan_shards(sources, config))
    ]


def _plan_shards(sources: list[Source], config: TextConfig) -> Iterator[list[Part]]:
    """The parts of each shard: pieces of large sources, and several small sources together."""
    sizes = [size_of(source) for source in sources]
    size = max(_MIN_PIECE, min(_MAX_PIECE, sum(sizes) // _PIECES))
    packed: list[Part] = []  # a shard of several, until it is full
    room = 0  # bytes that are left in it
    for number, (source, source_size) in enumerate(zip(sources, sizes, strict=True)):
        stamp = _file_stamps(source)
        if len(sources) > _FEW_SOURCES and source.is_file and source_size <= size:
            if packed and source_size > room:
                yield _filled(packed, config)
                packed = []
            room = (room if packed else size) - source_size
            # The process that reads it finds its unit: this one need not read every file.
            whole = SourcePiece(0, None, source_size)
            packed.append(Part(number, source, whole, config.documents, stamp))
            continue
        if packed:
            yield _filled(packed, config)
            packed = []
        unit = _known_unit(source, config)
        wanted = size if source.files else _MAX_PIECE  # the size of a Hub data set is unknown
        of_text = "file" if unit == "auto" else unit
        for piece in cut_source(source, of_text, wanted, config.separator):
            yield [Part(number, source, piece, unit, stamp)]
    if packed:
        yield _filled(packed, config)


def _filled(packed: list[Part], config: TextConfig) -> list[Part]:
    """The parts of a shard of small sources; one alone is as it is among few sources."""
    if len(packed) > 1:
        return packed
    return [replace(part, unit=_known_unit(part.source, config)) for part in packed]


def _known_unit(source: Source, config: TextConfig) -> DocumentUnit:
    """What a document is in a source; a source without lines of text keeps ``auto``."""
    return unit_of(source, config) if source.kind == "text" else config.documents


def _make_shards(
    config: DataConfig,
    encoder: TextEncoder,
    folder: Path,
    by: Workers,
    progress: Progress,
    words_needed: bool,
) -> tuple[SentenceRule, WordRule, list[ShardTask]]:
    """Build the missing shards; returns the rules for sentences and words, and all shards."""
    remote = RemoteStore.of(folder)
    try:
        (folder / "shards").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _write_error(error, folder) from error
    try:
        check_marks(config)
        if config.languages:
            check_detectable(config.languages)
        if config.duplicates == "near":
            check_library()
        sources = resolve(config.train, config.max_document)
        decision, words = _decide_rules(config, sources, words_needed)
        tasks = _shard_tasks(config, sources, folder / "shards", decision, words)
        if remote is not None:
            remote.check_writable()
            remote.fetch_facts(prune=True)
        if config.duplicates != "keep" and any(task.facts is None for task in tasks):
            first, progress = _in_two_parts(progress)
            tasks = _without_duplicates(tasks, folder / "hashes", by, first)
        if config.duplicates == "near" and any(task.facts is None for task in tasks):
            first, progress = _in_two_parts(progress)
            tasks = _leave_out_near_copies(tasks, folder, by, first)
        if _moves(config) and any(task.facts is None for task in tasks):
            first, progress = _in_two_parts(progress)
            _find_near_copies(tasks, folder, by, first)
        if config.repeated_lines != "keep" and any(task.facts is None for task in tasks):
            first, progress = _in_two_parts(progress)
            _find_repeated_lines(tasks, config.repeated_lines, folder, by, first)
        tasks = _with_lists(tasks, config, folder)
        missing = [task for task in tasks if task.facts is None]
        make_all(missing, tasks, encoder, folder, by, progress)
    except (DataError, ConfigError):
        if not any((folder / "shards").iterdir()):  # nothing to resume
            shutil.rmtree(folder)
        raise
    return decision, words, tasks


def _in_two_parts(progress: Progress) -> tuple[Progress, Progress]:
    """The progress of hashing the text, a tenth of the work, and of encoding it."""

    def first(done: int, total: int) -> None:
        progress(done // 10, total)

    def second(done: int, total: int) -> None:
        progress(total // 10 + done - done // 10, total)

    return first, second


def _check_text(
    config: DataConfig, facts: list[dict[str, Any]], folder: Path, purpose: str
) -> None:
    train, valid = (_total_counts(facts, side) for side in SIDES)
    if train["documents"]:
        return
    shutil.rmtree(folder)
    if valid["documents"]:
        hint = one_document_hint(config)
        raise DataError(
            f"no text to train on: the split held out all {valid['documents']} documents of "
            f"{', '.join(config.train)}",
            f"{f'{hint}; or ' if hint else ''}reduce `data.valid`, or set separate validation "
            "files",
        )
    raise DataError(
        f"no text to {purpose} on in {', '.join(config.train)}",
        "check the path, and that `data.text` is the column of the text",
    )


def _write_stores(
    folder: Path,
    encoder: TextEncoder,
    decision: SentenceRule,
    rule: WordRule,
    tasks: list[ShardTask],
    facts: list[dict[str, Any]],
    remote: RemoteStore | None,
    notes: list[str],
) -> None:
    """Write the stores of both sides over the shards; the manifest comes last."""
    digests = [_write_side(folder, side, tasks, facts, encoder.vocab_size) for side in SIDES]
    manifest = {
        "format": _FORMAT,
        "digest": digest_of(digests),
        "tokenizer": encoder.fingerprint,
        "vocab_size": encoder.vocab_size,
        "sentences": decision.rule,
        "reason": decision.reason,
        "train": _total_counts(facts, "train"),
        "valid": _total_counts(facts, "valid"),
        "sources": _source_hashes(tasks, facts),
        "notes": notes,
    }
    if {fact.get("word_rule") for fact in facts} == {rule.name}:  # not of an older, unfinished one
        counts = {side: sum(fact[side]["words"] for fact in facts) for side in SIDES}
        manifest["words"] = _word_facts(rule, counts)
    if remote is not None:
        for name in (f"{side}/{name}" for side in SIDES for name in INDEX_FILES):
            if (folder / name).exists():
                remote.put(name)
    write_checked(folder / "manifest.json", manifest)
    if remote is not None:
        remote.put("manifest.json")
    _remove_unfinished(folder, {task.folder for task in tasks})


_FEW_DOCUMENTS = 10  # of files that are one document each: perhaps their lines are documents


def _notes(config: DataConfig, tasks: list[ShardTask], facts: list[dict[str, Any]]) -> list[str]:
    """What the user should know of the form of the text."""
    sources = list(dict.fromkeys(part.source for task in tasks for part in task.first_parts))
    looked_at = sources[:: max(1, len(sources) // _SAMPLED_SOURCES)]
    openings = [opening(source, config, _OPENING) for source in looked_at]
    notes = notes_on(openings, config.separator)
    total = sum(_total_counts(facts, side)["documents"] for side in SIDES)
    if total <= _FEW_DOCUMENTS and (hint := one_document_hint(config, openings)):
        notes.append(hint)
    return notes


def one_document_hint(config: TextConfig, openings: Sequence[str] = ()) -> str | None:
    """Says that text files without blank lines are one document each; None: they are not.

    Args:
        openings: The beginnings of the sources; none: they are read.
    """
    if config.documents not in ("auto", "file") or config.separator is not None:
        return None
    sources = resolve(config.train, config.max_document)
    texts = openings or [opening(source, config, _OPENING) for source in sources[:_SAMPLED_SOURCES]]
    if any(source.kind != "text" for source in sources) or all(t.count("\n") < 2 for t in texts):
        return None
    if config.documents == "auto" and any(unit_of(source, config) != "file" for source in sources):
        return None
    names = ", ".join(source.name for source in sources[:3])
    why = " since it has no blank lines" if config.documents == "auto" else ""
    more = "each of " if len(sources) > 1 else ""
    return (
        f"{more}{names} was read as one document{why}: if each line is a document, set "
        "data.documents=line"
    )


def _word_facts(rule: WordRule, counts: Mapping[Side, int]) -> dict[str, Any]:
    """The words of a store, as its manifest has them."""
    return {"rule": rule.name, "reason": rule.reason} | (dict(counts) if rule.name else {})


def _write_side(
    folder: Path, side: Side, tasks: list[ShardTask], facts: list[dict[str, Any]], vocab_size: int
) -> str:
    """Write the store of one side over its shards that are not empty; returns its digest."""
    pairs = zip(tasks, facts, strict=True)
    nonempty = [(task, fact[side]) for task, fact in pairs if fact[side]["documents"]]
    if not nonempty:
        return ""
    digest = digest_of([fact["digest"] for _, fact in nonempty])
    (folder / side).mkdir(exist_ok=True)
    paths = [folder / side / name for name in OFFSET_FILES]
    for path in paths:
        starts = _all_offsets(task.sizes(side, path.name) for task, _ in nonempty)
        write_atomically(path, starts, several_writers=True)
    shards = [
        {"path": f"../shards/{task.folder.name}/{side}"}
        | {name: fact[name] for name in ("tokens", "digest", "sample")}
        for task, fact in nonempty
    ]
    manifest = {"format": _FORMAT, "digest": digest, "vocab_size": vocab_size}
    offsets = {"digest": digest_of_files(paths), "sample": sample_of(paths)}
    manifest |= _total_counts(facts, side) | {"offsets": offsets, "shards": shards}
    write_checked(folder / side / "manifest.json", manifest)
    return digest


def _all_offsets(pieces: Iterator[NDArray[np.uint32]]) -> Iterator[bytes]:
    """The offsets of consecutive pieces with these sizes, one piece at a time."""
    end = np.zeros(1, dtype="<i8")
    yield end.tobytes()
    for sizes in pieces:
        starts = end + np.cumsum(sizes, dtype="<i8")
        yield starts.tobytes()
        end = starts[-1:]


def _total_counts(facts: list[dict[str, Any]], side: Side) -> dict[str, Any]:
    names = [*COUNTS, *(name for name in LEFT_OUT if name in facts[0][side])]
    counts: dict[str, Any] = {name: sum(fact[side][name] for fact in facts) for name in names}
    # An older, unfinished store does not have it.
    unknown = _added_unknown([fact[side].get("unknown", {}) for fact in facts])
    return counts | ({"unknown": unknown} if unknown else {})


def _source_hashes(tasks: list[ShardTask], facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sources in order: ``sha256`` of files, ``stamp`` at a URL, neither of Hub data sets."""
    sources = []
    for task, fact in zip(tasks, facts, strict=True):
        for part, (unit, hashes) in zip(task.first_parts, task.source_facts(fact), strict=True):
            documents = unit if part.source.kind == "text" else "row"
            source = {"name": shown(part.source.name), "documents": documents}
            if hashes:
                key = "stamp" if isinstance(part.source.path, RemoteFile) else "sha256"
                source[key] = hashes[0] if len(hashes) == 1 else digest_of_json(hashes)
            sources.append(source)
    return sources


def _remove_unfinished(folder: Path, shards: set[Path]) -> None:
    """Remove temporary files of builds that were killed, and shards of another plan."""
    other = set((folder / "shards").iterdir()) - shards
    unfinished = [*folder.glob(".unfinished-*"), *(folder / name for name in _FIRST_PASSES)]
    for left in [*unfinished, *other]:
        shutil.rmtree(left, ignore_errors=True)
    for path in folder.glob(".manifest.json.*"):
        path.unlink(missing_ok=True)
    for side in SIDES:
        for path in (folder / side).glob(".*"):
            path.unlink(missing_ok=True)


# --- Counting the words of a store that has no count ---


def count_missing_words(
    config: DataConfig, encoder: TextEncoder, *, root: Root, progress: Progress
) -> Stores | None:
    """Count the words of stores that were built without, by ``pretrain`` or without jieba.

    The text is read once more and not encoded; only the manifest changes.

    Args:
        progress: Called with the bytes done and the total.

    Returns:
        The stores with their words; None if nothing was counted.
    """
    own = _own_text(config, config.train)
    folder = _folder(root, _key(own, encoder, _FORMAT))
    stores = _open_stores(folder, every_byte=False)
    if stores is None or stores.words is not None:
        return None
    sources = resolve(own.train, own.max_document)
    decision, rule = _decide_rules(own, sources, True)
    tasks = _shard_tasks(own, sources, folder / "shards", decision, rule)
    tasks = _with_lists(tasks, own, folder)
    if rule == stores.word_rule:
        return None
    counts: dict[Side, int] = dict.fromkeys(SIDES, 0)
    if rule.name:
        total, done = sum(task.size for task in tasks), 0
        context = multiprocessing.get_context("spawn")
        with _starting_processes():
            pool = ProcessPoolExecutor(min(usable_cpus(), len(tasks)), context)
        with pool, _starting_processes():
            for task, counted in zip(tasks, pool.map(ShardTask.count, tasks), strict=True):
                counts = {side: counts[side] + counted[side] for side in SIDES}
                progress(done := done + task.size, total)
    manifest = read_checked(folder / "manifest.json") or stores.manifest
    manifest["words"] = _word_facts(rule, counts)
    write_checked(folder / "manifest.json", manifest)
    remote = RemoteStore.of(folder)
    if remote is not None:
        remote.put("manifest.json")
    return find_stores(config, encoder, root=root)


# --- Building the missing shards, in this process or in several ---


class ShardWork(Protocol):
    """A piece of work on the text of a shard."""

    @property
    def name(self) -> str:
        """The name of the shard."""

    @property
    def is_there(self) -> bool:
        """Whether it looks done: cheap, and not enough to skip it."""

    @property
    def is_done(self) -> bool:
        """Whether it is done, and its result undamaged."""

    @property
    def size(self) -> int:
        """Approximate number of bytes to read: the amount of work."""

    def make(self, encoder: TextEncoder | None, beside: Path) -> None:
        """Do it; unfinished files are in the folder ``beside``."""


class Executor(Protocol):
    """Other machines that do tasks."""

    def check(self) -> None:
        """Refuse what cannot work, before text is read."""

    def make(
        self,
        missing: Sequence[ShardWork],
        encoder: TextEncoder | None,
        folder: Path,
        progress: Callable[[int], None],
    ) -> None:
        """Do tasks; ``progress`` is called with the bytes that are done."""


@dataclass(frozen=True)
class Workers:
    """Who does the tasks.

    Attributes:
        processes: How many processes of this machine; None: one per core; 1: this process.
        executor: Other machines that do them instead.
    """

    processes: int | None = None
    executor: Executor | None = None


_in_worker: list[TextEncoder | None] = []  # the encoder of a worker process: loaded once


def make_all(
    missing: Sequence[ShardWork],
    tasks: Sequence[ShardWork],
    encoder: TextEncoder | None,
    folder: Path,
    by: Workers,
    progress: Callable[[int, int], None],
) -> None:
    """Do tasks.

    Args:
        encoder: The tokenizer; it is sent to the processes.
        progress: Called with the bytes done and the total.

    Raises:
        DataError: Bad input, with file and line.
        PlmError: A process was killed, or could not be started.
    """
    total = sum(task.size for task in tasks)
    done = total - sum(task.size for task in missing)

    def report(more: int) -> None:
        progress(done + more, total)

    report(0)
    if by.executor is not None:
        by.executor.make(missing, encoder, folder, lambda more: progress(done + more, total))
        return
    with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as beside:
        _make_here(
            missing, encoder, Path(beside), by.processes, lambda n: progress(done + n, total)
        )


def _make_here(
    missing: Sequence[ShardWork],
    encoder: TextEncoder | None,
    beside: Path,
    processes: int | None,
    progress: Callable[[int], None],
) -> None:
    """Do tasks in this process, or in several of this machine; unfinished files are in a folder."""
    done = 0
    workers = min(processes or usable_cpus(), len(missing))
    if workers <= 1:
        for task in missing:
            task.make(encoder, beside)
            progress(done := done + task.size)
        return
    # Spawned, not forked: a fork of a process with threads can hang.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    with _starting_processes():
        executor = ProcessPoolExecutor(workers, context, _start_worker, (encoder,))
    with executor as pool:
        try:
            with _starting_processes():
                futures = {pool.submit(_make_in_worker, task, beside): task for task in missing}
            for future in as_completed(futures):
                future.result()
                progress(done := done + futures[future].size)
        except BrokenProcessPool as error:
            # The pool sends SIGTERM, which its processes ignore, and waits; one that waits for a
            # lock of the dead one would never end.
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
            raise PlmError(
                "a process that prepared text was killed, perhaps because memory ran out",
                "run the same command again to continue",
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def _starting_processes() -> Iterator[None]:
    """Converts errors of starting the pool's processes, which start as tasks are submitted.

    Raises:
        BrokenProcessPool: A process died while it started.
        PlmError: A process cannot be started: too many processes or files, or no memory.
    """
    try:
        yield
    except (BrokenPipeError, ConnectionResetError, EOFError) as error:
        raise BrokenProcessPool from error
    except OSError as error:
        raise PlmError(
            f"the processes that prepare text cannot be started: {error.strerror}",
            "increase the limit (ulimit -n for files, ulimit -u for processes) and run the same "
            "command again to continue",
        ) from error


def _start_worker(encoder: TextEncoder | None) -> None:
    # One thread per process: the processes are the parallelism.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    # A terminal or a scheduler may send signals to all processes; the parent then ends the pool.
    # If the parent itself dies, the thread below ends this process.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _in_worker.append(encoder)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _make_in_worker(task: ShardWork, beside: Path) -> None:
    task.make(_in_worker[0], beside)


# --- First passes over the text: what one document shows only beside all others ---


_FIRST_PASSES = ("hashes", "minhashes", "sketches", "lines")
"""Folders of a store that is not finished."""


def hashes_of(texts: Iterable[str]) -> NDArray[np.uint64]:
    """The hash of each text."""
    return np.fromiter(map(hash_of, texts), "<u8")


@dataclass(frozen=True)
class _FirstPass:
    """Writes what a function says of the documents of a shard to a file.

    Attributes:
        path: The file: numbers, little-endian.
    """

    path: Path
    shard: ShardTask
    says: Callable[[Iterable[str]], NDArray[Any]]

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.path.name

    @property
    def is_there(self) -> bool:
        """Whether the file is there; files are complete or absent."""
        return self.path.exists()

    @property
    def is_done(self) -> bool:
        """The same; or another process has finished the store."""
        return self.is_there or self.shard.is_done

    @property
    def size(self) -> int:
        """Bytes to read."""
        return self.shard.size

    def make(self, encoder: TextEncoder | None, beside: Path) -> None:
        """Read the documents that did not come before, and write the file."""
        try:
            numbers = self.says(one.text for one in self.shard.first_documents())
            write_atomically(self.path, numbers.tobytes(), several_writers=True)
        except OSError as error:
            # Another process that builds the same store may have just finished it.
            if self.shard.facts is None:
                raise _write_error(error, self.path) from error


def _first_pass(
    tasks: list[ShardTask],
    says: Callable[[Iterable[str]], NDArray[Any]],
    folder: Path,
    by: Workers,
    progress: Progress,
) -> list[Path]:
    """The file of each shard in a folder; none: another process has finished the store."""
    folder.mkdir(exist_ok=True)
    work = [_FirstPass(folder / task.folder.name, task, says) for task in tasks]
    make_all([one for one in work if not one.path.exists()], work, None, folder, by, progress)
    return [] if all(task.facts is not None for task in tasks) else [one.path for one in work]


# --- Duplicates: which documents came before, by a hash of 8 bytes per document ---


def _without_duplicates(
    tasks: list[ShardTask], folder: Path, by: Workers, progress: Progress
) -> list[ShardTask]:
    """The shards, each with the numbers of its documents that came before in the corpus.

    All hashes are in memory at once, with the order of a sixteenth of them: about 12 bytes per
    document. Documents without text are no duplicates: they are left out anyway.
    """
    if not (paths := _first_pass(tasks, hashes_of, folder, by, progress)):
        return tasks
    sizes = [path.stat().st_size // 8 for path in paths]
    ends = np.cumsum(sizes)
    hashes = np.empty(sum(sizes), dtype="<u8")
    for path, size, end in zip(paths, sizes, ends, strict=True):
        hashes[end - size : end] = np.fromfile(path, dtype="<u8")
    repeated = np.zeros(len(hashes), dtype=np.bool_)
    leading = hashes.view("u1")[7::8] >> 4  # the highest four bits
    for part in range(16):
        places = np.flatnonzero(leading == part)
        order = places[np.argsort(hashes[places], kind="stable")]
        same = hashes[order[1:]] == hashes[order[:-1]]
        repeated[order[1:][same]] = True
    repeated[hashes == hash_of("")] = False
    return [
        replace(task, repeated=np.flatnonzero(repeated[end - size : end]))
        for task, size, end in zip(tasks, sizes, ends, strict=True)
    ]


# --- Near copies: which documents are left out ---


NEAR = "near"
"""The file of a store with the hashes of these documents: uint64, little-endian."""


def near_of(folder: Path) -> frozenset[int]:
    """The hashes of the documents that a store leaves out as near copies."""
    return frozenset(_list_of(folder, NEAR).tolist())


def _leave_out_near_copies(
    tasks: list[ShardTask], folder: Path, by: Workers, progress: Progress
) -> list[ShardTask]:
    if not (folder / NEAR).exists():
        if not (paths := _first_pass(tasks, minhashes_of, folder / "minhashes", by, progress)):
            return tasks
        rows = (np.fromfile(path, "<u4").reshape(-1, 2 + PERMUTATIONS) for path in paths)
        _write_list(folder, NEAR, near_copies(rows))
    near = near_of(folder)
    return [replace(task, near=near) for task in tasks]


# --- Near copies: which held-out documents are trained on instead ---


MOVED = "moved"
"""The file of a store with the hashes of these documents: uint64, little-endian."""


def _moves(config: DataConfig) -> bool:
    return config.near_copies == "together" and isinstance(config.valid, float)


def moved_of(folder: Path) -> frozenset[int]:
    """The hashes of the documents of a store that its split held out and that are trained on."""
    return frozenset(_list_of(folder, MOVED).tolist())


def lines_of(folder: Path) -> NDArray[np.uint64]:
    """The hashes of the lines that a store leaves out, ascending."""
    return _list_of(folder, LINES)


def _list_of(folder: Path, name: str) -> NDArray[np.uint64]:
    path, remote = folder / name, RemoteStore.of(folder)
    if path.exists():
        return np.fromfile(path, "<u8")
    there = remote.read(name) if remote is not None else None
    return np.frombuffer(there or b"", "<u8")


def _write_list(folder: Path, name: str, hashes: NDArray[np.uint64]) -> None:
    write_atomically(folder / name, hashes.astype("<u8").tobytes(), several_writers=True)
    if (remote := RemoteStore.of(folder)) is not None:
        remote.put(name)


def _with_lists(tasks: list[ShardTask], config: DataConfig, folder: Path) -> list[ShardTask]:
    """The shards with what earlier passes found."""
    moved = moved_of(folder)
    near = near_of(folder) if config.duplicates == "near" else frozenset[int]()
    lines = None if config.repeated_lines == "keep" else lines_of(folder)
    return [replace(task, moved=moved, near=near, lines=lines) for task in tasks]


def _find_near_copies(
    tasks: list[ShardTask], folder: Path, by: Workers, progress: Progress
) -> None:
    """Write the file of the documents that are moved; 264 bytes per document are on the disk."""
    if not (paths := _first_pass(tasks, sketches_of, folder / "sketches", by, progress)):
        return

    def read() -> Iterator[NDArray[np.uint64]]:
        for path in paths:
            yield np.fromfile(path, "<u8").reshape(-1, 1 + SKETCH)

    _write_list(folder, MOVED, to_move(read, tasks[0].share))


# --- Lines that many documents have ---


LINES = "repeated"
"""The file of a store with the hashes of these lines: uint64, little-endian."""


def _find_repeated_lines(
    tasks: list[ShardTask], limit: int | str, folder: Path, by: Workers, progress: Progress
) -> None:
    if (folder / LINES).exists():
        return
    more_than = MANY_DOCUMENTS if limit == "drop" else int(limit)
    if paths := _first_pass(tasks, counts_of, folder / "lines", by, progress):
        _write_list(folder, LINES, repeated(paths, more_than))


# --- One shard: a piece of a source, or several sources, read, encoded and written ---
#
# A shard is written to a temporary folder and renamed, so an existing shard is complete. Its
# content depends only on its task, so any process can build it, or build it again.
#
# The text is kept: a tokenizer that keeps white space gets each document unchanged, and a sentence
# is a range of its tokens, with the white space before it. A tokenizer that drops white space
# (WordPiece, SentencePiece's words) gets each sentence separately, which gives the same ids.


DocumentUnit = Unit | Literal["auto"]
"""``data.documents``: what a document is in a text file."""


@dataclass(frozen=True)
class Part:
    """Text of a shard: a source, or a piece of one.

    Attributes:
        number: The number of the source in the corpus.
        unit: What a document is in a text file; auto: found when it is read.
        stamps: Size and time of each file of the source when the shards were planned.
    """

    number: int
    source: Source
    piece: SourcePiece
    unit: DocumentUnit
    stamps: list[list[int | str]] = field(compare=False)

    def as_read(self, config: TextConfig) -> TextConfig:
        """The config with what a document is in this part."""
        return config.model_copy(update={"documents": self.unit})

    def documents(self, config: TextConfig) -> Iterator[Document]:
        """The documents of the part.

        Raises:
            DataError: Bad input, with file and line; or the source has changed since the plan.
        """
        yield from documents(self.source, self.as_read(config), self.piece.start, self.piece.end)
        try:
            stamps = _file_stamps(self.source, fresh=True) if self.source.is_file else self.stamps
        except OSError:  # it is gone
            stamps = []
        if stamps != self.stamps:
            raise DataError(
                f"{self.source.name}: the file changed while the text was prepared",
                "run the same command again when nothing writes to it any more: changed text is "
                "encoded again",
            )


@dataclass(frozen=True)
class ShardTask:
    """A shard to build.

    Attributes:
        parts: The text: one piece of a large source, or several small sources.
        words: The name of the rule by which words are counted; empty: they are not.
        side: The side of all its documents; None: decided by the hash of each.
        share: If ``side`` is None, documents whose hash is below this are held out.
        remote: The store at a URL that the shard belongs to, and the local copy.
        languages: Codes of languages; documents in others are left out. Empty: none are.
        repeated: With `duplicates: drop`, the numbers of the documents to leave out.
        moved: With `near_copies: together`, hashes of documents that are not held out.
        near: With `duplicates: near`, the hashes of the near copies to leave out.
        lines: With `repeated_lines`, the hashes of the lines to leave out, ascending.
    """

    folder: Path
    parts: tuple[Part, ...]
    config: TextConfig
    rule: Rule
    words: str
    side: Side | None
    share: float
    remote: RemoteStore | None = None
    languages: tuple[str, ...] = ()
    repeated: Ints | None = field(default=None, compare=False)
    moved: frozenset[int] = field(default=frozenset(), compare=False)
    near: frozenset[int] = field(default=frozenset(), compare=False)
    lines: NDArray[np.uint64] | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.folder.name

    @property
    def is_there(self) -> bool:
        """Whether the shard is there; its files are not looked at."""
        return (self.folder / FACTS).exists()

    @property
    def is_done(self) -> bool:
        """Whether the shard is there and undamaged."""
        return self.facts is not None

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(part.piece.size for part in self.parts)

    @property
    def first_parts(self) -> list[Part]:
        """The parts where a source begins: its first shard has the hash of the whole source."""
        return [part for part in self.parts if part.piece.start == 0]

    def all_documents(self) -> Iterator[Document]:
        """The documents of the parts, duplicates included."""
        return chain.from_iterable(part.documents(self.config) for part in self.parts)

    def first_documents(self) -> Iterator[Document]:
        """The documents without those that came before, as far as that is known."""
        return (document for document, is_first in self._numbered() if is_first)

    def _numbered(self) -> Iterator[tuple[Document, bool]]:
        """The documents, and whether each is neither a duplicate nor a near copy."""
        gone = set() if self.repeated is None else set(self.repeated.tolist())
        for number, document in enumerate(self.all_documents()):
            is_near = bool(self.near) and hash_of(document.text) in self.near
            yield document, number not in gone and not is_near

    def kept_documents(
        self, left_out: Mapping[Side, Counter[str]]
    ) -> Iterator[tuple[Side, Document]]:
        """The documents with their sides; what is left out is counted."""
        for document, is_first in self._numbered():
            side = self._side_of(document)
            if not is_first:
                left_out[side]["duplicates"] += 1
            elif self.languages and is_other(document.text, self.languages):
                left_out[side]["other_languages"] += 1
            elif self.lines is not None:
                rest, count = without_lines(document, self.lines)
                left_out[side]["repeated_lines"] += count
                yield side, rest
            else:
                yield side, document

    def source_facts(self, facts: dict[str, Any]) -> list[tuple[str, list[str]]]:
        """For each of ``first_parts``, what a document is in it, and the hashes of its files."""
        if self._is_packed:
            return [(unit, hashes) for unit, hashes in facts["sources"]]
        return [(part.unit, facts["sha256"]) for part in self.first_parts]

    @property
    def facts(self) -> dict[str, Any] | None:
        """Counts and hashes of the shard; None if it is missing, or a file is damaged."""
        if self.remote is not None:
            self.remote.fetch_facts_of(self.name)
        facts = read_checked(self.folder / FACTS)
        if facts is None or facts["range"] != self._range:
            return None
        if self.remote is not None:  # its files are compared with their hashes when they are read
            return facts
        for side in SIDES:
            paths = [self.folder / side / name for name in SHARD_FILES]
            if (
                not all(path.is_file() for path in paths)
                or sample_of(paths) != facts[side]["sample"]
            ):
                return None
        return facts

    @property
    def _range(self) -> list[int | None] | dict[str, list[int]]:
        """What is in the shard: the limits of a piece, or the numbers of the sources."""
        first, last = self.parts[0], self.parts[-1]
        if self._is_packed:
            return {"sources": [first.number, last.number + 1]}
        return [first.piece.start, first.piece.end]

    @property
    def _is_packed(self) -> bool:
        return len(self.parts) > 1

    def make(self, encoder: TextEncoder | None, beside: Path) -> None:
        """Read, encode and write the shard.

        Args:
            beside: A folder for unfinished shards, on the same file system.

        Raises:
            DataError: Bad input, with file and line, or ids outside the vocabulary.
            PlmError: It cannot be written.
        """
        if encoder is None:
            raise TypeError("a shard needs the tokenizer")
        unfinished = beside / self.folder.name
        try:
            self._write(encoder, unfinished)
            if self.remote is not None:
                self.remote.put_shard(self.name, unfinished)
            if self.remote is not None or self.facts is None:
                shutil.rmtree(self.folder, ignore_errors=True)  # damaged, or another range
            self.folder.parent.mkdir(exist_ok=True)
            unfinished.rename(self.folder)
            if self.remote is not None:
                self.remote.evict(self.folder)
        except OSError as error:
            # Another process that builds the same store may have just finished this shard.
            if self.facts is None:
                raise _write_error(error, self.folder) from error

    def sizes(self, side: Side, name: str) -> NDArray[np.uint32]:
        """The sizes of the sentences or documents of the shard."""
        path = self.folder / side / name
        if self.remote is not None and not path.exists():
            data = self.remote.read(f"shards/{self.name}/{side}/{name}")
            if data is None:
                raise PlmError(
                    f"{self.remote.url}/shards/{self.name}/{side}/{name}: the file is gone",
                    "run the same command again to build it again",
                )
            return np.frombuffer(data, dtype="<u4")
        return np.fromfile(path, dtype="<u4")

    def _write(self, encoder: TextEncoder, folder: Path) -> None:
        parts = (replace(p, unit=_known_unit(p.source, p.as_read(self.config))) for p in self.parts)
        task = replace(self, parts=tuple(parts))
        writers: dict[Side, _ShardWriter] = {}
        vocab_size = encoder.vocab_size
        for side in SIDES:
            (folder / side).mkdir(parents=True)
            writers[side] = _ShardWriter(folder / side, encoder, vocab_size)
        left_out: dict[Side, Counter[str]] = {side: Counter() for side in SIDES}
        words: dict[Side, int] = dict.fromkeys(SIDES, 0)
        for side, document in task.kept_documents(left_out):
            writers[side].add(document, self.rule)
            words[side] += count_words(document.text, self.words) if self.words else 0
        facts: dict[str, Any] = {"range": self._range, "word_rule": self.words}
        facts |= {side: writer.close() | {"words": words[side]} for side, writer in writers.items()}
        options = (self.repeated is not None, self.languages, self.lines is not None)
        for name in (name for name, used in zip(LEFT_OUT, options, strict=True) if used):
            for side in SIDES:
                facts[side][name] = left_out[side][name]
        # A file at a URL is not read once more as a whole: its stamp stands for it.
        hashes = [
            [
                sha256_of(path) if isinstance(path, Path) else path.stat().stamp
                for path in part.source.files
            ]
            for part in self.first_parts
        ]
        if self._is_packed:
            facts["sources"] = list(zip([part.unit for part in task.parts], hashes, strict=True))
        elif hashes:
            facts["sha256"] = hashes[0]
        write_checked(folder / FACTS, facts)

    def count(self) -> dict[Side, int]:
        """The words of each side, without encoding the text."""
        words: dict[Side, int] = dict.fromkeys(SIDES, 0)
        for side, document in self.kept_documents({side: Counter() for side in SIDES}):
            words[side] += count_words(document.text, self.words)
        return words

    def _side_of(self, document: Document) -> Side:
        if self.side is not None:
            return self.side
        number = hash_of(document.text)
        return "valid" if number / 2**64 < self.share and number not in self.moved else "train"


class _ShardWriter:
    """Appends documents to the files of one side of a shard."""

    def __init__(self, folder: Path, encoder: TextEncoder, vocab_size: int) -> None:
        self._encoder, self._vocab_size = encoder, vocab_size
        self._dtype = token_dtype(self._vocab_size)
        self._paths = [folder / name for name in SHARD_FILES]
        self._files = {path.name: path.open("wb") for path in self._paths}
        self._hashes = {name: hashlib.blake2b(digest_size=16) for name in SHARD_FILES}
        self._counts = dict.fromkeys(COUNTS, 0)
        self._unknown: dict[str, Any] = {}
        self._bits = np.zeros(0, dtype=bool)  # word starts that do not fill a byte yet
        # Texts to encode: sentences, or parts of documents.
        self._texts: list[str] = []
        self._places: list[list[int]] = []  # where sentences start in each text
        self._words: list[Ints] = []  # where words start in each text, if the text is segmented
        self._documents: list[int] = []  # number of texts of each document
        self._characters = 0

    def add(self, document: Document, rule: Rule) -> None:
        """Add a document."""
        text = document.text
        if not self._encoder.keeps_white_space:
            if document.words is None:
                texts = split_sentences(text, rule)
            else:
                spans = sentence_spans(text, rule)
                texts = [text[start:end] for start, end in spans]
                self._words += [_within(document.words, *span) for span in spans]
            self._places += [[0]] * len(texts)
        elif starts := sentence_starts(text, rule):
            lines = [start for start, _ in sentence_spans(text, rule)] if rule == "line" else []
            texts = self._encoder.stretches(text, _BATCH_CHARACTERS, lines)
            ends = np.cumsum([0, *map(len, texts)])
            cuts = np.searchsorted(starts, ends)  # a sentence belongs to the part where it starts
            self._places += [
                [start - int(begin) for start in starts[first:last]]
                for begin, first, last in zip(ends, cuts, cuts[1:], strict=False)
            ]
            if document.words is not None:  # a sentence starts a word too
                words = np.union1d(document.words, starts)
                self._words += [_within(words, *span) for span in pairwise(ends.tolist())]
        else:
            texts = []  # only white space
        self._texts += texts
        self._documents.append(len(texts))
        self._characters += sum(map(len, texts))
        if self._characters >= _BATCH_CHARACTERS:
            self._encode()

    def close(self) -> dict[str, Any]:
        """Flush everything to the disk; returns counts and hashes."""
        self._encode()
        self._put("words", np.packbits(self._bits, bitorder="little"))
        for file in self._files.values():
            file.flush()
            if file.tell():  # without held-out documents, half of the files are empty
                flush(file.fileno())
            file.close()
        digest = digest_of([one.hexdigest() for one in self._hashes.values()])
        counts = {**self._counts, "unknown": self._unknown}
        return {**counts, "digest": digest, "sample": sample_of(self._paths)}

    def _encode(self) -> None:
        """Encode the waiting texts, and write them."""
        starts: list[NDArray[np.int64]] = []  # of each text, the tokens where sentences start
        ends = [0]  # number of tokens up to the end of each text
        at = 0
        for texts in text_batches(self._texts, _BATCH_CHARACTERS):
            batch = slice(len(starts), len(starts) + len(texts))
            for size, first_tokens in self._write(texts, self._places[batch], self._words[batch]):
                starts.append(ends[-1] + np.asarray(first_tokens, dtype=np.int64))
                ends.append(ends[-1] + size)
        sentences, documents = [], []
        for count in self._documents:
            first, at = at, at + count
            bounds = np.append(np.concatenate([_NOTHING, *starts[first:at]]), ends[at])
            sizes = np.diff(bounds)  # sentences without a token are left out
            sentences.append(sizes[sizes > 0])
            documents.append(len(sentences[-1]))
        lengths = np.array(documents, dtype="<u4")
        self._put("sentences", np.concatenate([_NOTHING, *sentences]).astype("<u4"))
        self._put("documents", lengths[lengths > 0])
        self._counts["documents"] += int(np.count_nonzero(lengths))
        self._counts["dropped"] += int(np.count_nonzero(lengths == 0))
        self._counts["sentences"] += int(lengths.sum())
        self._counts["tokens"] += ends[-1]
        self._texts, self._places, self._words = [], [], []
        self._documents, self._characters = [], 0

    def _write(
        self, texts: list[str], places: list[list[int]], words: list[Ints]
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """Write the tokens of texts; yields how many each has, and the first at each place."""
        if words:
            encoded = self._encoder.with_words(texts, places, words)
        else:
            encoded = self._encoder.with_places(texts, places)
        ids = np.concatenate([ids for ids, _, _ in encoded])
        check_ids(ids, self._vocab_size)
        self._unknown = _added_unknown([self._unknown, self._encoder.unknown_of(texts, ids)])
        self._put("tokens", ids.astype(self._dtype))
        bits = np.concatenate([self._bits, *(starts for _, starts, _ in encoded)])
        whole = len(bits) // 8 * 8
        self._put("words", np.packbits(bits[:whole], bitorder="little"))
        self._bits = bits[whole:]
        for text, (text_ids, _, at) in zip(texts, encoded, strict=True):
            self._counts["bytes"] += len(text.encode()) if len(text_ids) else 0
            yield len(text_ids), at

    def _put(self, name: str, array: NDArray[Any]) -> None:
        data = array.tobytes()
        self._files[name].write(data)
        self._hashes[name].update(data)


_EXAMPLES = 3  # of unknown text


def _added_unknown(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is unknown of several texts together, as ``TextEncoder.unknown_of`` gives it."""
    result: dict[str, Any] = {}
    for part in parts:
        for name, value in part.items():
            if name == "examples":
                value = list(dict.fromkeys([*result.get(name, ()), *value]))[:_EXAMPLES]
                result[name] = value
            else:
                result[name] = result.get(name, 0) + value
    return result


_NOTHING = np.zeros(0, dtype=np.int64)


def _within(words: Ints, start: int, end: int) -> Ints:
    """The positions in [start, end), counted from the start."""
    first, last = np.searchsorted(words, [start, end])
    return words[first:last] - start


def _write_error(error: OSError, folder: Path) -> PlmError:
    """The error for a full disk, a folder without write access, and the like."""
    return write_error(Path(error.filename or folder), error, "; `data.store` is the folder")
