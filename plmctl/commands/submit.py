"""``plmctl submit``: a run as a job of Slurm.

It writes and shows a batch script, and submits it only with ``--now``. The script starts one
``plmctl`` per node. Before the time limit Slurm signals the script, plmctl saves a checkpoint and
exits with 75, and the script puts the job back into the queue: the same command resumes.

Nothing in the script depends on which node it is on: each ``plmctl`` reads Slurm's variables in its
own process. (A variable such as ``$SLURM_NODEID`` in a batch script is that of the first node.)
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from string import Template
from typing import Any, Literal

from plmctl.config.load import COMMANDS, kind_of
from plmctl.config.sections import ComputeConfig
from plmctl.config.units import Duration
from plmctl.errors import ConfigError, PlmError, did_you_mean, near_names
from plmctl.files import write_atomically, writing
from plmctl.hashing import digest_of_json
from plmctl.run.configs import FinetuneConfig, PretrainConfig, load
from plmctl.run.display import say, show_result

# --- The options of sbatch ---


# Options that users give and that are written as they are. Names without a value are flags.
_OPTIONS = frozenset({
    "account", "begin", "clusters", "comment", "constraint", "cpus-per-gpu", "cpus-per-task",
    "deadline", "dependency", "error", "exclude", "export", "gpus", "gpus-per-node",
    "gpus-per-task", "gres", "hint", "job-name", "licenses", "mail-type", "mail-user", "mem",
    "mem-per-cpu", "mem-per-gpu", "nice", "nodelist", "nodes", "output", "partition", "prefer",
    "priority", "qos", "reservation", "switches", "time", "time-min", "tmp", "wckey",
})  # fmt: skip
_FLAGS = frozenset({"exclusive", "contiguous", "hold"})

# Options that are plmctl's part, with what to set instead.
_OWN = {
    "array": "a job trains one run; submit a job for each",
    "chdir": "run `plmctl submit` in the folder of the run",
    "ntasks": "a node has one task, which starts its processes: set launch.processes",
    "ntasks-per-node": "a node has one task, which starts its processes: set launch.processes",
    "open-mode": "it is append, so that a job that is queued again keeps its log",
    "requeue": "set --requeues",
    "no-requeue": "set --requeues 0",
    "signal": "set --save-before",
    "wrap": "the command is that of the config",
}

_GPU_OPTIONS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")
_CPU_OPTIONS = ("cpus-per-task", "cpus-per-gpu")


# Slurm's own forms: minutes, minutes:seconds, hours:minutes:seconds, days-hours ...
_SLURM_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")

_LONGEST_SIGNAL = 65_535  # seconds before the limit, of Slurm


Options = dict[str, str | None]
"""Options of sbatch by name; None: a flag."""


def split_arguments(arguments: Sequence[str], sections: Sequence[str]) -> tuple[list[str], Options]:
    """The overrides of the config and the options of Slurm among the arguments of the command.

    Args:
        arguments: ``KEY=VALUE`` with a key of the config, ``NAME=VALUE`` with an option of sbatch,
            or a flag of sbatch.
        sections: The first parts of the config's keys.

    Raises:
        ConfigError: It is neither, or an option that plmctl sets itself.
    """
    overrides: list[str] = []
    options: Options = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        name = name.strip().removeprefix("--")
        if equals and re.split(r"[.\[]", name)[0] in sections:
            overrides.append(argument)
        elif name in _OWN:
            raise ConfigError(f"{name}: plmctl sets this option of Slurm", _OWN[name])
        elif (equals and name in _OPTIONS and value) or (not equals and name in _FLAGS):
            options[name] = value if equals else None
        elif name in _OPTIONS:
            raise ConfigError(f"{name}: expected a value, as in {name}=...")
        else:
            known = [*sections, *_OPTIONS, *_FLAGS]
            near = did_you_mean(near_names(name, known)) or ""
            raise ConfigError(
                f"{argument}: neither a key of the config nor an option of Slurm{near}",
                "add a line for an option of your cluster to the script yourself",
            )
    return overrides, options


def time_limit(text: str) -> tuple[str, int]:
    """A time limit as Slurm takes it, and in seconds.

    Args:
        text: ``24h``, or as Slurm writes it: minutes, ``HH:MM:SS``, ``D-HH:MM:SS``.

    Raises:
        ConfigError: It is no time.
    """
    if text.strip().upper() in ("UNLIMITED", "INFINITE"):
        return "UNLIMITED", sys.maxsize
    if match := _SLURM_TIME.fullmatch(text.strip()):
        days, *parts = match.groups()
        numbers = [int(part) for part in parts if part is not None]
        if days is not None:  # days-hours:minutes:seconds
            sizes = (3600, 60, 1)
        else:  # minutes; minutes:seconds; hours:minutes:seconds
            sizes = (3600, 60, 1) if len(numbers) == 3 else (60, 1, 0)
        seconds = sum(number * size for number, size in zip(numbers, sizes, strict=False))
        return text.strip(), seconds + 86_400 * int(days or 0)
    seconds = 60 * ceil(Duration.of(text, "time").number / 60)  # Slurm counts minutes
    days_, left = divmod(seconds, 86_400)
    clock = f"{left // 3600:02}:{left // 60 % 60:02}:00"
    return (f"{days_}-{clock}" if days_ else clock), seconds


# --- A job: what it asks Slurm for, by the config ---


@dataclass(frozen=True)
class Job:
    """A job of Slurm that runs a command of plmctl.

    Attributes:
        command: ``pretrain``, ``finetune`` or ``prepare``.
        arguments: What follows it: the config and its overrides.
        options: The options of sbatch, those of the user last.
        requeues: How many times the job is put back into the queue.
        before: Lines of shell before the command.
    """

    command: str
    arguments: Sequence[str]
    script: Path
    options: Options
    save_before: Duration
    requeues: int
    before: Sequence[str]
    notes: Sequence[str]

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.options["nodes"] or 1)


def node_options(machines: int | Literal["auto"], options: Options, *, training: bool) -> Options:
    """Number of nodes, each with one task.

    Raises:
        ConfigError: The user's option contradicts it.
    """
    nodes = _number(options, "nodes")
    if not training:
        if nodes is not None and nodes > 1:
            raise ConfigError(
                f"nodes: {nodes}, but `plmctl prepare` runs on one node", "leave it out"
            )
    elif machines != "auto":
        if nodes not in (None, machines):
            raise ConfigError(
                f"nodes: {nodes}, but launch.machines is {machines}", "leave out one of the two"
            )
        nodes = machines
    return {"nodes": str(nodes or 1), "ntasks-per-node": "1"}


def gpu_options(
    processes: int | Literal["auto"], options: Options, notes: list[str]
) -> tuple[Options, int]:
    """A GPU for each process, and the processes of a node; 0: unknown.

    Args:
        notes: Gets a line if no GPU is requested.

    Raises:
        ConfigError: The user's option contradicts it.
    """
    there = _number(options, "gpus-per-node")
    requested = any(name in options for name in _GPU_OPTIONS)
    if processes == "auto":
        if not requested:
            notes.append(
                "no GPU is requested, since launch.processes is auto: add gpus-per-node=4, or set "
                "launch.processes (compute.device=cpu for a run without GPUs)"
            )
        return {}, there or 0
    if there is not None and processes > there:
        raise ConfigError(
            f"gpus-per-node: {there}, but launch.processes is {processes}: one GPU for each",
            "request as many, or leave launch.processes out",
        )
    return ({} if requested else {"gpus-per-node": str(processes)}), processes


def limit_options(options: Options, save_before: Duration) -> Options:
    """The time limit as Slurm takes it.

    Raises:
        ConfigError: It leaves no time to train.
    """
    if save_before.number > _LONGEST_SIGNAL:
        raise ConfigError(
            f"--save-before: {save_before} is more than Slurm's {_LONGEST_SIGNAL} seconds"
        )
    limit = options.get("time")
    if limit is None:
        return {}
    text, seconds = time_limit(limit)
    if seconds <= save_before.number + 60:  # Slurm may send the signal a minute early
        raise ConfigError(
            f"time: {limit} leaves no time to train: plmctl saves {save_before} before the "
            "limit, and Slurm may signal a minute earlier",
            "increase the time, or set a shorter --save-before",
        )
    return {"time": text}


def job_options(
    config: PretrainConfig | FinetuneConfig,
    options: Options,
    script: Path,
    save_before: Duration,
    *,
    training: bool,
) -> tuple[Options, list[str]]:
    """The options of sbatch by the config, those of the user last; and notes for the user."""
    notes: list[str] = []
    run = Path(config.run).name
    log = f"{Path.cwd() / script.with_suffix('')}".replace("%", "%%")
    chosen: Options = {
        "job-name": run if training else f"prepare-{run}",
        "output": f"{log}-%j.out",
        "open-mode": "append",
        "chdir": str(Path.cwd()),
        **node_options(config.launch.machines, options, training=training),
    }
    cpus = 0
    if training and config.compute.device == "cpu":
        processes = config.launch.processes
        cpus = _cpus(config.compute, 1 if processes == "auto" else processes, on_cpu=True)
    elif training:
        gpus, count = gpu_options(config.launch.processes, options, notes)
        chosen |= gpus
        cpus = _cpus(config.compute, count, on_cpu=False)
    if not any(name in options for name in _CPU_OPTIONS):
        if cpus:
            chosen["cpus-per-task"] = str(cpus)
        else:
            notes.append(
                "no CPUs are requested, and a node's task gets the cluster's default, often one: "
                "add cpus-per-task=16"
            )
    return {**chosen, **options, **limit_options(options, save_before)}, notes


def _number(options: Mapping[str, str | None], name: str) -> int | None:
    """The number of an option such as ``gpus-per-node=a100:4``; None: it is not given.

    Raises:
        ConfigError: It has no number.
    """
    text = options.get(name)
    if text is None:
        return None
    number = text.rpartition(":")[2]
    if not number.isdecimal() or int(number) < 1:
        raise ConfigError(f"{name}: expected a whole number, not {text!r}")
    return int(number)


def _cpus(compute: ComputeConfig, processes: int, *, on_cpu: bool) -> int:
    """CPUs of a node; 0: unknown.

    Each process has its threads and its workers; beside a GPU one more CPU, for the threads that
    save and communicate.
    """
    workers = compute.workers
    if on_cpu:
        return processes * ((compute.threads or 0) + (workers if workers != "auto" else 0))
    return processes * ((compute.threads or 1) + (2 if workers == "auto" else workers) + 1)


# --- The script ---


# The hash shows whether the user has changed the script since.
_MARK = re.compile(r"^# Written by plmctl submit \(([0-9a-f]*)\)", re.MULTILINE)


class _Script(Template):
    """``slurm.sbatch``, whose ``$`` is the shell's."""

    delimiter = "@"


