"""Is a run the same as another? Logs line by line, states bit for bit."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

# What a log tells of the machine, not of the run.
_OF_TIME = (
    "tokens_per_second",
    "samples_per_second",
    "data_wait",
    "memory_gb",
    "mfu",
    "time",
)


@dataclass(frozen=True)
class Check:
    """What was compared.

    Attributes:
        name: What.
        compared: How many of them.
        different: How many of these differ.
        first: The first difference, in words.
    """

    name: str
    compared: int
    different: int = 0
    first: str = ""


def compare(name: str, ours: Iterable[object], theirs: Iterable[object], what: str) -> Check:
    """Two sequences, item by item; one that is missing differs."""
    pairs = list(zip_longest(ours, theirs))
    wrong = [number for number, (a, b) in enumerate(pairs, start=1) if a != b]
    first = f"{what} {wrong[0]}" if wrong else ""
    return Check(name, len(pairs), len(wrong), first)


def records(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's log without what tells of the machine."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in _OF_TIME} for line in lines]


def compare_logs(whole: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[Check]:
    """Every figure of every line; and whether a step is missing or there twice."""
    checks = []
    for name, key in (("logged losses", "loss"), ("validations", "valid/loss")):
        ours, theirs = ([line for line in log if key in line] for log in (whole, other))
        if ours or theirs:
            check = compare(name, ours, theirs, "line")
            checks.append(Check(check.name, check.compared, check.different, _said(ours, theirs)))
    return checks


def compare_states(whole: Path, other: Path) -> list[Check]:
    """Every tensor of two checkpoints, bit for bit."""
    from safetensors.torch import load_file

    checks = []
    for path in sorted(whole.glob("*.safetensors")):
        ours = load_file(path)
        beside = other / path.name
        theirs = load_file(beside) if beside.is_file() else {}
        names = sorted(ours.keys() | theirs.keys())
        wrong = [
            n for n in names if n not in ours or n not in theirs or not _same(ours[n], theirs[n])
        ]
        checks.append(Check(path.stem, len(names), len(wrong), wrong[0] if wrong else ""))
    return checks


def _same(ours: Any, theirs: Any) -> bool:
    """Bit for bit: nan equals itself, and 0 is not -0."""
    if ours is None or theirs is None:
        return False
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    return bool(ours.numpy(force=True).tobytes() == theirs.numpy(force=True).tobytes())


def _said(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> str:
    """The first difference of two logs."""
    for a, b in zip_longest(ours, theirs):
        if a == b:
            continue
        if a is None or b is None:
            return f"step {(a or b)['step']} is in one log only"
        key = next(key for key in {**a, **b} if a.get(key) != b.get(key))
        return f"step {a['step']}: {key} {a.get(key)!r}, {b.get(key)!r}"
    return ""
