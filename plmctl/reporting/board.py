"""What the board shows: all runs below a folder, as documents that a page reads.

``Board`` remembers what it has read of each file, and reads what is new. Runs have ids, and a
request names an id: no path comes from outside. ``board_server`` serves the documents, or writes
them as files.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from plmctl.addresses import all_shown, shown
from plmctl.arrays import Floats
from plmctl.config.document import read_document as read_document_of_config
from plmctl.config.load import COMMANDS, kind_by_keys
from plmctl.errors import ConfigError, PlmError
from plmctl.files import is_edited, is_model
from plmctl.formatting import printable
from plmctl.reporting.report import unspaced
from plmctl.reporting.run_files import (
    YARDSTICK_COLUMNS,
    as_number,
    counted_levels,
    flatten,
    loss_sentence,
    setting_columns,
    setting_rows,
    spread,
    yardstick_rows,
    yardstick_sentence,
)
from plmctl.reporting.run_state import (
    Columns,
    LogEnd,
    State,
    open_plain,
    read_bytes,
    read_document,
    state_of,
)

_INSIDE = {"model", "checkpoints", "eval", "failures"}  # of a run folder: no runs are in these
_ELSEWHERE = {"node_modules", "site-packages", "__pycache__"}
_MOST_FOLDERS = 50_000
_MOST_LEVELS = 12
_MOST_LEAVES = 2_000  # of a config
_MOST_EVENTS = 200
_MOST_CURVES = 32  # runs whose whole logs are kept
_POINTS = 300  # of a curve
_FRESH = 0.5  # seconds; a second reader within them gets the same rows

Document = dict[str, Any]


# --- What is known of one run ---


@dataclass
class _Entry:
    """A run folder, and what was read of it."""

    folder: Path
    name: str
    id: str
    config_mark: object = None
    config: Mapping[str, Any] = field(default_factory=dict)
    leaves: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""
    fault: str = ""
    log: LogEnd = field(init=False)
    evaluations_mark: object = None
    evaluations: dict[str, Document] = field(default_factory=dict)
    budget: Sequence[int] | None = None
    special: list[list[str]] = field(default_factory=list)
    family: str = ""
    row: Document = field(default_factory=dict)
    version: int = 0

    def __post_init__(self) -> None:
        self.log = LogEnd(self.folder / "metrics.jsonl")

    def refresh(self) -> bool:
        """Read what changed; whether its config did."""
        changed = self._read_config()
        self.log.refresh()
        self._read_evaluations()
        return changed

    def _read_config(self) -> bool:
        mark = _mark(self.folder / "config.yaml")
        if mark == self.config_mark and (mark or self.fault):
            return False
        self.config_mark = mark
        self.config, self.fault = read_config(self.folder / "config.yaml")
        self.kind = "eval" if "suite" in self.config else kind_by_keys(self.config) or ""
        if not self.fault and not self.kind:
            self.fault = "config.yaml is not a config of plmctl"
        self.leaves = settings_of(self.config) if self.kind else {}
        self.family = ""
        return True

    def _read_evaluations(self) -> None:
        folder = self.folder / "eval"
        names = sorted(_names(folder, ".json"))
        mark = tuple((name, _mark(folder / name)) for name in names)
        if mark == self.evaluations_mark:
            return
        self.evaluations_mark = mark
        documents = ((name.removesuffix(".json"), read_document(folder / name)) for name in names)
        self.evaluations = {
            name: document for name, document in documents if document and not is_edited(document)
        }

    def setting(self, *path: str | int) -> Any:
        """A value of the config; None if it is missing."""
        at: Any = self.config
        for part in path:
            if not isinstance(at, Mapping) or part not in at:
                return None
            at = at[part]
        return at

    def total_steps(self) -> int | None:
        """The steps of the whole run; None: they are not known, as of a finetuning's epochs."""
        phases = self.setting("train", "phases")
        if not isinstance(phases, list):
            return None
        if self.setting("train", "budget") is not None:
            if self.budget is None:
                steps = (read_document(self.folder / "budget.json") or {}).get("steps")
                self.budget = steps if isinstance(steps, list) else None
            steps = self.budget or []
        else:
            steps = [each.get("steps") for each in phases if isinstance(each, Mapping)]
        whole = [step for step in steps if isinstance(step, int) and not isinstance(step, bool)]
        return sum(whole) or None

    def learns(self) -> str:
        """The objective, the task, or the measures."""
        measures = self.setting("measures")
        if isinstance(measures, list):
            names = [each.get("name", "") for each in measures if isinstance(each, Mapping)]
            return _text(", ".join(map(str, names)))[:80]
        names = [self.setting(key, "name") for key in ("objective", "task")]
        return _text(next((name for name in (*names, self.setting("suite")) if name), ""))

    def model_family(self) -> str:
        """The family; of a finetuning that of its model, once it is there."""
        if self.family:
            return self.family
        named = self.setting("model", "family")
        if not named:
            written = read_document(self.folder / "model" / "config.json") or {}
            named = written.get("model_type")
        if not named and self.kind == "tokenizer":
            named = self.setting("algorithm")
        self.family = _text(named) if isinstance(named, str) else ""
        return self.family


