"""The one function that opens the weights of a model folder, and checks that they are all there.

transformers draws at random what a file of weights lacks, leaves out what has no place in the
network, and only logs both. Here each is an error, but for heads: those of another task may be in
the file, and those that a command creates may be missing from it.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import PreTrainedModel
from transformers.utils.hub import cached_file

from plmctl.errors import DataError

NewHeads = Callable[[str], None]
"""Is given one line about the heads that a command creates."""

_LISTED = 8
# Masks that earlier versions of transformers saved as if they were weights.
_BUFFERS = (".masked_bias", ".attn.bias", "position_ids", "token_type_ids")
_POOLER = "pooler."
_UNREADABLE = (
    OSError, ValueError, KeyError, RuntimeError, SafetensorError, pickle.UnpicklingError, EOFError,
)  # fmt: skip


@dataclass(frozen=True)
class Loaded:
    """A network from a folder.

    Attributes:
        network: In float32, in evaluation mode.
        fresh: Parameters of heads with random weights: the folder lacks them, or has them in
            another shape.
    """

    network: Any
    fresh: tuple[str, ...]


def load_network(
    cls: Any,
    source: str,
    *,
    new_heads: NewHeads | None = None,
    pooler_used: bool = True,
    **options: Any,
) -> Loaded:
    """A network with the weights of a folder, in float32.

    Args:
        cls: A class of transformers or of plmctl, or an Auto class.
        source: A model folder or Hub id.
        new_heads: Called with the heads that the folder lacks, which get random weights: parameters
            outside the encoder, and its pooler. None: the folder has to have them all.
        pooler_used: False: it does not matter whether the folder has a pooler.
        **options: Of ``from_pretrained``: a config, or changes to the folder's.

    Raises:
        DataError: The weights cannot be read; tensors are missing, have no place in the network, or
            have another shape than config.json says; or the folder's tokenizer has ids without an
            embedding. The message names the tensors.
    """
    try:
        network, info = cls.from_pretrained(
            source,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **options,
        )
    except _UNREADABLE as error:
        raise DataError(
            f"{source}: the model cannot be loaded: {_first_line(error)}",
            "the folder is damaged or incomplete: copy or export it again",
        ) from error
    wrong_shape = {name: sizes for name, *sizes in info["mismatched_keys"]}
    missing = set(info["missing_keys"])
    if not pooler_used:
        missing = {name for name in missing if not _inside(network, name).startswith(_POOLER)}
    creates = new_heads is not None
    heads = {name for name in missing | set(wrong_shape) if creates and _is_head(network, name)}
    declared = _declared(network, source) if missing & heads else frozenset()
    lacking = (missing - heads) | (missing & declared)
    extra = [name for name in info["unexpected_keys"] if not _may_be_left_out(network, name)]
    misshapen = {name: sizes for name, sizes in wrong_shape.items() if name not in heads}
    _refuse(source, type(network).__name__, lacking, extra, misshapen)
    _check_vocabulary(network, source)
    if heads:
        tell_or_refuse(source, network, _modules(network, heads), new_heads)
    return Loaded(network, tuple(sorted(heads)))


def tell_or_refuse(
    source: str, network: PreTrainedModel, names: Sequence[str], new_heads: NewHeads | None
) -> None:
    """Tell of heads that a folder lacks, or refuse the folder.

    Args:
        source: The folder or Hub id.
        network: Whose heads they are.
        names: Of their modules or tensors.
        new_heads: Called with them; None: the folder has to have them.

    Raises:
        DataError: It has not.
    """
    if new_heads is None:
        _refuse(source, type(network).__name__, set(names), [], {})
    else:
        new_heads(f"{source}: new, with random weights: {', '.join(names)}")


def _refuse(
    source: str,
    network: str,
    lacking: set[str],
    extra: Sequence[str],
    misshapen: dict[str, list[Any]],
) -> None:
    problems = []
    if lacking:
        problems.append(f"{_tensors(lacking)} of {network} missing: {_listed(lacking)}")
    if extra:
        problems.append(
            f"{_tensors(extra)} with no place in the network that config.json describes: "
            f"{_listed(extra)}"
        )
    if misshapen:
        shapes = [
            f"{name} (file {_shape(there)}, config.json {_shape(asked)})"
            for name, (there, asked) in misshapen.items()
        ]
        problems.append(f"{_tensors(shapes)} of the wrong shape: {_listed(shapes)}")
    if problems:
        raise DataError(
            f"{source}: the weights do not fit the model: {'; '.join(problems)}",
            "the folder is incomplete, or its config.json belongs to another model: copy or export "
            "it again, or train the model again",
        )


def _inside(network: PreTrainedModel, name: str) -> str:
    """The name of a parameter within the base model; empty for one of a head."""
    prefix = f"{network.base_model_prefix}."
    if network.base_model is network:  # the base model itself, or T5, whose head is inside
        return name.removeprefix(prefix)
    return name.removeprefix(prefix) if name.startswith(prefix) else ""


def _is_head(network: PreTrainedModel, name: str) -> bool:
    """Whether a parameter belongs to a head; a pooler does, though it is in the base model."""
    inside = _inside(network, name)
    return not inside or inside.startswith(_POOLER)


def _may_be_left_out(network: PreTrainedModel, name: str) -> bool:
    """Whether a tensor of the file that the network has no place for is none of the encoder's."""
    prefix = f"{network.base_model_prefix}."
    inside = name.removeprefix(prefix)
    first = inside.partition(".")[0]
    of_encoder = name.startswith(prefix) or first in dict(network.base_model.named_children())
    return not of_encoder or inside.startswith(_POOLER) or name.endswith(_BUFFERS)


