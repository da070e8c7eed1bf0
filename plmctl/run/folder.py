"""The run folder: made once, resumed by the same command, never overwritten by another.

``status.json`` says whether the run is running, stopped, failed or finished. A run is finished when
all files that it promised exist; after a kill or a full disk, the same command writes what is
missing. Here are also the files that every run writes: its status, its environment, its results,
and the ``model/`` folder.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Literal

from plmctl import __version__
from plmctl.addresses import shown
from plmctl.config.base import Model
from plmctl.config.load import difference, dump, parse
from plmctl.errors import ConfigError, DataError, PlmError, Preempted, listed
from plmctl.files import (
    is_edited,
    is_model,
    move_aside,
    new_folder,
    read_json,
    with_checksum,
    write_atomically,
    writing,
)
from plmctl.folders import check_run_files
from plmctl.hashing import changed
from plmctl.reporting.run_files import Status, read_status
from plmctl.run import launch
from plmctl.run.display import say
from plmctl.tokenization.check import write_probe
from plmctl.training.trackers import check_trackers
from plmctl.versions import installed_version

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.run.configs import FinetuneConfig, PretrainConfig
    from plmctl.tasks.base import Finetuned

    RunConfig = PretrainConfig | FinetuneConfig


# --- Opening a run folder ---


# The results of a run do not depend on these, so they may change when it is resumed.
FREE_KEYS = (
    "launch.",
    "log.",
    "prepare.",
    "checkpoint.",
    "compute.device",
    "compute.threads",
    "compute.workers",
    "compute.attention",
    "train.micro_batch_size",
    "task.baseline",
    "divergence.",  # decides only what happens where the run would stop
)


_LOCK = ".lock"

_STATUS = "status.json"

_AFTER_MODEL = ("eval/samples.json", "report.html")  # can be written without training


# The files of a run that was killed during its first writes.
_STARTED = {_LOCK, _STATUS, f".{_STATUS}.writing", ".config.yaml.writing", "budget.json"}


# The files of a start that ended before it had a result: nothing of them is work.
# ``data.json`` counts the labelled rows.
_BEFORE_WORK = _STARTED | {"config.yaml", "environment.json", "events", "data.json"}


_PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy")


def check_run(config: Model, run: str, *, fresh: bool, writes: bool = True) -> bool:
    """Refuse a run folder of another config, before any work is done.

    The folder of a start that failed before its first step has no work in it: another config may
    have it.

    Args:
        fresh: It is moved aside.
        writes: Whether this process, or those that it starts, write it.

    Returns:
        Whether ``open_run`` replaces the config of such a start.

    Raises:
        ConfigError: The folder belongs to another config, is not a run folder, or has something
            else in the place of a file; it is unchanged.
        PlmError: A process is working in it.
    """
    folder = Path(run)
    check_run_files(folder)
    if (folder / _LOCK).exists() and writes and launch.is_main():
        with (folder / _LOCK).open(encoding="utf-8") as file:
            _lock(
                file, fcntl.LOCK_SH
            )  # refused while a process writes here; released with the file
    if fresh or not folder.exists():
        return False
    saved = folder / "config.yaml"
    if saved.is_file():
        try:
            _refuse_other_config(config, saved)
        except ConfigError:
            if not is_unstarted(folder):
                raise
            return True
    elif not folder.is_dir() or {path.name for path in folder.iterdir()} - _STARTED:
        raise ConfigError(
            f"{folder} exists already and is not a run folder",
            "name another folder with `run=...`",
        )
    return False


def is_unstarted(folder: Path, also: Sequence[str] = ()) -> bool:
    """Whether no step is logged or saved in a folder, and no result: in no run below it either.

    Args:
        folder: A run folder, or a folder of several runs.
        also: Further names of files that are no work.
    """
    known = {*_BEFORE_WORK, *also}
    for root, folders, files in os.walk(folder):
        if any((Path(root) / name).is_symlink() for name in folders):
            return False
        # What a killed process was writing under a temporary name.
        folders[:] = [name for name in folders if not name.endswith(".writing")]
        if any(name not in known and (Path(root) / name).stat().st_size for name in files):
            return False
    return True


def start_over(folder: Path) -> None:
    """Remove what a start without work has left in its folder (``is_unstarted``).

    Raises:
        PlmError: As ``locked``.
    """
    with locked(folder), writing(folder):
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != _LOCK:
                path.unlink()
    say(f"{folder}: an earlier start failed before its first step; its config is replaced")


Progress = Literal["unfinished", "trained", "finished"]
"""trained: only what follows the model, such as the report, can be missing."""


def run_progress(config: RunConfig, *, fresh: bool) -> Progress:
    """How far a run is, by its folder.

    Args:
        fresh: The folder is moved aside, so the run starts from scratch.

    Raises:
        ConfigError: As ``check_run``.
        PlmError: Another process is working in the folder; or a tracker is not installed.
    """
    folder = Path(config.run)
    check_run(config, config.run, fresh=fresh, writes=launch.owns_run(config.launch))
    check_trackers(config.log.trackers)
    if not fresh and is_finished(folder):
        return "finished"
    return "trained" if not fresh and is_trained(folder) else "unfinished"


def open_run(config: Model, run: str, *, fresh: bool) -> Path:
    """The folder of a new or resumed run, with the config in ``config.yaml``.

    Call it when the input is known to be good: an existing folder fixes the config.

    Args:
        fresh: Move an existing folder aside, to ``<run>.old-<time>``, and start from scratch.

    Raises:
        ConfigError: As ``check_run``.
        PlmError: The folder cannot be written.
    """
    folder = Path(run)
    if check_run(config, run, fresh=fresh):
        start_over(folder)
    with writing(folder):
        if fresh and folder.exists():
            move_aside(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "config.yaml", dump(config))
    return folder


def _refuse_other_config(config: Model, saved: Path) -> None:
    try:
        before = parse(type(config), saved)
    except ConfigError as error:
        hint = "name another folder with `run=...`, or add --fresh to move this one aside"
        if "\n" in error.message:  # many mistakes: it is not a config of this command
            message = f"{saved.parent}: made by another command, or another version of plmctl"
            raise ConfigError(message, hint) from error
        raise ConfigError(
            error.message, f"change it there to resume this run; or {hint}"
        ) from error
    changed = [
        line
        for line in difference(before, config)
        if not line.startswith(FREE_KEYS) and not line.startswith("run:")
    ]
    if changed:
        shown = "\n  ".join(changed)
        raise ConfigError(
            f"{saved.parent}: made from another config:\n  {shown}",
            "name another folder with `run=...`, or add --fresh to move this one aside",
        )


def check_inputs(folder: Path, hashes: Mapping[str, str | None]) -> None:
    """Refuse a run that was made from something else than there is now: to resume it, or its table.

    Args:
        folder: The run folder; without a checkpoint and a model nothing was made yet.
        hashes: The current hashes, as in ``write_environment``.

    Raises:
        DataError: They differ from those that the run started with.
    """
    if not any(folder.glob("checkpoints/step-*")) and not is_model(folder / "model"):
        return
    differ, unknown = changed_since(folder, hashes)
    if differ:
        raise DataError(
            f"{folder}: the {listed(differ)} changed since this run started",
            "restore what it started with, or start from scratch with --fresh, which moves this "
            "run aside",
        )
    if unknown:
        say(
            f"{folder}: started by an older version of plmctl, which kept no hash of the "
            f"{listed(unknown)}: whether they changed since is unknown"
        )


def changed_since(folder: Path, hashes: Mapping[str, str | None]) -> tuple[list[str], list[str]]:
    """The names of what a run was made from that changed since, and of what cannot be compared.

    Raises:
        DataError: The run's environment.json is damaged.
    """
    path = folder / "environment.json"
    if not path.is_file():
        return [], []
    before = read_json(path, "hashes")["hashes"]
    if not isinstance(before, dict):
        raise DataError(f"{path}: damaged: no hashes", "restore the file from a copy")
    differ, unknown = changed(before, hashes)
    # The rows of validation sets are among the data.
    return [name for name in differ if not name.startswith("valid")] or differ, unknown


def say_what_changed(folder: Path, hashes: Mapping[str, str | None]) -> None:
    """Name what changed since a run that is finished, and left alone, was made."""
    differ, _ = changed_since(folder, hashes)
    if differ:
        say(
            f"{folder}: the {listed(differ)} changed since it was trained: add --fresh to train "
            "again, or name another folder with `run=...`"
        )


# --- Working in the folder: the lock and the status ---


class AtWork:
    """Exclusive work in a run folder; ``status.json`` records how it ends.

    As a context: the status is "running" inside. Afterwards it is "stopped" if the same command can
    resume from a checkpoint or from finished pieces, or "failed". ``finish`` makes it "finished".
    A killed process leaves "running", without the lock.

    Raises:
        PlmError: As ``locked``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> AtWork:
        with ExitStack() as stack:
            stack.enter_context(locked(self._folder))
            write_status(self._folder, "running", files=self.status.files)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if value is not None:
            stopped = isinstance(value, Preempted | KeyboardInterrupt)
            message = value.message if isinstance(value, PlmError) else repr(value)
            with suppress(PlmError):  # on a full disk it stays "running"; the error is `value`
                name: StatusName = "stopped" if stopped else "failed"
                write_status(self._folder, name, message, self.status.files)
        self._stack.close()

    @property
    def status(self) -> Status:
        """The recorded status."""
        return read_status(self._folder) or Status()

    def promise(self, files: Sequence[str]) -> None:
        """Record the files of the finished run, before the last of them is written."""
        write_status(self._folder, "running", files=files)

    def finish(self) -> None:
        """Record that the run is finished.

        Raises:
            PlmError: A promised file is missing.
        """
        left = self.status.missing(self._folder)
        if left:
            raise PlmError(
                f"{self._folder / left[0]} was written and is missing now",
                "run the same command again: it writes what is missing",
            )
        write_status(self._folder, "finished", files=self.status.files)


