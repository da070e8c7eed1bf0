"""Building token stores: independent shard tasks over processes, continued after an interruption.

``root/<key>/`` holds the stores of one corpus and tokenizer: ``train/``, ``valid/``, ``shards/``
and ``manifest.json``, which is written last. The key is the hash of all that decides what is in
them: the sources by name, size and time (as ``make`` goes by: to hash a large corpus at every start
is slow), the tokenizer, and the rules. The manifest has the SHA-256 of each source, and each store
a digest of its content, which is the same on every machine. Separate validation files have a
separate store, so that the training text is not encoded again when they change.

Every start compares the stores with their hashes (``store.find_damage``): all bytes the first time
on a machine and where a file's size or time has changed since, else a sample of them. What is
damaged or missing is made again.
"""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.corpus.plan import cut
from plmctl.corpus.pool import make_all
from plmctl.corpus.reading import opening, text_unit
from plmctl.corpus.sentences import Decision, decide
from plmctl.corpus.shard import (
    COUNTS,
    SIDES,
    Side,
    Task,
    TextEncoder,
    cannot_write,
)
from plmctl.corpus.source import Source, resolve, size_of
from plmctl.corpus.store import OFFSET_FILES, find_damage
from plmctl.errors import ConfigError, DataError
from plmctl.files import read_checked, write_atomically, write_checked
from plmctl.hashing import digest_of, digest_of_files, digest_of_json, sample_of

if TYPE_CHECKING:
    from plmctl.config.data import DataConfig

Progress = Callable[[int, int], None]
"""``progress(done, total)``, in bytes of the sources."""
Notice = Callable[[str], None]
"""Called with a line for the user."""

_MAX_PIECE = 16_000_000  # bytes a shard: seconds of work, and tens of megabytes of memory
_MIN_PIECE = 500_000
_PIECES = 32  # of a small corpus, so that all processes have work and progress can be seen
_LOOKED_AT = 16  # sources, to choose the rule for sentences by
_OPENING = 50_000  # characters of each
_FORMAT = 3  # raised when the meaning of the files changes, so that older stores are not found
_EARLIER = 2  # cut the text into sentences and dropped the white space between them


@dataclass(frozen=True)
class Stores:
    """Where the stores of a corpus are.

    Attributes:
        train: A folder for ``TokenStore.open``.
        valid: The same for the held-out documents; None if there are none.
        digest: Hash of the content of both.
        manifest: Sources with their hashes, the rule for sentences, and the counts of each side.
    """

    train: Path
    valid: Path | None
    digest: str
    manifest: dict[str, Any]

    @property
    def sentences(self) -> Decision:
        """How the text was cut into sentences, and why so."""
        return Decision(self.manifest["sentences"], self.manifest["reason"])


def find(
    config: DataConfig, encoder: TextEncoder, *, root: Path, every_byte: bool = False
) -> Stores | None:
    """The stores of a corpus if they are there, and are what was written.

    Args:
        config: Sources and rules.
        encoder: The tokenizer.
        root: Folder of all stores.
        every_byte: Compare all of a store with its hashes, whether it has changed or not.

    Raises:
        DataError: A source is not there.
    """
    train = _find(_own_text(config, config.train), encoder, root, every_byte)
    if train is None or not isinstance(config.valid, tuple):
        return train
    config = _own_text(config, config.valid, train.sentences)
    valid = _find(config, encoder, root, every_byte)
    return None if valid is None else _both(train, valid)


