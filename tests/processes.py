"""Two processes that find each other, forked: milliseconds, where starting them takes seconds."""

import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from plmctl.commands.verify_resume import start_child


def in_two_processes(body: Callable[[int], None], logs: Path) -> None:
    """Call ``body`` with the rank in each; what they say goes to ``logs``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = [
        start_child(partial(_joined, body, rank, port), logs / f"log-{rank}") for rank in (0, 1)
    ]
    codes = [child.wait() for child in children]
    assert codes == [0, 0], "\n".join((logs / f"log-{rank}").read_text() for rank in (0, 1))


def _joined(body: Callable[[int], None], rank: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    torch.set_num_threads(1)
    body(rank)
