"""Checkpoints that are complete or absent.

A checkpoint is written beside its place, flushed to disk, listed in a manifest of sizes and hashes,
and renamed; a reader that finds the folder finds all of it. Weights and optimizer states are
safetensors, everything else JSON: loading one runs no code. There is no random state in it, since
every draw is keyed by the step.
"""

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.optim import Optimizer

from plmctl.errors import PlmError
from plmctl.modeling.carried import Carried

MANIFEST = "manifest.json"
_CARRIED = "carried.safetensors"


@dataclass(frozen=True)
class Trained:
    """What a checkpoint holds: the unwrapped network, its optimizer, and what else there may be.

    Attributes:
        scaler: Of fp16.
        carried: The state of a recurrent network's rows between steps.
    """

    network: nn.Module
    optimizer: Optimizer
    scaler: torch.amp.GradScaler | None = None
    carried: Carried = field(default_factory=Carried)


class Checkpoints:
    """The checkpoints of a run.

    Args:
        folder: ``<run>/checkpoints``.
        keep: How many of the newest to keep.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep

    def save(self, step: int, trained: Trained, telemetry: dict[str, float | None]) -> Path:
        """Write the state after ``step`` updates; then drop the oldest checkpoints over ``keep``.

        Raises:
            PlmError: The disk refused; no earlier checkpoint was touched.
        """
        target = self._folder / f"step-{step:06d}"
        beside = self._folder / f".{target.name}.writing"
        try:
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir(parents=True)
            _write(beside, trained, {"step": step, **telemetry})
            if target.exists():  # a damaged one of the same step: keep it for whoever looks into it
                target.rename(target.with_name(f".{target.name}.damaged"))
            beside.rename(target)
            _sync(self._folder)
        except OSError as error:
            shutil.rmtree(beside, ignore_errors=True)
            raise PlmError(
                f"{target}: the checkpoint could not be written: {error.strerror or error}",
                "free some space and run the same command again: it goes on from the last one",
            ) from error
        for old in self._all()[: -self._keep]:
            shutil.rmtree(old)
        return target

    def newest(self) -> tuple[Path | None, list[str]]:
        """The newest valid checkpoint, and what is wrong with newer ones, which are left alone."""
        damaged: list[str] = []
        for folder in reversed(self._all()):
            fault = _fault(folder)
            if fault is None:
                return folder, damaged
            damaged.append(f"{folder}: {fault}")
        return None, damaged

    def _all(self) -> list[Path]:
        return sorted(self._folder.glob("step-*"), key=lambda p: int(p.name.removeprefix("step-")))


def restore(folder: Path, trained: Trained) -> dict[str, float | None]:
    """Put a checkpoint's state into ``trained``, in place.

    Returns:
        The telemetry that was saved with it, ``step`` included.

    Raises:
        PlmError: The checkpoint is of another network.
    """
    weights = load_file(folder / "model.safetensors")
    states = load_file(folder / "optimizer.safetensors")
    parameters = dict(trained.network.named_parameters())  # tied ones once
    if weights.keys() != parameters.keys():
        odd = sorted(weights.keys() ^ parameters.keys())[0]
        raise PlmError(f"{folder}: made by another network: {odd!r} is on one side only")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
    for key, value in states.items():
        field, _, name = key.partition("/")
        # "step" stays where the optimizer keeps it, on the CPU unless it is fused.
        trained.optimizer.state[parameters[name]][field] = (
            value if field == "step" else value.to(parameters[name].device)
        )
    if (folder / _CARRIED).is_file():
        device = next(iter(parameters.values())).device
        trained.carried.slots = load_file(folder / _CARRIED)["rows"].to(device)
    saved: dict[str, Any] = json.loads((folder / "state.json").read_text())
    if trained.scaler is not None and "scaler" in saved:
        trained.scaler.load_state_dict(saved["scaler"])
    return {key: value for key, value in saved.items() if key != "scaler"}


def _write(folder: Path, trained: Trained, telemetry: dict[str, float | None]) -> None:
    parameters = dict(trained.network.named_parameters())  # tied ones once
    save_file(
        {n: p.detach().contiguous().cpu() for n, p in parameters.items()},
        folder / "model.safetensors",
    )
    save_file(
        {
            f"{field}/{name}": torch.as_tensor(value).contiguous().cpu()
            for name, parameter in parameters.items()
            for field, value in trained.optimizer.state.get(parameter, {}).items()
        },
        folder / "optimizer.safetensors",
    )
    if trained.carried.slots is not None:
        save_file({"rows": trained.carried.slots.contiguous().cpu()}, folder / _CARRIED)
    state: dict[str, Any] = dict(telemetry)
    if trained.scaler is not None:
        state["scaler"] = trained.scaler.state_dict()
    (folder / "state.json").write_text(json.dumps(state))
    files = sorted(path for path in folder.iterdir())
    for path in files:
        _sync(path)
    manifest = {p.name: {"size": p.stat().st_size, "sha256": _sha256(p)} for p in files}
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    _sync(folder / MANIFEST)
    _sync(folder)


def _fault(folder: Path) -> str | None:
    """What is wrong with a checkpoint, or None."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError):
        return "no readable manifest"
    for name, entry in manifest.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != entry["size"]:
            return f"{name} is missing or has another size"
        if _sha256(path) != entry["sha256"]:
            return f"{name} has other bytes than were written"
    return None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Flush a file's or a folder's bytes to the disk: a rename alone survives no power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
