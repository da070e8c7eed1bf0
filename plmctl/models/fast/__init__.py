"""The fast paths: only this package imports private names of transformers.

Each path computes the same mathematics with the same weights under the same names, so that a model
is saved as before, and every network works without them. A path needs private names: if a version
of transformers lacks one, or has changed it, the path is left out, which is reported in one line.
Other packages import from here, never from this package's files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from plmctl.errors import ConfigError
from plmctl.versions import installed_version, tested_versions

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel

CPU_ATTENTION = "plmctl_cpu"
"""The name of our attention in transformers' registry."""

UNPADDED_ATTENTION = "plmctl_unpadded"
"""The same, of texts one after the other."""


def apply_fast_paths(
    model: PreTrainedModel, *, device: str, compiled: bool, sharded: bool, attention: str = "auto"
) -> None:
    """Make a network faster, in place, for training and inference.

    Args:
        model: Its weights, their names and its results stay.
        device: "cpu", "cuda" or "mps".
        compiled: ``torch.compile`` reads it, which some paths would be in the way of.
        sharded: Its layers have their weights only while they are called, so none may be taken
            apart.
        attention: "auto", or the implementation that the user has chosen, which stays.
    """
    use_fused_attention(model)
    with _left_out_if_changed("GELU in one kernel"):
        from plmctl.models.fast.layers import fuse_gelu

        fuse_gelu(model)
    if device != "cpu":
        with _left_out_if_changed("masks that the host does not read"):
            from plmctl.models.fast.attention import use_unread_masks

            use_unread_masks()
    if attention == "unpadded":
        from plmctl.models.fast.attention import set_attention
        from plmctl.models.fast.encoder import skip_unused_positions

        set_attention(model, UNPADDED_ATTENTION)
        skip_unused_positions(model)
        return
    if device != "cpu" or compiled:
        return
    if attention == "auto":
        with _left_out_if_changed("attention for CPUs"):
            from plmctl.models.fast.attention import use_cpu_attention

            use_cpu_attention(model)
    with _left_out_if_changed("dropout for CPUs"):
        from plmctl.models.fast.layers import use_fast_dropout

        use_fast_dropout(model)
    # By name: to import DeBERTa for a model of another kind takes time.
    if any(type(module).__name__ == "DisentangledSelfAttention" for module in model.modules()):
        with _left_out_if_changed("the relative positions of a row"):
            from plmctl.models.fast.disentangled import use_needed_positions

            use_needed_positions(model)
    if not sharded:
        with _left_out_if_changed("skipping unused positions"):
            from plmctl.models.fast.encoder import skip_unused_positions

            skip_unused_positions(model)
        from plmctl.models.decoder import FastDecoder

        if any(isinstance(module, FastDecoder) for module in model.modules()):
            with _left_out_if_changed("one position of the top layer"):
                from plmctl.models.fast.decoder import use_parts_of_layers

                use_parts_of_layers(model)


def use_fused_attention(model: PreTrainedModel) -> None:
    """Let decoders, in place, attend in PyTorch's fused kernel, without reading a mask."""
    # By name: to import their networks for a model of another kind takes time.
    names = {base.__name__ for module in model.modules() for base in type(module).__mro__}
    if names & {"GPT2Model", "OpenAIGPTModel"}:
        with _left_out_if_changed("fused attention"):
            from plmctl.models.fast.decoder import use_fast_decoder

            use_fast_decoder(model)
    if names & {"LlamaModel", "Qwen3Model"}:
        with _left_out_if_changed("fused attention of rotary decoders"):
            from plmctl.models.fast.rotary import use_fast_rotary

            use_fast_rotary(model)


def has_unpadded_attention(config: PreTrainedConfig) -> bool:
    """Whether the layers of a network can have their texts one after the other."""
    from plmctl.models.fast.encoder import without_padding

    return without_padding(config)


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Let a network, in place, store only the inputs of its layers and compute the rest again.

    Raises:
        ConfigError: It is not supported for this network.
    """
    try:
        from plmctl.models.fast.recompute import recompute_layers
    except ImportError as error:
        raise no_checkpointing(f"this version of transformers ({error})") from error
    if not recompute_layers(model):
        raise no_checkpointing(type(model).__name__)


def set_up_compiler(shapes: int, *, varying: bool) -> None:
    """Settings of ``torch.compile`` in this process.

    Between several processes PyTorch cuts the graph up, to exchange gradients during the backward.
    A part of a graph for any shapes may have a number among its results, which PyTorch cannot cut
    (``'int' object has no attribute 'meta'``, in 2.13): such a graph stays whole.

    Args:
        shapes: How many of one function it compiles at most.
        varying: One graph is for any shapes.
    """
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(shapes, torch._dynamo.config.recompile_limit)
    torch._dynamo.config.optimize_ddp = not varying


def have_any_length(tensors: Iterable[Tensor]) -> None:
    """Let ``torch.compile`` make one graph for all sizes of the first axis, where it can."""
    import torch._dynamo

    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)


@contextmanager
def told_of_compilations(
    start: Callable[[Any], None], end: Callable[[Any], None]
) -> Iterator[None]:
    """Within the block PyTorch calls these before and after it compiles, with what it compiles."""
    from torch._dynamo.callback import callback_handler

    callback_handler.register_start_callback(start)
    callback_handler.register_end_callback(end)
    try:
        yield
    finally:
        callback_handler.remove_start_callback(start)
        callback_handler.remove_end_callback(end)


def no_checkpointing(network: str) -> ConfigError:
    """The error for a network without activation checkpointing."""
    return ConfigError(
        f"compute.checkpoint_activations: not supported for {network}",
        "leave it out; a smaller train.micro_batch_size takes less memory as well",
    )


@contextmanager
def _left_out_if_changed(path: str) -> Iterator[None]:
    """Report, once per process, instead of failing where transformers lacks what a path needs."""
    try:
        yield
    except ImportError as error:
        _report(path, str(error))


@cache
def _report(path: str, reason: str) -> None:
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return
    tested = tested_versions().get("transformers")
    remedy = f"; pip install transformers=={tested}" if tested else ""
    print(
        f"plmctl: a fast path is left out ({path}): slower with transformers "
        f"{installed_version('transformers')}, results stay the same{remedy} ({reason})",
        file=sys.stderr,
    )