def read_config(path: Path) -> tuple[Mapping[str, Any], str]:
    """The config of a run, and what is wrong with the file; empty: nothing."""
    content = read_bytes(path, 1_000_000)
    if content is None:
        return {}, "config.yaml is missing" if not path.exists() else "config.yaml cannot be read"
    try:
        if sum(map(content.count, _OPENING)) > _MOST_LEAVES:
            config = all_shown(read_document_of_config(path).data)
        else:
            config = yaml.load(content, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError, PlmError):
        return {}, "config.yaml is damaged"
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        return {}, "config.yaml is not a config of plmctl"
    return config, ""


# What may begin a level. libyaml's loader, ten times as fast as the one for configs, has no bound
# of levels and ends the process at a hundred thousand of them.
_OPENING = (b"[", b"{", b"- ", b"-\t", b"?", b"\n", b"\r", "\x85".encode(), "\u2028".encode())


def settings_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The leaves of a config as text; at most some thousands, whatever its aliases say."""
    leaves = {}
    for number, (key, leaf) in enumerate(flatten(config)):
        if number >= _MOST_LEAVES:
            break
        leaves[_text(key)] = _text(leaf if isinstance(leaf, str) else _json(leaf))[:400]
    return leaves


def _mark(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file does."""
    try:
        now = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return now.st_mtime_ns, now.st_size, now.st_ino


def _names(folder: Path, suffix: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith(suffix)]
    except OSError:
        return []


