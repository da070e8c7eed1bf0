"""A model folder is loaded whole or refused, and only heads that a command creates may be new."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save_file
from transformers import (
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)

from plmctl.errors import DataError
from plmctl.families.base import get_family
from plmctl.models.load import load_network
from tests.builders import make_model

Weights = dict[str, torch.Tensor]
ENCODER = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
SIZES: dict[str, dict[str, Any]] = {
    "albert": {**ENCODER, "embedding_size": 8},
    "bert": ENCODER,
    "distilbert": {"dim": 16, "n_heads": 2, "hidden_dim": 24, "n_layers": 2},
    "elmo": {"cell_size": 12, "projection_size": 8, "char_embedding_size": 4},
    "gpt1": {"n_embd": 16, "n_head": 2, "n_layer": 2},
    "gpt2": {"n_embd": 16, "n_head": 2, "n_layer": 2},
    "gpt3": {"n_embd": 16, "n_head": 2, "n_layer": 2},
    "roberta": ENCODER,
    "spanbert": ENCODER,
    "t5": {"d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 24},
    "t5-v1.1": {"d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 24, "version": "v1.1"},
}
LAYERS = {
    "bert": "num_hidden_layers", "roberta": "num_hidden_layers", "spanbert": "num_hidden_layers",
    "elmo": "num_hidden_layers", "distilbert": "n_layers", "gpt1": "n_layer", "gpt2": "n_layer",
    "gpt3": "n_layer", "t5": "num_layers",
}  # fmt: skip


def saved(name: str, folder: Path) -> tuple[Any, tuple[str, ...]]:
    """A family's tiny network in ``folder``; the family, and the parts that it has heads for."""
    family = name.partition("-")[0]
    member = get_family(family)
    size = next(iter(member.SIZES)) if family.startswith("gpt") else "tiny"
    parts = tuple(part for part in member.HEADS if part != "z_loss")
    make_model(family, 40, parts, size=size, **SIZES[name]).save_pretrained(folder)
    return member, parts


def rewrite(folder: Path, change: Callable[[Weights], Weights], **config: Any) -> str:
    path = folder / "model.safetensors"
    weights = load(path.read_bytes())  # load_file would map the file that is written
    save_file(change(weights), path, metadata={"format": "pt"})
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | config))
    return str(folder)


@pytest.mark.parametrize("name", SIZES)
def test_no_tensor_of_a_folder_may_be_missing(name: str, tmp_path: Path) -> None:
    member, parts = saved(name, tmp_path)
    weights = load((tmp_path / "model.safetensors").read_bytes())
    loaded = dict(member().load(str(tmp_path), parts).state_dict())
    assert all(torch.equal(loaded[key], value) for key, value in weights.items())
    of_no_layer = [name for name in weights if not any(letter.isdigit() for letter in name)]
    for lost in {*of_no_layer, *list(weights)[::5]}:
        rewrite(tmp_path, lambda _: {n: w for n, w in weights.items() if n != lost})  # noqa: B023  # used at once
        with pytest.raises(DataError) as refused:
            member().load(str(tmp_path), parts, new_heads=print)
        assert lost in refused.value.message
        assert "missing" in refused.value.message
    rewrite(tmp_path, lambda _: {})
    with pytest.raises(DataError, match=r"missing: .* and \d+ more"):
        member().load(str(tmp_path), parts, new_heads=print)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_and_shapes_are_those_of_the_config(name: str, tmp_path: Path) -> None:
    member, parts = saved(name, tmp_path)
    for layers, message in ((1, "no place in the network"), (3, "missing")):
        there = shutil.copytree(tmp_path, tmp_path / str(layers))
        extra = {"num_decoder_layers": layers} if name == "t5" else {}
        folder = rewrite(there, lambda weights: weights, **{LAYERS[name]: layers}, **extra)
        with pytest.raises(DataError, match=message):
            member().load(folder, parts, new_heads=print)
    folder = rewrite(tmp_path, lambda weights: weights, vocab_size=39)
    with pytest.raises(DataError, match=r"wrong shape: .*\(file \[\d+, \d+\], config.json \[39, "):
        member().load(folder, parts)


@pytest.mark.parametrize("name", [name for name in SIZES if not name.startswith("t5")])
def test_files_of_the_base_model_alone(name: str, tmp_path: Path) -> None:
    """As published without heads, and without the prefix: a head is new only if a command says."""
    member, parts = saved(name, tmp_path / "whole")
    whole = member().load(str(tmp_path / "whole"), parts)
    whole.base_model.save_pretrained(tmp_path)
    messages: list[str] = []
    if name.startswith("gpt"):  # whose head is the embeddings
        again = member().load(str(tmp_path), parts)
    else:
        with pytest.raises(DataError, match="missing"):
            member().load(str(tmp_path), parts)
        again = member().load(str(tmp_path), parts, new_heads=messages.append)
        assert messages
        assert messages[0].startswith(f"{tmp_path}: new, with random weights: ")
    before = whole.base_model.state_dict()
    after = again.base_model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())


