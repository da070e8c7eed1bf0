"""Causal models (GPT-1, GPT-2, GPT-3): log p(token | the tokens before it), sliding windows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from plmctl.arrays import Ints, batches, padded
from plmctl.evaluation.likelihood.reader import Reader, Tokens
from plmctl.evaluation.likelihood.scores import Scores, token_nll
from plmctl.evaluation.likelihood.windows import windows


def score(
    reader: Reader, texts: Sequence[Tokens], size: int, stride: int, begin: int | None
) -> Scores:
    """Every token of each text scored once, by itself from the tokens of its own text.

    Args:
        reader: A causal model.
        texts: N of them.
        size: Inputs of a window, at most the model's context.
        stride: How far a window begins after the one before, see ``rows.windows``.
        begin: The token before each text; None: the first token of a text has no prediction.

    Returns:
        The sums of each text.
    """
    import torch

    scores = Scores.empty(len(texts))
    before = np.array([] if begin is None else [begin], dtype=np.int64)
    rows: list[Ints] = []
    spans: list[tuple[int, int, int]] = []  # the text, and what of a row is scored
    for number, text in enumerate(texts):
        ids = np.concatenate([before, text.ids])
        scores.first[number] = len(text.ids) and begin is None
        for window in windows(len(ids) - 1, size, stride):
            rows.append(ids[window.begin : window.end + 1])
            spans.append((number, window.first - window.begin, window.end - window.begin))
    of, first, end = np.array(spans, dtype=np.int64).reshape(-1, 3).T
    with torch.inference_mode():
        for which in batches(end, cells=min(reader.cells, reader.predictions)):
            table, _ = padded([rows[number] for number in which], 0)
            # Padding comes after a row's tokens, which look back only: it changes nothing.
            logits = reader.logits(input_ids=np.ascontiguousarray(table[:, :-1]))["lm"]
            column = np.arange(table.shape[1] - 1)
            asked = (column >= first[which, None]) & (column < end[which, None])
            place = torch.from_numpy(asked).to(logits.device)
            row, _ = np.nonzero(asked)
            scores.add(of[which][row], token_nll(logits[place], table[:, 1:][asked]))
    return scores
