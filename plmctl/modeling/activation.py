"""The tanh form of GELU in one kernel, in place of transformers' eight."""

from torch import nn
from transformers.activations import GELUTanh, NewGELUActivation


def fuse_gelu(model: nn.Module) -> None:
    """Let a model, in place, compute ``gelu_new`` as ``gelu_pytorch_tanh``: the same function.

    GPT-1, GPT-2, T5 1.1 and ALBERT's second version have it by the first name, which their configs,
    and so the folders that are saved, keep.
    """
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is NewGELUActivation:
                setattr(module, name, GELUTanh())
