"""Folders of plmctl in other people's tools, where these are installed."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands.conftest import Cli, corpus_text

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_folder_learns_from_pairs_in_sentence_transformers(
    family: str, pretrained: dict[str, Path], tmp_path: Path
) -> None:
    library: Any = pytest.importorskip(
        "sentence_transformers", reason="needs sentence-transformers"
    )
    models: Any = importlib.import_module("sentence_transformers.models")
    losses: Any = importlib.import_module("sentence_transformers.losses")
    from datasets import Dataset

    network = models.Transformer(str(pretrained[family] / "model"), max_seq_length=32)
    if network.tokenizer.pad_token is None:
        network.tokenizer.pad_token = network.tokenizer.eos_token
    width = network.get_word_embedding_dimension()
    pooling = models.Pooling(width, pooling_mode="mean")
    model = library.SentenceTransformer(modules=[network, pooling], device="cpu")
    lines = [line for line in corpus_text(6).splitlines() if line]
    before = model.encode(lines[:2])
    settings = library.SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "out"), num_train_epochs=1, use_cpu=True, report_to="none",
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    library.SentenceTransformerTrainer(
        model=model,
        args=settings,
        train_dataset=Dataset.from_dict({"anchor": lines, "positive": lines}),
        loss=losses.MultipleNegativesRankingLoss(model),
    ).train()
    assert not np.allclose(before, model.encode(lines[:2]))
    model.save_pretrained(str(tmp_path / "saved"))
    again = library.SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    np.testing.assert_allclose(again.encode(lines[:2]), model.encode(lines[:2]), rtol=1e-5)


def test_pairs_in_the_lm_evaluation_harness(
    pretrained: dict[str, Path], tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task of docs/other-tools.md prefers the same sentences as our measure."""
    harness: Any = pytest.importorskip("lm_eval", reason="needs lm-eval")
    monkeypatch.chdir(tmp_path)
    lines = [line for line in corpus_text(6).splitlines() if len(line.split()) > 3][:40]
    pairs = [
        {"sentence_good": line, "sentence_bad": " ".join(line.split()[::-1])} for line in lines
    ]
    Path("pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    task = {
        "task": "pairs", "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": "pairs.jsonl"}}, "test_split": "test",
        "output_type": "multiple_choice", "doc_to_text": "", "target_delimiter": "",
        "doc_to_choice": "{{[sentence_good, sentence_bad]}}", "doc_to_target": 0,
        "metric_list": [{"metric": "acc"}],
    }  # fmt: skip
    model = pretrained["gpt2"] / "model"
    result = harness.simple_evaluate(
        model="hf", model_args=f"pretrained={model}", tasks=[task], device="cpu", batch_size=8
    )
    measure = {"name": "minimal_pairs", "data": ["pairs.jsonl"]}
    config = {"run": "ev", "model": str(model), "measures": [measure]}
    Path("ev.yaml").write_text(json.dumps(config))
    code, out, err = cli("eval", "ev.yaml", "--json")
    assert code == 0, err
    ours = json.loads(out)["results"]["minimal_pairs"]["accuracy"]
    assert 0 < ours < 1
    assert result["results"]["pairs"]["acc,none"] == pytest.approx(ours)
