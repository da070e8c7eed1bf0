"""From a run folder to typed data.

A report is often wanted of a run that is not finished or has gone wrong, so a file that is missing
is empty and a line that cannot be read is counted, not fatal.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmctl.config.document import read as read_config
from plmctl.config.load import kind_of
from plmctl.errors import ConfigError

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Run:
    """What a run folder holds.

    Attributes:
        path: The folder.
        name: Short, and unlike that of any other run of the report.
        kind: "pretrain", "finetune", "eval" or "tokenizer".
        config: The resolved config.
        environment: Versions, hardware, command.
        records: The lines of metrics.jsonl.
        events: The lines of events.
        evaluations: The documents of eval/, by file name.
        unreadable: Lines and files that could not be read.
    """

    path: Path
    name: str
    kind: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    records: tuple[Mapping[str, Any], ...]
    events: tuple[Mapping[str, Any], ...]
    evaluations: Mapping[str, Mapping[str, Any]]
    unreadable: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return (self.path / "model").is_dir() or any(
            event.get("event") == "finished" for event in self.events
        )

    @property
    def last(self) -> Mapping[str, Any]:
        """The last training record; empty before there is one."""
        return next((r for r in reversed(self.records) if "loss" in r), {})

    @property
    def results(self) -> Mapping[str, Any]:
        """The figures of the last validation: eval/valid.json, else the last validation record."""
        found = self.evaluations.get("valid", {}).get("results")
        if isinstance(found, Mapping):
            return found
        return next((r for r in reversed(self.records) if "valid/loss" in r), {})

    @property
    def samples(self) -> Mapping[str, Any]:
        """The document of eval/samples.json; empty without one."""
        return self.evaluations.get("samples", {})

    def keys(self, prefix: str) -> list[str]:
        """The keys of all records that begin so, in the order of their first appearance."""
        found = (key for record in self.records for key in record if key.startswith(prefix))
        return list(dict.fromkeys(found))

    def series(self, key: str) -> tuple[Floats, Floats]:
        """Steps and values of the records that have a key; nan where it is no finite number."""
        found = [r for r in self.records if key in r]
        steps = np.array([number(r.get("step")) for r in found])
        values = np.array([number(r[key]) for r in found])
        return steps, np.where(np.isfinite(values), values, math.nan)

    def setting(self, *path: str | int) -> Any:
        """A value of the config; None where there is none."""
        at: Any = self.config
        for part in path:
            inside = (isinstance(at, Mapping) and part in at) or (
                isinstance(at, Sequence) and isinstance(part, int) and part < len(at)
            )
            if not inside:
                return None
            at = at[part]
        return at


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in these folders, each with a name of its own.

    Raises:
        ConfigError: A folder that is no run folder, or a config.yaml that is no config.
    """
    return [read_run(f, n) for f, n in zip(folders, short_names(folders), strict=True)]


def read_run(folder: Path, name: str) -> Run:
    """One run; errors as ``read_runs``."""
    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"{folder}: no run here (no config.yaml)", "name a run folder")
    config = read_config(folder / "config.yaml").data
    unreadable: list[str] = []
    evaluations = {
        path.stem: document
        for path in sorted((folder / "eval").glob("*.json"))
        if (document := _document(path, unreadable))
    }
    return Run(
        path=folder,
        name=name,
        kind="eval" if "suite" in config else kind_of(folder / "config.yaml"),
        config=config,
        environment=_document(folder / "environment.json", unreadable),
        records=_lines(folder / "metrics.jsonl", "step", unreadable),
        events=_lines(folder / "events", "event", unreadable),
        evaluations=evaluations,
        unreadable=tuple(unreadable),
    )


def short_names(folders: Sequence[Path]) -> list[str]:
    """The last parts of each path, as many as tell it from the others."""
    parts = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(p[-count:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(p[-1:])} ({number})" for number, p in enumerate(parts, 1)]  # given twice


def number(value: object) -> float:
    """A figure as a float; nan for null and for what is no number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    return math.nan


def _document(path: Path, unreadable: list[str]) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError:
        unreadable.append(path.name)
        return {}
    return found if isinstance(found, dict) else {}


def _lines(path: Path, needed: str, unreadable: list[str]) -> tuple[Mapping[str, Any], ...]:
    """The JSON objects of a file that have a key, a line each."""
    if not path.is_file():
        return ()
    found = []
    for line_number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and record.get(needed) is not None:
            found.append(record)
        elif line.strip():
            unreadable.append(f"{path.name}:{line_number}")
    return tuple(found)
