"""Rounds of two sides, each in a process of its own, and what is said of them."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

SIDES = ("plmctl", "stock")
Figures = dict[str, Any]


def fight(given: argparse.Namespace, work: ModuleType) -> Figures:
    """All rounds of a work, and the losses of both sides on identical batches."""
    with tempfile.TemporaryDirectory() as folder:
        if hasattr(work, "prepare"):
            work.prepare(given, Path(folder))
        losses = {side: _in_process(side, folder, "--check") for side in SIDES}
        rounds = []
        for number in range(given.rounds):
            order = SIDES if number % 2 == 0 else SIDES[::-1]
            rounds.append({side: _in_process(side, folder) for side in order})
    return _summary(given, rounds, losses)


def _in_process(side: str, folder: str, *more: str) -> Figures:
    command = [sys.executable, *sys.argv, "--side", side, "--folder", folder, *more]
    command += ["--began", repr(time.time())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr}")
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def _summary(
    given: argparse.Namespace, rounds: list[dict[str, Figures]], losses: dict[str, Figures]
) -> Figures:
    ratios = [r["plmctl"]["tokens_per_second"] / r["stock"]["tokens_per_second"] for r in rounds]
    cpu = [_cpu(r["stock"]) / _cpu(r["plmctl"]) for r in rounds]
    pairs = zip(*(losses[side]["losses"] for side in SIDES), strict=True)
    medians = {
        key: {side: statistics.median(r[side][key] for r in rounds) for side in SIDES}
        for key in rounds[0]["stock"]
    }
    return {
        "work": given.work,
        "vocab_size": given.vocab_size,
        "size": given.size,
        "device": given.device,
        "rounds": given.rounds,
        "ratio": statistics.median(ratios),
        "range": [min(ratios), max(ratios)],
        "cpu_ratio": statistics.median(cpu),
        "cpu_range": [min(cpu), max(cpu)],
        **medians,
        "loss_difference": max(abs(a - b) / abs(b) for a, b in pairs),
        "by_round": {side: [r[side]["tokens_per_second"] for r in rounds] for side in SIDES},
    }


def _cpu(figures: Figures) -> float:
    return float(figures["cpu_seconds"]) / float(figures["tokens"])


def told(result: Figures) -> str:
    """The result in a few lines."""
    if "seconds" in result:
        lines = (f"{name}: {seconds:.1f} s" for name, seconds in result["seconds"].items())
        return "\n".join(["seconds from the command to the end of the first step", *lines])
    low, high = result["range"]
    rows = [
        f"{result['work']}, {result['size']}, V = {result['vocab_size']:,}: "
        f"{result['ratio']:.2f} times the stock way [{low:.2f} to {high:.2f}, "
        f"{result['rounds']} rounds], {result['cpu_ratio']:.2f} in CPU time; "
        f"losses differ by {result['loss_difference']:.1e}",
        f"{'':24}{'plmctl':>12}{'stock':>12}",
    ]
    names = {
        "tokens_per_second": ("tokens/s, no padding", 0),
        "cpu_seconds": ("CPU seconds a step", 3),
        "peak_mb": ("peak memory, MB", 0),
        "first_step": ("first step after, s", 1),
        "mfu": ("utilisation (MFU)", 3),
    }
    for key, (name, digits) in names.items():
        if key in result:
            values = "".join(f"{result[key][side]:>12,.{digits}f}" for side in SIDES)
            rows.append(f"{name:24}{values}")
    return "\n".join(rows)
