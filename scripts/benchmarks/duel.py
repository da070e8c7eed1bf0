"""Rounds of two sides, each in a separate process, and their summary."""

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
ON_TEXT = ("prepare", "encode", "tokenizer")
SPEEDS = {"tokens_per_second": "tokens/s", "mb_per_second": "MB/s"}
Results = dict[str, Any]

_NAMES = {
    "tokens_per_second": ("tokens/s, no padding", 0),
    "mb_per_second": ("MB/s", 2),
    "cpu_seconds": ("CPU seconds", 3),
    "peak_mb": ("peak memory, MB", 0),
    "first_step": ("first step after, s", 1),
    "mfu": ("utilisation (MFU)", 3),
    "disk_mb": ("on disk, MB", 1),
    "vocabulary": ("vocabulary", 0),
}


def fight(args: argparse.Namespace, work: ModuleType) -> Results:
    """All rounds of a work, and the losses of both sides on identical batches if it has some."""
    with tempfile.TemporaryDirectory() as folder:
        if hasattr(work, "prepare"):
            work.prepare(args, Path(folder))
        checked = SIDES if hasattr(work, "check") else ()
        losses = {side: _in_process(side, folder, "--check")["losses"] for side in checked}
        rounds = []
        for number in range(args.rounds):
            order = SIDES if number % 2 == 0 else SIDES[::-1]
            rounds.append({side: _in_process(side, folder) for side in order})
    return _summary(args, rounds, losses)


def _in_process(side: str, folder: str, *more: str) -> Results:
    command = [sys.executable, *sys.argv, "--side", side, "--folder", folder, *more]
    command += ["--began", repr(time.time())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr}")
    results: Results = json.loads(done.stdout.splitlines()[-1])
    return results


def _summary(
    args: argparse.Namespace, rounds: list[dict[str, Results]], losses: dict[str, list[float]]
) -> Results:
    speed = next(name for name in SPEEDS if name in rounds[0]["stock"])
    ratios = [r["plmctl"][speed] / r["stock"][speed] for r in rounds]
    cpu = [_cpu(r["stock"]) / _cpu(r["plmctl"]) for r in rounds]
    digests = {r[side].pop("digest", None) for r in rounds for side in SIDES}
    medians = {
        key: {side: statistics.median(r[side][key] for r in rounds) for side in SIDES}
        for key in rounds[0]["stock"]
    }
    summary = {
        "work": args.work,
        "title": _title(args),
        "device": args.device,
        "rounds": args.rounds,
        "ratio": statistics.median(ratios),
        "range": [min(ratios), max(ratios)],
        "cpu_ratio": statistics.median(cpu),
        "cpu_range": [min(cpu), max(cpu)],
        **medians,
        "by_round": {side: [r[side][speed] for r in rounds] for side in SIDES},
    }
    if losses:
        pairs = zip(*(losses[side] for side in SIDES), strict=True)
        summary["loss_difference"] = max(abs(a - b) / abs(b) for a, b in pairs)
    if digests != {None}:
        summary["same_ids"] = len(digests) == 1
    return summary


def _title(args: argparse.Namespace) -> str:
    of = args.algorithm if args.work in ON_TEXT else args.size
    return f"{args.work}, {of}, V = {args.vocab_size:,}"


def _cpu(results: Results) -> float:
    return float(results["cpu_seconds"]) / float(results.get("tokens", 1))


def too_slow(result: Results, at_least: float) -> str | None:
    """One line if the median ratio is under ``at_least``.

    It is that of CPU time, which other programs on the machine hardly change.
    """
    if result["cpu_ratio"] >= at_least:
        return None
    low, high = result["cpu_range"]
    return (
        f"{result['title']}: {result['cpu_ratio']:.2f} times the stock way in CPU time "
        f"[{low:.2f} to {high:.2f}], and at least {at_least:g} is required"
    )


def summary_text(result: Results) -> str:
    """The result in a few lines."""
    if "seconds" in result:
        lines = (f"{name}: {seconds:.1f} s" for name, seconds in result["seconds"].items())
        return "\n".join(["seconds from the command to the end of the first step", *lines])
    low, high = result["range"]
    least, most = result["cpu_range"]
    head = (
        f"{result['title']}: {result['ratio']:.2f} times the stock way [{low:.2f} to {high:.2f}, "
        f"{result['rounds']} rounds], {result['cpu_ratio']:.2f} in CPU time "
        f"[{least:.2f} to {most:.2f}]"
    )
    if "loss_difference" in result:
        head += f"; losses differ by {result['loss_difference']:.1e}"
    if "same_ids" in result:
        head += f"; {'the same ids' if result['same_ids'] else 'OTHER IDS'}"
    rows = [head, f"{'':24}{'plmctl':>12}{'stock':>12}"]
    for key, (name, digits) in _NAMES.items():
        if key in result:
            values = "".join(f"{result[key][side]:>12,.{digits}f}" for side in SIDES)
            rows.append(f"{name:24}{values}")
    return "\n".join(rows)
