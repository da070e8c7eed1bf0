"""ALBERT through the commands: pretrained, previewed, measured, finetuned, loaded by others."""

import json
from pathlib import Path

import pytest
import torch

from tests.commands.conftest import Cli, pretrain_config, write
from tests.commands.test_bad_input import finetune_config

CHINESE = "中国人民站起来了。北京是中国的首都。人民的生活很好。我们在北京大学学习中文。"


@pytest.fixture(scope="module")
def albert(world: Path) -> Path:
    from tests.commands.conftest import run_main

    config = pretrain_config("bert") | {
        "run": "run-albert",
        "model": {
            "family": "albert", "size": "tiny", "hidden_size": 32, "embedding_size": 16,
            "num_attention_heads": 2,
        },
        "objective": {"name": "mlm+sop", "single_sentence": "skip"},
    }  # fmt: skip
    write("albert.yaml", config)
    assert run_main("pretrain", "albert.yaml") == 0
    return world / "run-albert"


def test_the_model_loads_with_the_auto_classes(albert: Path) -> None:
    from transformers import AutoModelForMaskedLM, AutoModelForPreTraining, AutoTokenizer

    model = albert / "model"
    batch = AutoTokenizer.from_pretrained(model)("Anna sees [MASK].", return_tensors="pt")
    whole = AutoModelForPreTraining.from_pretrained(model).eval()
    assert type(whole).__name__ == "AlbertForPreTraining"
    masked = AutoModelForMaskedLM.from_pretrained(model).eval()
    with torch.no_grad():
        assert torch.equal(whole(**batch).prediction_logits, masked(**batch).logits)


def test_both_losses_are_logged(albert: Path) -> None:
    lines = (albert / "metrics.jsonl").read_text().splitlines()
    last = [record for record in map(json.loads, lines) if "loss" in record][-1]
    assert {"loss/mlm", "loss/sop"} <= last.keys()
    assert last["loss"] == pytest.approx(last["loss/mlm"] + last["loss/sop"], rel=1e-5)


def test_order_is_measured(cli: Cli, albert: Path) -> None:
    measures = [{"name": name, "data": ["text.txt"], "seq_len": 32} for name in ("mlm", "sop")]
    write(
        "ev-albert.yaml",
        {
            "run": "eval-albert",
            "model": str(albert / "model"),
            "measures": measures,
            "compute": {"device": "cpu", "precision": "fp32"},
        },
    )
    code, out, err = cli("eval", "ev-albert.yaml", "--json")
    assert code == 0, err
    results = json.loads(out)["results"]
    assert 0.3 < results["sop"]["accuracy/sop"] < 0.8
    assert results["mlm"]["perplexity/mlm"] > 1


def test_it_is_finetuned(cli: Cli, albert: Path) -> None:
    write("ft-albert.yaml", finetune_config(albert) | {"run": "tuned-albert"})
    code, _, err = cli("finetune", "ft-albert.yaml")
    assert code == 0, err
    assert (Path("tuned-albert") / "model" / "config.json").is_file()


def test_preview_has_the_figures_of_order(cli: Cli, albert: Path) -> None:
    code, out, err = cli("preview", "albert.yaml", "--count", "600", "--json")
    assert code == 0, err
    figures = json.loads(out)
    assert figures["swapped_share_multi"] == pytest.approx(0.5, abs=0.08)
    assert figures["single_share"] == 0
    assert figures["mask_share"] == pytest.approx(0.8, abs=0.03)
    code, out, _ = cli("preview", "albert.yaml", "--count", "64")
    assert code == 0
    assert "B comes before A" in out or "A comes before B" in out


def test_chinese_words(cli: Cli, world: Path) -> None:
    pytest.importorskip("jieba")
    Path("zh.txt").write_text("\n\n".join([CHINESE] * 60), encoding="utf-8")
    tokenizer = {"run": "tok-zh", "algorithm": "wordpiece", "family": "bert", "vocab_size": 100}
    write("tok-zh.yaml", tokenizer | {"data": {"train": ["zh.txt"]}})
    assert cli("train-tokenizer", "tok-zh.yaml")[0] == 0
    config = pretrain_config("bert") | {"run": "run-zh", "tokenizer": "tok-zh"}
    data = {"train": ["zh.txt"], "valid": None}
    config |= {"data": data, "objective": {"name": "mlm+nsp", "unit": "word", "rate": 0.3}}
    write("zh.yaml", config)
    code, _, err = cli("pretrain", "zh.yaml")
    assert code == 2
    assert "data.words: jieba" in err
    assert not Path("run-zh").exists()
    code, _, err = cli("pretrain", "zh.yaml", "data.words=jieba")
    assert code == 0, err
