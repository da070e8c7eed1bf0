"""How much sooner does a fast recipe learn? Each family's, beside its paper's recipe.

    python scripts/recipes.py                     # all of configs/fast, three seeds
    python scripts/recipes.py bert gpt2 --seeds 1

For each configs/fast/NAME.yaml two small networks learn the same text with the same tokenizer,
network and objective: one by configs/pretrain/proof/NAME.yaml, which has the optimizer and the
schedule of the paper with a tuned learning rate, and one by the fast recipe, in a half or a third
of the steps. Then one table, and a page of curves: the loss on the same held-out text, by step.
"frequency" is the loss of a guess that knows how frequent every token is and nothing else (not for
DistilBERT, whose loss compares it with its teacher: the BERT of configs/pretrain/proof, which is
trained first). A finished run is not repeated, so the command can be stopped and given again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from learning_proof import frequencies, minutes
from rich.console import Console

from plmctl.commands.prepare import prepare
from plmctl.config.load import configs_folder
from plmctl.reporting.plots import Curve, Plot
from plmctl.reporting.tables import rows_table
from plmctl.run.configs import PretrainConfig, load
from plmctl.run.preflight import preflight
from plmctl.run.pretraining import examples_of

CONFIGS = configs_folder()
RECIPES = {"paper": CONFIGS / "pretrain/proof", "fast": CONFIGS / "fast"}
COLUMNS = ["family", "recipe", "steps", "minutes", "loss", "of the steps", "reached"]
PLMCTL = [sys.executable, "-m", "plmctl"]


@dataclass(frozen=True)
class Result:
    """One run.

    Attributes:
        steps: Steps at which the held-out text was scored.
        losses: Its loss there, the sum of the terms with their weights.
        minutes: Training, without preparation.
    """

    steps: tuple[int, ...]
    losses: tuple[float, ...]
    minutes: float


def main() -> None:
    """Run what has not been run, print the table, write the plots."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="files of configs/fast, without .yaml")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each recipe")
    parser.add_argument("--out", type=Path, default=Path("runs/recipes"), help="a folder")
    options = parser.parse_args()
    names = options.names or sorted(path.stem for path in RECIPES["fast"].glob("*.yaml"))
    rows: list[list[object]] = []
    plots = []
    for name in names:
        results = {
            recipe: [run(name, recipe, seed, options.out) for seed in range(1, options.seeds + 1)]
            for recipe in RECIPES
        }
        rows += table_rows(name, results)
        plots.append(plot(name, results, frequency(name)))
        Console().print(rows_table("Steps to the paper recipe's loss", COLUMNS, rows))
    draw(plots, options.out / "curves.png")


def run(name: str, recipe: str, seed: int, out: Path) -> Result:
    """Train a tokenizer and a network, unless that is done."""
    path = RECIPES[recipe] / f"{name}.yaml"
    config = cast(PretrainConfig, load("pretrain", path))
    tokenizer = CONFIGS / "tokenizer/proof" / f"{Path(config.tokenizer).name}.yaml"
    plmctl("train-tokenizer", str(tokenizer), f"run={config.tokenizer}")
    if teacher := getattr(config.objective, "teacher", None):
        plmctl("pretrain", str(RECIPES["paper"] / f"{Path(teacher).parent.name}.yaml"))
    folder = out / name / recipe / f"seed-{seed}"
    every = max(config.train.steps // 10, 1)
    plmctl("pretrain", str(path), f"run={folder}", f"seed={seed}", f"log.validate_every={every}")
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    records = [record for line in lines if "valid/loss" in (record := json.loads(line))]
    return Result(
        tuple(record["step"] for record in records),
        tuple(record["valid/loss"] for record in records),
        minutes(folder),
    )


def table_rows(name: str, results: dict[str, list[Result]]) -> list[list[object]]:
    """A row per recipe: means over the seeds, with the standard deviation of the loss."""
    goal = statistics.mean(result.losses[-1] for result in results["paper"])
    whole = results["paper"][0].steps[-1]
    rows: list[list[object]] = []
    for recipe, runs in results.items():
        last = [result.losses[-1] for result in runs]
        spread = f" ± {statistics.stdev(last):.3f}" if len(last) > 1 else ""
        rows.append([
            name if recipe == "paper" else "",
            recipe,
            f"{runs[0].steps[-1]:,}",
            f"{statistics.mean(result.minutes for result in runs):.1f}",
            f"{statistics.mean(last):.3f}{spread}",
            f"1/{whole / runs[0].steps[-1]:.1f}" if recipe == "fast" else "",
            ("yes" if statistics.mean(last) <= goal else "no") if recipe == "fast" else "",
        ])  # fmt: skip
    return rows


def frequency(name: str) -> float | None:
    """The held-out loss of a guess by frequency, summed over the loss terms by their weights.

    None: the loss compares with a teacher, which is more than guesses of classes.
    """
    config = cast(PretrainConfig, load("pretrain", RECIPES["paper"] / f"{name}.yaml"))
    if getattr(config.objective, "teacher", None):
        return None
    prepared = preflight(config)
    text = prepare(prepared.config, prepared.encoder).train
    weights = examples_of(prepared, text, config.train.phases[-1].seq_len).weights
    return sum(weights[term] * loss for term, (loss, _) in frequencies(prepared).items())


def plot(name: str, results: dict[str, list[Result]], baseline: float | None) -> Plot:
    """The held-out loss by step: a line per seed."""
    lines = [
        Curve(recipe if number == 0 else "", np.array(result.steps, float),
             np.array(result.losses), color, "solid")
        for color, (recipe, runs) in enumerate(results.items())
        for number, result in enumerate(runs)
    ]  # fmt: skip
    ends = np.array([0.0, max(result.steps[-1] for result in results["paper"])])
    if baseline is not None:
        lines.append(Curve("frequency", ends, np.full(2, baseline), 7, "faint"))
    return Plot(name, name, "nats per target", tuple(lines))


def draw(plots: list[Plot], path: Path) -> None:
    """All plots in one picture, three in a row; four are two and two."""
    from matplotlib.figure import Figure

    columns = 2 if len(plots) == 4 else min(3, len(plots))
    rows = -(-len(plots) // columns)
    drawing = Figure(figsize=(4.2 * columns, 3.2 * rows), layout="constrained")
    grid: Any = drawing.subplots(rows, columns, squeeze=False)
    for axes, one in zip(grid.flat, plots, strict=False):
        for line in one.lines:
            style = "--" if line.name == "frequency" else "-"
            axes.plot(line.x, line.y, style, color=f"C{line.color}", label=line.name or "_")
        axes.set(title=one.title, xlabel="step", ylabel=one.unit)
        axes.legend(frameon=False)
    for axes in grid.flat[len(plots):]:  # fmt: skip
        axes.set_axis_off()
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, dpi=120)
    Console().print(f"curves: {path}")


def plmctl(*arguments: str) -> None:
    """Run a command as a user would, and show which."""
    Console().print(f"[bold cyan]$ plmctl {' '.join(arguments)}[/]", highlight=False)
    code = subprocess.run([*PLMCTL, *arguments], check=False).returncode
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    main()
