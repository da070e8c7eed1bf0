"""Finetuning on pairs of texts: batches of one length, against a loop that pads to the longest.

Rows are given by ``--data``, ``--text`` and ``--label``; without them they are made up, with the
lengths of MRPC (53 tokens a pair, from 30 to 100). The tokenizer is a WordPiece one of the rows.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.clock import Clock
from benchmarks.stepping import CHECKED, plain_steps, plmctl_steps


def prepare(args: argparse.Namespace, folder: Path) -> None:
    """The rows, and a fresh network with a tokenizer, in ``folder``."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertTokenizerFast

    from benchmarks.pretraining import network

    columns, rows = args.text.split(","), _random_rows() if args.data is None else _read(args.data)
    trained = BertWordPieceTokenizer(lowercase=False)
    texts = (str(row[column]) for row in rows for column in columns)
    trained.train_from_iterator(texts, vocab_size=args.vocab_size, show_progress=False)
    tokenizer = BertTokenizerFast(vocab=trained.get_vocab(), do_lower_case=False)
    tokenizer.save_pretrained(folder / "model")
    args.work = "mlm"
    network(args)[0].save_pretrained(folder / "model")
    args.work = "finetune"
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "rows.jsonl").write_text(lines, encoding="utf-8")


def run(args: argparse.Namespace, side: str) -> dict[str, float]:
    """The speed of a side."""
    task, model, step = _task(args, dropout=None)
    clock, count = Clock(args), args.steps + 2
    if side == "plmctl":
        lengths = step.lengths()
        for done in plmctl_steps(args, model, task.forward, step, count, lengths):
            clock.tick(done.tokens)
    else:
        for tokens, _ in plain_steps(args, model, _padded(args, step, count, grouped=False)):
            clock.tick(tokens)
    return clock.results()


def check(args: argparse.Namespace, side: str) -> dict[str, list[float]]:
    """Losses of a few steps on the same rows, without dropout; the stock side's are padded."""
    task, model, step = _task(args, dropout=0.0)
    if side == "plmctl":
        done = plmctl_steps(args, model, task.forward, step, CHECKED, step.lengths())
        return {"losses": [update.read().loss for update in done]}
    batches = _padded(args, step, CHECKED, grouped=True)
    return {"losses": [loss for _, loss in plain_steps(args, model, batches)]}


def _task(args: argparse.Namespace, dropout: float | None) -> tuple[Any, Any, Any]:
    """The task, its network and its rows as examples."""
    import torch

    from plmctl.corpus.labelled import read_rows
    from plmctl.families.base import get_family
    from plmctl.models.load import Start
    from plmctl.tasks.classification import Classification, Config

    folder = str(args.folder / "model")
    columns = args.text.split(",")
    text = columns[0] if len(columns) == 1 else tuple(columns)
    task = Classification(Config(text=text, label=args.label))
    rows = read_rows([str(args.folder / "rows.jsonl")])
    labels = task.labels(rows)
    tokenizer = task.tokenizer(folder)
    step = task.make(rows, tokenizer, labels, args.length, "train")
    changes: dict[str, Any] = {"classifier_dropout": dropout}
    if dropout is not None:
        changes |= dict.fromkeys(get_family("bert").DROPOUT, dropout)
    torch.manual_seed(0)
    start = Start(folder, tokenizer, labels, changes=changes, new_heads=lambda _: None)
    return task, task.load(start), step


def _padded(
    args: argparse.Namespace, step: Any, count: int, *, grouped: bool
) -> list[tuple[dict[str, Any], int]]:
    """Batches padded to ``--length``, and their tokens without padding."""
    from torch.nn.functional import pad

    from plmctl.training.data import StepBatches
    from plmctl.training.plan import Slicing

    lengths = step.lengths() if grouped else None
    batches = StepBatches(step, Slicing(args.batch, args.batch, lengths=lengths), 1)
    padded = []
    for number in range(count):
        (batch,) = batches[number]
        inputs = {
            name: pad(value, (0, args.length - value.shape[1]))
            for name, value in batch.inputs.items()
        }
        padded.append((inputs | {"labels": batch.targets["label"]}, batch.tokens))
    return padded


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _random_rows() -> list[dict[str, Any]]:
    import numpy as np

    rng = np.random.default_rng(0)
    words = [f"{a}{b}{c}" for a in "bdfgklmn" for b in "aeiou" for c in "bdfgklmnprst"]
    rows = []
    for number in range(2000):
        words_of_row = int(np.clip(rng.lognormal(3.9, 0.28), 27, 100))
        drawn = [words[i] for i in rng.integers(0, len(words), words_of_row)]
        half = words_of_row // 2
        premise, hypothesis = " ".join(drawn[:half]), " ".join(drawn[half:])
        label = ("no", "yes")[number % 2]
        rows.append({"premise": premise, "hypothesis": hypothesis, "label": label})
    return rows
