"""Checkpoints: the state of a run in memory and on disk, each complete or absent.

A checkpoint is written to a temporary folder, flushed to disk, listed in a manifest of sizes and
hashes, and renamed: the folder is complete or absent. The manifest also records how much of
the run's ``metrics.jsonl`` belongs to the checkpoint. Weights and optimizer states are safetensors,
everything else JSON: loading one runs no code. There is no random state in it, since every draw is
keyed by the step.

Here are the state (``Trained``, ``Snapshot``), its folders (``Checkpoints``), writing them while
training continues (``Saver``), and the best weights so far (``Watch``).
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.files import give_default_mode, read_json, sync, write_error, writing
from plmctl.models.network import RecurrentState
from plmctl.models.sharding import cut_like, gathered, is_sharded
from plmctl.training.average import Average
from plmctl.training.journal import Journal, LogMark, Progress
from plmctl.training.out_of_memory import is_out_of_memory

# --- The state of a run, in memory and in a checkpoint's files ---


_RECURRENT_STATE = "carried.safetensors"

_AVERAGE = "average.safetensors"


@dataclass(frozen=True)
class Trained:
    """The objects whose state a checkpoint saves; the network is unwrapped."""

    network: nn.Module
    optimizer: Optimizer
    scaler: torch.amp.GradScaler | None = None
    recurrent_state: RecurrentState = field(default_factory=RecurrentState)
    average: Average | None = None


@dataclass(frozen=True)
class Snapshot:
    """The whole state at one step, in host memory.

    Attributes:
        model: The weights, tied ones once.
        optimizer: ``<field>/<parameter>``.
        average: The average of the weights, by the same names; empty: there is none.
        recurrent_state: The recurrent state; None for other networks.
        state: All that is not a tensor, ``step`` included.
    """

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    average: dict[str, Tensor]
    recurrent_state: Tensor | None
    state: dict[str, Any]

    @property
    def size(self) -> int:
        """Bytes of its tensors."""
        tensors = [*self.model.values(), *self.optimizer.values(), *self.average.values()]
        return sum(tensor.nbytes for tensor in tensors)


def snapshot(
    trained: Trained,
    step: int,
    telemetry: Mapping[str, Any],
    *,
    copy: bool = False,
    kept: bool = True,
) -> Snapshot:
    """The state after ``step`` updates; of a sharded network, called by all processes.

    Args:
        step: Number of updates.
        copy: Share no memory with the network, so that training can continue. It costs a copy of
            the weights, of their average and of the optimizer's state in host memory: 12 bytes
            per parameter with AdamW and no average. Tensors on another device are copied anyway.
        kept: Whether this process keeps the state. If not, it only takes part in gathering, and
            the snapshot has no tensors.
    """
    parameters = dict(trained.network.named_parameters())  # tied ones once
    states = {
        f"{field}/{name}": torch.as_tensor(value)
        for name, parameter in parameters.items()
        for field, value in trained.optimizer.state.get(parameter, {}).items()
    }
    rows = trained.recurrent_state.slots
    state: dict[str, Any] = {"step": step, **telemetry}
    if trained.scaler is not None:
        state["scaler"] = trained.scaler.state_dict()
    weights = {name: parameter.detach() for name, parameter in parameters.items()}
    average = trained.average
    averages = average.values if average is not None and average.exists(step) else {}
    return Snapshot(
        _in_host_memory(weights, copy=copy, kept=kept),
        _in_host_memory(states, copy=copy, kept=kept),
        _in_host_memory(averages, copy=copy, kept=kept),
        None if rows is None else _host(rows, copy=copy),
        state,
    )


def write(folder: Path, state: Snapshot) -> None:
    """Write a state's files."""
    save_file(state.model, folder / "model.safetensors")
    save_file(state.optimizer, folder / "optimizer.safetensors")
    if state.average:
        save_file(state.average, folder / _AVERAGE)
    if state.recurrent_state is not None:
        save_file({"rows": state.recurrent_state}, folder / _RECURRENT_STATE)
    (folder / "state.json").write_text(json.dumps(state.state))
    give_default_mode(folder)


