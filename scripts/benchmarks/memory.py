"""Peak memory and time of a training step, by family: a plain loop, plmctl, plmctl recomputing.

Each side is a process of its own, with the same network, batch and optimizer. The peak is that of
the process, Python and its libraries included; what they took before the first step is shown too.
Recomputing is `compute.checkpoint_activations=true`; ELMo has no such layers.
"""

import argparse
import statistics

from benchmarks import pretraining
from benchmarks.duel import Results, measure_each

_WAYS = {"plain": ("stock",), "plmctl": ("plmctl",), "recomputing": ("plmctl", "--recompute")}


def alone(args: argparse.Namespace) -> Results:
    """The medians over the rounds, of every family and side."""
    pairs = [
        (family, way)
        for _ in range(args.rounds)
        for family in args.families
        for way in _WAYS
        if (family, way) != ("elmo", "recomputing")
    ]
    options = [(_WAYS[way][0], "--family", family, *_WAYS[way][1:]) for family, way in pairs]
    results, machine = measure_each(args, options)
    by_pair: dict[tuple[str, str], list[Results]] = {}
    for pair, result in zip(pairs, results, strict=True):
        by_pair.setdefault(pair, []).append(result)
    families: dict[str, Results] = {family: {} for family in args.families}
    for (family, way), rounds in by_pair.items():
        families[family][way] = {
            key: statistics.median(each[key] for each in rounds)
            for key in ("peak_mb", "before_mb", "step_ms")
        }
    return {"work": "memory", "families": families, **machine}


def run(args: argparse.Namespace, side: str) -> Results:
    """Peak, resident memory before the first step, and milliseconds per step of one side."""
    result = pretraining.run(args, side)
    return result | {"step_ms": 1e3 * result["tokens"] / result["tokens_per_second"]}


_COLUMNS = (
    "family", "before the first step, MB", "peak MB: plain", "plmctl", "recomputing",
    "plmctl / plain, above the start", "recomputing / plain", "ms per step: plain", "plmctl",
    "recomputing",
)  # fmt: skip


def rows_of(result: Results) -> list[tuple[str, ...]]:
    """A row of cells per family, under a row of titles."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for name, ways in result["families"].items():
        plain = _above(ways["plain"])
        shares = (f"{_above(ways[way]) / plain:.2f}" if way in ways else "" for way in _AGAINST)
        peaks, times = (
            tuple(f"{ways[way][key]:,.0f}" if way in ways else "" for way in _WAYS)
            for key in ("peak_mb", "step_ms")
        )
        rows.append((name, f"{ways['plmctl']['before_mb']:,.0f}", *peaks, *shares, *times))
    return rows


_AGAINST = ("plmctl", "recomputing")


def _above(way: Results) -> float:
    return float(way["peak_mb"]) - float(way["before_mb"])