def write_script(job: Job) -> str:
    """The text of a job's batch script."""
    options: Options = {
        **job.options,
        "signal": f"B:USR1@{ceil(job.save_before.number)}",
        "requeue" if job.requeues else "no-requeue": None,
    }
    directives = [
        f"#SBATCH --{name}" + ("" if value is None else f"={shlex.quote(value)}")
        for name, value in options.items()
    ]
    step = [f"--nodes={job.nodes}", f"--ntasks={job.nodes}", "--ntasks-per-node=1"]
    # srun does not take this over from sbatch, since Slurm 22.05.
    step += [f"--cpus-per-task={options['cpus-per-task']}"] if "cpus-per-task" in options else []
    step += ["--kill-on-bad-exit=0", "--wait=0"]
    command = [sys.executable, "-m", "plmctl", job.command, *job.arguments]
    template = Path(__file__).with_name("slurm.sbatch").read_text(encoding="utf-8")
    text = _Script(template).substitute(
        script=shlex.quote(str(job.script)),
        directives="\n".join(directives),
        requeues=job.requeues,
        before="".join(f"\n{line}" for line in job.before) + "\n" * bool(job.before),
        step=" ".join(step),
        command=shlex.join(command),
    )
    return text.replace("()", f"({_digest(text)})", 1)


