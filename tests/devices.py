"""A device that is not there: PyTorch's ``meta``, whose tensors have shapes, dtypes and no values.

What starts on the CPU stays real, what is moved to the device loses its values, and what is read
from it is ones. So the project's own code runs as on a GPU, on any machine. Every
tensor of 64-bit floats that is made there is noted: Apple's GPUs have none.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.fx.experimental._config
from accelerate.state import PartialState
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from plmctl.config.sections import ComputeConfig
from plmctl.training.engine import make_accelerator

DEVICE = torch.device("meta")


class _Device(TorchDispatchMode):
    """Operations of the device that would need values, and a note of each wide tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.wide: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        there = any(tensor.is_meta for tensor in tensors)
        if torch.is_inference_mode_enabled() and there:  # composite operations arrive whole
            with self:
                if (parts := func.decompose(*args, **kwargs)) is not NotImplemented:
                    return parts
        name = func._schema.name.partition("::")[2]
        to = kwargs.get("device") if name == "_to_copy" else None
        if name == "_local_scalar_dense" and there:
            kind = tensors[0].dtype
            return True if kind is torch.bool else 1.0 if kind.is_floating_point else 1
        if there and name == "copy_" and tensors[0].is_cpu:
            return tensors[0].fill_(1)
        if there and to is not None and torch.device(to).type == "cpu":
            return torch.ones(tensors[0].shape, dtype=kwargs.get("dtype") or tensors[0].dtype)
        result = func(*args, **kwargs)
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor) and tensor.is_meta and tensor.dtype is torch.float64:
                self.wide.append(f"{func}: {tuple(tensor.shape)}")
        return result


@contextmanager
def on_a_device() -> Iterator[Any]:
    """An accelerator whose device it is; afterwards no 64-bit float may have been there."""
    accelerator = make_accelerator(ComputeConfig(device="cpu", precision="fp32"))
    accelerator.state.device = PartialState().device = DEVICE
    mode, all_true = _Device(), {"meta_nonzero_assume_all_nonzero": True}
    try:
        with mode, torch.fx.experimental._config.patch(all_true):
            yield accelerator
    finally:
        accelerator.state.device = PartialState().device = torch.device("cpu")
    assert not mode.wide, "\n".join(mode.wide)