def restore(folder: Path, trained: Trained) -> dict[str, Any]:
    """Load a checkpoint's state into ``trained``, in place.

    Returns:
        The telemetry that was saved with it, ``step`` included.

    Raises:
        PlmError: The checkpoint is of another network.
    """
    load_weights(folder, trained.network)
    states = load_file(folder / "optimizer.safetensors")
    parameters = dict(trained.network.named_parameters())  # tied ones once
    trained.optimizer.state.clear()  # at a rollback it has a later state
    groups = trained.optimizer.param_groups
    fused = {p for group in groups if group.get("fused") for p in group["params"]}
    for key, value in states.items():
        field, _, name = key.partition("/")
        parameter = parameters[name]
        if field == "step":  # a number, on the CPU unless the optimizer's kernel counts itself
            there = value.to(parameter.device) if parameter in fused else value
        else:
            there = cut_like(value, parameter)
        trained.optimizer.state[parameter][field] = there
    if trained.average is not None and (folder / _AVERAGE).is_file():
        for name, value in load_file(folder / _AVERAGE).items():
            trained.average.values[name].copy_(cut_like(value, parameters[name]))
    if (folder / _RECURRENT_STATE).is_file():
        device = next(iter(parameters.values())).device
        trained.recurrent_state.slots = load_file(folder / _RECURRENT_STATE)["rows"].to(device)
    saved: dict[str, Any] = json.loads((folder / "state.json").read_text())
    if trained.scaler is not None and "scaler" in saved:
        trained.scaler.load_state_dict(saved["scaler"])
    return {key: value for key, value in saved.items() if key != "scaler"}


def load_weights(folder: Path, network: nn.Module, *, averaged: bool = False) -> None:
    """Load a checkpoint's weights into a network, in place.

    Args:
        averaged: Load the average of the weights instead, if the checkpoint has one.

    Raises:
        PlmError: The checkpoint is of another network.
    """
    average = averaged and (folder / _AVERAGE).is_file()
    weights = load_file(folder / (_AVERAGE if average else "model.safetensors"))
    parameters = dict(network.named_parameters())  # tied ones once
    if weights.keys() != parameters.keys():
        odd = sorted(weights.keys() ^ parameters.keys())[0]
        raise PlmError(f"{folder}: saved from another network: only one of the two has {odd!r}")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(cut_like(weights[name], parameter))


def load_last_weights(checkpoints: Checkpoints, network: nn.Module) -> None:
    """Load the weights of the last checkpoint, or their average, into a network, in place.

    For what follows a training whose processes have shards of the weights.

    Raises:
        PlmError: The checkpoint has been damaged since.
    """
    folder, damaged = checkpoints.newest()
    if folder is None or damaged:
        raise PlmError(
            f"{damaged[0] if damaged else 'no checkpoint'}: the weights cannot be read",
            "run the same command again: it resumes from the checkpoint before",
        )
    load_weights(folder, network, averaged=True)


def _in_host_memory(tensors: dict[str, Tensor], *, copy: bool, kept: bool) -> dict[str, Tensor]:
    """Whole tensors; sharded ones are gathered one at a time."""
    host = {}
    for name, tensor in tensors.items():
        whole = gathered(tensor)
        if kept:
            host[name] = _host(whole, copy=copy and whole is tensor)
    return host


def _host(tensor: Tensor, *, copy: bool) -> Tensor:
    host = tensor.contiguous().cpu()
    shared = host.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    return host.clone() if copy and shared else host


# --- The folders of checkpoints ---


MANIFEST = "manifest.json"

_JOURNAL = "metrics.jsonl"  # in the manifest: of the run folder, not of the checkpoint

_WEIGHTS = "model.safetensors"

_NEEDED = (_WEIGHTS, "optimizer.safetensors", "state.json")

_NAME = re.compile(r"step-\d+")


