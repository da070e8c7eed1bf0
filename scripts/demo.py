"""The main job, end to end: what does pretraining on raw text buy a classifier?

For each model of a folder of configs: train a tokenizer, pretrain, finetune on a few labelled rows,
finetune the same network from random weights beside it, evaluate. Then one table.

    python scripts/demo.py configs/demo --seed 1
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from plmctl.reporting.tables import rows_table

PLMCTL = [sys.executable, "-m", "plmctl"]
console = Console()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("folder", type=Path, help="a folder of configs, such as configs/demo")
    arguments.add_argument("--seed", type=int, default=1)
    args = arguments.parse_args()
    began = time.perf_counter()
    folders = [args.folder]
    folders += sorted(
        p.parent for p in args.folder.glob("*/pretrain.yaml") if p.parent.name != "zh"
    )
    models = [Demo(folder, args.seed) for folder in folders]
    for demo in models:
        demo.run()
    console.print(table([demo.row() for demo in models]))
    for demo in models:
        demo.show_samples()
    report = models[0].root / "report.html"
    plmctl("report", *(str(demo.place("pretrain")) for demo in models), "--out", str(report))
    minutes = (time.perf_counter() - began) / 60
    console.print(f"[bold]{minutes:.1f} minutes[/]; curves and details: {report}")


class Demo:
    """One model's stages, in the folders of its seed."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self.configs = {
            name: yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
            for name in ("tokenizer", "pretrain", "finetune", "eval")
        }
        self.root = self.place("pretrain").parent

    def place(self, name: str) -> Path:
        """The run folder of a config; a seed other than 1 has its own folder level."""
        run = Path(self.configs[name]["run"])
        return run if self.seed == 1 else run.parent / f"seed-{self.seed}" / run.name

    def run(self) -> None:
        tokenizer = self.configs["tokenizer"]["run"]  # the same text gives the same one
        plmctl("train-tokenizer", str(self.folder / "tokenizer.yaml"))
        pretrained, tuned = self.place("pretrain"), self.place("finetune")
        self.command("pretrain", pretrained, f"tokenizer={tokenizer}")
        model = f"model={pretrained}/model"
        self.command("finetune", tuned, model)
        self.command("finetune", tuned.with_name(f"{tuned.name}-scratch"), model, "init=random")
        self.command("eval", self.place("eval"), model)

    def command(self, name: str, run: Path, *overrides: str) -> None:
        config = str(self.folder / f"{name}.yaml")
        plmctl(name, config, f"run={run}", f"seed={self.seed}", *overrides)

    def row(self) -> list[str]:
        tuned = self.place("finetune")
        with_pretraining = results(tuned / "eval" / "valid.json")
        without = results(tuned.with_name(f"{tuned.name}-scratch") / "eval" / "valid.json")
        log = self.place("pretrain") / "metrics.jsonl"
        records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        last = [record for record in records if "time" in record][-1]
        gain = with_pretraining["accuracy"] - without["accuracy"]
        return [
            f"{self.configs['pretrain']['model']['family']}",
            f"{last['tokens'] / 1e6:.1f} M",
            f"{last['time'] / 60:.1f}",
            str(with_pretraining["rows"]),
            f"{with_pretraining['majority']:.3f}",
            f"{without['accuracy']:.3f}",
            f"{with_pretraining['accuracy']:.3f}",
            f"{gain:+.3f}",
        ]

    def show_samples(self) -> None:
        samples = json.loads((self.place("pretrain") / "eval" / "samples.json").read_text("utf-8"))
        for item in samples["items"][:2]:
            if samples["kind"] == "fill-mask":
                best = ", ".join(f"{p['token']} {p['score']:.2f}" for p in item["predictions"][:3])
                console.print(
                    f"{item['text']}\n  → {best}  (was: {item['answer']})\n", highlight=False
                )
            else:
                console.print(f"{item['prompt']} …\n  → {item['text']}\n", highlight=False)


def plmctl(*arguments: str) -> None:
    """Run a command as a user would, and show which."""
    console.print(f"[bold cyan]$ plmctl {' '.join(arguments)}[/]", highlight=False)
    done = subprocess.run([*PLMCTL, *arguments], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def results(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))["results"]


def table(rows: list[list[str]]) -> Table:
    columns = ["model", "tokens", "minutes", "rows", "majority", "scratch", "pretrained", "gain"]
    result = rows_table("What pretraining bought: accuracy on held-out documents", columns, rows)
    result.caption = "tokens and minutes of pretraining; labelled rows of finetuning\n"
    result.caption_justify = "left"
    return result


if __name__ == "__main__":
    main()
