"""``plmctl verify-resume``: does a killed and resumed run give the result of an uninterrupted run?

A config is run once without interruption, and then again with kills at random moments (from a
seed). The two runs are compared: logs line by line, checkpoints bit for bit, examples by hashes.
``plmctl reproduce`` uses the same comparisons. Each start is a forked process, because importing
torch and transformers takes seconds and a fork takes milliseconds. A forked process is a normal
process: SIGKILL ends it at once.
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
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from plmctl.config.load import kind_of
from plmctl.errors import ConfigError, PlmError, machine_error
from plmctl.files import reserved, writing
from plmctl.formatting import printable
from plmctl.reporting.tables import rows_table
from plmctl.run.budget import copy_decision, with_steps
from plmctl.run.configs import PretrainConfig, RunConfig, load
from plmctl.run.display import say, show_result
from plmctl.run.launch import StartOptions, descendants

if TYPE_CHECKING:
    from plmctl.training.plan import Plan


_ROUNDS = 12  # runs with kills, at most: a run may end, or a kill may miss its moment

_MOMENT_WORDS: dict[Moment, str] = {
    "preparing": "at the start",
    "step": "in steps",
    "saving": "in saves",
}

_MICRO = 3  # examples per micro-batch, when the examples are hashed a second time


@dataclass(frozen=True)
class Options:
    """What to verify.

    Attributes:
        steps: Maximum number of steps of both runs.
        processes: Number of processes for which the examples are hashed again.
        keep: Keep the run folders, also if everything is equal.
    """

    kills: int
    steps: int
    seed: int
    processes: int
    keep: bool


def run(path: Path, overrides: Sequence[str], options: Options, *, as_json: bool) -> None:
    """Run a config without and with kills, and compare; exit with 1 if the runs differ."""
    kind = kind_of(path, overrides)
    if kind not in ("pretrain", "finetune"):
        raise ConfigError(
            f"{path}: a config of the kind {kind}", "give a pretrain or finetune config"
        )
    config: Any = load(kind, path, overrides)
    import_all(config)
    with writing(Path(f"{config.run}.verify")):
        base = reserved(f"{config.run}.verify", folder=True)
    checks, kills = _run_and_compare(config, options, base)
    equal = not any(check.different for check in checks)
    missed = missing(moments(options.kills, options.seed), kills)
    document = {
        "equal": equal,
        "proved": equal and not missed,
        "missed": missed,
        "kills": [asdict(kill) for kill in kills],
        "checks": [asdict(check) for check in checks],
    }
    tables = [_kills_table(kills), _checks_table(checks, _verdict(options, missed, equal=equal))]
    show_result(document, tables, as_json=as_json)
    if equal and not missed and not options.keep:
        shutil.rmtree(base)
        return
    say(f"the runs are in {base}")
    if missed:
        say("the run was too short for all kills: use fewer --kills or more --steps")
    if missed or not equal:
        raise SystemExit(1)


def _verdict(options: Options, missed: list[Moment], *, equal: bool) -> str:
    if not equal:
        return "THE RUNS DIFFER"
    if missed:
        return f"NOT PROVED: {len(missed)} of {options.kills} kills missed their moment"
    return "the killed run equals the uninterrupted run"


def _run_and_compare(
    config: RunConfig, options: Options, base: Path
) -> tuple[list[Check], list[Kill]]:
    whole = _adapted(config, base / "whole", options)
    say(f"running without interruption: at most {options.steps} steps")
    pace = run_whole(command_of(whole, options.steps), base / "whole", base / "whole.log")
    requested = moments(options.kills, options.seed)
    remaining, kills, checks = requested, list[Kill](), list[Check]()
    for number in range(_ROUNDS):
        folder = base / f"killed-{number + 1}"
        killed = _adapted(config, folder, options)
        say(f"running with kills: {len(remaining)}")
        copy_decision(base / "whole", folder)  # a measured time would give other steps
        log, seed = folder.with_suffix(".log"), options.seed + number
        command = command_of(killed, options.steps)
        kills += run_killed(command, folder, log, remaining, seed, pace)
        checks += _compare_runs(base / "whole", folder)
        remaining = missing(requested, kills)
        if not remaining:
            break
    return [*_summed(checks), *_compare_examples(whole, options, base)], kills


def _compare_runs(whole: Path, killed: Path) -> list[Check]:
    last = max((whole / "checkpoints").glob("step-*")).name
    states = compare_states(whole / "checkpoints" / last, killed / "checkpoints" / last)
    samples = [run / "samples.jsonl" for run in (whole, killed)]
    if any(path.is_file() for path in samples):
        ours, theirs = (p.read_bytes().splitlines() if p.is_file() else [] for p in samples)
        states.append(compare_sequences("samples", ours, theirs, "line"))
    checks = [*compare_logs(records(whole), records(killed)), *states]
    return [replace(c, first=f"{killed.name}: {c.first}") if c.first else c for c in checks]


def _summed(checks: list[Check]) -> list[Check]:
    """The checks of all rounds, summed by name."""
    by_name: dict[str, Check] = {}
    for check in checks:
        before = by_name.get(check.name, Check(check.name, 0))
        by_name[check.name] = Check(
            check.name,
            before.compared + check.compared,
            before.different + check.different,
            before.first or check.first,
        )
    return list(by_name.values())


def _compare_examples(config: RunConfig, options: Options, base: Path) -> list[Check]:
    """The examples of every step, with other numbers of processes and other micro-batches."""
    path, log = base / "examples.json", base / "examples.log"
    if code := start_child(partial(_write_digests, config, options, path), log).wait():
        kind = ConfigError if code == ConfigError.exit_code else PlmError
        raise kind(log.read_text(encoding="utf-8").strip())
    digests = json.loads(path.read_text(encoding="utf-8"))
    names = {
        f"examples, {options.processes} processes": "processes",
        f"examples, micro-batches of {_MICRO}": "micro",
    }
    return [
        compare_sequences(name, digests["whole"], digests[key], "step")
        for name, key in names.items()
    ]


def _write_digests(config: RunConfig, options: Options, path: Path) -> None:
    from plmctl.training.data import step_digests
    from plmctl.training.engine import make_accelerator

    plan = plan_of(config, make_accelerator(config.compute))
    digests_of = partial(step_digests, plan, options.steps)
    batch = max(phase.slicing.batch_size for phase in plan.phases)
    digests = {
        "whole": list(digests_of(world=1, micro=batch)),
        "processes": list(digests_of(world=options.processes, micro=batch)),
        "micro": list(digests_of(world=1, micro=_MICRO)),
    }
    with writing(path):
        path.write_text(json.dumps(digests), encoding="utf-8")


def plan_of(config: RunConfig, accelerator: Any) -> Plan:
    """The training plan of a pretrain or finetune config; prepares the text or reads the rows."""
    from plmctl.commands import finetune
    from plmctl.commands.prepare import prepare
    from plmctl.run.preflight import finetune_preflight, preflight
    from plmctl.run.pretraining import make_plan, sample_costs, training_examples

    if isinstance(config, PretrainConfig):
        prepared = preflight(config)
        text = prepare(config, prepared.encoder)
        examples = training_examples(prepared, text)
        decided = with_steps(config, partial(sample_costs, prepared, text, examples))
        return make_plan(decided, examples, accelerator)
    labelled = finetune.read_examples(finetune_preflight(config))
    return finetune.make_plan(config, labelled.train, accelerator)


def _adapted(config: RunConfig, folder: Path, options: Options) -> RunConfig:
    """The config with a separate folder and store, every loss logged, and more checkpoints.

    None of this changes what the run computes; on a GPU it does so with kernels that repeat their
    bits, unless the config says otherwise.
    """
    repeats = config.compute.deterministic is not False
    every = max(1, options.steps // (2 * max(options.kills, 1)))
    changes: dict[str, Any] = {
        "run": str(folder),
        "log": config.log.model_copy(update={"every": 1, "trackers": ()}),
        "checkpoint": config.checkpoint.model_copy(update={"every": every}),
        "compute": config.compute.model_copy(update={"deterministic": repeats}),
    }
    if isinstance(config, PretrainConfig):
        store = str(folder.with_suffix(".stores"))
        changes["data"] = config.data.model_copy(update={"store": store})
    return config.model_copy(update=changes)


def command_of(config: RunConfig, steps: int) -> Callable[[], None]:
    """A function that does what the config's command does, up to a step."""
    from plmctl.commands.finetune import run as run_finetune
    from plmctl.commands.pretrain import run as run_pretrain

    if isinstance(config, PretrainConfig):
        return partial(run_pretrain, config, StartOptions(until=steps), as_json=True)
    return partial(run_finetune, config, StartOptions(until=steps), as_json=True)


