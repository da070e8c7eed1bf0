"""Runs that are killed at moments drawn by a seed: while they prepare, step and save."""

import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plmctl.errors import PlmError
from plmctl.runs.child import Child, start

Moment = Literal["preparing", "step", "saving"]

_LOOK = 0.0005  # seconds between two looks at the folder: a small checkpoint takes milliseconds
_DONE = (0, 75)  # finished, or stopped where `--until` said


@dataclass(frozen=True)
class Kill:
    """A kill that was made.

    Attributes:
        moment: What the process was doing, by what it has left in its folder.
        seconds: After its start.
        logged: The last step in its log, 0 before there is one.
        saved: The step that the next start goes on from, 0 before there is one.
    """

    moment: Moment
    seconds: float
    logged: int
    saved: int


@dataclass(frozen=True)
class Pace:
    """How long an uninterrupted run takes, in seconds.

    Attributes:
        preparing: Until its first step.
        training: From there to its end.
        saving: A checkpoint.
    """

    preparing: float
    training: float
    saving: float


def run_whole(body: Callable[[], None], folder: Path, log: Path) -> Pace:
    """Run a command to its end, and see how long its parts take.

    Raises:
        PlmError: It failed.
    """
    began = time.perf_counter()
    child, started, saves, saving = start(body, log), 0.0, [0.0], 0.0
    while not child.ended():
        now = time.perf_counter()
        if not started and (folder / "events").exists():
            started = now
        if _saves(folder):
            saving = saving or now
        elif saving:
            saves.append(now - saving)
            saving = 0.0
        time.sleep(_LOOK)
    _check(child, log)
    ended = time.perf_counter()
    return Pace((started or ended) - began, ended - (started or ended), max(saves))


def run_killed(
    body: Callable[[], None], folder: Path, log: Path, wanted: list[Moment], seed: int, pace: Pace
) -> list[Kill]:
    """Run a command again and again, killed at each of the moments, and then to its end.

    A moment can be missed, as a save that was over before the kill: see ``missing``.

    Returns:
        The kills that were made: fewer than wanted if it came to its end before the last.

    Raises:
        PlmError: It failed otherwise than by a kill.
    """
    draw, kills = random.Random(seed), list[Kill]()
    share = 1.6 * pace.training / (len(wanted) + 1)  # half of it is the mean: spread over the run
    for moment in wanted:
        began, said = time.perf_counter(), _lines(folder / "events")
        before = _saves(folder)
        child = start(body, log)
        if moment == "preparing":
            _wait(child, draw.random() * pace.preparing)
        else:
            _wait_for_more(child, folder / "events", said)
            _wait(child, draw.random() * share)
        if moment == "saving":
            _wait_into_save(child, folder, before, lambda: draw.random() * pace.saving)
        if child.ended():
            break
        child.kill()
        seconds = time.perf_counter() - began
        doing: Moment = "step" if _lines(folder / "events") > said else "preparing"
        if _saves(folder) - before:
            doing = "saving"
        kills.append(Kill(doing, seconds, _logged(folder), _saved(folder)))
    else:
        child = start(body, log)
        child.wait()
    _check(child, log)
    return kills


def moments(kills: int, seed: int) -> list[Moment]:
    """What the kills hit: a fifth of them preparation, first of all, then steps and saves."""
    first = max(1, kills // 5) if kills else 0
    draw = random.Random(seed)
    rest: list[Moment] = ["saving" if n % 2 else "step" for n in range(kills - first)]
    draw.shuffle(rest)
    early: list[Moment] = ["preparing"] * first
    return early + rest


def missing(wanted: list[Moment], kills: list[Kill]) -> list[Moment]:
    """The moments that no kill has hit yet, in the order in which they were wanted."""
    left = [kill.moment for kill in kills]
    found = []
    for moment in wanted:
        if moment in left:
            left.remove(moment)
        else:
            found.append(moment)
    return found


def _check(child: Child, log: Path) -> None:
    if child.wait() not in _DONE:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:]
        said = "\n  ".join(["the run failed by itself:", *last])
        raise PlmError(f"exit code {child.code}: {said}", f"all that it said is in {log}")


def _wait(child: Child, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end and not child.ended():
        time.sleep(_LOOK)


def _wait_for_more(child: Child, path: Path, lines: int) -> None:
    while _lines(path) <= lines and not child.ended():
        time.sleep(_LOOK)


def _wait_into_save(
    child: Child, folder: Path, before: set[tuple[str, int]], seconds: Callable[[], float]
) -> None:
    """Until some time into a save; one that is over by then is let go, for one after it.

    The wait is halved then: the longest save, which it is drawn by, may have been an exception.
    """
    share = 1.0
    while not child.ended():
        if saves := _saves(folder) - before:
            _wait(child, share * seconds())
            if saves & _saves(folder):
                return
            share /= 2
        time.sleep(_LOOK)


def _lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def _saves(folder: Path) -> set[tuple[str, int]]:
    """The saves that are under way or were cut short: one that another kill has left stays."""
    found = set()
    for path in (folder / "checkpoints").glob(".step-*.writing"):
        with suppress(OSError):  # it was just renamed
            found.add((path.name, path.stat().st_ctime_ns))
    return found


def _logged(folder: Path) -> int:
    """The last step of a log whose last line may be torn."""
    try:
        lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    except OSError:
        return 0
    whole = [line for line in lines if line.endswith(b"\n")]
    return int(json.loads(whole[-1])["step"]) if whole else 0


def _saved(folder: Path) -> int:
    saved = (folder / "checkpoints").glob("step-*")
    return max((int(path.name.removeprefix("step-")) for path in saved), default=0)
