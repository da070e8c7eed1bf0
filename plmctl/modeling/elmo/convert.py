"""Published weights (allenai/bilm-tf: ``options.json`` and an HDF5 file) as an ``ElmoModel``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plmctl.errors import DataError, PlmError
from plmctl.modeling.elmo.characters import SYMBOLS
from plmctl.modeling.elmo.config import ElmoConfig
from plmctl.modeling.elmo.network import ElmoModel

Read = Callable[[str], NDArray[np.float32]]
"""Gives an array of the HDF5 file by its name."""


def convert(options: Path, weights: Path) -> ElmoModel:
    """The network of a pair of published files.

    The files have no softmax: they give the layers, not the language model.

    Args:
        options: ``options.json``.
        weights: The HDF5 file.

    Raises:
        PlmError: h5py is not installed.
        DataError: The files are not those of an ELMo with characters.
    """
    try:
        import h5py
    except ImportError as error:
        raise PlmError(
            "reading HDF5 files needs the package h5py", "install it: pip install 'plmctl[elmo]'"
        ) from error
    config = read_options(options)
    model = ElmoModel(config)
    try:
        with h5py.File(weights) as file:
            tensors = _tensors(config, lambda name: np.asarray(file[name], dtype=np.float32))
        model.load_state_dict(tensors)
    except (OSError, KeyError, RuntimeError) as error:
        raise DataError(
            f"{weights}: not the weights of {options}: {str(error).splitlines()[0]}",
            "give the options and the weights of one published model",
        ) from error
    model.train(False)
    return model


def read_options(path: Path) -> ElmoConfig:
    """The config that ``options.json`` stands for.

    Raises:
        DataError: It has no characters, or is no such file.
    """
    try:
        options: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        lstm, characters = options["lstm"], options["char_cnn"]
        return ElmoConfig(
            vocab_size=options.get("n_tokens_vocab", 793_471),
            max_characters=characters["max_characters_per_token"],
            char_embedding_size=characters["embedding"]["dim"],
            filters=characters["filters"],
            activation=characters["activation"],
            num_highway_layers=characters.get("n_highway", 0),
            projection_size=lstm["projection_dim"],
            cell_size=lstm["dim"],
            num_hidden_layers=lstm["n_layers"],
            cell_clip=float(lstm["cell_clip"]),
            projection_clip=float(lstm["proj_clip"]),
            skip_connections=lstm["use_skip_connections"],
            dropout=options.get("dropout", 0.1),
        )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path}: not the options of an ELMo with characters: {error}",
            "it is the options.json that was published with the weights",
        ) from error


def _tensors(config: ElmoConfig, read: Read) -> dict[str, Tensor]:
    """Every weight by our name; matrices there are [in, out]."""
    named = {"characters.embedding.weight": _embedding(read("char_embed"))}
    for number in range(len(config.convolutions)):
        kernel = read(f"CNN/W_cnn_{number}")  # [1, width, in, out]
        named[f"characters.convolutions.{number}.weight"] = kernel[0].transpose(2, 1, 0)
        named[f"characters.convolutions.{number}.bias"] = read(f"CNN/b_cnn_{number}")
    for number in range(config.num_highway_layers):
        for ours, theirs in (("transform", "transform"), ("gate", "carry")):
            at = f"characters.highways.{number}.{ours}"
            named[f"{at}.weight"] = read(f"CNN_high_{number}/W_{theirs}").T
            named[f"{at}.bias"] = read(f"CNN_high_{number}/b_{theirs}")
    named["characters.projection.weight"] = read("CNN_proj/W_proj").T
    named["characters.projection.bias"] = read("CNN_proj/b_proj")
    for number in range(config.num_hidden_layers):
        cells = [f"RNN_{d}/RNN/MultiRNNCell/Cell{number}/LSTMCell" for d in (0, 1)]
        both = [read(f"{cell}/W_0") for cell in cells]  # [input + output, gates]
        size = config.projection_size
        named[f"layers.{number}.weight_input"] = np.stack([w[:size] for w in both])
        named[f"layers.{number}.weight_recurrent"] = np.stack([w[size:] for w in both])
        named[f"layers.{number}.bias"] = np.concatenate([read(f"{cell}/B") for cell in cells])
        named[f"layers.{number}.projection"] = np.stack([read(f"{c}/W_P_0") for c in cells])
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in named.items()}


def _embedding(published: NDArray[np.float32]) -> NDArray[np.float32]:
    """With the row of padding before the 261."""
    if len(published) != SYMBOLS - 1:
        raise KeyError(f"char_embed has {len(published)} rows, not {SYMBOLS - 1}")
    return np.concatenate([np.zeros_like(published[:1]), published])