StatusName = Literal["running", "stopped", "failed", "finished"]


def write_status(
    folder: Path, name: StatusName, message: str = "", files: Sequence[str] = ()
) -> None:
    """``status.json`` of a run, as ``reporting.run_files.read_status`` reads it.

    Raises:
        PlmError: The folder cannot be written.
    """
    document: dict[str, object] = {"status": name, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    if message:
        document["message"] = shown(message)
    if files:
        document["files"] = list(files)
    with writing(folder / _STATUS) as path:
        write_atomically(path, json.dumps(document, indent=1, ensure_ascii=False))


def is_finished(folder: Path) -> bool:
    """Whether all promised files exist; for runs of older versions, whether there is a model."""
    status = read_status(folder)
    if status is None:
        return is_model(folder / "model")
    return status.name == "finished" and not status.missing(folder)


def is_trained(folder: Path) -> bool:
    """Whether the model and its results exist, so that only samples or the report can be missing.

    Raises:
        PlmError: There is a model without its results, and no checkpoint to compute them from.
    """
    status = read_status(folder)
    if not is_model(folder / "model"):
        return False
    promised = status if status and status.files else Status(files=("eval/valid.json",))
    left = set(promised.missing(folder)) - set(_AFTER_MODEL)
    if promised is status and not left:
        return True
    if not any(folder.glob("checkpoints/step-*")):
        lost = min(left) if left else "a readable status.json"
        raise PlmError(
            f"{folder}: the model exists, but {lost} is missing, and no checkpoint is left",
            "measure the model with `plmctl eval`; or start from scratch with --fresh, which moves "
            "this run aside",
        )
    return False


@contextmanager
def run_folder(
    command: str,
    config: RunConfig,
    hashes: Mapping[str, str | None],
    options: launch.StartOptions,
) -> Iterator[AtWork | None]:
    """Work in the folder of a new or resumed run, in the processes that its config names.

    Call it when the input is known to be good: an existing folder fixes config and input.

    Args:
        command: ``pretrain`` or ``finetune``.
        hashes: The hashes of all that it is made from.

    Yields:
        The work of the main process; None in the others.

    Raises:
        ConfigError, PlmError: As ``open_run``.
        DataError: As ``check_inputs``.
        SystemExit: There are several processes, and they have ended: with their exit code.
    """
    folder = Path(config.run)
    if not options.fresh:
        check_inputs(folder, hashes)
    if launch.is_main():
        open_run(config, config.run, fresh=options.fresh)
    processes = launch.process_count(config.launch, config.compute.device)
    if processes > 1 and not launch.is_worker():
        flags = replace(options, fresh=False).flags  # the old folder is aside
        end = launch.start(command, folder / "config.yaml", processes, flags)
        _record_end_of(end, folder)
        raise SystemExit(end.code)
    with AtWork(folder) if launch.is_main() else nullcontext() as work:
        yield work


def start_on_machine(command: str, config: RunConfig, options: launch.StartOptions) -> None:
    """Start the processes of this machine, one of several, and end with their exit code.

    With one machine nothing happens. The run folder is that of the first process, so the config of
    the others is a temporary file.

    Args:
        command: ``pretrain`` or ``finetune``.

    Raises:
        PlmError: The machines did not meet.
        SystemExit: The processes have ended: with the code of the one that failed first.
    """
    place = launch.MachinePlace() if launch.is_worker() else launch.place_of(config.launch)
    if place.machines == 1:
        return
    processes = launch.process_count(config.launch, config.compute.device)
    with tempfile.TemporaryDirectory(prefix="plmctl-") as beside:
        file = Path(beside) / "config.yaml"
        file.write_text(dump(config), encoding="utf-8")
        timeout = config.launch.timeout.number
        end = launch.start(command, file, processes, options.flags, place=place, timeout=timeout)
    if place.machine == 0 and Path(config.run).is_dir():
        _record_end_of(end, Path(config.run))
    raise SystemExit(end.code)


def _record_end_of(end: launch.End, folder: Path) -> None:
    """Record that a process of a run failed, if it could not do so itself, or was killed."""
    status = read_status(folder)
    if end.killed and status is not None and status.name == "failed":
        with suppress(PlmError):  # the others noticed only that a connection broke
            write_status(folder, "failed", end.killed, status.files)
    elif end.code not in (0, Preempted.exit_code) and (status is None or status.name == "running"):
        with suppress(PlmError):
            files = status.files if status else ()
            message = end.killed or f"a process ended with exit code {end.code}"
            write_status(folder, "failed", message, files)


def record_end(folder: Path, message: str, code: int) -> None:
    """Record how a run ends whose main thread does not: a process of it is lost or stuck.

    Args:
        folder: The run folder; another machine need not have it.
    """
    status = read_status(folder)
    if status is not None and status.name == "running":
        name: StatusName = "stopped" if code == Preempted.exit_code else "failed"
        with suppress(PlmError):
            write_status(folder, name, message, status.files)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a run folder for this process.

    The kernel releases the lock when the process ends, however it ends; processes that it forked to
    make batches do not keep it.

    Raises:
        ConfigError: As ``folders.check_run_files``.
        PlmError: Another process has locked it, or the folder cannot be written.
    """
    check_run_files(folder)
    with writing(folder):
        file = (folder / _LOCK).open("a+", encoding="utf-8")
    with file:
        _lock(file, fcntl.LOCK_EX)
        with suppress(OSError):  # on a full disk: the lock matters, not its text
            file.truncate(0)
            # Not through the buffer: what stays there is written once more when the file is closed.
            os.write(file.fileno(), f"process {os.getpid()} on {platform.node()}".encode())
        yield


def _lock(file: IO[str], kind: int) -> None:
    try:
        fcntl.lockf(file, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            print(
                f"plmctl: {Path(file.name).parent}: this file system has no locks "
                f"({error.strerror}): do not start the same run twice at once",
                file=sys.stderr,
            )
            return
        file.seek(0)
        raise PlmError(
            f"{Path(file.name).parent}: another process is working here ({file.read().strip()})",
            "wait until it ends, or stop it; or name another folder with `run=...`",
        ) from error


# --- The environment and the results ---


def write_environment(
    folder: Path,
    hashes: Mapping[str, str | None],
    processes: int = 1,
    text: Mapping[str, Any] | None = None,
    precision: str | None = None,
    more: Mapping[str, object] | None = None,
) -> None:
    """``environment.json``: what is needed to trace where a result came from.

    Args:
        hashes: The hashes of all that it is made from; None: it has none.
        precision: Of a training; the next start resumes in it.
    """
    import torch

    cuda = torch.cuda.is_available()
    facts = {
        "command": [Path(sys.argv[0]).name, *map(shown, sys.argv[1:])],
        "versions": versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or "cpu",
        "devices": torch.cuda.device_count() if cuda else 0,
        "processes": processes,
        **({} if precision is None else {"precision": precision}),
        "git_commit": _git_commit(),
        "hashes": {name: value for name, value in hashes.items() if value is not None},
        **({} if text is None else {"text": dict(text)}),
        **(more or {}),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    with writing(folder / "environment.json") as path:
        write_atomically(path, json.dumps(facts, indent=1))


def versions() -> dict[str, str]:
    """Versions of the packages that can change a result."""
    numbers = {name: installed_version(name) for name in _PACKAGES}
    return {"plmctl": __version__, **{name: each for name, each in numbers.items() if each}}


def _git_commit() -> str | None:
    """The commit of the working directory, with the user's configs; None outside of git."""
    try:
        result = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


def write_results(folder: Path, name: str, document: Mapping[str, object]) -> Path:
    """Write ``eval/<name>.json`` of a run, with a checksum; a name may have one folder."""
    with writing(folder / "eval" / f"{name}.json") as path:
        (folder / "eval").mkdir(exist_ok=True)  # not the run folder, if that is gone
        path.parent.mkdir(exist_ok=True)
        write_atomically(path, with_checksum(document))
    return path


def read_results(path: Path, *keys: str) -> dict[str, Any]:
    """What ``write_results`` wrote; a file of an older version, without a checksum, as it is.

    Args:
        *keys: What it must have; by default its results.

    Raises:
        DataError: It is missing or damaged, lacks a key, or was changed since it was written.
    """
    document = read_json(path, *(keys or ("results",)))
    if is_edited(document):
        raise DataError(
            f"{path}: changed since it was written, and no longer what was measured",
            "restore it from a copy; or measure the model again with `plmctl eval`",
        )
    return document


# --- ``model/``: an ordinary Hugging Face model folder, complete or absent ---


def save_model(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    card: str,
    finetuned: Finetuned | None = None,
) -> Path:
    """Write weights (safetensors), config, tokenizer and model card to ``<folder>/model``.

    Args:
        model: The unwrapped model.
        card: The text of README.md.

    Raises:
        PlmError: The folder cannot be written.
    """
    target = folder / "model"
    with writing(target), new_folder(target) as beside:
        beside.mkdir()  # not the run folder, if that is gone
        write_model(beside, model, tokenizer)
        (beside / "README.md").write_text(card, encoding="utf-8")
        if finetuned is not None:
            finetuned.write(beside)
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        elif target.exists():  # an incomplete model, kept for inspection
            number = 1
            while (aside := folder / f"model.incomplete-{number}").exists():
                number += 1
            target.rename(aside)
    return target


def write_model(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write weights, config and tokenizer, with the tokenizer's probes, into a new folder.

    Args:
        model: The unwrapped model. Of a T5 the config gets to say what the weights are: whether
            embeddings and output are one matrix. transformers' class sets it to yes at each load.
    """
    from transformers import T5ForConditionalGeneration

    if isinstance(model, T5ForConditionalGeneration):
        model.config.tie_word_embeddings = model.lm_head.weight is model.shared.weight
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_probe(folder)
