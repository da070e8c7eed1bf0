"""Small networks of every family with tokenizers of their own, as model folders."""

import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from plmctl import registry
from plmctl.config.sections import ComputeConfig
from plmctl.evaluation.model import LoadedModel
from plmctl.families.base import get_family
from plmctl.run.folder import save_model
from plmctl.tokenization.load import Vocab
from plmctl.training.engine import make_accelerator
from tests.commands.conftest import corpus_text, run_main, write

# Family: the tokenizer's algorithm, whose template, and fields of the network.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("wordpiece", "bert", {"hidden_size": 32, "max_position_embeddings": 60}),
    "distilbert": ("wordpiece", "bert", {"dim": 32}),
    "roberta": ("byte_bpe", "roberta", {"hidden_size": 32}),
    "albert": ("unigram", "albert", {"hidden_size": 32, "embedding_size": 16}),
    "gpt2": ("byte_bpe", "gpt2", {"n_embd": 32, "n_head": 2, "n_positions": 48}),
    "gpt1": ("bpe", "gpt1", {"n_embd": 32, "n_head": 2}),
    "t5": ("unigram", "t5", {"d_model": 32, "num_heads": 2, "d_kv": 16, "d_ff": 64}),
    "elmo": ("word", "elmo", {"cell_size": 24, "projection_size": 16}),
}
LOSS_TERMS = {"lm": ("lm",), "mlm": ("mlm",), "forward": ("forward", "backward")}


def make_folder(root: Path, family: str) -> Path:
    """``root/<family>``: weights far from their beginning, so that predictions differ."""
    algorithm, template, fields = FAMILIES[family]
    tokenizer = root / f"tok-{algorithm}-{template}"
    if not tokenizer.exists():
        before = Path.cwd()
        os.chdir(root)
        Path("text.txt").write_text(corpus_text(), encoding="utf-8")
        options = {"algorithm": algorithm, "family": template, "vocab_size": 160}
        if algorithm == "byte_bpe":
            options["vocab_size"] = 300
        if template == "t5":
            options["sentinels"] = 4
        data = {"train": ["text.txt"]}
        write(f"{tokenizer.name}.yaml", {"run": tokenizer.name, **options, "data": data})
        assert run_main("train-tokenizer", f"{tokenizer.name}.yaml") == 0
        os.chdir(before)
    member = get_family(family)
    vocab = Vocab.from_folder(str(tokenizer))
    config = registry.load("families", family).Config(family=family, size="tiny", **fields)
    pad = vocab.pad if vocab.pad is not None else vocab.eos or 0
    torch.manual_seed(1)
    parts = LOSS_TERMS[next(part for part in LOSS_TERMS if part in member.HEADS)]
    model = member.build(config, vocab_size=vocab.size, pad_id=pad, loss_terms=parts)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    folder = root / f"run-{family}"
    folder.mkdir()
    return save_model(folder, model, AutoTokenizer.from_pretrained(tokenizer), "")


def opened(folder: Path | str, batch_size: int = 32) -> LoadedModel:
    """A model folder on the CPU."""
    return LoadedModel(str(folder), make_accelerator(ComputeConfig(device="cpu")), batch_size)