def import_all(config: RunConfig) -> None:
    """Import everything that a run needs, but start no threads and no device.

    After CUDA is initialised, a forked process cannot use it. So the devices are counted with NVML.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    from importlib import import_module

    from plmctl.folders import check_model
    from plmctl.run.preflight import check_parts, preflight

    if isinstance(config, PretrainConfig):
        check_parts(config)
    else:
        check_model(config.model)
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

    import_module(type(config_of(config.model)).__module__.replace(".configuration_", ".modeling_"))


def _kills_table(kills: list[Kill]) -> Any:
    rows = [
        (kill.moment, number, round(kill.seconds, 2), kill.logged, kill.saved)
        for number, kill in enumerate(kills, start=1)
    ]
    hit = [kill.moment for kill in kills]
    counts = ", ".join(f"{hit.count(moment)} {name}" for moment, name in _MOMENT_WORDS.items())
    return rows_table(
        f"{len(kills)} kills (SIGKILL): {counts}",
        ("while", "kill", "seconds after start", "last logged step", "resumed after step"),
        rows,
    )


def _checks_table(checks: list[Check], verdict: str) -> Any:
    rows = [(check.name, check.compared, check.different, check.first) for check in checks]
    return rows_table(verdict, ("compared", "count", "different", "first difference"), rows)


# --- Comparing two runs: logs line by line, states bit for bit ---


# Keys of a log line that depend on the machine.
_MACHINE_KEYS = (
    "tokens_per_second",
    "samples_per_second",
    "data_wait",
    "memory_gb",
    "mfu",
    "time",
)


@dataclass(frozen=True)
class Check:
    """The result of one comparison.

    Attributes:
        first: The first difference, in words, after the name of a killed run; empty: none.
    """

    name: str
    compared: int
    different: int = 0
    first: str = ""


def compare_sequences(
    name: str, ours: Iterable[object], theirs: Iterable[object], what: str
) -> Check:
    """Compare two sequences item by item; a missing item counts as different.

    Args:
        what: What an item is, for the message: step, line.
    """
    pairs = list(zip_longest(ours, theirs))
    wrong = [number for number, (a, b) in enumerate(pairs, start=1) if a != b]
    first = f"{what} {wrong[0]}" if wrong else ""
    return Check(name, len(pairs), len(wrong), first)


def records(run: Path) -> list[dict[str, Any]]:
    """The lines of a run's log, without the keys that depend on the machine."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in _MACHINE_KEYS} for line in lines]


