"""Is a network worth it? Scores over the number of labelled rows, with and without a network.

    python scripts/worth_it.py                                     # counting alone: minutes
    python scripts/worth_it.py sst2 --pretrained runs/gpt2/model --encoder minilm/model

For each task (files of configs/finetune/transfer; the labelled rows lie in ./data, as
docs/learning.md says) and each number of rows: what counting gives, the yardstick of
`plmctl finetune`; and with `--pretrained` and `--encoder` these networks finetuned on the same
rows, the former from random weights too. The validation rows are always the same, all of them.
Then a Markdown table and a picture. What is measured stays in OUT/values.json and is not repeated,
so the command can be stopped, and given again with more.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from plmctl.commands.finetune import metric_of, read_examples
from plmctl.config.load import configs_folder
from plmctl.files import write_atomically
from plmctl.run.configs import FinetuneConfig, load
from plmctl.run.preflight import finetune_preflight
from plmctl.run.yardstick import keep_yardstick

CONFIGS = configs_folder() / "finetune/transfer"
TASKS = ("sst2", "zh-reviews", "cola", "rte", "brown-pos", "msra-ner")
METHODS = ("counting", "random weights", "pretrained", "encoder")
_BATCH = 16
# Rows that are read at least, as far as so many epochs allow; and the learning rate.
_READ = {"random weights": 3_000, "pretrained": 3_000, "encoder": 1_500}
_EPOCHS = (3, 20)
_RATES = {"random weights": 3e-4, "pretrained": 3e-4, "encoder": 1e-4}

# The networks of docs/learning.md, where one number of rows was measured; hollow in the picture.
ELSEWHERE = {
    "zh-reviews": (5_000, 0.796, 0.834),
    "cola": (7_250, 0.106, 0.162),
    "rte": (2_127, 0.516, 0.513),
    "brown-pos": (5_000, 0.830, 0.923),
    "msra-ner": (10_000, 0.345, 0.551),
}


@dataclass(frozen=True)
class Point:
    """One training of one method."""

    task: str
    method: str
    rows: int
    seed: int

    def __str__(self) -> str:
        return f"{self.task}/{self.method}/{self.rows}/{self.seed}"


def main() -> None:
    args = arguments()
    values = measured(args)
    print(table(args, values))
    draw(args, values)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("tasks", nargs="*", default=TASKS, help="files of configs/finetune/transfer")
    add("--rows", nargs="+", type=int, default=[100, 300, 1_000, 3_000, 10_000])
    add("--seeds", type=int, default=1, help="each draws its own training rows")
    add("--pretrained", type=Path, help="a small network of plmctl; random weights are tried too")
    add("--encoder", type=Path, help="a published encoder")
    add("--methods", nargs="+", choices=METHODS, default=METHODS)
    add("--out", type=Path, default=Path("runs/worth-it"), help="a folder")
    return parser.parse_args()


# --- What is measured ---


def measured(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Metric, value and seconds of each point, those of earlier calls included."""
    kept = args.out / "values.json"
    values: dict[str, dict[str, Any]] = json.loads(kept.read_text("utf-8")) if kept.exists() else {}
    args.out.mkdir(parents=True, exist_ok=True)
    for point in points(args):
        if str(point) not in values:
            began = time.monotonic()
            measure = counted if point.method == "counting" else trained
            values[str(point)] = measure(args, point)
            values[str(point)]["minutes"] = round((time.monotonic() - began) / 60, 2)
            write_atomically(kept, json.dumps(values, indent=1).encode())
    return values


def points(args: argparse.Namespace) -> Iterator[Point]:
    """The cheap ones first."""
    given = {"counting": True, "random weights": args.pretrained, "pretrained": args.pretrained,
             "encoder": args.encoder}  # fmt: skip
    for method in args.methods:
        for rows in args.rows if given[method] else ():
            for task in args.tasks:
                yield from (Point(task, method, rows, seed) for seed in range(1, args.seeds + 1))


def counted(args: argparse.Namespace, point: Point) -> dict[str, Any]:
    """The best method of the yardstick, in this process: no network is made."""
    model = args.pretrained or args.encoder or byte_tokenizer(args.out)
    config = cast(FinetuneConfig, load("finetune", path_of(point), overrides(point, model)))
    examples = read_examples(finetune_preflight(config))
    with tempfile.TemporaryDirectory() as name:
        rows = examples.rows.train, next(iter(examples.rows.valid.values()))
        first = examples.first_valid, examples.hashes["data"]
        keep_yardstick(Path(name), finetune_preflight(config).task, examples.labels, rows, *first)
        methods = json.loads((Path(name) / "eval/yardstick.json").read_text("utf-8"))["methods"]
    metric = metric_of(config.train.metric, methods[0]["metrics"])
    best = max(methods, key=lambda one: one["metrics"][metric])
    return {"metric": metric, "value": best["metrics"][metric], "name": best["name"]}