def _declared(network: PreTrainedModel, source: str) -> frozenset[str]:
    """Parameters of the class that the folder says its weights are of, where that is known here."""
    from plmctl.modeling.auto import config_of

    config = config_of(source)
    name = (config.architectures or [""])[0]
    for base in type(network).__mro__:
        declared: Any = vars(sys.modules[base.__module__]).get(name)
        if isinstance(declared, type) and issubclass(declared, PreTrainedModel):
            with torch.device("meta"):
                return frozenset(declared(config).state_dict())
    return frozenset()


def _modules(network: PreTrainedModel, names: set[str]) -> list[str]:
    """The outermost modules of which all parameters are among ``names``."""
    found: list[str] = []
    parameters = [name for name, _ in network.named_parameters()]  # tied ones once
    for prefix, _ in network.named_modules():
        inside = {name for name in parameters if name.startswith(f"{prefix}.")}
        covered = any(f"{prefix}.".startswith(f"{one}.") for one in found)
        if inside and inside <= names and not covered:
            found.append(prefix)
    loose = {n for n in names if not any(n.startswith(f"{one}.") for one in found)}
    return [*found, *sorted(loose)]


def _check_vocabulary(network: PreTrainedModel, source: str) -> None:
    """Refuse a tokenizer with more ids than embeddings; fewer are fine (T5's rows are padded)."""
    if network.config.model_type == "elmo":  # reads characters
        return
    path = cached_file(source, "tokenizer.json", _raise_exceptions_for_missing_entries=False)
    if path is None:
        return
    try:
        saved = json.loads(Path(path).read_text(encoding="utf-8"))
        vocab, added = saved["model"]["vocab"], saved["added_tokens"]
        ids = vocab.values() if isinstance(vocab, dict) else range(len(vocab))
        largest = max(-1, *ids, *(token["id"] for token in added))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not a tokenizer: {_first_line(error)}", "copy or train it again"
        ) from error
    table: Any = network.get_input_embeddings()
    if largest >= table.num_embeddings:
        raise DataError(
            f"{source}: the tokenizer has ids up to {largest:,}, and the model has embeddings for "
            f"{table.num_embeddings:,}",
            "put the tokenizer into the folder that the model was trained with",
        )


def _tensors(names: Sequence[str] | set[str]) -> str:
    return f"{len(names)} tensor{'' if len(names) == 1 else 's'}"


def _listed(names: Iterable[str]) -> str:
    several = sorted(names)
    more = len(several) - _LISTED
    return ", ".join(several[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _shape(size: Sequence[int]) -> str:
    return f"[{', '.join(map(str, size))}]"


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