def _text(value: object) -> str:
    """Text from outside: no control characters, and nothing that UTF-8 does not have."""
    return printable(str(value).encode("utf-8", "replace").decode("utf-8"))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _number(value: object) -> float | int | None:
    """A number for JSON, with six digits; None: it is none, or not finite."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return value
    number = as_number(value)
    return float(f"{number:.6g}") if math.isfinite(number) else None


# --- All runs below a folder ---


class Board:
    """All runs below a folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.label = root.resolve(), _text(root)
        self._entries: dict[str, _Entry] = {}
        self._by_id: dict[str, _Entry] = {}
        self._version = int(time.time())  # a page that was open while plmctl restarted reads all
        self._curves: dict[str, tuple[Columns, Document]] = {}
        self._lock = threading.RLock()
        self._scanned = -math.inf
        self.too_many = False

    def rows(self, since: int = 0) -> Document:
        """The rows that changed since a version, and the ids of all runs.

        Returns:
            ``version``, ``root``, ``rows``, ``ids`` in the order of their paths, and ``reading``:
            how many logs have validations that were not read yet.
        """
        with self._lock:
            self._scan()
            entries = list(self._entries.values())
            return {
                "version": self._version,
                "root": self.label,
                "time": time.time(),
                "reading": sum(not entry.log.searched for entry in entries),
                "too_many": self.too_many,
                "ids": [entry.id for entry in entries],
                "rows": [entry.row for entry in entries if entry.version > since],
            }

    def search(self) -> bool:
        """Read a piece of the logs whose validations are not known yet; whether any is left."""
        with self._lock:
            for entry in self._entries.values():
                if not entry.log.searched:
                    if entry.log.search():
                        self._scanned = -math.inf
                    return True
        return False

    def folder(self, id: str) -> Path | None:
        """The folder of a run; None: there is no such run."""
        with self._lock:
            entry = self._by_id.get(id)
            return entry.folder if entry else None

    def curves(self, id: str) -> Document | None:
        """The curves of a run, thinned for a screen; None: there is no such run.

        Returns:
            ``train`` and ``valid``: ``step``, ``tokens``, ``hours``, and ``keys`` with ``mean``
            and, if values were put together, ``low`` and ``high`` of each.
        """
        with self._lock:
            entry = self._by_id.get(id)
            if entry is None:
                return None
            known = self._curves.pop(id, None)
            columns, document = known or (Columns(entry.folder / "metrics.jsonl"), {})
            if columns.refresh() or not document or entry.kind == "eval":
                measured = _checkpoint_table(entry.evaluations) if entry.kind == "eval" else {}
                document = _curves(columns, measured)
                facts = read_document(entry.folder / "environment.json") or {}
                document["levels"] = {
                    _text(name): {
                        _text("loss" if term == "loss" else f"loss/{term}"): _number(level)
                        for term, level in losses.items()
                    }
                    for name, losses in counted_levels(facts).items()
                }
            self._curves[id] = columns, document  # the last one that was read
            while len(self._curves) > _MOST_CURVES:
                del self._curves[next(iter(self._curves))]
            return {"id": id, **document}

    def details(self, id: str) -> Document | None:
        """All that the page of a run shows besides its curves; None: there is no such run."""
        with self._lock:
            self._scan()
            entry = self._by_id.get(id)
            return _details(entry) if entry else None

    def settings(self, id: str) -> Document | None:
        """The config of a run as keys and texts; None: there is no such run."""
        with self._lock:
            entry = self._by_id.get(id)
            return {"id": id, "settings": dict(entry.leaves)} if entry else None

    def _scan(self) -> None:
        if time.monotonic() - self._scanned < _FRESH:
            return
        folders = dict(self._walk())
        for path in [path for path in self._entries if path not in folders]:
            del self._entries[path]
        for path, name in folders.items():
            if path not in self._entries:
                digest = hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()
                self._entries[path] = _Entry(Path(path), _text(name), digest)
        self._entries = {path: self._entries[path] for path in folders}
        self._by_id = {entry.id: entry for entry in self._entries.values()}
        changed = [entry.refresh() for entry in self._entries.values()]
        if any(changed):
            _compare(list(self._entries.values()))
        rows = {path: _row(entry) for path, entry in self._entries.items()}
        _count_members(rows)
        version = self._version + 1
        for path, row in rows.items():
            entry = self._entries[path]
            if row != {**entry.row, "eta": row["eta"]} or not entry.row:
                entry.row, entry.version, self._version = row, version, version
        self._scanned = time.monotonic()

    def _walk(self) -> Iterator[tuple[str, str]]:
        """Run folders, and folders with files of one: path, and name below the root."""
        self.too_many, count = False, 0
        left = [(str(self.root), "", 0)]
        while left:
            path, name, level = left.pop()
            count += 1
            if count > _MOST_FOLDERS:
                self.too_many = True
                return
            try:
                entries = sorted(os.scandir(path), key=lambda entry: entry.name, reverse=True)
            except OSError:
                continue
            files = {entry.name for entry in entries}
            is_run = bool(files & {"config.yaml", "metrics.jsonl", "status.json"})
            if is_run:
                yield path, name or self.root.name
            for entry in entries:
                skipped = _INSIDE if is_run else _ELSEWHERE
                if (
                    level < _MOST_LEVELS
                    and not entry.name.startswith(".")
                    and entry.name not in skipped
                    and entry.is_dir(follow_symlinks=False)
                ):
                    left.append((entry.path, f"{name}/{entry.name}".lstrip("/"), level + 1))


def newest_run(root: Path) -> Path:
    """The run below a folder that changed last.

    Raises:
        ConfigError: There is none.
    """
    runs = [root / path for path, _ in Board(root)._walk()] if root.is_dir() else []
    if not runs:
        raise ConfigError(f"no run below {root}/ in {Path.cwd()}", "name a run folder")
    newest = max(runs, key=lambda path: _updated(path) or 0)
    return root / newest.relative_to(root.resolve())