def byte_tokenizer(out: Path) -> Path:
    """A folder whose tokenizer reads any text: counting needs one for windows and lengths only."""
    folder = out / "bytes"
    if (folder / "gpt2/model").is_dir():
        return folder / "gpt2/model"
    text = out / "bytes.txt"
    text.write_text("a b c d e f\n\n" * 400, encoding="utf-8")
    data = f'data.train=["{text}"]'
    plmctl("train-tokenizer", str(CONFIGS.parents[1] / "tokenizer/proof/byte-bpe.yaml"),
           f"run={folder}/tokenizer", "vocab_size=300", data)  # fmt: skip
    plmctl("pretrain", str(CONFIGS.parents[1] / "fast/gpt2.yaml"), f"run={folder}/gpt2",
           f"tokenizer={folder}/tokenizer", data, "data.valid=null", "train.phases.0.steps=1",
           "schedule.warmup=0", "log.samples=0", f"data.store={folder}/stores")  # fmt: skip
    return folder / "gpt2/model"


def trained(args: argparse.Namespace, point: Point) -> dict[str, Any]:
    """A network, finetuned as a user would."""
    model = args.encoder if point.method == "encoder" else args.pretrained
    init = "init=random" if point.method == "random weights" else "init=pretrained"
    run = f"run={args.out / str(point).replace(' ', '-')}"
    results = json.loads(
        plmctl(
            "finetune",
            str(path_of(point)),
            *overrides(point, model),
            run,
            init,
            "task.baseline=none",
            "--json",
            "--fresh",
        )  # fmt: skip
    )
    config = cast(FinetuneConfig, load("finetune", path_of(point), overrides(point, model)))
    metric = metric_of(config.train.metric, results)
    return {"metric": metric, "value": results[metric], "steps": results["steps"]}


def path_of(point: Point) -> Path:
    return CONFIGS / f"{point.task}.yaml"


def overrides(point: Point, model: Path) -> list[str]:
    least, most = _EPOCHS
    rows = [f"model={model}", f"data.max_rows={point.rows}", f"seed={point.seed}"]
    if point.method == "counting":
        return rows
    epochs = min(most, max(least, round(_READ[point.method] / point.rows)))
    rate = f"optim.lr={_RATES[point.method]}"
    return [*rows, f"train.epochs={epochs}", f"train.batch_size={_BATCH}", rate]


def plmctl(*arguments: str) -> str:
    """Run a command as a user would, and show which; what it printed."""
    Console(stderr=True).print(f"[bold cyan]$ plmctl {' '.join(arguments)}[/]", highlight=False)
    command = [sys.executable, "-m", "plmctl", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=os.environ)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


# --- What is shown ---


def scores(values: dict[str, dict[str, Any]], task: str, method: str) -> dict[int, list[float]]:
    """The scores of a method by the number of rows, a score per seed."""
    by_rows: dict[int, list[float]] = {}
    for name, one in values.items():
        of_task, of_method, rows, _ = name.split("/")
        if (of_task, of_method) == (task, method):
            by_rows.setdefault(int(rows), []).append(one["value"])
    return dict(sorted(by_rows.items()))


def table(args: argparse.Namespace, values: dict[str, dict[str, Any]]) -> str:
    """A Markdown table: mean over the seeds, with the standard deviation of three and more."""
    lines = [f"| task | method | {' | '.join(f'{rows:,}' for rows in args.rows)} |"]
    lines.append("|---|---|" + "---:|" * len(args.rows))
    for task in args.tasks:
        for method in METHODS:
            by_rows = scores(values, task, method)
            cells = [spread(by_rows[rows]) if rows in by_rows else "" for rows in args.rows]
            if any(cells):
                lines.append(f"| {task} | {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.3f}" if len(values) > 2 else ""
    return f"{statistics.mean(values):.3f}{deviation}"


def draw(args: argparse.Namespace, values: dict[str, dict[str, Any]]) -> None:
    """A panel per task, three in a row; hollow: the networks of docs/learning.md."""
    from matplotlib.figure import Figure

    tall, wide = -(-len(args.tasks) // 3), min(3, len(args.tasks))
    drawing = Figure(figsize=(4.2 * wide, 3.2 * tall), layout="constrained")
    grid: Any = drawing.subplots(tall, wide, squeeze=False)
    for axes in grid.flat[len(args.tasks):]:  # fmt: skip
        axes.set_axis_off()
    for axes, task in zip(grid.flat, args.tasks, strict=False):
        for color, method in enumerate(METHODS):
            by_rows = scores(values, task, method)
            means = [statistics.mean(of) for of in by_rows.values()]
            axes.plot(list(by_rows), means, "o-", color=f"C{color}", markersize=4, label=method)
        if task in ELSEWHERE:
            rows, *known = ELSEWHERE[task]
            for color, value in enumerate(known, start=1):
                axes.plot([rows], [value], "o", color=f"C{color}", fillstyle="none")
        metrics = [one["metric"] for name, one in values.items() if name.startswith(f"{task}/")]
        axes.set(title=task, xlabel="labelled rows", ylabel=next(iter(metrics), ""), xscale="log")
        axes.grid(alpha=0.3)
    drawing.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center",
                   ncols=len(METHODS), frameon=False)  # fmt: skip
    drawing.savefig(args.out / "curves.png", dpi=120)
    Console(stderr=True).print(f"curves: {args.out / 'curves.png'}")


if __name__ == "__main__":
    main()
