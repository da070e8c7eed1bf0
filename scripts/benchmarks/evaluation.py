"""Pseudo-log-likelihoods of sentences of 6 to 14 tokens, of a masked language model.

The other way is transformers' model on one sentence at a time, its masked copies as a batch. A step
is a hundred sentences.
"""

import argparse
from collections.abc import Callable
from typing import Any

from benchmarks.clock import Clock


def run(args: argparse.Namespace, side: str) -> dict[str, float]:
    """The speed of a side, in scored tokens."""
    score, clock = _SCORES[side](args, *_network(args)), Clock(args)
    for texts in _texts(args.steps + 2):
        score(texts)
        clock.tick(sum(map(len, texts)))
    return clock.results()


def check(args: argparse.Namespace, side: str) -> dict[str, list[float]]:
    """The likelihoods of a few sentences."""
    return {"losses": _SCORES[side](args, *_network(args))(_texts(1)[0][:20])}


def _network(args: argparse.Namespace) -> tuple[Any, Any]:
    from benchmarks.pretraining import network

    args.work = "mlm"
    model, family = network(args)
    return model.eval().to(args.device), family


def _texts(steps: int) -> list[list[Any]]:
    import numpy as np

    rng = np.random.default_rng(0)
    return [
        [rng.integers(10, 8000, size) for size in rng.integers(6, 15, 100)] for _ in range(steps)
    ]


_Score = Callable[[list[Any]], list[float]]


def _plmctl(args: argparse.Namespace, model: Any, family: Any) -> _Score:
    import numpy as np
    from transformers import BertTokenizerFast

    from plmctl.config.sections import ComputeConfig
    from plmctl.evaluation.likelihood import MaskedLikelihood, ScoringOptions
    from plmctl.evaluation.model import LoadedModel, TokenizedText
    from plmctl.training.engine import make_accelerator

    # No folder to open, and no text to read: of the tokenizer only the special tokens are used.
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words += [f"word{number}" for number in range(len(words), model.config.vocab_size)]
    tokenizer = BertTokenizerFast(vocab={word: number for number, word in enumerate(words)})
    accelerator = make_accelerator(ComputeConfig(device=args.device))
    network = LoadedModel("the benchmark's", accelerator).placed(model, family.forward)
    likelihood = MaskedLikelihood(
        LoadedModel.in_training(network, tokenizer, family(), accelerator)
    )

    def score(texts: list[Any]) -> list[float]:
        rows = [TokenizedText(ids, np.ones(len(ids), bool), np.array([len(ids)])) for ids in texts]
        return [-nll for nll in likelihood.score(rows, ScoringOptions(512)).nll.tolist()]

    return score


def _stock(args: argparse.Namespace, model: Any, family: Any) -> _Score:
    import torch

    @torch.no_grad()
    def score(texts: list[Any]) -> list[float]:
        scores = []
        for ids in texts:
            row = torch.tensor([2, *ids.tolist(), 3], device=args.device)
            rows = torch.arange(len(ids))
            places = torch.arange(1, len(ids) + 1)
            copies = row.repeat(len(ids), 1)
            copies[rows, places] = 4
            logits = model(copies).logits[rows, places]
            scores.append(logits.log_softmax(-1)[rows, row[1:-1]].sum().item())
        return scores

    return score


_SCORES = {"plmctl": _plmctl, "stock": _stock}
