"""The run folder: made once, continued by the same command, never overwritten by another."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from plmctl.config.base import Model
from plmctl.config.load import difference, dump, parse
from plmctl.errors import ConfigError, PlmError

# What a run computes does not depend on these, so they may change between two starts of a run.
FREE = (
    "launch.",
    "log.",
    "checkpoint.",
    "compute.device",
    "compute.threads",
    "compute.workers",
    "compute.attention",
    "train.micro_batch_size",
)

_PACKAGES = ("plmctl", "torch", "transformers", "tokenizers", "datasets", "accelerate", "numpy")


def check_run(config: Model, run: str, *, fresh: bool) -> None:
    """Refuse a run folder that is not this config's, before any work is done for it.

    Raises:
        ConfigError: The folder is another config's, or something else's; nothing was touched.
    """
    folder = Path(run)
    if fresh or not folder.exists():
        return
    kept = folder / "config.yaml"
    if kept.is_file():
        _refuse_another(config, kept)
    elif not folder.is_dir() or any(folder.iterdir()):
        raise ConfigError(
            f"{folder}: this is there already, and it is no run folder",
            "name another folder with `run=...`",
        )


def open_run(config: Model, run: str, *, fresh: bool) -> Path:
    """The folder of a run, new or continued, with the config in ``config.yaml``.

    Call it once the input is known to be good: a folder that is there fixes the config.

    Args:
        config: The resolved config.
        run: The folder.
        fresh: Move a folder that is there aside, to ``<run>.old-<time>``, and begin anew.

    Raises:
        ConfigError: As ``check_run``.
        PlmError: The folder cannot be written.
    """
    check_run(config, run, fresh=fresh)
    folder = Path(run)
    try:
        if fresh and folder.exists():
            folder.rename(folder.with_name(f"{folder.name}.old-{time.strftime('%Y%m%d-%H%M%S')}"))
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "config.yaml", dump(config))
    except OSError as error:
        raise PlmError(f"{folder}: cannot be written: {error.strerror}") from error
    return folder


def _refuse_another(config: Model, kept: Path) -> None:
    try:
        before = parse(type(config), kept)
    except ConfigError as error:
        raise ConfigError(
            f"{kept.parent}: made by another command, or another version of plmctl",
            "name another folder with `run=...`, or add --fresh to move this one aside",
        ) from error
    changed = [
        line
        for line in difference(before, config)
        if not line.startswith(FREE) and not line.startswith("run:")
    ]
    if changed:
        shown = "\n  ".join(changed)
        raise ConfigError(
            f"{kept.parent}: made from another config:\n  {shown}",
            "name another folder with `run=...`, or add --fresh to move this one aside",
        )


def write_environment(folder: Path, hashes: Mapping[str, str]) -> None:
    """``environment.json``: what is needed to know where a figure came from.

    Args:
        folder: The run folder.
        hashes: Of the data and the tokenizer.
    """
    import torch

    cuda = torch.cuda.is_available()
    facts = {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "versions": versions(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or "cpu",
        "devices": torch.cuda.device_count() if cuda else 0,
        "git_commit": _git_commit(),
        "hashes": dict(hashes),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    write_atomically(folder / "environment.json", json.dumps(facts, indent=1))


def versions() -> dict[str, str]:
    """Of the packages that decide what a figure comes to."""
    return {name: version(name) for name in _PACKAGES}


def write_results(folder: Path, name: str, document: Mapping[str, object]) -> Path:
    """``eval/<name>.json`` of a run, whole or not at all."""
    path = folder / "eval" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, json.dumps(document, indent=1, ensure_ascii=False))
    return path


def write_atomically(path: Path, text: str) -> None:
    """Write beside and rename, so that a reader never finds half a file."""
    beside = path.with_name(f".{path.name}.writing")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _git_commit() -> str | None:
    """The commit of the working directory, where the user's configs are; None outside of git."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()
