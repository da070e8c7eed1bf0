"""Folders of plmctl in other people's tools, where these are installed."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.commands.conftest import corpus_text

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
