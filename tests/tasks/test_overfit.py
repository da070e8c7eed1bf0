"""Twenty rows without any rule are learned by heart through the command, so gradients get through.

Five tasks with one network each; the others, and more families, where slow tests run.
"""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from tests.builders import make_model
from tests.conftest import run_main
from tests.tasks.conftest import ENCODERS, Folder

LETTERS = "bcdefghijklmnopqrstuvwxyz"  # an "a" is an article, which SQuAD's script leaves out
DRAW = np.random.default_rng(5)
TREES = np.random.default_rng(6)


def words(count: int) -> list[str]:
    return [LETTERS[n] for n in DRAW.integers(len(LETTERS), size=count)]


def tree(size: int) -> list[int]:
    """Heads: each word hangs on one that is already in the tree, in a random order."""
    order, heads = TREES.permutation(size), [0] * size
    for place in range(1, size):
        heads[order[place]] = 1 + int(order[TREES.integers(place)])
    return heads


def question() -> dict:
    """A row of every task; nothing in it follows from anything else."""
    context = words(24)
    first = int(DRAW.integers(20))
    tokens = words(8)
    return {
        "text": " ".join(words(8)),
        "label": "xyz"[DRAW.integers(3)],
        "several": [name for name in "uvw" if DRAW.integers(2)],
        "score": float(DRAW.normal()),
        "question": " ".join(words(4)),
        "options": [" ".join(words(3)) for _ in range(3)],
        "right": int(DRAW.integers(3)),
        "context": " ".join(context),
        "answers": {
            "text": [" ".join(context[first : first + 3])],
            "answer_start": [2 * first],
        },
        "tokens": tokens,
        "tags": [("O", "B-X", "B-Y")[n] for n in DRAW.integers(3, size=8)],
        "target": " ".join(words(3)),
        "head": tree(8),
        "deprel": [("a", "b:c", "d")[n] for n in TREES.integers(3, size=8)],
    }


ROWS = [question() for _ in range(20)]
GPT = ("gpt1", "gpt2", "gpt3")

CLASSIFY = {"name": "classification"}
SEVERAL = {"name": "classification", "problem": "multi_label", "label": "several"}
NUMBER = {"name": "classification", "problem": "regression", "label": "score"}
CHOICE = {"name": "multiple_choice", "label": "right"}
ANSWER = {"name": "question_answering"}
TAGS = {"name": "tagging"}
PARSE = {"name": "parsing", "arc_size": 64, "relation_size": 32, "head_dropout": 0.0}
WRITE = {"name": "text_to_text", "source": "text", "max_target_length": 12}

FAST = [
    (NUMBER, "bert", "pearson", 0.99),
    (CHOICE, "gpt1", "accuracy", 1.0),
    (ANSWER, "bert", "exact_match", 100.0),
    (WRITE, "gpt2", "sequence_accuracy", 1.0),
    (PARSE, "bert", "las", 1.0),
]
SLOW = [
    (TAGS, "albert", "f1", 1.0),
    *((PARSE, family, "las", 0.9) for family in ("roberta", "albert", "distilbert", "gpt2")),
    (WRITE, "t5", "sequence_accuracy", 1.0),
    *((CLASSIFY, family, "accuracy", 1.0) for family in (*ENCODERS, *GPT)),
    *((CLASSIFY | {"pooling": how}, "bert", "accuracy", 1.0) for how in ("cls", "mean", "max")),
    *((SEVERAL, family, "f1_micro", 1.0) for family in ("distilbert", "gpt2")),
    *((NUMBER, family, "pearson", 0.99) for family in ("roberta", "albert", "gpt1", "gpt2")),
    *((CHOICE, family, "accuracy", 1.0) for family in ("bert", "roberta", "albert", "gpt2")),
    (ANSWER, "spanbert", "exact_match", 100.0),
]
CASES = [*FAST, *(pytest.param(*case, marks=pytest.mark.sweep) for case in SLOW)]


@pytest.mark.parametrize(("task", "family", "metric", "expected"), CASES)
def test_twenty_rows_are_learned_by_heart(  # noqa: PLR0913
    task: dict,
    family: str,
    metric: str,
    expected: float,
    folder: Folder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    config = {
        "run": "run",
        "model": model_of(family, folder, tmp_path),
        "task": task,
        "data": {"train": ["rows.jsonl"], "valid": ["rows.jsonl"]},
        "train": {"epochs": 90, "batch_size": 20, "max_length": 48},
        "optim": {"lr": 0.008, "weight_decay": 0.0},
        "compute": {"device": "cpu"},
        "log": {"every": 50},
    }
    Path("config.yaml").write_text(yaml.safe_dump(config))
    capfd.readouterr()
    code = run_main("finetune", "config.yaml", "--json")
    out, err = capfd.readouterr()
    assert code == 0, err
    assert json.loads(out)[metric] >= expected, err


def model_of(family: str, folder: Folder, place: Path) -> str:
    if family != "t5":
        return folder(family)
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = ["<pad>", "</s>", "<unk>", *LETTERS]
    tokenizer = Tokenizer(models.WordLevel({w: n for n, w in enumerate(vocab)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(place / "t5")
    fields = {"d_model": 32, "d_ff": 64, "d_kv": 16, "dropout_rate": 0.0, "vocab_multiple": 1}
    fields |= {"size": "tiny", "version": "v1.1"}
    make_model("t5", len(vocab), ("lm",), **fields).save_pretrained(place / "t5")
    return str(place / "t5")
