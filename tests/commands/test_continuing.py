"""Continued pretraining by the command line: on the same tokenizer, on an extended one, and not."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

from tests.commands.conftest import Cli, pretrain_config, run_main, write
from tests.commands.test_bad_input import refused

NEW = "zirconium tungsten molybdenum\nmolybdenum zirconium tungsten\n" * 30


@pytest.fixture(scope="module")
def extended(world: Path, pretrained: dict[str, Path]) -> Path:
    """The tokenizer of the pretrained BERT with tokens of another text, and a config for it."""
    (world / "metals.txt").write_text(NEW, encoding="utf-8")
    base = {"algorithm": "wordpiece", "family": "bert", "vocab_size": 360}
    write("tok-metals.yaml", {"run": "tok-metals", **base, "data": {"train": ["metals.txt"]}})
    assert run_main("train-tokenizer", "tok-metals.yaml", "--from", "tok-bert") == 0
    config = pretrain_config("bert") | {"run": "on", "tokenizer": "tok-metals"}
    config["data"] = {"train": ["metals.txt", "text.txt"], "valid": 0.1}
    config["model"] = {"family": "bert", "init_from": str(pretrained["bert"] / "model")}
    write("metals-on.yaml", config)
    return pretrained["bert"] / "model"


@pytest.mark.parametrize("way", ["subtokens", "mean"])
def test_an_extended_tokenizer(way: str, extended: Path, cli: Cli) -> None:
    code, out, err = cli(
        "pretrain", "metals-on.yaml", f"model.extend_vocab={way}", f"run=on-{way}", "--json"
    )
    assert code == 0, err
    assert json.loads(out)["steps"] == 6
    model = AutoModelForMaskedLM.from_pretrained(f"on-{way}/model")
    tokenizer = AutoTokenizer.from_pretrained(f"on-{way}/model")
    assert model.config.vocab_size == len(tokenizer)
    assert len(tokenizer) > AutoModelForMaskedLM.from_pretrained(extended).config.vocab_size
    assert torch.isfinite(model(**tokenizer("zirconium", return_tensors="pt")).logits).all()


def test_more_ids_without_leave_to_extend(extended: Path, cli: Cli) -> None:
    refused(cli("pretrain", "metals-on.yaml", "run=x"), 2, "tok-metals has", "extend_vocab")
    assert not Path("x").exists()


def test_a_tokenizer_with_other_ids(extended: Path, cli: Cli) -> None:
    source = "data.train=[metals.txt]"
    assert cli("train-tokenizer", "tok-bert.yaml", "run=tok-odd", "vocab_size=100", source)[0] == 0
    override = ["run=x", "tokenizer=tok-odd"]
    refused(cli("pretrain", "metals-on.yaml", *override), 2, "tok-odd has", "the tokenizer of")


def test_a_network_of_another_shape(extended: Path, cli: Cli) -> None:
    same = ["run=x", "tokenizer=tok-bert"]
    refused(
        cli("pretrain", "metals-on.yaml", *same, "model.num_hidden_layers=5"),
        2,
        "has num_hidden_layers 2",
        "this config has 5",
    )
    refused(cli("pretrain", "metals-on.yaml", *same, "model.size=mini"), 2, "leave out the size")


def test_dropout_of_a_loaded_network(extended: Path, cli: Cli) -> None:
    options = ["run=dry", "tokenizer=tok-bert", "model.hidden_dropout_prob=0"]
    code, _, err = cli("pretrain", "metals-on.yaml", *options)
    assert code == 0, err
    saved = json.loads(Path("dry/model/config.json").read_text())
    assert saved["hidden_dropout_prob"] == 0
    assert saved["attention_probs_dropout_prob"] == 0.1
