"""How long training stands still for a checkpoint of BERT-base, at once and in the background.

$ python scripts/saving_time.py FOLDER
"""

import sys
import tempfile
import time
from pathlib import Path

import torch

from plmctl import registry
from plmctl.families.base import get_family
from plmctl.training.checkpoint import Checkpoints, Saver, Trained
from plmctl.training.journal import Journal


def main(folder: Path) -> None:
    """Two saves of each kind; the second is shown, since the first finds cold memory."""
    config = registry.load("families", "bert").Config(size="base")
    network = get_family("bert")(config).build(
        vocab_size=30_522, pad_id=0, loss_terms=("mlm", "nsp")
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4)
    for parameter in network.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    optimizer.step()
    optimizer.zero_grad()
    state = Trained(network, optimizer)
    journal = Journal(folder, title="", total_steps=9, trackers=(), quiet=True)
    checkpoints = Checkpoints(folder / "checkpoints", 1)
    for background in (False, True):
        for step in (1, 2):
            saver = Saver(checkpoints, journal, async_save=background)
            began = time.perf_counter()
            saver.save(step, state, {})
            still = time.perf_counter() - began
            saver.wait()
            whole = time.perf_counter() - began
        name = "in the background" if background else "at once"
        print(f"{name}: stands still {still:.2f} s, on the disk after {whole:.2f} s")
    size = sum(path.stat().st_size for path in (folder / "checkpoints").rglob("*.*"))
    print(f"{size / 1e9:.3f} GB, {sum(p.numel() for p in network.parameters()):,} parameters")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as place:
        main(Path(place))