def _digest(text: str) -> str:
    """The hash of a script, without the one that is written in it."""
    return digest_of_json(_MARK.sub("", text))


# --- The command ---


def run(
    typed: str,
    path: Path,
    arguments: Sequence[str],
    *,
    prepare: bool,
    script: Path | None,
    save_before: str,
    requeues: int,
    before: Sequence[str],
    now: bool,
    as_json: bool,
) -> None:
    """Write and show the batch script of a config; submit it with ``now``.

    Args:
        arguments: Overrides of the config and options of sbatch.
        script: Where the script goes; None: beside the run folder.
        save_before: How long before the time limit plmctl saves.
        before: Lines of shell before the command.

    Raises:
        ConfigError: A wrong config or option, or a file of the user is in the script's place.
        PlmError: The script cannot be written, or sbatch refused it.
    """
    kind = kind_of(path)
    if kind not in ("pretrain", "finetune"):
        raise ConfigError(
            f"{path}: a config for `plmctl {COMMANDS[kind]}`",
            "a job pretrains, finetunes or prepares: give a pretrain or finetune config",
        )
    if prepare and kind == "finetune":
        raise ConfigError(
            f"--prepare: {path} is for `plmctl finetune`, which has no text to prepare",
            "leave it out",
        )
    fields = (PretrainConfig if kind == "pretrain" else FinetuneConfig).model_fields
    overrides, options = split_arguments(arguments, list(fields))
    config: Any = load(kind, path, overrides)
    ending = "-prepare.sbatch" if prepare else ".sbatch"
    script = script or Path(config.run).with_name(Path(config.run).name + ending)
    warning = Duration.of(save_before, "--save-before")
    chosen, notes = job_options(config, options, script, warning, training=not prepare)
    command = "prepare" if prepare else kind
    job = Job(command, [typed, *overrides], script, chosen, warning, requeues, before, notes)
    text = write_script(job)
    _refuse_to_replace(job.script)
    with writing(job.script) as place:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, text)
    if not as_json:
        print(text, flush=True)
    for line in _summary(job):
        say(line)
    number = _submit(job) if now else None
    if not now:
        say(f"nothing is submitted yet: sbatch {shlex.quote(str(job.script))}, or add --now")
    if as_json:
        facts = {"script": str(job.script), "command": job.command, "nodes": job.nodes}
        show_result({**facts, "job": number, "text": text}, [], as_json=True)


