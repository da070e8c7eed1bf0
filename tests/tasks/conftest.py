"""A tiny pretrained folder of each family, with a tokenizer whose pieces are letters."""

import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from plmctl import registry
from plmctl.corpus.labelled import Row
from plmctl.families.base import get_family
from plmctl.models.load import HeadSource
from plmctl.tasks.base import Task

SIZE = {
    "bert": {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 64},
    "spanbert": {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 64},
    "roberta": {"hidden_size": 32, "num_attention_heads": 2, "max_position_embeddings": 66},
    "albert": {
        "hidden_size": 32, "embedding_size": 16, "num_attention_heads": 2,
        "max_position_embeddings": 64,
    },
    "distilbert": {"dim": 32, "n_heads": 2, "max_position_embeddings": 64},
    "gpt1": {"n_embd": 32, "n_head": 2, "n_positions": 64},
    "gpt2": {"n_embd": 32, "n_head": 2, "n_positions": 64},
    "gpt3": {"n_embd": 32, "n_head": 2, "n_positions": 64},
}  # fmt: skip
ENCODERS = ("bert", "spanbert", "roberta", "albert", "distilbert")
FAMILIES = tuple(SIZE)
LETTERS = list(string.ascii_lowercase)
Folder = Callable[..., str]


def tokenizer_of(family: str):  # noqa: ANN201  # transformers' own types
    import transformers
    from tokenizers.pre_tokenizers import ByteLevel

    if family in ("bert", "spanbert", "distilbert"):
        pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *".,_"]
        return transformers.BertTokenizer(vocab={piece: n for n, piece in enumerate(pieces)})
    if family == "albert":
        pieces = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]", "▁", *(f"▁{c}" for c in LETTERS)]
        return transformers.AlbertTokenizer(
            vocab=[(piece, -float(n)) for n, piece in enumerate(pieces)],
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        )
    if family == "gpt1":
        pieces = ["<unk>", *LETTERS, *(f"{c}</w>" for c in [*LETTERS, *".,_"])]
        return transformers.OpenAIGPTTokenizer(
            vocab={piece: n for n, piece in enumerate(pieces)}, merges=[]
        )
    first = ["<s>", "<pad>", "</s>", "<unk>"] if family == "roberta" else []
    last = ["<mask>"] if family == "roberta" else ["<|endoftext|>"]
    pieces = [*first, *sorted(ByteLevel.alphabet()), *last]
    cls = transformers.RobertaTokenizer if family == "roberta" else transformers.GPT2Tokenizer
    return cls(vocab={piece: n for n, piece in enumerate(pieces)}, merges=[])


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """``folder(family)``: a model folder as pretraining leaves it; dropout 0 unless told."""
    root, saved = tmp_path_factory.mktemp("models"), set()

    def make(family: str, *, dropout: float = 0.0, tokenizer: str | None = None) -> str:
        place: Path = root / f"{family}-{dropout}-{tokenizer}"
        if place in saved:
            return str(place)
        member = get_family(family)
        config = registry.load("families", family).Config(
            family=family, size=size_of(family), **SIZE[family]
        )
        tokens = tokenizer_of(tokenizer or family)
        torch.manual_seed(3)
        pad = tokens.pad_token_id if tokens.pad_token_id is not None else len(tokens) - 1
        model = member(config).build(
            vocab_size=len(tokens), pad_id=pad, loss_terms=member.HEADS[:1]
        )
        for name in (*member.DROPOUT, "classifier_dropout", "seq_classif_dropout"):
            setattr(model.config, name, dropout)
        model.config.summary_first_dropout = dropout
        with torch.no_grad():  # a network with opinions
            for parameter in model.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(place)
        tokens.save_pretrained(place)
        saved.add(place)
        return str(place)

    return make


def load_head(
    task: Task[Any],
    model: str,
    labels: tuple[str, ...] = (),
    tokenizer: PreTrainedTokenizerBase | None = None,
    **options: Any,
) -> Any:
    """The network with a task's head, from the pretrained weights unless told."""
    return task.load(HeadSource(model, tokenizer or task.tokenizer(model), labels, **options))


def size_of(family: str) -> str:
    sizes = get_family(family).SIZES
    return "tiny" if "tiny" in sizes else next(iter(sizes))


def rows_of(*values: dict) -> list[Row]:
    return [Row(value, f"rows.jsonl:{number}") for number, value in enumerate(values, 1)]
