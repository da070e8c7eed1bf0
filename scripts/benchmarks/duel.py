"""Rounds of two sides, each in a separate process, and their summary."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.load import Load

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
    "seconds": ("seconds", 1),
    "disk_mb": ("on disk, MB", 1),
    "vocabulary": ("vocabulary", 0),
}


def fight(args: argparse.Namespace, work: ModuleType) -> Results:
    """All rounds of a work, and the losses of both sides on identical batches if it has some.

    The losses are computed at the end of the first round's processes, after what is measured.
    A round in which other programs used more than ``--quiet`` of the CPUs is repeated, up to
    ``--repeats`` times in all; after that it counts, and the result says how many did.
    """
    with tempfile.TemporaryDirectory() as folder:
        if hasattr(work, "prepare"):
            work.prepare(args, Path(folder))
        losses: dict[str, list[float]] = {}
        rounds: list[dict[str, Results]] = []
        others: list[float | None] = []
        repeated = 0
        average = os.getloadavg()[0]
        while len(rounds) < args.rounds:
            order = SIDES if len(rounds) % 2 == 0 else SIDES[::-1]
            load = Load()
            more = ["--check"] if hasattr(work, "check") and not losses else []
            sides = {side: _in_process(args, side, folder, *more) for side in order}
            if more:
                losses = {side: sides[side].pop("losses") for side in SIDES}
            share = load.of_others()
            if share is not None and share > args.quiet and repeated < args.repeats:
                repeated += 1
                text = f"others used {share:.0%} of the CPUs: round {len(rounds) + 1} is repeated"
                print(text, file=sys.stderr, flush=True)
                continue
            rounds.append(sides)
            others.append(share)
    machine = {
        "others": others,
        "repeated": repeated,
        "disturbed": sum(share is not None and share > args.quiet for share in others),
        "load_average": [average, os.getloadavg()[0]],
    }
    return _summary(args, rounds, losses) | machine


def measure_each(
    args: argparse.Namespace, options: list[tuple[str, ...]]
) -> tuple[list[Results], Results]:
    """What each process measured of itself, one after the other, and what others did meanwhile.

    A disturbed process is repeated, up to ``--repeats`` times in all; see ``fight``.

    Args:
        args: The command's.
        options: Of each process: its side, and options after it.
    """
    results: list[Results] = []
    others: list[float | None] = []
    repeated = 0
    average = os.getloadavg()[0]
    while len(results) < len(options):
        side, *more = options[len(results)]
        load = Load()
        result = _in_process(args, side, "", *more)
        share = load.of_others()
        if share is not None and share > args.quiet and repeated < args.repeats:
            repeated += 1
            text = f"others used {share:.0%} of the CPUs: {' '.join(more)} is repeated"
            print(text, file=sys.stderr, flush=True)
            continue
        results.append(result)
        others.append(share)
    machine = {
        "rounds": len(results),
        "others": others,
        "repeated": repeated,
        "disturbed": sum(share is not None and share > args.quiet for share in others),
        "load_average": [average, os.getloadavg()[0]],
    }
    return results, machine


# A side chooses its threads by itself, as for its own users; `--threads` is for both.
_OF_THREADS = ("OMP_", "GOMP_", "KMP_", "MKL_")


def _in_process(args: argparse.Namespace, side: str, folder: str, *more: str) -> Results:
    command = [sys.executable, *sys.argv, "--side", side, *more]
    command += ["--folder", folder] if folder else []
    command += ["--began", repr(time.time())]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(_OF_THREADS)}
    if args.threads is not None:
        clean["OMP_NUM_THREADS"] = str(args.threads)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=clean)
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
    work = f"whole {args.objective}" if args.work == "whole" else args.work
    text = ", real text" if args.data and args.work not in ON_TEXT else ""
    return f"{work}, {of}, V = {args.vocab_size:,}{text}"


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
    if result["work"] == "resume":
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
    return "\n".join([*rows, machine_text(result)])


def machine_text(result: Results) -> str:
    """What other programs did meanwhile."""
    before, after = result["load_average"]
    text = f"load average {before:.1f} before, {after:.1f} after"
    shares = [share for share in result["others"] if share is not None]
    if shares:
        text += f"; others used {statistics.median(shares):.0%} of the CPUs, at most "
        text += f"{max(shares):.0%} in a round"
    if result["repeated"]:
        text += f"; {result['repeated']} rounds were repeated"
    if result["disturbed"]:
        text += f"; {result['disturbed']} OF {result['rounds']} ROUNDS WERE DISTURBED"
    return text


def markdown(result: Results) -> str:
    """The result as a row of a table, with its head."""
    low, high = result["range"]
    least, most = result["cpu_range"]
    speed = next(name for name in SPEEDS if name in result)
    shares = [share for share in result["others"] if share is not None]
    cells = {
        "work": f"{result['title']}, {result['rounds']} rounds",
        "times as fast": f"{result['ratio']:.2f} [{low:.2f} to {high:.2f}]",
        "in CPU time": f"{result['cpu_ratio']:.2f} [{least:.2f} to {most:.2f}]",
        SPEEDS[speed]: " / ".join(f"{result[speed][side]:,.0f}" for side in SIDES),
        "peak MB": " / ".join(f"{result['peak_mb'][side]:,.0f}" for side in SIDES)
        if "peak_mb" in result
        else "",
        "losses differ by": f"{result['loss_difference']:.1e}"
        if "loss_difference" in result
        else "",
        "others' CPU, at most": f"{max(shares):.0%}" if shares else "",
    }
    return markdown_table([tuple(cells), tuple(cells.values())])


def markdown_table(rows: list[tuple[str, ...]]) -> str:
    """Rows of cells, the first of them titles."""
    titles, *others = rows
    lines = (titles, ["---"] * len(titles), *others)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def rows_text(result: Results, rows: list[tuple[str, ...]]) -> str:
    """The rows of a result as columns of text, and what other programs did meanwhile."""
    return f"{columns(rows)}\n{machine_text(result)}"


def columns(rows: list[tuple[str, ...]]) -> str:
    """Rows of cells as columns of text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