def _refuse_to_replace(script: Path) -> None:
    """Refuse to replace what this command has not written, or what was changed since.

    Raises:
        ConfigError: There is such a file.
    """
    if script.is_dir():
        raise ConfigError(f"{script} is a folder", "name a file with --out")
    if not script.is_file():
        return
    text = script.read_text(encoding="utf-8", errors="replace")
    mark = _MARK.search(text)
    if mark is None:
        raise ConfigError(
            f"{script} exists, and was not written by `plmctl submit`", "name another with --out"
        )
    if mark[1] != _digest(text):
        raise ConfigError(
            f"{script} was changed since `plmctl submit` wrote it",
            f"submit it as it is (sbatch {script}), remove it, or name another with --out",
        )


def _summary(job: Job) -> list[str]:
    nodes = "1 node" if job.nodes == 1 else f"{job.nodes} nodes"
    limit = f" ({job.options['time']})" if "time" in job.options else ""
    kept = "finished work is kept" if job.command == "prepare" else "it saves a checkpoint"
    queued = f"put back into the queue, at most {job.requeues} times"
    lines = [
        f"wrote {job.script}: `plmctl {job.command} {shlex.join(job.arguments)}` on {nodes}",
        f"{job.save_before} before the time limit{limit} {kept}, and the job "
        + (f"is {queued}" if job.requeues else "ends"),
    ]
    return [*lines, *(f"note: {note}" for note in job.notes)]


def _submit(job: Job) -> str:
    """Hand a script to sbatch; returns the number of the job.

    Raises:
        PlmError: There is no sbatch here, or it refused the script.
    """
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(job.script)], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise PlmError(
            f"sbatch cannot be run here: {error.strerror}",
            f"submit the script on a machine of the cluster: sbatch {job.script}",
        ) from error
    if done.returncode:
        raise PlmError(f"sbatch refused {job.script}: {done.stderr.strip()}", "change the option")
    number = done.stdout.strip().partition(";")[0]  # with the name of the cluster after it
    log = str(job.options["output"]).replace("%j", number)
    say(f"submitted as job {number}; its log is {log}; `scancel {number}` saves and ends it")
    return number
