"""``plmctl verify-resume``: is a run that is killed at any moment the same run?

A config is run whole, then killed again and again at moments that a seed draws. Both are compared:
logs line by line, states bit for bit, examples by their hashes. ``plmctl reproduce`` uses the same
comparisons. The commands run in forked processes: importing torch and transformers takes seconds,
a fork milliseconds. Such a process is a real one, and SIGKILL ends it as any other.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plmctl.config.load import kind_of
from plmctl.errors import ConfigError, PlmError
from plmctl.reporting.tables import rows_table
from plmctl.run.budget import copy_decision
from plmctl.run.configs import PretrainConfig, load
from plmctl.run.display import say, show_result
from plmctl.run.folder import free_name
from plmctl.run.launch import descendants
from plmctl.run.preflight import RunConfig

if TYPE_CHECKING:
    from plmctl.training.loop import Plan


_ROUNDS = 12  # restarts of the run, because it ended or a kill missed its moment

_MOMENT_WORDS: dict[Moment, str] = {
    "preparing": "at the start",
    "step": "in steps",
    "saving": "in saves",
}

_MICRO = 3  # examples of the other micro-batches


@dataclass(frozen=True)
class Wanted:
    """What is to be proved.

    Attributes:
        kills: How many.
        steps: The steps of both runs, at most.
        seed: Decides the moments.
        processes: Another number of them, under which the examples are hashed.
        keep: Leave the folders even where all is equal.
    """

    kills: int
    steps: int
    seed: int
    processes: int
    keep: bool


def run(path: Path, overrides: Sequence[str], wanted: Wanted, *, as_json: bool) -> None:
    """Run a config whole, then killed again and again, and compare; exit with 1 if they differ."""
    kind = kind_of(path, overrides)
    if kind not in ("pretrain", "finetune"):
        raise ConfigError(f"{path}: a config of {kind}", "verify-resume takes a training's config")
    config: Any = load(kind, path, overrides)
    import_all(config)
    base = free_name(f"{config.run}.verify")
    base.mkdir(parents=True)
    checks, kills = _prove(config, wanted, base)
    equal = not any(check.different for check in checks)
    left = missing(moments(wanted.kills, wanted.seed), kills)
    document = {
        "equal": equal,
        "proved": equal and not left,
        "missed": left,
        "kills": [asdict(kill) for kill in kills],
        "checks": [asdict(check) for check in checks],
    }
    tables = [_kills_table(kills), _checks_table(checks, _verdict(wanted, left, equal=equal))]
    show_result(document, tables, as_json=as_json)
    if equal and not left and not wanted.keep:
        shutil.rmtree(base)
        return
    say(f"the runs are in {base}")
    if left:
        say("ask for fewer --kills, or for more --steps: the run is over too soon for all of them")
    if left or not equal:
        raise SystemExit(1)


def _verdict(wanted: Wanted, left: list[Moment], *, equal: bool) -> str:
    if not equal:
        return "THE RUNS DIFFER"
    if left:
        return f"NOT PROVED: {len(left)} of {wanted.kills} kills missed their moments"
    return "the killed run is the uninterrupted one"


def _prove(config: RunConfig, wanted: Wanted, base: Path) -> tuple[list[Check], list[Kill]]:
    whole = _changed(config, base / "whole", wanted)
    say(f"the uninterrupted run: {wanted.steps} steps at most")
    pace = run_whole(body_of(whole, wanted.steps), base / "whole", base / "whole.log")
    asked = moments(wanted.kills, wanted.seed)
    todo, kills, checks = asked, list[Kill](), list[Check]()
    for number in range(_ROUNDS):
        folder = base / f"killed-{number + 1}"
        killed = _changed(config, folder, wanted)
        copy_decision(base / "whole", folder)  # a measured time would give other steps
        say(f"the same, to be killed {len(todo)} times")
        log, seed = folder.with_suffix(".log"), wanted.seed + number
        made = run_killed(body_of(killed, wanted.steps), folder, log, todo, seed, pace)
        kills += made
        checks += _compared(base / "whole", folder)
        todo = missing(asked, kills)
        if not todo:
            break
    return [*_merged(checks), *_examples(whole, wanted, base)], kills


def _compared(whole: Path, killed: Path) -> list[Check]:
    last = max((whole / "checkpoints").glob("step-*")).name
    states = compare_states(whole / "checkpoints" / last, killed / "checkpoints" / last)
    return [*compare_logs(records(whole), records(killed)), *states]


def _merged(checks: list[Check]) -> list[Check]:
    """One line a kind of thing, over all rounds."""
    found: dict[str, Check] = {}
    for check in checks:
        before = found.get(check.name, Check(check.name, 0))
        found[check.name] = Check(
            check.name,
            before.compared + check.compared,
            before.different + check.different,
            before.first or check.first,
        )
    return list(found.values())


def _examples(config: RunConfig, wanted: Wanted, base: Path) -> list[Check]:
    """The examples of every step, under other processes and other micro-batches."""
    path = base / "examples.json"
    done = start_child(partial(_write_digests, config, wanted, path), base / "examples.log")
    if done.wait():
        raise ConfigError((base / "examples.log").read_text(encoding="utf-8").strip())
    found = json.loads(path.read_text(encoding="utf-8"))
    names = {
        f"examples, {wanted.processes} processes": "processes",
        f"examples, micro-batches of {_MICRO}": "micro",
    }
    return [
        compare_sequences(name, found["whole"], found[key], "step") for name, key in names.items()
    ]


def _write_digests(config: RunConfig, wanted: Wanted, path: Path) -> None:
    from plmctl.training.data import step_digests
    from plmctl.training.engine import make_accelerator

    plan = plan_of(config, make_accelerator(config.compute))
    digests = partial(step_digests, plan, wanted.steps)
    batch = config.train.batch_size
    found = {
        "whole": list(digests(world=1, micro=batch)),
        "processes": list(digests(world=wanted.processes, micro=batch)),
        "micro": list(digests(world=1, micro=_MICRO)),
    }
    path.write_text(json.dumps(found), encoding="utf-8")


def plan_of(config: RunConfig, accelerator: Any) -> Plan:
    """The steps of a pretraining or finetuning, with its text prepared or its rows read."""
    from plmctl.commands import finetune, pretrain
    from plmctl.commands.prepare import prepare
    from plmctl.run.preflight import preflight

    if isinstance(config, PretrainConfig):
        prepared = preflight(config)
        text = prepare(config, prepared.encoder)
        examples = pretrain.training_examples(prepared, text)
        decided = pretrain.with_steps(prepared, text, examples)
        return pretrain.make_plan(decided, examples, accelerator)
    return finetune.make_plan(config, finetune.read_examples(config).train, accelerator)


def _changed(config: RunConfig, folder: Path, wanted: Wanted) -> RunConfig:
    """The config with a folder and a store of its own, every loss logged, and enough checkpoints.

    What a run computes depends on none of these.
    """
    every = max(1, wanted.steps // (2 * max(wanted.kills, 1)))
    changes: dict[str, Any] = {
        "run": str(folder),
        "log": config.log.model_copy(update={"every": 1, "trackers": ()}),
        "checkpoint": config.checkpoint.model_copy(update={"every": every}),
    }
    if isinstance(config, PretrainConfig):
        store = str(folder.with_suffix(".stores"))
        changes["data"] = config.data.model_copy(update={"store": store})
    return config.model_copy(update=changes)


def body_of(config: RunConfig, steps: int) -> Callable[[], None]:
    """What a config's command does, up to a step."""
    from plmctl.commands.finetune import run as run_finetune
    from plmctl.commands.pretrain import run as run_pretrain

    if isinstance(config, PretrainConfig):
        return partial(run_pretrain, config, fresh=False, as_json=True, until=steps)
    return partial(run_finetune, config, fresh=False, as_json=True, until=steps)