def compare_logs(whole: list[dict[str, Any]], other: list[dict[str, Any]]) -> list[Check]:
    """Compare every number of every line; a missing or repeated step counts as different."""
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
    """Compare every tensor of two checkpoints bit for bit."""
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
    """Whether all bits are equal: nan equals nan, and 0 differs from -0."""
    if ours is None or theirs is None:
        return False
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    return bool(ours.numpy(force=True).tobytes() == theirs.numpy(force=True).tobytes())


def _first_difference(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> str:
    """The first difference of two logs, in words."""
    for a, b in zip_longest(ours, theirs):
        if a == b:
            continue
        if a is None or b is None:
            return f"step {(a or b)['step']} is in one log only"
        key = next(key for key in {**a, **b} if a.get(key) != b.get(key))
        return f"step {a['step']}: {key} {a.get(key)!r}, {b.get(key)!r}"
    return ""


# --- Runs that are killed while they prepare text, train and save ---


Moment = Literal["preparing", "step", "saving"]

_POLL = 0.0005  # seconds between two looks at the folder: a small checkpoint takes milliseconds

_DONE = (0, 75)  # exit codes: finished, or stopped at the step of `--until`


@dataclass(frozen=True)
class Kill:
    """One kill.

    Attributes:
        moment: What the process was doing, judged by the files in its folder.
        seconds: Time from its start to the kill.
        logged: The last step in its log; 0 if there is none.
        saved: The step from which the next start resumes; 0 if there is no checkpoint.
    """

    moment: Moment
    seconds: float
    logged: int
    saved: int


@dataclass(frozen=True)
class RunPace:
    """How long an uninterrupted run takes, in seconds.

    Attributes:
        preparing: From the start to the first step.
        training: From the first step to the end.
        saving: The longest save of a checkpoint.
    """

    preparing: float
    training: float
    saving: float


def run_whole(command: Callable[[], None], folder: Path, log: Path) -> RunPace:
    """Run a command to its end, and measure how long its stages take.

    Raises:
        PlmError: The command failed.
    """
    began = time.perf_counter()
    child, started, saves, saving = start_child(command, log), 0.0, [0.0], 0.0
    while not child.ended():
        now = time.perf_counter()
        if not started and (folder / "events").exists():
            started = now
        if _saves(folder):
            saving = saving or now
        elif saving:
            saves.append(now - saving)
            saving = 0.0
        time.sleep(_POLL)
    _check_ended_well(child, log)
    ended = time.perf_counter()
    return RunPace((started or ended) - began, ended - (started or ended), max(saves))


def run_killed(
    command: Callable[[], None],
    folder: Path,
    log: Path,
    requested: list[Moment],
    seed: int,
    pace: RunPace,
) -> list[Kill]:
    """Start a command again and again, kill it at each of the moments, then run it to its end.

    A kill can miss its moment, for example if the save ended just before it: see ``missing``.

    Args:
        pace: How long the stages of an uninterrupted run take.

    Returns:
        The kills: fewer than requested if the run ended before the last one.

    Raises:
        PlmError: The command failed without a kill.
    """
    draw, kills = random.Random(seed), list[Kill]()
    # The mean wait is half of this, so that the kills are spread over the run.
    longest = 1.6 * pace.training / (len(requested) + 1)
    for moment in requested:
        began, num_events = time.perf_counter(), _num_lines(folder / "events")
        before = _saves(folder)
        child = start_child(command, log)
        if moment == "preparing":
            _wait(child, draw.random() * pace.preparing)
        else:
            while _num_lines(folder / "events") <= num_events and not child.ended():
                time.sleep(_POLL)
            while moment == "step" and not _saved(folder) and not child.ended():
                time.sleep(_POLL)
            _wait(child, draw.random() * longest)
        if moment == "saving":
            _wait_for_save(child, folder, before, lambda: draw.random() * pace.saving)
        if child.ended():
            break
        child.kill()
        seconds = time.perf_counter() - began
        hit: Moment = "step" if _num_lines(folder / "events") > num_events else "preparing"
        if _saves(folder) - before:
            hit = "saving"
        kills.append(Kill(hit, seconds, _logged(folder), _saved(folder)))
    else:
        child = start_child(command, log)
        child.wait()
    _check_ended_well(child, log)
    return kills


def moments(kills: int, seed: int) -> list[Moment]:
    """The moments of the kills: first a fifth while preparing, then steps and saves, shuffled."""
    first = max(1, kills // 5) if kills else 0
    draw = random.Random(seed)
    rest: list[Moment] = ["saving" if n % 2 else "step" for n in range(kills - first)]
    draw.shuffle(rest)
    early: list[Moment] = ["preparing"] * first
    return early + rest


def missing(requested: list[Moment], kills: list[Kill]) -> list[Moment]:
    """The requested moments that no kill has hit yet, in their order.

    A kill in a step counts only if there was a checkpoint: otherwise nothing would be resumed.
    """
    hit = [kill.moment for kill in kills if kill.saved or kill.moment != "step"]
    missed = []
    for moment in requested:
        if moment in hit:
            hit.remove(moment)
        else:
            missed.append(moment)
    return missed


def _check_ended_well(child: Child, log: Path) -> None:
    if child.wait() not in _DONE:
        failed = f"the run failed without a kill (exit code {child.code})"
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-8:]
        if not last:
            raise PlmError(
                f"{failed}, and nothing of its output could be written to {log}",
                "see whether the disk is full, and give the command again",
            )
        output = "\n  ".join(last)
        raise PlmError(f"{failed}; its last output:\n  {output}", f"read its whole output in {log}")


def _wait(child: Child, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end and not child.ended():
        time.sleep(_POLL)


def _wait_for_save(
    child: Child, folder: Path, before: set[tuple[str, int]], seconds: Callable[[], float]
) -> None:
    """Wait until a save has run for some time. If the save ends before, wait for the next one.

    Then the time is halved: it is drawn from the longest save, which may have been unusually long.
    """
    share = 1.0
    while not child.ended():
        if saves := _saves(folder) - before:
            _wait(child, share * seconds())
            if saves & _saves(folder):
                return
            share /= 2
        time.sleep(_POLL)


def _num_lines(path: Path) -> int:
    try:
        return path.read_bytes().count(b"\n")
    except OSError:
        return 0


def _saves(folder: Path) -> set[tuple[str, int]]:
    """The unfinished saves: those that are being written, and those that a kill interrupted."""
    names = set()
    for path in (folder / "checkpoints").glob(".step-*.writing"):
        with suppress(OSError):  # it was just renamed
            names.add((path.name, path.stat().st_ctime_ns))
    return names


def _logged(folder: Path) -> int:
    """The last step of a log; its last line may be incomplete."""
    try:
        lines = (folder / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    except OSError:
        return 0
    whole = [line for line in lines if line.endswith(b"\n")]
    return int(json.loads(whole[-1])["step"]) if whole else 0


def _saved(folder: Path) -> int:
    """The step of the last checkpoint; 0 if there is none."""
    saved = (folder / "checkpoints").glob("step-*")
    return max((int(path.name.removeprefix("step-")) for path in saved), default=0)


# --- A command in a forked process ---


@dataclass
class Child:
    """A process that this process started.

    Attributes:
        code: Its exit code, negative for a signal; None while it runs.
    """

    pid: int
    code: int | None = None

    def ended(self) -> bool:
        """Whether it has ended; does not wait."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code is not None

    def wait(self) -> int:
        """Wait until it ends, and return its exit code."""
        if self.code is None:
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def kill(self) -> None:
        """Send SIGKILL to it and to all processes that it has started."""
        for pid in (self.pid, *descendants(self.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it has just ended
                continue
        self.wait()


def start_child(function: Callable[[], None], log: Path) -> Child:
    """Run a function in a forked process, with its output appended to ``log``."""
    sys.stdout.flush()
    sys.stderr.flush()
    with writing(log):
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    pid = os.fork()
    if pid:
        os.close(handle)
    if pid:
        return Child(pid)
    code = 1
    try:
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        code = _exit_code(function)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)  # never return into the parent's program


def _exit_code(function: Callable[[], None]) -> int:
    try:
        function()
    except PlmError as error:
        print(printable(f"plmctl: {error}"), file=sys.stderr)
        return error.exit_code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException as error:
        known = machine_error(error)
        if known is None:
            traceback.print_exc()
        else:
            print(printable(f"plmctl: {known}"), file=sys.stderr)
        return 1
    return 0