@dataclass(frozen=True)
class Retention:
    """Which checkpoints are kept.

    Attributes:
        every: Also those whose step is a multiple of this; None: no others.
        best: Also the one with the lowest validation loss.
        at: Also those of these steps.
    """

    newest: int
    every: int | None = None
    best: bool = False
    at: frozenset[int] = frozenset()

    def keeps(self, step: int, steps: list[int], best: int | None) -> bool:
        """Whether a checkpoint is kept.

        Args:
            steps: The steps of all checkpoints, ascending.
            best: The step with the lowest validation loss.
        """
        newest = step in steps[-self.newest :]
        if newest or step in self.at or (self.best and step == best):
            return True
        return self.every is not None and step % self.every == 0


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: ``<run>/checkpoints``.
        retention: Which to keep; a number: how many of the newest ones.
    """

    def __init__(self, folder: Path, retention: Retention | int) -> None:
        self._folder = folder
        self._retention = Retention(retention) if isinstance(retention, int) else retention
        self._faults: dict[Path, str | None] = {}  # so that a gigabyte is hashed once

    def save(self, step: int, trained: Trained, telemetry: Mapping[str, Any]) -> Path:
        """Write the state after ``step`` updates; as ``write``."""
        return self.write(snapshot(trained, step, telemetry))

    def write(self, state: Snapshot, journal: LogMark | None = None) -> Path:
        """Write a state; then delete checkpoints that retention does not keep.

        Args:
            journal: How much of ``metrics.jsonl`` belongs to it.

        Raises:
            PlmError: The disk failed; earlier checkpoints are unchanged.
        """
        target = self._folder / f"step-{state.state['step']:06d}"
        beside = self._folder / f".{target.name}.writing"
        try:
            self._sweep()
            self._folder.mkdir(exist_ok=True)  # not the run folder, if that is gone
            beside.mkdir()
            write(beside, state)
            _seal(beside, journal)
            replaced = self._make_room(target)
            beside.rename(target)
            sync(self._folder)
        except (OSError, SafetensorError) as error:  # safetensors has errors of its own
            shutil.rmtree(beside, ignore_errors=True)
            size = f": it resumes from the last checkpoint ({state.size / 1e6:,.1f} MB each)"
            raise write_error(target, error, size) from error
        if replaced is not None:
            shutil.rmtree(replaced, ignore_errors=True)
        self._faults[target] = None
        self._drop(_step(target), state.state.get("best"))
        return target

    def trial(self, state: Snapshot) -> None:
        """Write a state, flush it and delete it: to see how long a checkpoint takes.

        Raises:
            PlmError: The disk failed.
        """
        beside = self._folder / ".step-trial.writing"
        with writing(beside):
            self._sweep()
            beside.mkdir(parents=True)
            write(beside, state)
            _seal(beside, None)
        shutil.rmtree(beside, ignore_errors=True)

    def newest(
        self, wanted: Callable[[int], bool] = lambda step: True
    ) -> tuple[Path | None, list[str]]:
        """The newest valid checkpoint, and the faults of newer ones, which are not changed."""
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
        """Finish a save that was killed: delete half-written folders, and apply retention.

        Args:
            step: The step of the checkpoint that the run continues from.
            best: The lowest validation loss so far, and its step.
        """
        self._sweep()
        self._drop(step, best)

    def abandon(self, after: int) -> None:
        """Delete the valid checkpoints after step ``after``: a rollback repeats these steps."""
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
        """Delete the temporary folders of saves that were killed; damaged checkpoints stay."""
        for kind in ("writing", "replaced-*", "dropped"):
            for left in self._folder.glob(f".step-*.{kind}"):
                shutil.rmtree(left, ignore_errors=True)

    def _make_room(self, target: Path) -> Path | None:
        """Rename a checkpoint of the same step; return its new place if it can be deleted.

        A damaged one is kept for inspection.
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
        """Apply retention to the valid checkpoints up to the one just saved."""
        folders = [folder for folder in self._all() if _step(folder) <= saved]
        valid = {_step(folder): folder for folder in folders if self._fault_of(folder) is None}
        for step, folder in valid.items():
            if not self._retention.keeps(step, list(valid), best[1] if best else None):
                with suppress(OSError):  # a checkpoint too many does not stop the run
                    _remove(folder)


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix("step-"))


def valid(folder: Path) -> list[Path]:
    """The valid checkpoints in a folder, oldest first."""
    return [path for path in _found(folder) if _fault(path) is None]


def newest_manifest(folder: Path) -> tuple[str | None, str | None]:
    """The name of the newest checkpoint in a folder, valid or not, and the hash of its manifest."""
    for path in reversed(_found(folder)):
        if (path / MANIFEST).is_file():
            return path.name, _sha256(path / MANIFEST)
    return None, None


def journal_of(folder: Path) -> LogMark | None:
    """The part of ``metrics.jsonl`` that belongs to a valid checkpoint; None: an older version."""
    entry = json.loads((folder / MANIFEST).read_text()).get(_JOURNAL)
    return None if entry is None else LogMark(**entry)


def _found(folder: Path) -> list[Path]:
    """The checkpoints in a folder, valid or not, oldest first."""
    return sorted((p for p in folder.glob("step-*") if _NAME.fullmatch(p.name)), key=_step)


def _seal(folder: Path, journal: LogMark | None) -> None:
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
    """Delete a checkpoint; if this is interrupted, it must not look damaged."""
    shutil.rmtree(folder.rename(folder.with_name(f".{folder.name}.dropped")))


