"""Continued pretraining by the command line: on the same tokenizer, on an extended one, and not."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

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


# --- Networks of other architectures, from English to Chinese with a larger vocabulary ---

_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_OF_BERT = _SMALL | {"intermediate_size": 64}
_OTHERS = {
    "xlm-roberta": (_OF_BERT, "roberta", "byte_bpe"),
    "deberta-v2": (_OF_BERT | {"relative_attention": True}, "roberta", "byte_bpe"),
    "qwen2": (_OF_BERT | {"num_key_value_heads": 2}, "gpt2", "byte_bpe"),
    "mt5": (
        {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 64},
        "t5",
        "unigram",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", _OTHERS)
def test_any_architecture_goes_on_in_another_language(
    architecture: str, extended: Path, cli: Cli
) -> None:
    """The text in both languages, read by the network of one: its loss falls below a new one's."""
    options, family, algorithm = _OTHERS[architecture]
    chinese = "\n\n".join(
        f"安娜在花园里看见{n % 7}棵树。\n卡尔在河边等{n % 5}只船，天很晴朗。" for n in range(60)
    )
    Path("both.txt").write_text(Path("text.txt").read_text("utf-8") + "\n\n" + chinese, "utf-8")
    names = {"algorithm": algorithm, "family": family}
    names |= {"sentinels": 20} if family == "t5" else {}
    first, more = f"tok-{architecture}", f"tok-{architecture}-zh"
    tokenizer = {"run": first, **names, "vocab_size": 330, "data": {"train": ["text.txt"]}}
    write(f"{first}.yaml", tokenizer)
    write(
        f"{more}.yaml",
        tokenizer | {"run": more, "vocab_size": 360} | {"data": {"train": ["both.txt"]}},
    )
    assert run_main("train-tokenizer", f"{first}.yaml") == 0
    assert run_main("train-tokenizer", f"{more}.yaml", "--from", first) == 0
    config = pretrain_config("bert") | {"run": f"{architecture}-en", "tokenizer": first}
    config["model"] = {"family": "auto", "architecture": architecture, **options}
    config["train"] = {"batch_size": 8, "phases": [{"seq_len": 32, "steps": 30}]}
    config["optim"] = {"lr": 3e-3}
    write(f"{architecture}.yaml", config)
    assert run_main("pretrain", f"{architecture}.yaml") == 0
    config |= {"tokenizer": more, "data": {"train": ["both.txt"], "valid": 0.1}}
    losses = {}
    start = {"family": "auto", "init_from": f"{architecture}-en/model", "extend_vocab": "subtokens"}
    for name, model in (("on", start), ("new", config["model"])):
        run = f"{architecture}-{name}"
        write(f"{run}.yaml", config | {"model": model, "run": run})
        code, out, err = cli("pretrain", f"{run}.yaml", "--json")
        assert code == 0, err
        losses[name] = json.loads(out)["valid/loss"]
    assert losses["on"] < losses["new"]
    again = AutoTokenizer.from_pretrained(f"{architecture}-on/model")
    saved = AutoConfig.from_pretrained(f"{architecture}-on/model")
    assert saved.model_type == architecture
    assert saved.vocab_size >= len(again) > len(AutoTokenizer.from_pretrained(first))