def _count_members(rows: Mapping[str, Document]) -> None:
    """Set how many runs of a folder of ``--seeds`` or ``--grid`` are finished, of how many.

    Args:
        rows: The row of each run, by its path.
    """
    for path, row in rows.items():
        parent = rows.get(str(Path(path).parents[1]))
        if parent is not None and parent["step"] is None and Path(path).name.startswith("seed="):
            done, count = parent["members"] or (0, 0)
            parent["members"] = [done + (row["state"] == "finished"), count + 1]
            parent["share"] = _number(parent["members"][0] / parent["members"][1])


def _compare(entries: Sequence[_Entry]) -> None:
    """Set what is special in each config: values that most runs of its kind do not have."""
    for kind in {entry.kind for entry in entries}:
        members = [entry for entry in entries if entry.kind == kind]
        counts: dict[str, Counter[str]] = {}
        for entry in members:
            for key, value in entry.leaves.items():
                counts.setdefault(key, Counter())[value] += 1
        usual = {key: count.most_common(1)[0][0] for key, count in counts.items()}
        varied = [key for key, value in usual.items() if counts[key][value] < len(members)]
        for entry in members:
            entry.special = [
                [key, entry.leaves[key]]
                for key in varied
                if not key.startswith(_NO_SETTINGS)
                and key in entry.leaves
                and entry.leaves[key] != usual[key]
            ][:12]
    families = {entry.leaves.get("run", ""): entry.model_family() for entry in entries}
    for entry in entries:  # a finetuning has the family of its model, an evaluation too
        if not entry.family and isinstance(model := entry.setting("model"), str):
            entry.family = families.get(str(Path(model).parent), "")


# Where a run is and what it may use: its results do not depend on these.
_NO_SETTINGS = ("run", "launch.", "log.", "prepare.", "checkpoint.", "compute.", "data.store")


# --- The documents ---


def _row(entry: _Entry) -> Document:
    state = state_of(entry.folder)
    if entry.fault and state.name != "running":
        foreign = not entry.kind and not (entry.folder / "status.json").exists()
        foreign = foreign and entry.fault.endswith("not a config of plmctl")
        state = State("damaged", entry.fault)
        name = "foreign" if foreign else "damaged"
    else:
        name = state.name
    last, valid, best = entry.log.last, entry.log.valid, entry.log.best
    step, total = as_number(last.get("step")), entry.total_steps()
    epochs, epoch = as_number(entry.setting("train", "epochs")), as_number(last.get("epoch"))
    share = step / total if total else epoch / epochs if epochs else math.nan
    if total is None and share > 0:
        total = max(round(step / share), int(step))
    if name == "finished" and entry.kind in ("pretrain", "finetune") and math.isfinite(step):
        share, total = 1.0, int(step)
    measured = max(_measured_steps(entry.evaluations).values(), default=None)
    seconds = entry.log.seconds_per_step() * (total - step) if total else math.nan
    leaves = {key: value for key, value in entry.leaves.items() if key not in ("run", "seed")}
    return {
        "id": entry.id,
        "name": entry.name,
        "kind": entry.kind,
        "family": entry.model_family(),
        "objective": entry.learns(),
        "state": name,
        "message": _text(state.message)[:2000],
        "since": _text(state.since),
        "step": _number(last.get("step", measured)),
        "total": total,
        "share": _number(min(share, 1.0)),
        "members": None,
        "speed": _number(last.get("tokens_per_second")),
        "wait": _number(last.get("data_wait")),
        "memory": _number(last.get("memory_gb")),
        "eta": _number(seconds) if name == "running" else None,
        "tokens": _number(last.get("tokens")),
        "hours": _number(as_number(last.get("time")) / 3600),
        "loss": _number(last.get("loss")),
        "curves": entry.log.is_curve or len(_measured_steps(entry.evaluations)) > 1,
        "comparable": _text(_json([entry.setting(key) for key in ("objective", "tokenizer")])),
        "lr": _number(last.get("lr")),
        "valid": _number(valid.get("valid/loss")),
        "valid_step": _number(valid.get("step")),
        "best": _number(best.loss) if best else None,
        "best_step": best.step if best else None,
        "scores": scores_of(entry.kind, entry.evaluations),
        "settings": entry.special,
        "group": ""
        if not leaves
        else hashlib.blake2b(_json([entry.kind, leaves]).encode(), digest_size=6).hexdigest(),
        "unreadable": entry.log.unreadable,
        "updated": _updated(entry.folder),
    }


