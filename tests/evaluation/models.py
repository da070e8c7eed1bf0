"""Small networks of every family with tokenizers of their own, as model folders."""

import os
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
)

from plmctl.config.sections import ComputeConfig
from plmctl.evaluation.model import LoadedModel
from plmctl.families.base import get_family
from plmctl.tokenization.load import Vocab
from plmctl.training.engine import make_accelerator
from tests.builders import make_model
from tests.commands.conftest import corpus_text, write
from tests.conftest import run_main

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
    "deberta": ("unigram", "deberta", {}),
    "electra": ("wordpiece", "bert", {}),
    "gpt3": ("byte_bpe", "gpt2", {"n_layer": 2, "n_embd": 32, "n_head": 2}),
    "llama": ("byte_bpe", "gpt2", {}),
    "modernbert": ("byte_bpe", "modernbert", {}),
    "qwen3": ("byte_bpe", "gpt2", {}),
    "spanbert": ("wordpiece", "bert", {"hidden_size": 32}),
}
SENTENCES = [
    "Anna sees the old river bank.",
    "The bank lends money, and the Bank takes it.",
    "他在银行工作。",
    "don't look; the well-known bank",
    "河的岸",
]
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
    vocab = Vocab.from_folder(str(tokenizer))
    pad = vocab.pad if vocab.pad is not None else vocab.eos or 0
    heads = get_family(family).HEADS
    parts = LOSS_TERMS[next(part for part in LOSS_TERMS if part in heads)]
    sizes = get_family(family).SIZES
    size = "tiny" if "tiny" in sizes else next(iter(sizes))
    model = make_model(family, vocab.size, parts, pad_id=pad, seed=1, size=size, **fields)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    folder = root / f"run-{family}" / "model"
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


def pieces(path: Path) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend.train_from_iterator(
        SENTENCES,
        trainers.WordPieceTrainer(vocab_size=90, special_tokens=special, show_progress=False),
    )
    backend.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", [("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, **dict(zip(names, special, strict=True))
    )
    tokenizer.save_pretrained(path)
    return tokenizer


def tiny_bert(folder: Path, *, layers: int = 1, positions: int = 24, seed: int = 2) -> Path:
    """An encoder with random weights and the tokenizer of ``pieces``."""
    tokenizer = pieces(folder)
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=layers,
        num_attention_heads=2, intermediate_size=32, max_position_embeddings=positions,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


def masked_by_hand(folder: Path | str, context: str, completion: str) -> tuple[float, int]:
    """Each token of the completion with the later pieces of its word masked, all else seen.

    Returns the log-probability and the number of tokens.
    """
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(context + completion)
    ids, words = batch["input_ids"], batch.word_ids()
    first = len(tokenizer(context)["input_ids"]) - 1
    total = 0.0
    for place in range(first, len(ids) - 1):
        row = list(ids)
        for other in range(place, len(ids)):
            if words[other] == words[place]:
                row[other] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(torch.tensor([row])).logits[0, place]
        total += logits.log_softmax(-1)[ids[place]].item()
    return total, len(ids) - 1 - first


def opened(folder: Path | str, batch_size: int = 32) -> LoadedModel:
    """A model folder on the CPU."""
    return LoadedModel(str(folder), make_accelerator(ComputeConfig(device="cpu")), batch_size)
