"""Building token stores: independent shard tasks over processes, continued after an interruption.

``root/<key>/`` holds the stores of one corpus and tokenizer: ``train/``, ``valid/``, ``shards/``
and ``manifest.json``, which is written last. The key is the hash of all that decides what is in
them: the sources by name, size and time (as ``make`` goes by: to hash a large corpus at every start
is slow), the tokenizer, and the rules. The manifest has the SHA-256 of each source, and each store
a digest of its content, which is the same on every machine.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.corpus.plan import cut
from plmctl.corpus.pool import make_all
from plmctl.corpus.reading import opening, text_unit
from plmctl.corpus.sentences import Rule, choose_rule
from plmctl.corpus.shard import (
    COUNTS,
    Side,
    Task,
    TextEncoder,
    cannot_write,
    write_json,
    write_whole,
)
from plmctl.corpus.source import Source, resolve, size_of
from plmctl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from plmctl.config.data import DataConfig

Progress = Callable[[int, int], None]
"""``progress(done, total)``, in bytes of the sources."""

_SIDES: tuple[Side, ...] = ("train", "valid")
_MAX_PIECE = 16_000_000  # bytes a shard: seconds of work, and tens of megabytes of memory
_MIN_PIECE = 500_000
_PIECES = 32  # of a small corpus, so that all processes have work and progress can be seen
_LOOKED_AT = 16  # sources, to choose the rule for sentences by
_OPENING = 50_000  # characters of each
_FORMAT = 2  # raised when the meaning of the files changes, so that older stores are not found


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


def find(config: DataConfig, encoder: TextEncoder, *, root: Path) -> Stores | None:
    """The stores of a corpus if they are there and whole.

    Raises:
        DataError: A source is not there.
    """
    folder = root / _key(config, encoder)
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    valid = folder / "valid" if manifest["valid"]["documents"] else None
    return Stores(folder / "train", valid, manifest["digest"], manifest)


def build(
    config: DataConfig,
    encoder: TextEncoder,
    *,
    root: Path,
    processes: int | None,
    progress: Progress,
) -> Stores:
    """The stores of a corpus: found, or made, or made to the end after an interruption.

    What is made does not depend on the number of processes or on interruptions, byte for byte.

    Args:
        config: Sources and rules.
        encoder: The tokenizer.
        root: Folder of all stores.
        processes: How many make shards; None: one a core; 1: this one.
        progress: Told of the bytes done.

    Raises:
        DataError: Bad input, with file and line, or a corpus with no text in it.
        PlmError: A worker process was killed, or the folder cannot be written.
    """
    found = find(config, encoder, root=root)
    if found:
        return found
    folder = root / _key(config, encoder)
    rule, tasks = _make_shards(config, encoder, folder, processes, progress)
    facts = [task.facts or {} for task in tasks]
    _check_text(config, facts, folder)
    try:
        _finish(folder, encoder, rule, tasks, facts)
    except FileNotFoundError:
        # Another build of this store may have finished it, and tidied up, at this moment.
        if find(config, encoder, root=root) is None:
            raise
    built = find(config, encoder, root=root)
    if built is None:
        raise DataError(f"{folder}: the sources changed while they were read", "run it again")
    return built


def _make_shards(
    config: DataConfig,
    encoder: TextEncoder,
    folder: Path,
    processes: int | None,
    progress: Progress,
) -> tuple[Rule, list[Task]]:
    """Make the shards that are not there; the rule for sentences, and all shards."""
    try:
        (folder / "shards").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(error, folder) from error
    try:
        rule = config.sentences if config.sentences != "auto" else _choose_rule(config)
        tasks = _tasks(config, folder / "shards", rule)
        with tempfile.TemporaryDirectory(prefix=".unfinished-", dir=folder) as beside:
            make_all(tasks, encoder, Path(beside), processes, progress)
    except (DataError, ConfigError):
        if not any((folder / "shards").iterdir()):  # nothing to go on from
            shutil.rmtree(folder)
        raise
    return rule, tasks


def _finish(
    folder: Path, encoder: TextEncoder, rule: Rule, tasks: list[Task], facts: list[dict[str, Any]]
) -> None:
    """Make the shards into the stores of both sides; the manifest comes last."""
    digests = [_collect(folder, side, tasks, facts, encoder.vocab_size) for side in _SIDES]
    manifest = {
        "format": _FORMAT,
        "digest": _hash(digests),
        "tokenizer": encoder.fingerprint,
        "vocab_size": encoder.vocab_size,
        "sentences": rule,
        "train": _total(facts, "train"),
        "valid": _total(facts, "valid"),
        "sources": _sources(tasks, facts),
    }
    write_json(folder / "manifest.json", manifest)
    _tidy(folder)


def _key(config: DataConfig, encoder: TextEncoder) -> str:
    sides = [config.train, config.valid if isinstance(config.valid, tuple) else ()]
    rules = config.model_dump(mode="json", include={"valid", "text", "documents", "sentences"})
    stamps = [[_stamp(source) for source in resolve(names)] for names in sides]
    return _hash([_FORMAT, rules, stamps, encoder.fingerprint])


def _stamp(source: Source) -> list[Any]:
    facts = [path.stat() for path in source.files]
    name = source.name if source.kind in ("hf", "sample") else str(source.path.resolve())
    return [name, source.kind, [[fact.st_size, fact.st_mtime_ns] for fact in facts]]


def _hash(values: object) -> str:
    text = json.dumps(values, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _choose_rule(config: DataConfig) -> Rule:
    sources = resolve(config.train)
    looked_at = sources[:: max(1, len(sources) // _LOOKED_AT)]
    return choose_rule(opening(source, config, _OPENING) for source in looked_at)


def _tasks(config: DataConfig, folder: Path, rule: Rule) -> list[Task]:
    """The shards in corpus order: they depend on the sources alone."""
    own = config.valid if isinstance(config.valid, tuple) else ()
    share = config.valid if isinstance(config.valid, float) else 0.0
    sides: list[tuple[Side | None, Source]] = [
        *((None if share else "train", source) for source in resolve(config.train)),
        *(("valid", source) for source in resolve(own)),
    ]
    total = sum(size_of(source) for _, source in sides)
    size = max(_MIN_PIECE, min(_MAX_PIECE, total // _PIECES))
    tasks: list[Task] = []
    for side, source in sides:
        unit = config.documents
        if unit == "auto" and source.kind == "text":
            unit = text_unit(source)
        known = config.model_copy(update={"documents": unit})
        wanted = size if source.files else _MAX_PIECE  # nobody knows how large the Hub's are
        for piece in cut(source, "file" if unit == "auto" else unit, wanted):
            place = folder / f"{len(tasks):05d}"
            tasks.append(Task(place, source, piece, known, rule, side, share))
    return tasks


def _check_text(config: DataConfig, facts: list[dict[str, Any]], folder: Path) -> None:
    train, valid = (_total(facts, side) for side in _SIDES)
    if train["documents"]:
        return
    shutil.rmtree(folder)
    if valid["documents"] and not isinstance(config.valid, tuple):
        raise DataError(
            f"no text to train on: the split held out all {valid['documents']} documents of "
            f"{', '.join(config.train)}",
            "lower `data.valid`, or give validation files of their own",
        )
    raise DataError(
        f"no text to train on in {', '.join(config.train)}",
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
    digest = _hash([fact["digest"] for _, fact in kept])
    if not kept:
        return digest
    (folder / side).mkdir(exist_ok=True)
    for name in ("sentences", "documents"):
        write_whole(folder / side / name, _starts([task.folder / side / name for task, _ in kept]))
    shards = [
        {"path": f"../shards/{task.folder.name}/{side}", "tokens": fact["tokens"]}
        for task, fact in kept
    ]
    manifest = {"format": _FORMAT, "digest": digest, "vocab_size": vocab_size}
    write_json(folder / side / "manifest.json", manifest | _total(facts, side) | {"shards": shards})
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
            "sha256": fact["sha256"][0] if len(fact["sha256"]) == 1 else _hash(fact["sha256"]),
        }
        for task, fact in zip(tasks, facts, strict=True)
        if task.piece.start == 0
    ]


def _tidy(folder: Path) -> None:
    """Remove what only the building needed, and what builds that were killed left."""
    for left in folder.glob(".unfinished-*"):
        shutil.rmtree(left, ignore_errors=True)
    for side in _SIDES:
        for path in (folder / side).glob(".*"):
            path.unlink(missing_ok=True)
        for name in ("sentences", "documents"):
            for path in (folder / "shards").glob(f"*/{side}/{name}"):
                path.unlink(missing_ok=True)