def build(
    config: DataConfig,
    encoder: TextEncoder,
    *,
    root: Path,
    processes: int | None,
    progress: Progress,
    notice: Notice,
    every_byte: bool = False,
) -> Stores:
    """The stores of a corpus: found, or made, or made to the end after an interruption.

    What is made does not depend on the number of processes or on interruptions, byte for byte.

    Args:
        config: Sources and rules.
        encoder: The tokenizer.
        root: Folder of all stores.
        processes: How many make shards; None: one per core; 1: this one.
        progress: Called with the bytes done.
        notice: Called if a store is damaged, or was made by an earlier version.
        every_byte: As for ``find``.

    Raises:
        DataError: Bad input, with file and line, or a corpus with no text in it.
        PlmError: A worker process was killed, or the folder cannot be written.
    """

    def make(config: DataConfig, purpose: str) -> Stores:
        found = _find(config, encoder, root, every_byte)
        return found or _build(config, encoder, root, processes, progress, notice, purpose)

    if not (root / _key(_own_text(config, config.train), encoder, _FORMAT)).exists():
        for sentences in {config.sentences, "auto"}:  # which an objective may have settled since
            before = config.model_copy(update={"sentences": sentences})
            earlier = root / _key(before, encoder, _EARLIER)
            if earlier.is_dir():
                notice(
                    f"{earlier} is of an earlier version of plmctl, which dropped white space "
                    "between sentences: the text is encoded again (you may delete that folder)"
                )
    train = make(_own_text(config, config.train), "train")
    if not isinstance(config.valid, tuple):
        return train
    return _both(train, make(_own_text(config, config.valid, train.sentences), "validate"))


def _own_text(
    config: DataConfig, names: tuple[str, ...], sentences: Decision | None = None
) -> DataConfig:
    """The config of a text that has stores to itself, cut as another text is."""
    own = isinstance(config.valid, tuple)
    changes: dict[str, object] = {"train": names, "valid": None if own else config.valid}
    if sentences is not None:
        changes["sentences"] = sentences.rule
    return config.model_copy(update=changes)


def _both(train: Stores, valid: Stores) -> Stores:
    """The stores of a text and of a separate validation text."""
    digest = digest_of([train.digest, valid.digest])
    manifest = {
        **train.manifest,
        "digest": digest,
        "valid": valid.manifest["train"],
        "sources": train.manifest["sources"] + valid.manifest["sources"],
    }
    return Stores(train.train, valid.train, digest, manifest)


def _find(config: DataConfig, encoder: TextEncoder, root: Path, every_byte: bool) -> Stores | None:
    folder = root / _key(config, encoder, _FORMAT)
    manifest = read_checked(folder / "manifest.json")
    if manifest is None or _damaged(folder, every_byte):
        return None
    valid = folder / "valid" if manifest["valid"]["documents"] else None
    return Stores(folder / "train", valid, manifest["digest"], manifest)


def _damaged(folder: Path, every_byte: bool) -> list[Path]:
    """What is damaged or missing of stores: folders of shards, files of offsets, manifests."""
    record = folder / f".checked-{platform.node()}.json"
    before = {} if every_byte else read_checked(record) or {}
    now: dict[str, Any] = {}

    def unchanged(paths: list[Path]) -> bool:
        stats = [path.stat() for path in paths]
        name = str(paths[0].relative_to(folder))
        now[name] = [[fact.st_size, fact.st_mtime_ns, fact.st_ino] for fact in stats]
        return bool(now[name] == before.get(name))

    found, digests = [], []
    manifest = read_checked(folder / "manifest.json") or {}
    for side in SIDES:
        known = read_checked(folder / side / "manifest.json")
        digests.append("" if known is None else known["digest"])
        if known is not None:
            found += find_damage(folder / side, known, unchanged=unchanged)
        elif manifest.get(side, {}).get("documents", 1):
            found.append(folder / side / "manifest.json")
    if not found and manifest.get("digest") != digest_of(digests):
        found.append(folder / "manifest.json")
    if not found and any(now[name] != before.get(name) for name in now):
        with suppress(OSError):  # a folder that cannot be written is looked through at every start
            write_checked(record, now)
    return found


