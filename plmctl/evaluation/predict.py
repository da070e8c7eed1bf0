"""What a finetuned network says of every row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.arrays import batches

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
    found: dict[str, list[Any]] = {}
    with torch.inference_mode():
        for which in batches(lengths, cells=_CELLS):
            batch = examples.collate(np.zeros_like(which), which).to(device)
            for name, output in examples.outputs(network, batch).items():
                rows = found.setdefault(name, [None] * len(lengths))
                for place, row in zip(which, output.cpu().numpy(), strict=True):
                    rows[place] = row
    return examples.answers(found)