def _fault(folder: Path, needed: Sequence[str] = _NEEDED) -> str | None:
    """The fault of a checkpoint, or of other files with a manifest; None: it is valid."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError, RecursionError):
        return "no readable manifest"
    if not isinstance(manifest, dict) or not all(map(_is_entry, manifest.items())):
        return "no readable manifest"
    there = {path.name for path in folder.glob("*.safetensors")}
    unlisted = sorted({*needed, *there} - manifest.keys())
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
    """Whether this is a manifest's entry of one file."""
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


# --- Saving, while training waits or continues ---


class Saver:
    """Writes the checkpoints of a run, in the main process.

    An asynchronous save blocks the loop only while the state is copied in memory; a thread writes,
    hashes and flushes the copy, and holds Python's lock for milliseconds only. There is one save at
    a time: a second one waits for it. The next call raises its error; earlier checkpoints stay.
    Leaving the context waits for the save, except after a second Ctrl-C.

    Args:
        journal: Flushed before every checkpoint; it logs the save.
        writes: Whether this process writes; others take part in gathering a sharded state.
    """

    def __init__(
        self, checkpoints: Checkpoints, journal: Journal, *, async_save: bool, writes: bool = True
    ) -> None:
        self._checkpoints, self._journal, self._async_save = checkpoints, journal, async_save
        self._writes = writes
        self._thread: Thread | None = None
        self._failure: BaseException | None = None

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            return
        try:
            self.wait()
        except PlmError as error:
            if kind is None:
                raise
            self._journal.warn(str(error))  # the first error is raised

    def save(self, step: int, trained: Trained, telemetry: Mapping[str, Any]) -> None:
        """Write the state after ``step`` updates.

        Called by the main process; if the network is sharded, by all of them.

        Raises:
            PlmError: The disk failed, for this save or the one before it.
        """
        self.wait()
        if not self._writes:
            snapshot(trained, step, telemetry, kept=False)
            return
        mark = self._journal.mark()  # now: later lines belong to a later state
        try:
            state = snapshot(trained, step, telemetry, copy=self._async_save)
        except (RuntimeError, MemoryError) as error:
            again = self._async_save and not is_sharded(trained.network)  # others do not wait
            if not (again and is_out_of_memory(error)):
                raise
            self._journal.warn(
                f"step {step}: not enough memory to save in the background; saving synchronously"
            )
            self._write(snapshot(trained, step, telemetry), mark)
            return
        if not self._async_save:
            self._write(state, mark)
            return
        # A daemon, so that the interpreter does not wait for it after a second Ctrl-C.
        self._thread = Thread(target=self._try, args=(state, mark), daemon=True)
        self._thread.start()

    def look(self) -> None:
        """Raise the error of a finished save, if any; do not wait."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait until no save is running.

        Raises:
            PlmError: It could not be written.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _try(self, state: Snapshot, mark: LogMark) -> None:
        try:
            self._write(state, mark)
        except BaseException as failure:  # the loop's thread raises it
            self._failure = failure

    def _write(self, state: Snapshot, mark: LogMark) -> None:
        self._journal.flush()  # a checkpoint that outlives a power cut must not outlive its log
        folder = self._checkpoints.write(state, mark)
        self._journal.event("saved", step=state.state["step"], checkpoint=folder.name)


# --- The best weights so far, and early stopping ---


@dataclass(frozen=True)
class Watch:
    """The metric that decides which weights are the best; its state is in ``Progress``.

    The same scores give the same decisions: a resumed run stops where an uninterrupted one does.

    Attributes:
        patience: Validations without a better score after which the run ends; None: never.
        folder: Where the best weights are saved; None: they are not.
    """

    metric: str
    larger: bool
    patience: int | None
    folder: Path | None

    def after(self, progress: Progress, scores: Mapping[str, float]) -> Progress:
        """The progress after a validation; the first of equal scores is the best.

        Raises:
            ConfigError: Validation has no such metric.
        """
        if self.metric not in scores:
            raise ConfigError(
                f"train.metric: validation has no metric {self.metric.removeprefix('valid/')!r}",
                f"choose one of: {', '.join(key.removeprefix('valid/') for key in scores)}",
            )
        score = float(scores[self.metric])
        best = progress.judged
        if best is None or (score > best[0] if self.larger else score < best[0]):
            return replace(progress, judged=(score, progress.step), waited=0)
        return replace(progress, waited=progress.waited + 1)

    def over(self, progress: Progress) -> bool:
        """Whether the patience is used up."""
        return self.patience is not None and progress.waited >= self.patience

    def keep(self, network: nn.Module, step: int, *, writes: bool = True) -> str:
        """Replace the best weights so far by these; of a sharded network, called by all processes.

        They are written as a checkpoint is. Those that the newest checkpoint names stay beside
        them, for a run that is killed before the next one and resumes from it.

        Args:
            writes: Whether this process writes; others take part in gathering sharded weights.

        Returns:
            The hash of the weights, by which a checkpoint names them; empty in other processes.
        """
        if self.folder is None:
            return ""
        parameters = {name: p.detach() for name, p in network.named_parameters()}
        weights = _in_host_memory(parameters, copy=False, kept=writes)
        if not writes:
            return ""
        beside, before = _beside(self.folder, "writing"), _beside(self.folder, "before")
        with writing(self.folder):
            try:
                shutil.rmtree(beside, ignore_errors=True)
                beside.parent.mkdir(exist_ok=True)
                beside.mkdir()
                save_file(weights, beside / _WEIGHTS)  # for ``load_weights``
                text = json.dumps({"metric": self.metric, "step": step})
                (beside / "state.json").write_text(text)
                give_default_mode(beside)
                _seal(beside, None)
                if self.folder.exists():
                    named = _named_by_newest(self.folder.parent / "checkpoints")
                    if named and _hash_in(self.folder) == named:
                        shutil.rmtree(before, ignore_errors=True)
                        self.folder.rename(before)
                    shutil.rmtree(self.folder, ignore_errors=True)
                beside.rename(self.folder)
                sync(self.folder.parent)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
        return _hash_in(self.folder)


def check_best(folder: Path, progress: Progress) -> str | None:
    """Check the best weights of a run that resumes, before its next step.

    Args:
        folder: Where ``Watch`` keeps them.
        progress: That of the checkpoint, which names them.

    Returns:
        A line for the user, if they were written by an older version and cannot be compared.

    Raises:
        DataError: They are missing or damaged, or are not those that the checkpoint names.
    """
    if progress.judged is None:
        return None
    before = _beside(folder, "before")
    if _fault_of_best(folder, progress) and _fault_of_best(before, progress) is None:
        with writing(folder):  # it was killed between a validation and the next checkpoint
            shutil.rmtree(folder, ignore_errors=True)
            before.rename(folder)
    fault = _fault_of_best(folder, progress)
    if fault is not None:
        raise DataError(
            f"{folder}: the best weights so far, those of step {progress.judged[1]}, {fault}",
            "restore the folder from a copy; or start from scratch with --fresh, which moves this "
            "run aside",
        )
    if not progress.kept:
        return f"{folder}: from an older version: whether the weights changed since is unknown"
    return None


def take_best(folder: Path, network: nn.Module, progress: Progress) -> int:
    """Load the best weights into a network; returns their step.

    Raises:
        DataError: As ``check_best``.
    """
    check_best(folder, progress)
    load_weights(folder, network)
    return int(read_json(folder / "state.json", "step")["step"])


def drop_earlier_best(folder: Path) -> None:
    """Delete the earlier best weights, which no resume needs once the model is written."""
    shutil.rmtree(_beside(folder, "before"), ignore_errors=True)


def _beside(folder: Path, ending: str) -> Path:
    return folder.with_name(f".{folder.name}.{ending}")


def _hash_in(folder: Path) -> str:
    """The hash of the weights in a folder, by its manifest; empty without one."""
    try:
        return str(json.loads((folder / MANIFEST).read_text())[_WEIGHTS]["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


def _named_by_newest(checkpoints: Path) -> str:
    """The hash of the best weights that the newest checkpoint names; empty if it names none."""
    for folder in reversed(_found(checkpoints)):
        with suppress(DataError):
            return str(read_json(folder / "state.json").get("kept", ""))
    return ""


def _fault_of_best(folder: Path, progress: Progress) -> str | None:
    """What is wrong with the best weights of a run; None: they are those of its checkpoint."""
    assert progress.judged is not None
    if not folder.is_dir():
        return "are missing"
    older = not progress.kept and not (folder / MANIFEST).is_file()
    fault = None if older else _fault(folder, (_WEIGHTS, "state.json"))
    if fault is not None:
        return f"are damaged: {fault}"
    try:
        step = read_json(folder / "state.json", "step")["step"]
        if older:  # nothing but reading them tells whether they are whole
            load_file(folder / _WEIGHTS)
    except (DataError, OSError, SafetensorError) as error:
        return f"are damaged: {str(error).splitlines()[0]}"
    if step != progress.judged[1]:
        return f"are not there: these are of step {step}"
    if progress.kept and _hash_in(folder) != progress.kept:
        return "are not there: these are of another run"
    return None