def import_all(config: RunConfig) -> None:
    """Import all that a run needs, and start nothing: no threads, no device.

    Asking CUDA how many devices there are would make it useless in forked processes; NVML is asked.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    from importlib import import_module

    from plmctl.run.preflight import preflight

    for name in (
        "plmctl.training.loop",
        "plmctl.training.journal",
        "plmctl.evaluation.scoring",
        "plmctl.commands.pretrain",
    ):
        import_module(name)
    if isinstance(config, PretrainConfig):
        preflight(config)
        return
    from plmctl.models.load import config_of
    from plmctl.run.preflight import check_model

    check_model(config.model)
    import_module(type(config_of(config.model)).__module__.replace(".configuration_", ".modeling_"))


def _kills_table(kills: list[Kill]) -> Any:
    rows = [
        (kill.moment, number, round(kill.seconds, 2), kill.logged, kill.saved)
        for number, kill in enumerate(kills, start=1)
    ]
    hit = [kill.moment for kill in kills]
    landed = ", ".join(f"{hit.count(moment)} {name}" for moment, name in _MOMENT_WORDS.items())
    return rows_table(
        f"{len(kills)} kills (SIGKILL): {landed}",
        ("while", "kill", "seconds after its start", "last logged step", "resumed after step"),
        rows,
    )


def _checks_table(checks: list[Check], verdict: str) -> Any:
    rows = [(check.name, check.compared, check.different, check.first) for check in checks]
    return rows_table(verdict, ("compared", "how many", "different", "first difference"), rows)


# --- Comparing two runs: logs line by line, states bit for bit ---


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


def compare_sequences(
    name: str, ours: Iterable[object], theirs: Iterable[object], what: str
) -> Check:
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
    """Every number of every line; and whether a step is missing or there twice."""
    checks = []
    for name, key in (("logged losses", "loss"), ("validations", "valid/loss")):
        ours, theirs = ([line for line in log if key in line] for log in (whole, other))
        if ours or theirs:
            check = compare_sequences(name, ours, theirs, "line")
            checks.append(
                Check(check.name, check.compared, check.different, _first_difference(ours, theirs))
            )
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
            n
            for n in names
            if n not in ours or n not in theirs or not _bitwise_equal(ours[n], theirs[n])
        ]
        checks.append(Check(path.stem, len(names), len(wrong), wrong[0] if wrong else ""))
    return checks


def _bitwise_equal(ours: Any, theirs: Any) -> bool:
    """Bit for bit: nan equals itself, and 0 is not -0."""
    if ours is None or theirs is None:
        return False
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    return bool(ours.numpy(force=True).tobytes() == theirs.numpy(force=True).tobytes())


def _first_difference(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> str:
    """The first difference of two logs."""
    for a, b in zip_longest(ours, theirs):
        if a == b:
            continue
        if a is None or b is None:
            return f"step {(a or b)['step']} is in one log only"
        key = next(key for key in {**a, **b} if a.get(key) != b.get(key))
        return f"step {a['step']}: {key} {a.get(key)!r}, {b.get(key)!r}"
    return ""


# --- Runs that are killed while they prepare, step and save ---


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
        saved: The step that the next start resumes from; 0 if there is none.
    """

    moment: Moment
    seconds: float
    logged: int
    saved: int


