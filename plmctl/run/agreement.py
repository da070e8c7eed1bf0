"""What the processes of a run must agree on: versions and configs, texts, and room for a step.

``agree_on_start``, ``agree_on_text`` and ``check_ready`` are called by all processes; each refuses
what differs between them before the first step, and names the process and its host.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.config.load import difference
from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.families.base import Family
from plmctl.run.configs import RunConfig
from plmctl.run.folder import AtWork, Progress, record_end, run_folder, versions
from plmctl.run.launch import StartOptions
from plmctl.run.machine import compute_of
from plmctl.training.judge import BUILDING, CONNECTING

if TYPE_CHECKING:
    from accelerate import Accelerator

    from plmctl.training.engine import Engine
    from plmctl.training.peers import Peers
    from plmctl.training.plan import Plan


def agree_on_start(
    peers: Peers, config: RunConfig, progress: Progress, options: Sequence[str]
) -> Progress:
    """How far the run is, as the main process sees it; called by all processes.

    Args:
        progress: How far it is by the folder that this process sees.

    Raises:
        ConfigError: Versions, configs or options differ between the processes.
    """
    if peers.world == 1:
        return progress
    facts = {
        "host": platform.node(),
        "versions": {"python": platform.python_version(), **versions()},
        "config": config.model_dump_json(),
        "options": list(options),
        "progress": progress,
    }
    everybody = peers.compare("start", facts)
    first = everybody[0]
    for rank, other in enumerate(everybody):
        differs = [
            name
            for name in _SAME_VERSIONS
            if first["versions"].get(name) != other["versions"].get(name)
        ]
        if differs:
            others, wanted = (
                ", ".join(f"{name} {one['versions'].get(name)}" for name in differs)
                for one in (other, first)
            )
            raise ConfigError(
                f"{_who(rank, other)} has {others}, but {_who(0, first)} has {wanted}",
                f"install the same versions on every machine: {_install(first, differs)}",
            )
        changed = [
            line
            for line in difference(
                *(type(config).model_validate_json(c["config"]) for c in (first, other))
            )
            if not line.startswith(_MAY_DIFFER)
        ]
        if other["options"] != first["options"]:
            shown = (" ".join(one["options"]) or "none" for one in (first, other))
            changed.append(f"options: {' -> '.join(shown)}")
        if changed:
            raise ConfigError(
                f"{_who(rank, other)} has another config than process 0 on {first['host']}:\n  "
                + "\n  ".join(changed),
                "run the same command with the same file on every machine",
            )
    agreed: Progress = first["progress"]
    return agreed


_SAME_VERSIONS = ("plmctl", "torch", "transformers", "tokenizers")

_MAY_DIFFER = (
    "run:",
    "launch.address:",
    "launch.machine:",
    "launch.processes:",
    "launch.timeout:",
    "compute.threads:",
    "compute.workers:",
)


def _install(facts: Mapping[str, Any], names: Sequence[str]) -> str:
    """The command that installs packages in the versions of a process."""
    versions = ((name, facts["versions"][name].partition("+")[0]) for name in names)
    return "pip install " + " ".join(f"{name}=={version}" for name, version in versions)


def _who(rank: int, facts: Mapping[str, Any]) -> str:
    return f"process {rank} on {facts['host']}"


def agree_on_text(peers: Peers, hashes: Mapping[str, str | None]) -> None:
    """Refuse other data, tokenizers or models than the main process has; called by all processes.

    Args:
        hashes: Of what the run is made from, as this process sees it.

    Raises:
        DataError: They differ.
    """
    everybody = peers.compare("text", {"host": platform.node(), "hashes": dict(hashes)})
    first = everybody[0]
    for rank, other in enumerate(everybody):
        for name, digest in first["hashes"].items():
            if other["hashes"].get(name) != digest:
                raise DataError(
                    f"{_who(rank, other)} has another {name} (hash {other['hashes'].get(name)}) "
                    f"than process 0 on {first['host']} ({digest})",
                    f"copy the {name} to every machine, byte for byte, or use a shared folder",
                )


@contextmanager
def connected(
    command: str,
    config: RunConfig,
    family: Family,
    hashes: Mapping[str, str | None],
    options: StartOptions,
    peers: Peers,
) -> Iterator[tuple[Accelerator, AtWork | None]]:
    """Work in the run folder, in all processes of the run, which agree on the text and connect.

    Args:
        command: ``pretrain`` or ``finetune``.
        hashes: The hashes of all that the run is made from.

    Yields:
        The device and the processes, and the work of the main process.

    Raises:
        ConfigError, DataError, PlmError, SystemExit: As ``agree_on_text`` and ``run_folder``.
    """
    from plmctl.training.engine import make_accelerator

    agree_on_text(peers, hashes)
    folder = Path(config.run)
    with (
        run_folder(command, config, hashes, options) as work,
        peers.working(partial(record_end, folder)),
    ):
        peers.doing(CONNECTING)
        accelerator = make_accelerator(compute_of(config, family, peers), peers)
        accelerator.wait_for_everyone()  # until the main process has made the run folder
        peers.doing(BUILDING)
        yield accelerator, work


def check_ready(peers: Peers, engine: Engine, plan: Plan, folder: Path) -> None:
    """Refuse what would fail later, or in one process only; called by all processes.

    Every process sees the checkpoint that the run resumes from; the disk has room for another one;
    the largest batch fits in every process.

    Raises:
        ConfigError: A process does not see the checkpoint.
        PlmError: The disk is full, or a batch does not fit.
    """
    from plmctl.training.checkpoint import newest_manifest
    from plmctl.training.memory import too_large

    size = sum(p.numel() * p.element_size() for p in engine.trained().network.parameters())
    if peers.world == 1:
        _refuse_full(f"{folder}", shutil.disk_usage(folder).free, size)
        return
    checkpoint, manifest = newest_manifest(folder / "checkpoints")
    facts = {
        "host": platform.node(),
        "checkpoint": checkpoint,
        "manifest": manifest,
        "too large": too_large(engine, plan),
        "free": shutil.disk_usage(folder).free if peers.rank == 0 else None,
    }
    everybody = peers.compare("ready", facts)
    first = everybody[0]
    for rank, other in enumerate(everybody):
        if first["checkpoint"] and other["manifest"] != first["manifest"]:
            raise ConfigError(
                f"{_who(rank, other)} does not see {folder / 'checkpoints' / first['checkpoint']}, "
                f"from which process 0 on {first['host']} resumes",
                f"{folder.absolute()} must be a shared folder to resume on several machines; or "
                "copy its checkpoints and metrics.jsonl to the same place on every machine",
            )
        if other["too large"] is not None:
            raise PlmError(
                f"{_who(rank, other)}: a micro-batch of {other['too large']} does not fit in "
                "memory",
                "set train.micro_batch_size to half of that; the result is the same",
            )
        if other["free"] is not None:
            _refuse_full(f"{_who(rank, other)}: {folder}", other["free"], size)


def _refuse_full(where: str, free: int, size: int) -> None:
    """Refuse a disk without room for the weights."""
    if free < size:
        raise PlmError(
            f"{where}: the disk has {free / 1e6:,.1f} MB free, and the weights alone of a "
            f"checkpoint need {size / 1e6:,.1f} MB",
            "free some space, or name another folder with `run=...`",
        )