def _updated(folder: Path) -> float | None:
    times = [mark[0] for name in _CHANGING if (mark := _mark(folder / name))]
    return max(times) / 1e9 if times else None


_CHANGING = ("metrics.jsonl", "status.json", "events", "config.yaml")

# Counts and descriptions among the results, which no one compares runs by.
_NO_SCORES = {
    "steps",
    "tokens",
    "rows",
    "valid_rows",
    "total",
    "majority",
    "windows",
    "valid_windows",
    "documents",
    "words",
    "characters",
    "bytes",
    "targets",
    "samples",
    "examples",
    "seconds",
    "n",
    "items",
    "vocabulary",
    "loss",
    "pairs",
    "sequences",
    "shorter",
}
_NO_SCORE_ENDS = ("_se", "_low", "_high")  # fmt: skip


def scores_of(kind: str, evaluations: Mapping[str, Document]) -> list[list[object]]:
    """The name and value of each metric of an evaluation, the main ones first; at most eight."""
    scores: list[list[object]] = []
    for stem, document in _newest(evaluations).items():
        results = document.get("results")
        if not isinstance(results, Mapping) or (kind in ("pretrain", "finetune")) != (
            stem == "valid"
        ):
            continue
        for key, value in results.items():
            name = str(key).removeprefix("valid/")
            number = _number(value)
            if not _is_score(name, value):
                continue
            scores.append([_text(f"{stem}: {name}" if kind == "eval" else name), number])
    protocol = evaluations.get("protocol", {})
    chosen = protocol.get("chosen")
    settings = protocol.get("settings")
    if isinstance(chosen, Mapping) and isinstance(settings, list):
        for setting in settings:
            if isinstance(setting, Mapping) and setting.get("setting") == chosen.get("setting"):
                name = f"{protocol.get('metric', 'result')}, median of {setting.get('n')}"
                scores.insert(0, [_text(name), _number(setting.get("median"))])
    return scores[:8]


_AT_STEP = re.compile(r"(.+)-step-(\d+)")  # the file of an evaluation of a checkpoint


def _measured_steps(evaluations: Mapping[str, Document]) -> dict[str, int]:
    """The steps of the checkpoints that documents are of, by the name of the document."""
    matches = {stem: _AT_STEP.fullmatch(stem) for stem in evaluations}
    return {stem: int(match[2]) for stem, match in matches.items() if match}


def _newest(evaluations: Mapping[str, Document]) -> dict[str, Document]:
    """The documents without those of older checkpoints."""
    steps = _measured_steps(evaluations)
    newest = max(steps.values(), default=0)
    return {name: of for name, of in evaluations.items() if steps.get(name, newest) == newest}


def _checkpoint_table(evaluations: Mapping[str, Document]) -> dict[str, Floats]:
    """The metrics of an evaluation with ``--at-checkpoints``: [N] values of each, by step."""
    rows: dict[int, dict[str, float]] = {}
    for stem, document in evaluations.items():
        results = document.get("results")
        if (match := _AT_STEP.fullmatch(stem)) and isinstance(results, Mapping):
            known = {f"valid/{match[1]}: {key}": as_number(v) for key, v in results.items()}
            rows.setdefault(int(match[2]), {}).update(
                {k: v for k, v in known.items() if _is_score(k.rpartition(": ")[2], v)}
            )
    steps = sorted(rows)
    keys = dict.fromkeys(key for row in rows.values() for key in row)
    table = {key: np.array([rows[step].get(key, math.nan) for step in steps]) for key in keys}
    return {"step": np.array(steps, dtype=np.float64), **table} if steps else {}


def _is_score(name: str, value: object) -> bool:
    """Whether one compares runs by a metric; else it is a count, a loss, or an error of another."""
    known = math.isfinite(as_number(value)) and name not in _NO_SCORES
    other = name.startswith("loss") or name.endswith(_NO_SCORE_ENDS) or "_se/" in name
    return known and not other


