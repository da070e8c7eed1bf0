"""A frozen teacher, and students that start from alternate layers of it (DistilBERT)."""

import re
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from accelerate.state import AcceleratorState, is_initialized
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, PreTrainedModel

from plmctl.models.load import load_network

_PRECISION = {"bf16": torch.bfloat16, "fp16": torch.float16}
_LAYER = re.compile(r"(?<=\.layer\.)\d+(?=\.)")


@cache
def load_teacher(folder: str, device: torch.device) -> PreTrainedModel:
    """The masked language model of a folder or Hub id, without dropout or gradients.

    It is loaded once per process, when it is first needed, and is not part of any checkpoint.
    """
    with torch.inference_mode(mode=False):  # scoring may load it before training does
        teacher: PreTrainedModel = load_network(AutoModelForMaskedLM, folder).network
        teacher.requires_grad_(False)
        teacher.train(mode=False)
        nn.Module.to(teacher, device)
    return teacher


@torch.no_grad()
def teach(
    folder: str, input_ids: Tensor, attention_mask: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """A teacher's logits and hidden states at some positions.

    Args:
        input_ids: [B, L], one segment.
        attention_mask: [B, L], 0 at padding.
        positions: [N] of the flattened batch.

    Returns:
        Logits [N, V] and last hidden states [N, H], in float32.
    """
    teacher: Any = load_teacher(folder, input_ids.device)
    # The student computes in this precision too, inside Accelerate's wrapper.
    dtype = _PRECISION.get(AcceleratorState().mixed_precision) if is_initialized() else None
    with nullcontext() if dtype is None else torch.autocast(input_ids.device.type, dtype=dtype):
        output = teacher(input_ids, attention_mask=attention_mask, output_hidden_states=True)
    logits, hidden = output.logits, output.hidden_states[-1]
    return logits.flatten(0, 1)[positions].float(), hidden.flatten(0, 1)[positions].float()


def alternate(teacher: int, student: int) -> list[int]:
    """The teacher's layers that a student of fewer layers starts from: evenly spread.

    The first and the last are among them: 12 to 6 gives 0, 2, 4, 7, 9, 11, as published.
    """
    if student == 1:
        return [0]
    return [round(i * (teacher - 1) / (student - 1)) for i in range(student)]


@torch.no_grad()
def copy_alternate_layers(
    student: PreTrainedModel, teacher: PreTrainedModel, names: Mapping[str, str]
) -> None:
    """Give a student the weights of alternate layers of a teacher, its embeddings and its head.

    Args:
        student: All its parameters are overwritten.
        teacher: A network of the same hidden size.
        names: Parts of the student's parameter names, and their replacements in the teacher's, in
            this order.
    """
    tensors = teacher.state_dict()
    layers = alternate(_layers(tensors), _layers(student.state_dict()))
    for name, parameter in student.named_parameters():
        source = _LAYER.sub(lambda match: str(layers[int(match[0])]), name)
        for part, replacement in names.items():
            source = source.replace(part, replacement)
        parameter.copy_(tensors[source])


def _layers(names: Iterable[str]) -> int:
    return 1 + max(int(match[0]) for name in names if (match := _LAYER.search(name)))
