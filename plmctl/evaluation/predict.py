"""What a finetuned network says of every row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

    from plmctl.modeling.network import Network
    from plmctl.tasks import Answer, Examples

_CELLS = 16_384  # of a batch: rows times the longest of them


def answers(network: Network, examples: Examples, device: torch.device) -> list[Answer]:
    """One answer a row, in the order of the rows; batched by length, which changes no answer.

    Args:
        network: Not wrapped for several processes.
        examples: Of a task.
        device: Where the network is.
    """
    import torch

    network.eval()
    lengths = examples.lengths()
    order = np.argsort(lengths, kind="stable")
    found: dict[str, list[Any]] = {}
    with torch.inference_mode():
        for which in _batches(order, lengths):
            batch = examples.collate(np.zeros_like(which), which).to(device)
            for name, output in examples.outputs(network, batch).items():
                rows = found.setdefault(name, [None] * len(order))
                for place, row in zip(which, output.cpu().numpy(), strict=True):
                    rows[place] = row
    return examples.answers(found)


def _batches(order: NDArray[np.int64], lengths: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """``order`` (by length) cut into pieces of at most ``_CELLS`` cells, longest first.

    The largest comes first, so that a device too small for it says so at once.
    """
    pieces, end = [], len(order)
    while end:
        rows = max(1, _CELLS // max(1, int(lengths[order[end - 1]])))
        pieces.append(order[max(0, end - rows) : end])
        end = max(0, end - rows)
    return pieces