@dataclass(frozen=True)
class RunPace:
    """How long an uninterrupted run takes, in seconds.

    Attributes:
        preparing: Until its first step.
        training: From there to its end.
        saving: A checkpoint.
    """

    preparing: float
    training: float
    saving: float


def run_whole(body: Callable[[], None], folder: Path, log: Path) -> RunPace:
    """Run a command to its end, and see how long its parts take.

    Raises:
        PlmError: It failed.
    """
    began = time.perf_counter()
    child, started, saves, saving = start_child(body, log), 0.0, [0.0], 0.0
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
    _check_ended_well(child, log)
    ended = time.perf_counter()
    return RunPace((started or ended) - began, ended - (started or ended), max(saves))


def run_killed(
    body: Callable[[], None],
    folder: Path,
    log: Path,
    wanted: list[Moment],
    seed: int,
    pace: RunPace,
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
        child = start_child(body, log)
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
        child = start_child(body, log)
        child.wait()
    _check_ended_well(child, log)
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


def _check_ended_well(child: Child, log: Path) -> None:
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


# --- A command in a forked process ---


@dataclass
class Child:
    """A process that was started.

    Attributes:
        pid: Its number.
        code: Its exit code, negative for a signal; None while it runs.
    """

    pid: int
    code: int | None = None

    def ended(self) -> bool:
        """Whether it is over; does not wait."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def wait(self) -> int:
        """Its exit code."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def kill(self) -> None:
        """SIGKILL, for it and for all that it has started."""
        for pid in (self.pid, *descendants(self.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it was just over
                continue
        self.wait()


def start_child(body: Callable[[], None], log: Path) -> Child:
    """Run ``body`` as a command; what it says goes to ``log``."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Child(pid)
    code = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        code = _exit_code(body)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)  # never back into the parent's program


def _exit_code(body: Callable[[], None]) -> int:
    try:
        body()
    except PlmError as error:
        print(f"plmctl: {error}", file=sys.stderr)
        return error.exit_code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
