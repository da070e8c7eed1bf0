"""What a run uses of this machine: device, kernels and processes, by the rules of the run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.config.sections import CheckpointConfig, ComputeConfig
from plmctl.families.base import Family
from plmctl.run import launch
from plmctl.run.configs import PretrainConfig, RunConfig
from plmctl.run.display import COMPILE_NOTE, ONE_PROCESS_NOTE, say

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from plmctl.training.checkpoint import Retention
    from plmctl.training.engine import Engine
    from plmctl.training.peers import Peers


def compute_of(config: RunConfig, family: Family, peers: Peers | None = None) -> ComputeConfig:
    """A run's ``compute`` with its precision decided; see ``of_training``.

    Args:
        peers: The processes of the run; None: there is one.
    """
    from plmctl.training.engine import of_training

    fp16 = family.FP16 and config.launch.strategy != "fsdp"
    return of_training(config.compute, Path(config.run), peers, fp16=fp16)


def resolve_compute(config: RunConfig, family: Family, network: PreTrainedConfig) -> dict[str, Any]:
    """Device, kernels and processes of a run, by the rules that the run itself follows.

    Raises:
        ConfigError: The config requires what this machine does not have.
    """
    import torch

    from plmctl.models.fast import CPU_ATTENTION
    from plmctl.training.data import auto_micro_batch
    from plmctl.training.engine import (
        compiles,
        make_accelerator,
        precision_of,
    )

    processes = launch.world_size(config.launch, config.compute.device)
    accelerator = make_accelerator(compute_of(config, family))
    device = accelerator.device.type
    if isinstance(config, PretrainConfig):
        loaded, by_default = config.model.init_from is not None, family.COMPILES
        lengths = [phase.seq_len for phase in config.train.phases]
        batches = config.train.batch_sizes
    else:
        loaded, by_default = True, False
        lengths, batches = [config.train.max_length], (config.train.batch_size,)
    sharded = config.launch.shards(processes)
    compute = config.compute
    compiled = compiles(compute, device, by_default=by_default, sharded=sharded)
    attention = str(compute.attention)
    if attention == "auto":
        attention = "sdpa" if loaded else str(network._attn_implementation or "eager")
        if not family.ATTENTION:
            attention = "none (LSTM)"
        elif attention == "sdpa" and device == "cpu" and not compiled:
            attention = f"{CPU_ATTENTION} (with fast dropout)"
    wanted = config.train.micro_batch_size
    sizes = [
        auto_micro_batch(wanted, -(-batch // processes), length, device)
        for batch, length in zip(batches, lengths, strict=True)
    ]
    workers = compute.workers
    return {
        "device": device,
        "precision": precision_of(accelerator),
        "compile": compiled,
        "checkpoint_activations": compute.checkpoint_activations,
        "attention": attention,
        "threads": torch.get_num_threads(),
        "processes": processes,
        "strategy": "fsdp" if sharded else "ddp",
        "workers": workers if isinstance(workers, int) else (2 if device == "cuda" else 0),
        "micro_batch_size": sizes[0] if len(set(sizes)) == 1 else sizes,  # one per phase
    }


def say_notes(config: RunConfig, engine: Engine) -> None:
    """Say what a user may not expect of the device: compilation, another precision, one process."""
    from plmctl.training.engine import emulation_note

    if engine.unwrapped.compiled:
        say(COMPILE_NOTE)
    if note := emulation_note(config.compute, engine.accelerator):
        say(note)
    if config.launch.strategy == "fsdp" and engine.accelerator.num_processes == 1:
        say(ONE_PROCESS_NOTE)


# --- Saving and failure handling, as the loop takes them ---


def retention(config: CheckpointConfig, at: frozenset[int] = frozenset()) -> Retention:
    """Which checkpoints are kept; ``at``: the steps of ``checkpoint.at``."""
    from plmctl.training.checkpoint import Retention

    return Retention(config.keep, config.keep_every, config.keep_best, at)


def failure_handling(config: RunConfig) -> dict[str, Any]:
    """Fields of a ``Plan``: when to save, and what to do if a step fails."""
    from plmctl.training.plan import Guard

    return {
        "save_every": config.checkpoint.every,
        "save_best": config.checkpoint.keep_best,
        "async_save": config.checkpoint.background,
        "guard": Guard(**config.divergence.model_dump()),
        # A process cannot try a step of a sharded network alone.
        "auto_micro_batch": config.train.micro_batch_size == "auto"
        and config.launch.strategy == "ddp",
    }
