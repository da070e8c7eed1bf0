"""The state of a run in memory and in a checkpoint's files: nothing in it is code.

Weights and optimizer states are safetensors, everything else JSON. There is no random state, since
every draw is keyed by the step.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from plmctl.errors import PlmError
from plmctl.modeling.carried import Carried
from plmctl.training.sharding import cut_like, gathered

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


@dataclass(frozen=True)
class Snapshot:
    """All of a state at one step, in host memory.

    Attributes:
        model: The weights, tied ones once.
        optimizer: ``<field>/<parameter>``.
        carried: The rows' state of a recurrent network; None for others.
        state: What is no tensor, ``step`` included.
    """

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    carried: Tensor | None
    state: dict[str, Any]


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
        trained: What is saved.
        step: Updates that were made.
        telemetry: What else is kept, as JSON has it.
        copy: Share no memory with the network, so that training may go on. It costs a copy of the
            weights and of the optimizer's state in host memory, 12 bytes a parameter with AdamW.
            What lies on another device is copied anyway.
        kept: Whether this process wants it, and does not only help others to theirs: if not, it
            gets one without tensors.
    """
    parameters = dict(trained.network.named_parameters())  # tied ones once
    states = {
        f"{field}/{name}": torch.as_tensor(value)
        for name, parameter in parameters.items()
        for field, value in trained.optimizer.state.get(parameter, {}).items()
    }
    rows = trained.carried.slots
    state: dict[str, Any] = {"step": step, **telemetry}
    if trained.scaler is not None:
        state["scaler"] = trained.scaler.state_dict()
    weights = {name: parameter.detach() for name, parameter in parameters.items()}
    return Snapshot(
        _in_host_memory(weights, copy=copy, kept=kept),
        _in_host_memory(states, copy=copy, kept=kept),
        None if rows is None else _host(rows, copy=copy),
        state,
    )


def write(folder: Path, state: Snapshot) -> None:
    """Write a state's files."""
    save_file(state.model, folder / "model.safetensors")
    save_file(state.optimizer, folder / "optimizer.safetensors")
    if state.carried is not None:
        save_file({"rows": state.carried}, folder / _CARRIED)
    (folder / "state.json").write_text(json.dumps(state.state))


def restore(folder: Path, trained: Trained) -> dict[str, Any]:
    """Put a checkpoint's state into ``trained``, in place.

    Returns:
        The telemetry that was saved with it, ``step`` included.

    Raises:
        PlmError: The checkpoint is of another network.
    """
    load_weights(folder, trained.network)
    states = load_file(folder / "optimizer.safetensors")
    parameters = dict(trained.network.named_parameters())  # tied ones once
    trained.optimizer.state.clear()  # a rollback finds a later state here
    groups = trained.optimizer.param_groups
    fused = {p for group in groups if group.get("fused") for p in group["params"]}
    for key, value in states.items():
        field, _, name = key.partition("/")
        parameter = parameters[name]
        # "step" goes where the optimizer keeps it: on the CPU, unless its kernel counts itself.
        on_host = field == "step" and parameter not in fused
        there = value if on_host else cut_like(value, parameter)
        trained.optimizer.state[parameter][field] = there
    if (folder / _CARRIED).is_file():
        device = next(iter(parameters.values())).device
        trained.carried.slots = load_file(folder / _CARRIED)["rows"].to(device)
    saved: dict[str, Any] = json.loads((folder / "state.json").read_text())
    if trained.scaler is not None and "scaler" in saved:
        trained.scaler.load_state_dict(saved["scaler"])
    return {key: value for key, value in saved.items() if key != "scaler"}


def save_weights(folder: Path, network: nn.Module) -> None:
    """Write a network's weights, tied ones once, where ``load_weights`` finds them."""
    weights = {n: p.detach().contiguous().cpu() for n, p in network.named_parameters()}
    save_file(weights, folder / "model.safetensors")


def load_weights(folder: Path, network: nn.Module) -> None:
    """Put a checkpoint's weights into a network, in place.

    Raises:
        PlmError: The checkpoint is of another network.
    """
    weights = load_file(folder / "model.safetensors")
    parameters = dict(network.named_parameters())  # tied ones once
    if weights.keys() != parameters.keys():
        odd = sorted(weights.keys() ^ parameters.keys())[0]
        raise PlmError(f"{folder}: made by another network: {odd!r} is on one side only")
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(cut_like(weights[name], parameter))


def _in_host_memory(tensors: dict[str, Tensor], *, copy: bool, kept: bool) -> dict[str, Tensor]:
    """Whole ones, brought together one at a time where processes have parts."""
    found = {}
    for name, tensor in tensors.items():
        all_of_it = gathered(tensor)
        if kept:
            found[name] = _host(all_of_it, copy=copy and all_of_it is tensor)
    return found


def _host(tensor: Tensor, *, copy: bool) -> Tensor:
    host = tensor.contiguous().cpu()
    shared = host.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()
    return host.clone() if copy and shared else host
