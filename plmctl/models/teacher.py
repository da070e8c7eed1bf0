"""A frozen teacher, and students that start from alternate layers of it (DistilBERT)."""

import re
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache

import torch
from accelerate.state import AcceleratorState, is_initialized
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM, PreTrainedModel

from plmctl.models.any_head import states_and_logits_at
from plmctl.models.load import load_network
from plmctl.models.losses import Projection

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


@dataclass(frozen=True)
class Lesson:
    """What a teacher says of a batch.

    Attributes:
        states: [N, H] last hidden states, in float32.
        logits: [N, V], or the ``Projection`` that computes them: some rows at a time, since all of
            them would be as large as the student's.
        dtype: Of the products, where it is not that of the weights.
    """

    states: Tensor
    logits: Tensor | Projection
    dtype: torch.dtype | None

    @torch.no_grad()
    def rows(self, some: slice) -> Tensor:
        """The logits [R, V] of some rows, in float32."""
        if isinstance(self.logits, Tensor):
            return self.logits[some].float()
        hidden, layer = self.logits.hidden[some], self.logits.layer
        with _computing_in(self.dtype, hidden.device):
            logits: Tensor = layer(hidden)
        return logits.float()


@torch.no_grad()
def teach(folder: str, input_ids: Tensor, attention_mask: Tensor, positions: Tensor) -> Lesson:
    """What a teacher says at some positions.

    Args:
        folder: A folder or Hub id.
        input_ids: [B, L], one segment.
        attention_mask: [B, L], 0 at padding.
        positions: [N] of the flattened batch.
    """
    teacher = load_teacher(folder, input_ids.device)
    # The student computes in this precision too, inside Accelerate's wrapper.
    dtype = _PRECISION.get(AcceleratorState().mixed_precision) if is_initialized() else None
    inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
    with _computing_in(dtype, input_ids.device):
        states, logits = states_and_logits_at(teacher, inputs, positions, Projection)
    return Lesson(states.float(), logits, dtype)


def _computing_in(dtype: torch.dtype | None, device: torch.device) -> AbstractContextManager[None]:
    return nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)


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
