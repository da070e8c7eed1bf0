"""Checkpoints that are complete or absent.

A checkpoint is written beside its place, flushed to disk, listed in a manifest of sizes and hashes,
and renamed; a reader that finds the folder finds all of it. The manifest also records how much of
the run's ``metrics.jsonl`` belongs to the checkpoint. Weights and optimizer states are safetensors,
everything else JSON: loading one runs no code. There is no random state in it, since every draw is
keyed by the step.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from plmctl.errors import PlmError
from plmctl.files import sync
from plmctl.training.journal import Mark
from plmctl.training.state import Snapshot, snapshot, write
from plmctl.training.state import Trained as Trained
from plmctl.training.state import load_weights as load_weights
from plmctl.training.state import restore as restore
from plmctl.training.state import save_weights as save_weights

MANIFEST = "manifest.json"
_JOURNAL = "metrics.jsonl"  # in the manifest: of the run folder, not of the checkpoint
_NEEDED = ("model.safetensors", "optimizer.safetensors", "state.json")
_NAME = re.compile(r"step-\d+")


@dataclass(frozen=True)
class Retention:
    """Which checkpoints stay.

    Attributes:
        newest: How many of the newest.
        every: Those of steps that this divides; None: no others.
        best: The one with the lowest validation loss.
    """

    newest: int
    every: int | None = None
    best: bool = False

    def keeps(self, step: int, steps: list[int], best: int | None) -> bool:
        """Whether a checkpoint stays.

        Args:
            step: Its step.
            steps: Of all checkpoints, ascending.
            best: The step with the lowest validation loss.
        """
        if step in steps[-self.newest :] or (self.best and step == best):
            return True
        return self.every is not None and step % self.every == 0


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: ``<run>/checkpoints``.
        retention: Which to keep; a number: so many of the newest.
    """

    def __init__(self, folder: Path, retention: Retention | int) -> None:
        self._folder = folder
        self._retention = Retention(retention) if isinstance(retention, int) else retention
        self._faults: dict[Path, str | None] = {}  # what is known: a gigabyte is hashed once

    def save(self, step: int, trained: Trained, telemetry: Mapping[str, Any]) -> Path:
        """Write the state after ``step`` updates; as ``write``."""
        return self.write(snapshot(trained, step, telemetry))

    def write(self, state: Snapshot, journal: Mark | None = None) -> Path:
        """Write a state; then drop checkpoints that need not be kept.

        Args:
            state: What is saved.
            journal: How much of ``metrics.jsonl`` belongs to it.

        Raises:
            PlmError: The disk refused; no earlier checkpoint was touched.
        """
        target = self._folder / f"step-{state.state['step']:06d}"
        beside = self._folder / f".{target.name}.writing"
        try:
            self._sweep()
            beside.mkdir(parents=True)
            write(beside, state)
            _seal(beside, journal)
            replaced = self._make_room(target)
            beside.rename(target)
            sync(self._folder)
        except (OSError, SafetensorError) as error:  # safetensors has errors of its own
            shutil.rmtree(beside, ignore_errors=True)
            reason = getattr(error, "strerror", None) or error
            raise PlmError(
                f"{target}: the checkpoint could not be written: {reason}",
                "free some space and run the same command again: it goes on from the last one",
            ) from error
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)
        self._faults[target] = None
        self._drop(_step(target), state.state.get("best"))
        return target

    def newest(
        self, wanted: Callable[[int], bool] = lambda step: True
    ) -> tuple[Path | None, list[str]]:
        """The newest valid checkpoint, and what is wrong with newer ones, which are left alone.

        Args:
            wanted: Of steps; others are passed over.
        """
        damaged: list[str] = []
        for folder in reversed(self._all()):
            if not wanted(_step(folder)):
                continue
            fault = self._faults[folder] = _fault(folder)
            if fault is None:
                return folder, damaged
            damaged.append(f"{folder}: {fault}")
        return None, damaged

    def tidy(self, step: int, best: tuple[float, int] | None) -> None:
        """What a save that was killed has left undone: half-written folders, and retention.

        Args:
            step: Of the checkpoint that the run continues from.
            best: The lowest validation loss so far, and its step.
        """
        self._sweep()
        self._drop(step, best)

    def abandon(self, after: int) -> None:
        """Delete the valid checkpoints of steps after ``after``: the run goes another way there."""
        for folder in self._all():
            if _step(folder) > after and self._fault_of(folder) is None:
                _remove(folder)

    def _all(self) -> list[Path]:
        return _found(self._folder)

    def _fault_of(self, folder: Path) -> str | None:
        if folder not in self._faults:
            self._faults[folder] = _fault(folder)
        return self._faults[folder]

    def _sweep(self) -> None:
        """Delete what saves that were killed have left; damaged checkpoints stay."""
        for kind in ("writing", "replaced-*", "dropped"):
            for left in self._folder.glob(f".step-*.{kind}"):
                shutil.rmtree(left, ignore_errors=True)

    def _make_room(self, target: Path) -> Path | None:
        """Move away what is there of the same step; where to, if it need not be kept.

        A damaged one stays: somebody may look into it.
        """
        if not target.exists():
            return None
        damaged = self._fault_of(target) is not None
        number, ending = 1, "damaged" if damaged else "replaced"
        while (aside := target.with_name(f".{target.name}.{ending}-{number}")).exists():
            number += 1
        target.rename(aside)
        return None if damaged else aside

    def _drop(self, saved: int, best: tuple[float, int] | None) -> None:
        """Delete what need not be kept of the valid ones up to the one just saved."""
        folders = [folder for folder in self._all() if _step(folder) <= saved]
        valid = {_step(folder): folder for folder in folders if self._fault_of(folder) is None}
        for step, folder in valid.items():
            if not self._retention.keeps(step, list(valid), best[1] if best else None):
                with suppress(OSError):  # one too many is no reason to stop
                    _remove(folder)


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def valid(folder: Path) -> list[Path]:
    """The checkpoints in a folder that are whole, oldest first."""
    return [path for path in _found(folder) if _fault(path) is None]