def _curves(columns: Columns, measured: Mapping[str, Floats]) -> Document:
    """Documents of a log; ``measured`` is instead of its validations, if it has any."""
    train, valid = columns.of("train"), dict(measured) or columns.of("valid")
    steps = train.get("step", np.zeros(0))
    for table in (train, valid):
        at = table.get("step", np.zeros(0))
        for name, key, unit in (("tokens", "tokens", 1.0), ("hours", "time", 3600.0)):
            known = train.get(key)
            if known is None or not len(at):
                table[name] = np.full(len(at), math.nan)
            else:
                finite = np.isfinite(known) & np.isfinite(steps)
                table[name] = (
                    np.interp(at, steps[finite], known[finite] / unit)
                    if finite.any()
                    else np.full(len(at), math.nan)
                )
    return {"train": thinned(train), "valid": thinned(valid)}


_COORDINATES = ("step", "tokens", "hours")
_NO_CURVES = {*_COORDINATES, "time", "phase", "epoch", "words"}


def thinned(table: Mapping[str, Floats], points: int = _POINTS) -> Document:
    """Columns as at most so many points: of each the mean, and the lowest and highest value."""
    count = len(table.get("step", ()))
    if not count:
        return {**{name: [] for name in _COORDINATES}, "keys": {}}
    begins = np.unique(np.linspace(0, count, min(points, count) + 1).astype(int)[:-1])
    ends = np.append(begins[1:], count) - 1
    keys = {}
    for key, values in table.items():
        if key in _NO_CURVES or not np.isfinite(values).any():
            continue
        known = np.isfinite(values)
        sums = np.add.reduceat(np.where(known, values, 0.0), begins)
        counts = np.add.reduceat(known.astype(float), begins)
        with np.errstate(invalid="ignore"):
            means = sums / np.where(counts > 0, counts, math.nan)
        curve = {"mean": _rounded(means)}
        if len(begins) < count and not key.startswith("lr"):
            curve["low"] = _rounded(np.fmin.reduceat(np.where(known, values, math.nan), begins))
            curve["high"] = _rounded(np.fmax.reduceat(np.where(known, values, math.nan), begins))
        keys[_text(key)] = curve
    at = {name: _rounded(table[name][ends]) for name in _COORDINATES}
    return {**at, "keys": keys}


def _rounded(values: Floats) -> list[float | None]:
    return [float(f"{value:.6g}") if math.isfinite(value) else None for value in values.tolist()]


def _details(entry: _Entry) -> Document:
    facts = read_document(entry.folder / "environment.json") or {}
    environment = all_shown(facts)
    config_text = read_bytes(entry.folder / "config.yaml", 1_000_000) or b""
    samples = entry.evaluations.get("samples", {})
    here, place = Path.cwd(), entry.folder  # commands name it as the user would
    place = place.relative_to(here) if place.is_relative_to(here) else place
    text, command = next_step(place, entry.kind, str(entry.row["state"]), environment)
    return {
        "row": entry.row,
        "next": text,
        "command": command,
        "try": _text(shlex.join(["plmctl", "try", str(place)]))
        if entry.kind in ("pretrain", "finetune") and is_model(entry.folder / "model")
        else "",
        "config": _lines(shown(config_text.decode("utf-8", "replace"))),
        "environment": [
            [_text(key), _text(shlex.join(map(str, v)) if isinstance(v, list) else v)[:2000]]
            for key, v in list(flatten(environment, " "))[:200]
            if v is not None
        ],
        "events": _events(entry.folder / "events"),
        "evaluations": [
            _evaluation(name, document, facts)
            for name, document in _newest(entry.evaluations).items()
            if name not in ("samples", "data")
        ],
        "samples": _samples(samples),
        "samples_by_step": _samples_by_step(entry.folder / "samples.jsonl"),
        "pieces": _pieces(entry.folder) if entry.kind == "tokenizer" else [],
        "plan": _plan(entry),
        "pages": [name for name in sorted(_names(entry.folder, ".html")) if _is_page(entry, name)],
        "checkpoints": sorted(
            _text(name) for name in _names(entry.folder / "checkpoints", "") if name[:1] != "."
        ),
    }


def _is_page(entry: _Entry, name: str) -> bool:
    handle = open_plain(entry.folder / name)
    if handle is None:
        return False
    os.close(handle)
    return _text(name) == name


def _lines(text: str) -> str:
    """Text of several lines from outside."""
    return "\n".join(_text(line) for line in text.splitlines())


