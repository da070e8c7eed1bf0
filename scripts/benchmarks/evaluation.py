"""Pseudo-log-likelihoods of sentences of 6 to 14 tokens, of a masked language model.

The other way is transformers' model on one sentence at a time, its masked copies as a batch. A step
is a hundred sentences.
"""

import argparse
from typing import Any

from benchmarks.clock import Clock


def run(args: argparse.Namespace, side: str) -> dict[str, float]:
    """The speed of a side, in scored tokens."""
    model, family = _network(args)
    clock, score = Clock(args), _SCORES[side]
    for texts in _texts(args.steps + 2):
        score(args, model, family, texts)
        clock.tick(sum(map(len, texts)))
    return clock.results()


def check(args: argparse.Namespace, side: str) -> dict[str, list[float]]:
    """The likelihoods of a few sentences."""
    model, family = _network(args)
    return {"losses": _SCORES[side](args, model, family, _texts(1)[0][:20])}


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


def _plmctl(args: argparse.Namespace, model: Any, family: Any, texts: list[Any]) -> list[float]:
    import numpy as np

    from plmctl.config.sections import ComputeConfig
    from plmctl.evaluation.likelihood import MaskedLikelihood, ScoringOptions
    from plmctl.evaluation.model import LoadedModel, TokenizedText
    from plmctl.models.network import Network
    from plmctl.tokenization.load import Vocab
    from plmctl.training.engine import make_accelerator

    opened = LoadedModel("", make_accelerator(ComputeConfig(device=args.device)), 32)
    opened.outputs, opened.context = model.config.vocab_size, 512
    opened.vocab = Vocab(opened.outputs, pad=0, unk=1, cls=2, sep=3, mask=4)
    likelihood = MaskedLikelihood(opened)
    opened.networks[likelihood.LOSS_TERMS] = Network(model, family.forward)  # no folder to open
    tokens = [TokenizedText(ids, np.ones(len(ids), bool), np.array([len(ids)])) for ids in texts]
    return [-nll for nll in likelihood.score(tokens, ScoringOptions(512)).nll.tolist()]


def _stock(args: argparse.Namespace, model: Any, family: Any, texts: list[Any]) -> list[float]:
    import torch

    scores = []
    with torch.no_grad():
        for ids in texts:
            row = torch.tensor([2, *ids.tolist(), 3], device=args.device)
            rows = torch.arange(len(ids))
            places = torch.arange(1, len(ids) + 1)
            copies = row.repeat(len(ids), 1)
            copies[rows, places] = 4
            logits = model(copies).logits[rows, places]
            scores.append(logits.log_softmax(-1)[rows, row[1:-1]].sum().item())
    return scores


_SCORES = {"plmctl": _plmctl, "stock": _stock}