def journal_of(folder: Path) -> Mark | None:
    """What a valid checkpoint recorded of ``metrics.jsonl``; None: it is of an older version."""
    entry = json.loads((folder / MANIFEST).read_text()).get(_JOURNAL)
    return None if entry is None else Mark(**entry)


def _found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, whole or not, oldest first."""
    return sorted((p for p in folder.glob("step-*") if _NAME.fullmatch(p.name)), key=_step)


def _seal(folder: Path, journal: Mark | None) -> None:
    """Flush a checkpoint's files, and list them in a manifest."""
    files = sorted(folder.iterdir())
    for path in files:
        sync(path)
    manifest: dict[str, Any] = {
        path.name: {"size": path.stat().st_size, "sha256": _sha256(path)} for path in files
    }
    if journal is not None:
        manifest[_JOURNAL] = asdict(journal)
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    sync(folder / MANIFEST)
    sync(folder)


def _remove(folder: Path) -> None:
    """Delete a checkpoint; one that is half gone must not look like a damaged one."""
    shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.dropped")))


def _fault(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return "no readable manifest"
    if not isinstance(manifest, dict) or not all(map(_is_entry, manifest.items())):
        return "no readable manifest"
    there = {path.name for path in folder.glob("*.safetensors")}
    unlisted = sorted({*_NEEDED, *there} - manifest.keys())
    if unlisted:
        return f"the manifest does not list {unlisted[0]}"
    for name in sorted(manifest.keys() - {_JOURNAL}):
        path, entry = folder / name, manifest[name]
        if not path.is_file() or path.stat().st_size != entry["size"]:
            return f"{name} is missing or has another size"
        if _sha256(path) != entry["sha256"]:
            return f"{name} has other bytes than were written"
    return None


def _is_entry(item: tuple[str, Any]) -> bool:
    """Whether this is what a manifest says of one file."""
    name, entry = item
    fields = {"size": int, "sha256": str} | ({"lines": int} if name == _JOURNAL else {})
    return (
        isinstance(entry, dict)
        and entry.keys() == fields.keys()
        and all(isinstance(entry[field], kind) for field, kind in fields.items())
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