def _build(
    config: DataConfig,
    encoder: TextEncoder,
    root: Path,
    processes: int | None,
    progress: Progress,
    notice: Notice,
    purpose: str,
) -> Stores:
    folder = root / _key(config, encoder, _FORMAT)
    if (folder / "manifest.json").exists():
        damaged = _damaged(folder, every_byte=True) or [folder / "manifest.json"]
        names = [str(path.resolve().relative_to(folder.resolve())) for path in damaged]
        notice(f"{folder} is damaged ({', '.join(names[:3])}): making that part of it again")
        (folder / "manifest.json").unlink()
        for path in damaged:
            if path.is_dir():
                shutil.rmtree(path.resolve().parent, ignore_errors=True)  # both sides of a shard
    decision, tasks = _make_shards(config, encoder, folder, processes, progress)
    facts = [task.facts or {} for task in tasks]
    _check_text(config, facts, folder, purpose)
    try:
        _finish(folder, encoder, decision, tasks, facts)
    except FileNotFoundError:
        # Another build of this store may have finished it, and tidied up, at this moment.
        if _find(config, encoder, root, every_byte=False) is None:
            raise
    built = _find(config, encoder, root, every_byte=False)
    if built is None:
        raise DataError(f"{folder}: the sources changed while they were read", "run it again")
    return built


def _make_shards(
    config: DataConfig,
    encoder: TextEncoder,
    folder: Path,
    processes: int | None,
    progress: Progress,
) -> tuple[Decision, list[Task]]:
    """Make the shards that are not there; the rule for sentences, and all shards."""
    try:
        (folder / "shards").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(error, folder) from error
    try:
        decision = _decide(config)
        tasks = _tasks(config, folder / "shards", decision)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as beside:
            make_all(tasks, encoder, Path(beside), processes, progress)
    except (DataError, ConfigError):
        if not any((folder / "shards").iterdir()):  # nothing to go on from
            shutil.rmtree(folder)
        raise
    return decision, tasks


def _finish(
    folder: Path,
    encoder: TextEncoder,
    decision: Decision,
    tasks: list[Task],
    facts: list[dict[str, Any]],
) -> None:
    """Make the shards into the stores of both sides; the manifest comes last."""
    digests = [_collect(folder, side, tasks, facts, encoder.vocab_size) for side in SIDES]
    manifest = {
        "format": _FORMAT,
        "digest": digest_of(digests),
        "tokenizer": encoder.fingerprint,
        "vocab_size": encoder.vocab_size,
        "sentences": decision.rule,
        "reason": decision.reason,
        "train": _total(facts, "train"),
        "valid": _total(facts, "valid"),
        "sources": _sources(tasks, facts),
    }
    write_checked(folder / "manifest.json", manifest)
    _tidy(folder)


def _key(config: DataConfig, encoder: TextEncoder, version: int) -> str:
    sides = [config.train, config.valid if isinstance(config.valid, tuple) else ()]
    rules = config.model_dump(mode="json", include={"valid", "text", "documents", "sentences"})
    stamps = [[_stamp(source) for source in resolve(names)] for names in sides]
    return digest_of_json([version, rules, stamps, encoder.fingerprint])


def _stamp(source: Source) -> list[Any]:
    facts = [path.stat() for path in source.files]
    name = source.name if source.kind in ("hf", "sample") else str(source.path.resolve())
    return [name, source.kind, [[fact.st_size, fact.st_mtime_ns] for fact in facts]]


