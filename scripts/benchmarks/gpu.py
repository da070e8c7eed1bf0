"""What matters on a GPU, in one table: four trainings, each side by side with the usual way."""

import argparse
import json
import subprocess
import sys
from typing import Any

from benchmarks.duel import SIDES

# Family, work, size, rows of a step, tokens of a row, vocabulary: as the models were published.
_TRAININGS = (
    ("BERT-base", "bert", "mlm", "base", 256, 128, 30_522),
    ("BERT-base", "bert", "mlm", "base", 64, 512, 30_522),
    ("GPT-2 small", "gpt2", "clm", "small", 32, 1024, 50_257),
    ("T5-base", "t5", "t5", "base", 128, 512, 32_128),
)

_GOALS = {"A100": 0.5, "H100": 0.4, "H200": 0.4}
"""Model FLOPs utilisation that is to be reached, by a part of the card's name."""


def alone(args: argparse.Namespace) -> dict[str, Any]:
    """The result of each training, as its own command gives it.

    Args:
        args: The command's; ``--size``, ``--batch``, ``--length`` and ``--vocab-size`` are of all
            trainings where they are given.
    """
    results = []
    for title, family, work, *sizes in _TRAININGS:
        if family not in args.families:
            continue
        own = (args.size, args.batch, args.length, args.vocab_size)
        size, batch, length, vocab = (a or b for a, b in zip(own, sizes, strict=True))
        command = [
            sys.executable, sys.argv[0], work, "--json",
            "--size", size, "--batch", str(batch), "--length", str(length),
            "--vocab-size", str(vocab), "--device", args.device, "--precision", args.precision,
            "--rounds", str(args.rounds), "--steps", str(args.steps), "--quiet", str(args.quiet),
            "--repeats", str(args.repeats),
            *(["--peak-tflops", str(args.peak_tflops)] if args.peak_tflops else []),
        ]  # fmt: skip
        print(f"{title}, {batch} rows of {length}", file=sys.stderr, flush=True)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
        results.append(
            {"network": title, "rows": batch, "length": length, **json.loads(done.stdout)}
        )
    name = _name(args.device)
    shares = [share for each in results for share in each["others"]]
    return {
        "work": args.work,
        "device": name,
        "goal": next((goal for part, goal in _GOALS.items() if part in name), None),
        "trainings": results,
        "rounds": sum(each["rounds"] for each in results),
        "others": shares,
        "repeated": sum(each["repeated"] for each in results),
        "disturbed": sum(each["disturbed"] for each in results),
        "load_average": [results[0]["load_average"][0], results[-1]["load_average"][1]],
    }


def _name(device: str) -> str:
    if device != "cuda":
        return device
    import torch

    return torch.cuda.get_device_name()


def rows_of(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """A table with a row for each training; plmctl and the usual way in a cell."""
    goal = result["goal"]
    titles = (
        result["device"], "rows", "times as fast", "tokens/s",
        "MFU" if goal is None else f"MFU (goal {goal:g})", "first step, s", "waits per step",
        "peak MB", "losses differ by",
    )  # fmt: skip
    rows: list[tuple[str, ...]] = [titles]
    for each in result["trainings"]:
        low, high = each["range"]
        row = (
            each["network"],
            f"{each['rows']} of {each['length']:,}",
            f"{each['ratio']:.2f} [{low:.2f} to {high:.2f}]",
            _both(each, "tokens_per_second", ",.0f"),
            _both(each, "mfu", ".3f"),
            _both(each, "first_step", ".1f"),
            _both(each, "waits", ".1f"),
            _both(each, "peak_mb", ",.0f"),
            f"{each['loss_difference']:.1e}",
        )
        rows.append(row)
    return rows


def _both(result: dict[str, Any], key: str, form: str) -> str:
    if key not in result:
        return ""
    return " / ".join(format(result[key][side], form) for side in SIDES)