def _events(path: Path) -> list[list[object]]:
    """Time, name and fields of the last events."""
    lines = (read_bytes(path) or b"").splitlines()[-_MOST_EVENTS:]
    events: list[list[object]] = []
    for line in lines:
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(event, dict):
            time, name = _text(event.pop("time", "")), _text(event.pop("event", ""))
            events.append([time, name, _text(", ".join(f"{k} {v}" for k, v in event.items()))])
    return events


def _evaluation(name: str, document: Document, facts: Document) -> Document:
    """The metrics, classes and confusion matrix of a document of eval/.

    Args:
        facts: Of environment.json.
    """
    results = document.get("results")
    results = results if isinstance(results, Mapping) else {}
    errors = document.get("uncertainty")
    errors = errors if isinstance(errors, Mapping) else {}
    shown: Document = {"name": _text(name), "metrics": [], "classes": [], "confusion": None}
    if counted := yardstick_rows(results):
        shown["counted"] = [
            [_text(cell) if isinstance(cell, str) else _number(cell) for cell in row]
            for row in counted
        ]
        shown["counted_columns"] = YARDSTICK_COLUMNS
        shown["sentence"] = _text(yardstick_sentence(results))
    elif line := loss_sentence(results, facts):
        shown["sentence"] = _text(line)
    for key, value in results.items():
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            continue
        error = errors.get(key)
        half = _number(error.get("se")) if isinstance(error, Mapping) else None
        plain = _text(value)[:300] if isinstance(value, str) else _number(value)
        shown["metrics"].append([_text(key), plain, half])
    classes = results.get("per_class")
    if isinstance(classes, list):
        keys = ("label", "precision", "recall", "f1", "support")
        shown["classes"] = [
            [_text(row.get("label")), *(_number(row.get(key)) for key in keys[1:])]
            for row in classes[:200]
            if isinstance(row, Mapping)
        ]
    confusion = results.get("confusion")
    if isinstance(confusion, Mapping):
        labels, matrix = confusion.get("labels"), confusion.get("matrix")
        if isinstance(labels, list) and isinstance(matrix, list) and len(labels) <= 60:
            shown["confusion"] = {
                "labels": [_text(label) for label in labels],
                "matrix": [
                    [_number(count) or 0 for count in row]
                    for row in matrix[: len(labels)]
                    if isinstance(row, list)
                ],
            }
    settings = document.get("settings")
    if isinstance(settings, list):
        kept = [
            row
            for row in settings[:200]
            if isinstance(row, Mapping) and isinstance(row.get("setting"), Mapping)
        ]
        whole = {**document, "settings": kept}
        shown["setting_columns"] = [_text(name) for name in setting_columns(whole)[:-1]]
        shown["settings"] = [[_text(n), *map(_number, m)] for n, *m, _ in setting_rows(whole)]
        shown["sentence"] = _text(yardstick_sentence(document))
    return shown


def _samples(document: Document) -> Document:
    items = document.get("items")
    shown: list[Document] = []
    for item in items[:50] if isinstance(items, list) else ():
        if not isinstance(item, Mapping):
            continue
        guesses = item.get("predictions")
        shown.append(
            {
                "prompt": _text(item.get("prompt", "")),
                "text": _lines(unspaced(str(item.get("text", "")))),
                "answer": _text(item.get("answer") or ""),
                "predictions": [
                    [_text(guess.get("token", "")), _number(guess.get("score"))]
                    for guess in (guesses if isinstance(guesses, list) else ())
                    if isinstance(guess, Mapping)
                ],
            }
        )
    return {"kind": _text(document.get("kind", "")), "items": shown}


def _samples_by_step(path: Path) -> list[Document]:
    """The samples of some validations of a pretraining, the first and the last among them."""
    lines = []
    for line in spread((read_bytes(path) or b"").splitlines()):
        try:
            document = json.loads(line)
        except (ValueError, RecursionError):  # such as a last line that is being written
            continue
        if not isinstance(document, dict):
            continue
        step, samples = _number(document.get("step")), _samples(document)
        if step is not None and samples["items"]:
            lines.append({"step": step, **samples})
    return lines


_MOST_LINES, _LONGEST_LINE = 8, 240  # of a tokenizer's held-out text


