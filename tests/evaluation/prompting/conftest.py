"""Small random networks of each kind that writes, with tokenizers of theirs, as folders."""

import copy
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast

from plmctl import registry
from plmctl.config.sections import ComputeConfig
from plmctl.evaluation.model import LoadedModel
from plmctl.families.base import get_family
from plmctl.training.engine import make_accelerator

TEXT = [
    "Anna sees the old river and Bela likes the garden.",
    "Question: who paints the tower?\nAnswer: Carl paints the tower.",
    "the king went to the city, and the people of the city saw the king",
    "他是北京人。北京很大。",
]
SENTINELS = [f"<extra_id_{number}>" for number in range(4)]
KINDS = ("gpt1", "gpt2", "t5")


def byte_level() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end)


def words_of_gpt1() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=160, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def pieces_of_t5() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120,
        special_tokens=["<pad>", "</s>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        "$A </s>", "$A </s> $B </s>", [("</s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        extra_special_tokens=SENTINELS,
    )


MADE = {
    "gpt1": (words_of_gpt1, {"size": "tiny", "n_embd": 32, "n_head": 2, "n_positions": 48}),
    "gpt2": (byte_level, {"size": "tiny", "n_embd": 32, "n_head": 2, "n_positions": 64}),
    "t5": (pieces_of_t5, {"size": "tiny", "d_model": 32, "d_ff": 64, "num_heads": 2, "d_kv": 16}),
}


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("prompted")
    for kind, (tokenizer_of, fields) in MADE.items():
        tokenizer = tokenizer_of()
        config = registry.load("families", kind).Config(family=kind, **fields)
        torch.manual_seed(3)
        network = get_family(kind)(config).build(
            vocab_size=len(tokenizer), pad_id=0, loss_terms=("lm",)
        )
        with torch.no_grad():  # far from a model that repeats its last token wherever it stands
            for name, parameter in network.named_parameters():
                if "positions_embed" in name or "wpe" in name:
                    parameter.mul_(40)
                elif parameter.ndim > 1:
                    parameter.mul_(4)
        network.save_pretrained(root / kind)
        tokenizer.save_pretrained(root / kind)
    return {kind: str(root / kind) for kind in KINDS}


@pytest.fixture(scope="session")
def accelerator() -> Accelerator:
    return make_accelerator(ComputeConfig(device="cpu"))


@pytest.fixture(scope="session")
def subjects(folders: dict[str, str], accelerator: Accelerator) -> dict[str, LoadedModel]:
    return {
        kind: LoadedModel(folder, accelerator, batch_size=4).for_generation()
        for kind, folder in folders.items()
    }


def with_batch_size(model: LoadedModel, size: int) -> LoadedModel:
    other = copy.copy(model)
    other.batch_size = size
    return other


@pytest.fixture
def folder_of(folders: dict[str, str]) -> dict[str, Path]:
    return {kind: Path(folder) for kind, folder in folders.items()}
