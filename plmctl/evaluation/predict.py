"""Predictions of a network over all rows of a task, batched by length."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from plmctl.modeling.network import Network

_CELLS = 16_384  # of a batch: rows times the longest of them


def predict(network: Network, step: Any, device: torch.device) -> dict[str, NDArray[np.int64]]:
    """The largest logit of each part for every row.

    Args:
        network: Not wrapped for several processes.
        step: A task over rows, with ``lengths()`` and ``collate``.
        device: Where the network is.

    Returns:
        Class numbers [N] a part, in the order of the rows.
    """
    import torch

    network.eval()
    lengths = step.lengths()
    order = np.argsort(lengths, kind="stable")
    rows = max(1, _CELLS // int(lengths.max()))
    found: dict[str, NDArray[np.int64]] = {}
    with torch.inference_mode():
        for start in range(0, len(order), rows):
            which = order[start : start + rows]
            batch = step.collate(np.zeros_like(which), which).to(device)
            for part, logits in network(**batch.inputs).items():
                out = found.setdefault(part, np.zeros(len(order), dtype=np.int64))
                out[which] = logits.argmax(-1).cpu().numpy()
    return found