def _pieces(folder: Path) -> list[list[str]]:
    """The first lines of the text that a tokenizer was measured on, cut into its tokens."""
    text = (read_bytes(folder / "eval" / "held_out.txt") or b"").decode("utf-8", "replace")
    lines = [line[:_LONGEST_LINE] for line in text.splitlines() if line.strip()][:_MOST_LINES]
    written = read_bytes(folder / "tokenizer.json", 100_000_000)
    if written is None or not lines:
        return []
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(written.decode("utf-8"))
        tokenizer.encode_special_tokens = True  # text that looks like one is text, as in training
        cuts = [tokenizer.encode(line, add_special_tokens=False).offsets for line in lines]
    except Exception:  # what `tokenizers` raises for a damaged file
        return []
    return [_cut(line, ends) for line, ends in zip(lines, cuts, strict=True)]


def _cut(line: str, ends: Sequence[tuple[int, int]]) -> list[str]:
    """A line as the texts of its tokens; spaces between them stay with the token that follows."""
    pieces, done = [], 0
    for _, end in ends:
        if end > done:  # several tokens of one character, such as its bytes, are one piece
            pieces.append(_text(line[done:end]))
            done = end
    return [*pieces, _text(line[done:])] if done < len(line) else pieces


def _plan(entry: _Entry) -> list[list[object]]:
    """What was planned beside what happened: name, planned, so far."""
    last, rows = entry.log.last, list[list[object]]()
    if entry.kind not in ("pretrain", "finetune"):
        return []
    rows.append(["steps", entry.total_steps(), _number(last.get("step"))])
    phases = entry.setting("train", "phases")
    batch = as_number(entry.setting("train", "batch_size"))
    if isinstance(phases, list) and entry.total_steps():
        positions = sum(
            as_number(phase.get("steps"))
            * as_number(phase.get("seq_len"))
            * as_number(phase.get("batch_size", batch))
            for phase in phases
            if isinstance(phase, Mapping)
        )
        rows.append(["tokens", _number(positions), _number(last.get("tokens"))])
    train = {name: entry.setting("train", name) for name in ("epochs", "budget", "max_words")}
    rows.append(["epochs", _number(train["epochs"]), _number(last.get("epoch"))])
    budget = _text(train["budget"]) if train["budget"] else None
    rows.append(["training time", budget, _number(last.get("time"))])
    rows.append(["words", _number(train["max_words"]), _number(last.get("words"))])
    return [row for row in rows if row[2] is not None]


def next_step(
    folder: Path, kind: str, state: str, environment: Mapping[str, Any]
) -> tuple[str, str]:
    """What to do with a run, and the command for it; either may be empty."""
    words = environment.get("command")
    words = [str(word) for word in words] if isinstance(words, list) else []
    if words:
        same = shlex.join(["plmctl", *words[1:]])
    elif kind in COMMANDS:
        same = shlex.join(["plmctl", COMMANDS[kind], str(folder / "config.yaml")])
    else:
        same = ""
    if state == "running":
        return "Nothing to do. Ctrl-C saves a checkpoint and stops it.", ""
    if state in ("stopped", "killed"):
        return "The same command resumes it.", _text(same)
    if state == "failed":
        return "Remove the cause; then the same command resumes it.", _text(same)
    if state == "incomplete":
        return "The same command writes what is missing.", _text(same)
    if state == "finished" and kind in ("pretrain", "finetune"):
        return "See its curves and results as one page.", _text(
            shlex.join(["plmctl", "report", str(folder)])
        )
    return "", ""


def status_of(folder: Path) -> Document:
    """The row and the details of one run, with the last records of its log; for the terminal."""
    entry = _Entry(folder, _text(folder), "run")
    entry.refresh()
    while not entry.log.searched:
        entry.log.search()
    entry.row = _row(entry)
    details = _details(entry)
    return {
        **entry.row,
        "next": details["next"],
        "command": details["command"],
        "checkpoint": next(reversed([c for c in details["checkpoints"] if c[:5] == "step-"]), None),
        "terms": {k: _number(v) for k, v in entry.log.last.items() if k.startswith("loss/")},
        "validation": {k: _number(v) for k, v in entry.log.valid.items() if k != "step"},
    }
