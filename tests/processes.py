"""Test bodies in forked processes: milliseconds, where starting processes takes seconds."""

import os
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from plmctl.commands.verify_resume import Child, start_child


def forked(body: Callable[[], None], log: Path) -> Child:
    """A process that calls ``body``, and what it prints in ``log``: pytest has its own streams."""

    def printing() -> None:
        sys.stdout, sys.stderr = (os.fdopen(n, "w", 1, closefd=False) for n in (1, 2))
        body()

    return start_child(printing, log)


def within(seconds: float, body: Callable[[], None], log: Path) -> None:
    """Call ``body`` in a process; one that hangs is ended, with all that it started, and fails."""
    child = forked(body, log)
    deadline = time.monotonic() + seconds
    while not child.ended() and time.monotonic() < deadline:
        time.sleep(0.01)
    if child.code is None:
        child.kill()
        pytest.fail(f"it hung: no end after {seconds:g} s\n{log.read_text()}", pytrace=False)
    assert child.code == 0, log.read_text()


def in_two_processes(body: Callable[[int], None], logs: Path) -> None:
    """As ``in_processes``."""
    in_processes(2, body, logs)


def in_processes(count: int, body: Callable[[int], None], logs: Path) -> None:
    """Call ``body`` with the rank in each; what they say goes to ``logs``."""
    codes = [child.wait() for child in start_processes(count, body, logs)]
    texts = ((logs / f"log-{rank}").read_text() for rank in range(count))
    assert not any(codes), "\n".join(texts)


def start_processes(count: int, body: Callable[[int], None], logs: Path) -> list[Child]:
    """As ``in_processes``, without waiting for their ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        forked(partial(_joined, body, rank, count, port), logs / f"log-{rank}")
        for rank in range(count)
    ]


def _joined(body: Callable[[int], None], rank: int, count: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    torch.set_num_threads(1)
    body(rank)


def is_running(pid: int) -> bool:
    """Whether a process lives. Until its parent asks how it ended, an ended one keeps its number.

    In a container the parent may be a program that never asks; only a living one has a folder.
    """
    return Path(f"/proc/{pid}/cwd").exists()
