"""A part of a network that transformers' class lacks, in a file beside the weights.

What is in the folder is an ordinary model of transformers; pretraining reads the file, too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel
from transformers.utils.hub import cached_file

from plmctl import hub
from plmctl.errors import DataError
from plmctl.models.load import NewHeads, report_or_refuse


def save_with_part(
    model: PreTrainedModel,
    folder: str | Path,
    name: str,
    file: str,
    architecture: str,
    **options: Any,
) -> None:
    """Write the folder of a network of class ``architecture``, and its part ``name`` beside it."""
    weights = model.state_dict()
    plain = {key: w for key, w in weights.items() if not key.startswith(f"{name}.")}
    PreTrainedModel.save_pretrained(model, folder, state_dict=plain, **options)
    model.config.architectures = [architecture]  # which is what is in the folder
    model.config.save_pretrained(folder)
    part = {key: w.contiguous() for key, w in model.get_submodule(name).state_dict().items()}
    save_file(part, Path(folder) / file)


def load_part(
    model: PreTrainedModel, folder: str, name: str, file: str, new_heads: NewHeads | None
) -> None:
    """Read the part ``name`` of a network from a folder or Hub id.

    Args:
        new_heads: Called with a message if the folder lacks the part; None: an error.

    Raises:
        DataError: It is missing, or does not fit.
    """
    path = cached_file(hub.local(folder), file, _raise_exceptions_for_missing_entries=False)
    if path is None:
        report_or_refuse(folder, model, [f"{name} ({file})"], new_heads)
        return
    part: nn.Module = model.get_submodule(name)
    try:
        part.load_state_dict(load_file(path))
    except (RuntimeError, SafetensorError) as error:
        raise DataError(
            f"{path}: not a part of this model: {error}",
            "copy or export the folder again",
        ) from error
