"""How the cost of training and of preparation grows: a table, JSON and a plot.

A BERT step of equal tokens against the model's parameters, the sequence length and the vocabulary,
and preparing a text against its size, with one process and with two. Each metric comes from a
separate process, `scripts/benchmark.py --side plmctl`, so that its peak memory is its own. The
exponent is that of CPU time: 1 grows as the thing does, 0 not at all; over all points, and between
the last two.

    OMP_NUM_THREADS=1 python scripts/growth.py --out growth
    OMP_NUM_THREADS=1 python scripts/growth.py --megabytes 1 16 256 2048 --data text.txt
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.plot import standalone
from benchmarks.text import train_tokenizer, write_text

SIZES = ("tiny", "mini", "small", "medium", "base")
_LEARNT_MB = 2  # of the text, for the tokenizer

Row = dict[str, float]


def main() -> None:
    args = arguments()
    steps = {
        "parameters": [("size", size) for size in args.sizes],
        "sequence length": [("length", length) for length in args.lengths],
        "vocabulary": [("vocab-size", size) for size in args.vocabularies],
    }
    curves = {name: [step(args, *at) for at in points] for name, points in steps.items()}
    curves |= prepared(args)
    exponents = {name: exponents_of(rows) for name, rows in curves.items()}
    document = {"tokens_a_step": args.tokens, "curves": curves, "exponents": exponents}
    args.out.with_suffix(".json").write_text(json.dumps(document, indent=1), encoding="utf-8")
    args.out.with_suffix(".svg").write_text(drawn(curves, exponents), encoding="utf-8")
    print(table(curves, exponents))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("growth"), help="writes OUT.json and OUT.svg")
    add("--tokens", type=int, default=1024, help="of a step")
    add("--steps", type=int, default=2, help="measured, after two")
    add("--sizes", nargs="+", choices=SIZES, default=SIZES)
    add("--lengths", nargs="+", type=int, default=(64, 128, 256, 512, 1024))
    add("--vocabularies", nargs="+", type=int, default=(4096, 8192, 16384, 32768, 65536))
    add("--megabytes", nargs="+", type=float, default=(1, 4, 16, 64))
    add("--data", type=Path, help="the text, repeated as needed; without: the sample sotu")
    return parser.parse_args()


def step(args: argparse.Namespace, name: str, value: Any) -> Row:
    """A step of a masked language model, BERT-tiny with rows of 128 tokens but for ``name``."""
    options = {"size": "tiny", "length": 128, "vocab-size": 8192, name: value}
    batch = max(1, args.tokens // options["length"])
    result = measured("mlm", **options, batch=batch, steps=args.steps)
    return {
        "at": result["parameters"] if name == "size" else value,
        "cpu_seconds": result["cpu_seconds"],
        "seconds": result["tokens"] / result["tokens_per_second"],
        "peak_mb": result["peak_mb"],
    }


def prepared(args: argparse.Namespace) -> dict[str, list[Row]]:
    """Preparing so many megabytes of text, by one process and by two."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = {"data": args.data, "megabytes": max(args.megabytes)}
        learned = {"algorithm": "wordpiece", "vocab_size": 8192}
        write_text(argparse.Namespace(**options | {"megabytes": _LEARNT_MB}), folder)
        train_tokenizer(argparse.Namespace(**learned), folder)
        write_text(argparse.Namespace(**options), folder)
        whole = (folder / "text.txt").read_bytes() + b"\n"
        curves: dict[str, list[Row]] = {"text, 1 process": [], "text, 2 processes": []}
        for megabytes in args.megabytes:
            size = int(megabytes * 1e6)
            with (folder / "text.txt").open("wb") as file:
                for _ in range(size // len(whole)):
                    file.write(whole)
                file.write(whole[: size % len(whole)].rpartition(b"\n")[0] + b"\n")
            for processes, rows in enumerate(curves.values(), start=1):
                result = measured("prepare", folder=folder, processes=processes)
                rows.append({
                    "at": megabytes,
                    "cpu_seconds": result["cpu_seconds"],
                    "seconds": megabytes / result["mb_per_second"],
                    "peak_mb": result["peak_mb"],
                })  # fmt: skip
    return curves


def measured(work: str, **options: Any) -> dict[str, float]:
    """What plmctl's side of the benchmark says of itself."""
    command = [sys.executable, str(Path(__file__).with_name("benchmark.py")), work]
    command += ["--side", "plmctl", *(f"--{name}={value}" for name, value in options.items())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    results: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return results


def exponents_of(rows: list[Row]) -> list[float]:
    """The slope of the logarithms, by least squares: over all points, and between the last two."""
    x = [math.log(row["at"]) for row in rows]
    y = [math.log(row["cpu_seconds"]) for row in rows]
    return [slope(x[-n:], y[-n:]) for n in (len(rows), 2)] if len(rows) > 1 else []


def slope(x: list[float], y: list[float]) -> float:
    across, up = sum(x) / len(x), sum(y) / len(y)
    both = sum((a - across) * (b - up) for a, b in zip(x, y, strict=True))
    return both / sum((a - across) ** 2 for a in x)


def table(curves: dict[str, list[Row]], exponents: dict[str, list[float]]) -> str:
    """The results as a Markdown table."""
    lines = ["| against | | CPU seconds | seconds | peak MB | exponent, all / last |"]
    lines.append("|---|---:|---:|---:|---:|---|")
    for name, rows in curves.items():
        for row in rows:
            last = " / ".join(f"{e:.2f}" for e in exponents[name]) if row is rows[-1] else ""
            title = (f"{name}, MB" if name.startswith("text") else name) if row is rows[0] else ""
            lines.append(
                f"| {title} | {row['at']:,.10g} | {row['cpu_seconds']:.3f} | "
                f"{row['seconds']:.3f} | {row['peak_mb']:,.0f} | {last} |"
            )
    return "\n".join(lines)


def drawn(curves: dict[str, list[Row]], exponents: dict[str, list[float]]) -> str:
    """How many times the first cost, against how often the thing has doubled."""
    import numpy as np

    from plmctl.reporting.plots import Curve, Plot

    lines = []
    for color, (name, rows) in enumerate(curves.items()):
        at = np.array([row["at"] for row in rows])
        cost = np.array([row["cpu_seconds"] for row in rows])
        title = name + "".join(f", exponent {e:.2f}" for e in exponents[name][:1])
        lines.append(Curve(title, np.log2(at / at[0]), cost / cost[0], color, "dashed"))
    unit = "CPU time, times that of the first"
    return standalone(
        Plot("growth", "Growth of cost", unit, tuple(lines), log=True, along="doublings")
    )


if __name__ == "__main__":
    main()