def _decide(config: DataConfig) -> Decision:
    """How the text is cut into sentences."""
    if config.sentences != "auto":
        return Decision(config.sentences, "data.sentences")
    sources = resolve(config.train)
    looked_at = sources[:: max(1, len(sources) // _LOOKED_AT)]
    openings = [opening(source, config, _OPENING) for source in looked_at]
    kinds = [source.kind for source in looked_at]
    files = [text for text, kind in zip(openings, kinds, strict=True) if kind == "text"]
    return decide(openings, files)


def _tasks(config: DataConfig, folder: Path, decision: Decision) -> list[Task]:
    """The shards in corpus order: they depend on the sources alone."""
    share = config.valid if isinstance(config.valid, float) else 0.0
    side: Side | None = None if share else "train"
    sources = resolve(config.train)
    total = sum(size_of(source) for source in sources)
    size = max(_MIN_PIECE, min(_MAX_PIECE, total // _PIECES))
    tasks: list[Task] = []
    for source in sources:
        unit = config.documents
        if unit == "auto" and source.kind == "text":
            unit = text_unit(source)
        known = config.model_copy(update={"documents": unit})
        wanted = size if source.files else _MAX_PIECE  # nobody knows how large the Hub's are
        for piece in cut(source, "file" if unit == "auto" else unit, wanted):
            place = folder / f"{len(tasks):05d}"
            tasks.append(Task(place, source, piece, known, decision.rule, side, share))
    return tasks


def _check_text(
    config: DataConfig, facts: list[dict[str, Any]], folder: Path, purpose: str
) -> None:
    train, valid = (_total(facts, side) for side in SIDES)
    if train["documents"]:
        return
    shutil.rmtree(folder)
    if valid["documents"]:
        raise DataError(
            f"no text to train on: the split held out all {valid['documents']} documents of "
            f"{', '.join(config.train)}",
            "lower `data.valid`, or give separate validation files",
        )
    raise DataError(
        f"no text to {purpose} on in {', '.join(config.train)}",
        "is the path right, and `data.text` the column of the text?",
    )


def _total(facts: list[dict[str, Any]], side: Side) -> dict[str, int]:
    return {name: sum(fact[side][name] for fact in facts) for name in COUNTS}


def _collect(
    folder: Path, side: Side, tasks: list[Task], facts: list[dict[str, Any]], vocab_size: int
) -> str:
    """Write the store of one side over its shards that are not empty; its digest."""
    pairs = zip(tasks, facts, strict=True)
    kept = [(task, fact[side]) for task, fact in pairs if fact[side]["documents"]]
    if not kept:
        return ""
    digest = digest_of([fact["digest"] for _, fact in kept])
    (folder / side).mkdir(exist_ok=True)
    paths = [folder / side / name for name in OFFSET_FILES]
    for path in paths:
        starts = _starts([task.folder / side / path.name for task, _ in kept])
        write_atomically(path, starts, several_writers=True)
    shards = [
        {"path": f"../shards/{task.folder.name}/{side}"}
        | {name: fact[name] for name in ("tokens", "digest", "sample")}
        for task, fact in kept
    ]
    manifest = {"format": _FORMAT, "digest": digest, "vocab_size": vocab_size}
    offsets = {"digest": digest_of_files(paths), "sample": sample_of(paths)}
    manifest |= _total(facts, side) | {"offsets": offsets, "shards": shards}
    write_checked(folder / side / "manifest.json", manifest)
    return digest


def _starts(paths: list[Path]) -> Iterator[bytes]:
    """The offsets of all the pieces whose sizes are in the files, one file in memory at a time."""
    end = np.zeros(1, dtype="<i8")
    yield end.tobytes()
    for path in paths:
        starts = end + np.cumsum(np.fromfile(path, dtype="<u4"), dtype="<i8")
        yield starts.tobytes()
        end = starts[-1:]


def _sources(tasks: list[Task], facts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sources in order, each with the hash of its files; the Hub's have none."""
    return [
        {
            "name": task.source.name,
            "documents": task.config.documents if task.source.kind == "text" else "row",
            "sha256": hashes[0] if len(hashes := fact["sha256"]) == 1 else digest_of_json(hashes),
        }
        for task, fact in zip(tasks, facts, strict=True)
        if task.piece.start == 0
    ]


def _tidy(folder: Path) -> None:
    """Remove what builds that were killed left."""
    for left in folder.glob(".unfinished-*"):
        shutil.rmtree(left, ignore_errors=True)
    for path in folder.glob(".manifest.json.*"):
        path.unlink(missing_ok=True)
    for side in SIDES:
        for path in (folder / side).glob(".*"):
            path.unlink(missing_ok=True)
