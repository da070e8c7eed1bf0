"""The probability of a completion given its context, for causal and text-to-text models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl.evaluation.prompting.encoding import Encoded, Pair, encode
from plmctl.evaluation.prompting.networks import predicting
from plmctl.evaluation.prompting.sharing import batches, rows_of

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.evaluation.prompting.model import Generative

_AT_ONCE = 1024  # rows of logits, each of the size of the vocabulary


@dataclass(frozen=True)
class Continuation:
    """What a model says to a completion.

    Attributes:
        log_prob: log p(completion | context) in nats, summed over its tokens.
        tokens: Their number.
        greedy: Whether each of them is the most probable one, given all before it.
        cut: Whether the context was cut from the left to fit.
    """

    log_prob: float
    tokens: int
    greedy: bool
    cut: bool = False


def score(
    model: Generative, pairs: Sequence[Pair], batch_size: int, *, sentinel: bool = False
) -> list[Continuation]:
    """Score each pair by log p(completion | context); see ``encoding.encode`` and ``score_ids``."""
    return score_ids(model, encode(model, pairs, sentinel=sentinel), batch_size) if pairs else []


def score_ids(model: Generative, texts: Sequence[Encoded], batch_size: int) -> list[Continuation]:
    """The log-probability of the scored tokens of each text.

    Texts of like length are in one batch, and what several share is computed once: the keys and
    values of a causal model's context, the output of T5's encoder. Order and batch size change the
    result by rounding only.

    Args:
        model: A model that writes.
        texts: Each with one scored token or more.
        batch_size: Rows at once.

    Returns:
        One for each text, in their order.
    """
    import torch

    found: dict[int, Continuation] = {}
    with torch.inference_mode():
        for groups in batches(texts, batch_size, caches=model.caches):
            states_KH = predicting(model, texts, groups)
            scored = [texts[row].ids[texts[row].first :] for row in rows_of(groups)]
            log_probs, greedy = _targets(model, states_KH, [id_ for ids in scored for id_ in ids])
            ends = np.cumsum([len(ids) for ids in scored])[:-1]
            parts = zip(
                rows_of(groups), np.split(log_probs, ends), np.split(greedy, ends), strict=True
            )
            for row, p, right in parts:
                found[row] = Continuation(float(p.sum()), len(p), bool(right.all()), texts[row].cut)
    return [found[row] for row in range(len(texts))]


def _targets(
    model: Generative, states_KH: Tensor, targets: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The log-probability of each target in float32, and whether it is the most probable token."""
    import torch

    network: Any = model.network
    head = network.get_output_embeddings()
    target_K = torch.tensor(targets, device=states_KH.device)
    log_probs, greedy = [], []
    pieces = zip(torch.split(states_KH, _AT_ONCE), torch.split(target_K, _AT_ONCE), strict=True)
    for states, target in pieces:
        logits = head(states.float()).log_softmax(-1)
        log_probs.append(logits.gather(-1, target[:, None])[:, 0].double().cpu())
        greedy.append((logits.argmax(-1) == target).cpu())
    return torch.cat(log_probs).numpy(), torch.cat(greedy).numpy()
