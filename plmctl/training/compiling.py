"""Whether a network is compiled, and how: ``torch.compile`` of what is between batch and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plmctl.config.run import ComputeConfig

if TYPE_CHECKING:
    from plmctl.modeling.network import Network

_SHAPES = 64
"""Shapes that are compiled before PyTorch would go on without; its own 8 are too few for several
phases, each with a smaller last micro-batch and two sizes of its lists of targets."""


def compiles(
    compute: ComputeConfig, device: str, model_type: str, *, sharded: bool = False
) -> bool:
    """Whether a run compiles its network.

    On a CPU it was measured to be slower; ELMo's windows differ in their words, and its layers are
    loops over time.

    Args:
        compute: What is asked for.
        device: "cpu", "cuda" or "mps".
        model_type: transformers' name of the architecture.
        sharded: Its layers have their weights only while they are called.
    """
    if sharded:
        return False
    if compute.compile == "auto":
        return device == "cuda" and model_type != "elmo"
    return compute.compile


def for_finetuning(compute: ComputeConfig) -> ComputeConfig:
    """The same with auto decided: no, since compiling takes as long as many a finetuning."""
    if compute.compile != "auto":
        return compute
    return compute.model_copy(update={"compile": False})


def compile_network(network: Network, *, varying: bool) -> None:
    """Compile a network, in place, at its first forward: a minute or two for a base size.

    Args:
        network: Its weights and their names stay.
        varying: Shapes change from step to step: one kernel for all sizes. Otherwise one a shape,
            which is faster.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(_SHAPES, torch._dynamo.config.recompile_limit)
    network.compile(dynamic=varying or network.model.config.model_type == "elmo")