def bert(cls: Any, folder: Path, **fields: Any) -> str:
    sizes = {"vocab_size": 40, "num_hidden_layers": 2, "max_position_embeddings": 16}
    cls(BertConfig(**ENCODER, **sizes, **fields)).save_pretrained(folder)
    return str(folder)


def test_heads_of_published_folders(tmp_path: Path) -> None:
    """bert-base-uncased: two heads, a pooler, old names, position ids; what is new is said."""
    messages: list[str] = []
    folder = bert(BertForPreTraining, tmp_path / "both")

    def as_of_old(weights: Weights) -> Weights:
        old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
        for now, then in old.items():
            weights = {name.replace(now, then): weight for name, weight in weights.items()}
        return {**weights, "bert.embeddings.position_ids": torch.arange(16)[None]}

    rewrite(tmp_path / "both", as_of_old, architectures=["BertForMaskedLM"])
    for cls in (BertForMaskedLM, BertForPreTraining, BertModel):
        assert load_network(cls, folder).fresh == ()
    loaded = load_network(BertForSequenceClassification, folder, new_heads=messages.append)
    assert loaded.fresh == ("classifier.bias", "classifier.weight")
    with pytest.raises(DataError, match=r"missing: classifier.bias, classifier.weight\n"):
        load_network(BertForSequenceClassification, folder)
    plain = bert(BertForMaskedLM, tmp_path / "one")
    load_network(BertForSequenceClassification, plain, new_heads=messages.append)
    load_network(BertForPreTraining, plain, new_heads=messages.append)
    assert [line.partition("weights: ")[2] for line in messages] == [
        "classifier", "bert.pooler, classifier", "bert.pooler, cls.seq_relationship",
    ]  # fmt: skip
    assert load_network(AutoModel, plain, pooler_used=False).fresh == ()
    with pytest.raises(DataError, match="pooler"):
        load_network(AutoModel, plain)


def test_a_folder_has_the_head_that_it_is_named_for(tmp_path: Path) -> None:
    """No command creates again what the folder says to have, whatever class it is loaded as."""
    folder = bert(BertForMaskedLM, tmp_path / "lm")
    rewrite(tmp_path / "lm", lambda tensors: {n: w for n, w in tensors.items() if "cls" not in n})
    with pytest.raises(DataError, match=r"cls\.predictions\.bias"):
        load_network(BertForPreTraining, folder, new_heads=print)
    folder = bert(BertForTokenClassification, tmp_path / "tags")
    rewrite(
        tmp_path / "tags", lambda tensors: {n: w for n, w in tensors.items() if "fier" not in n}
    )
    for cls in (BertForTokenClassification, BertForSequenceClassification):
        with pytest.raises(DataError, match=r"classifier\.bias, classifier\.weight"):
            load_network(cls, folder, new_heads=print)


def test_masks_that_were_saved_as_weights_are_left_out(tmp_path: Path) -> None:
    member, parts = saved("gpt2", tmp_path / "whole")
    member().load(str(tmp_path / "whole"), parts).base_model.save_pretrained(tmp_path)
    masks = {
        "h.0.attn.bias": torch.ones(1, 1, 4, 4),
        "h.0.attn.masked_bias": torch.tensor(-1e4),
    }
    folder = rewrite(tmp_path, lambda weights: {**weights, **masks})
    assert member().load(folder, parts)
    real = {"h.0.attn.c_attn.gate": torch.ones(3)}
    rewrite(tmp_path, lambda weights: {**weights, **real})
    with pytest.raises(DataError, match=r"no place .* h\.0\.attn\.c_attn\.gate\n"):
        member().load(folder, parts)


def test_a_tokenizer_has_no_more_ids_than_the_network(tmp_path: Path) -> None:
    member, parts = saved("gpt2", tmp_path)
    vocab = {"a": 0, "b": 39}
    tokenizer = {"model": {"vocab": vocab}, "added_tokens": [{"id": 5}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert member().load(str(tmp_path), parts)
    for broken, message in (
        ({**tokenizer, "added_tokens": [{"id": 40}]}, "ids up to 40, .* embeddings for 40"),
        ({"model": {"vocab": [["a", 0.0]] * 41}, "added_tokens": []}, "ids up to 40"),
        ({}, "not a tokenizer"),
    ):
        (tmp_path / "tokenizer.json").write_text(json.dumps(broken))
        with pytest.raises(DataError, match=message):
            member().load(str(tmp_path), parts)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    member, parts = saved("bert", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"abc")
    with pytest.raises(DataError, match="cannot be loaded"):
        member().load(str(tmp_path), parts)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DataError, match="cannot be loaded"):
        member().load(str(tmp_path), parts)
