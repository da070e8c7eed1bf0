"""What does pretraining buy? Small networks, pretrained against the same from random weights.

    python scripts/transfer_proof.py                  # all of configs/finetune/transfer
    python scripts/transfer_proof.py sst2 msra-ner    # some of them

The labelled rows lie in ./data, as docs/learning.md says. Networks are pretrained once, by
configs/pretrain/transfer, on open text and on the unlabelled texts of the training rows; then each
task is finetuned twice by the same grid of learning rates: from the pretrained weights, and from
random ones. CMRC's few questions are cut into five parts, each of which is held out in turn. Runs
that are done are left alone, so the command can be stopped and given again.
"""

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console

from plmctl.config.load import configs_folder
from plmctl.reporting.tables import rows_table

CONFIGS = configs_folder()
DATA = Path("data")
TEXTS = Path("runs/transfer/texts")
PARTS = Path("runs/transfer/parts")
PLMCTL = [sys.executable, "-m", "plmctl"]
COLUMNS = ["task", "rows", "metric", "random", "pretrained"]
INITS = ("random", "pretrained")
_LONGEST = 20_000  # of SST-2's phrases: most of the others are parts of these


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("names", nargs="*", help="files of configs/finetune/transfer")
    arguments.add_argument("--seeds", type=int, default=1, help="runs of each setting")
    args = arguments.parse_args()
    paths = [CONFIGS / "finetune/transfer" / f"{name}.yaml" for name in args.names]
    write_texts()
    rows: list[list[object]] = []
    for path in paths or sorted((CONFIGS / "finetune/transfer").glob("*.yaml")):
        rows.append(compared(path, args.seeds))
        Console().print(rows_table("What pretraining buys", COLUMNS, rows))


def compared(path: Path, seeds: int) -> list[object]:
    """Finetune from both weights; a row of the best settings' medians."""
    config = yaml.safe_load(path.read_text("utf-8"))
    pretrained(Path(config["model"]).parent.name)
    parts = cmrc_parts() if path.stem == "cmrc" else [Part("", (), 1)]
    medians = []
    for init in INITS:
        by_part = []
        for part in parts:
            output = plmctl(
                "finetune", str(path), f"run={config['run']}/{init}{part.name}", f"init={init}",
                "--seeds", str(seeds), "--json", *["--grid"] * ("grid" in config), *part.overrides,
            )  # fmt: skip
            result = json.loads(output)
            by_part.append(list(result["chosen"]["runs"].values()))
        of_seeds = np.average(by_part, axis=0, weights=[part.size for part in parts])
        medians.append(f"{np.median(of_seeds):.3f}")
    return [path.stem, config["data"].get("max_rows", "all"), result["metric"], *medians]


@dataclass(frozen=True)
class Part:
    """Rows of a task that are held out once.

    Attributes:
        name: What the runs' folders end in.
        overrides: What trains on the other rows.
        size: How many rows it has.
    """

    name: str
    overrides: tuple[str, ...]
    size: int


def cmrc_parts() -> list[Part]:
    """CMRC's questions in five parts, cut by their texts: so few have to be held out in turn."""
    document = json.loads((DATA / "qa/cmrc2018/trial.json").read_text("utf-8"))
    texts = document["data"]
    random.Random(0).shuffle(texts)
    paths = [PARTS / f"cmrc-{number}.json" for number in range(1, 6)]
    parts = []
    PARTS.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(paths):
        own = texts[number::5]
        path.write_text(json.dumps({**document, "data": own}, ensure_ascii=False), "utf-8")
        others = [str(other) for other in paths if other != path]
        overrides = (f"data.train={json.dumps(others)}", f'data.valid=["{path}"]')
        size = sum(len(paragraph["qas"]) for text in own for paragraph in text["paragraphs"])
        parts.append(Part(f"-{number + 1}", overrides, size))
    return parts


def pretrained(name: str) -> None:
    """The network that a task begins from; at once where it is there."""
    path = CONFIGS / "pretrain/transfer" / f"{name}.yaml"
    tokenizer = Path(yaml.safe_load(path.read_text("utf-8"))["tokenizer"]).name
    plmctl("train-tokenizer", str(CONFIGS / "tokenizer/transfer" / f"{tokenizer}.yaml"))
    plmctl("pretrain", str(path))


def write_texts() -> None:
    """The unlabelled texts of the training rows, a document each, none of a validation row."""
    TEXTS.mkdir(parents=True, exist_ok=True)
    sst2, brown = DATA / "classification/sst2/train.jsonl", DATA / "tagging/brown_pos/train.jsonl"
    phrases = sorted({row["sentence"].strip() for row in rows_of(sst2)}, key=lambda x: (-len(x), x))
    # Rotten Tomatoes is made of the same sentences, and splits them otherwise.
    held_out = "\n".join(
        text.lower()
        for name, column in (("sst2", "sentence"), ("rotten_tomatoes", "text"))
        for text in column_of(DATA / f"classification/{name}/dev.jsonl", column)
    )
    unseen = (text for text in phrases[:_LONGEST] if text.lower() not in held_out)
    write("english", [*unseen, *(" ".join(row["tokens"]) for row in rows_of(brown))])
    reviews = column_of(DATA / "classification/zh_reviews/train.jsonl", "text")
    news = ("".join(row["tokens"]) for row in rows_of(DATA / "tagging/msra_ner/train.jsonl"))
    premises = column_of(DATA / "pair/ocnli/train.jsonl", "premise")
    write("chinese", [*reviews, *news, *premises])
    help_pages = DATA / "seq2seq/libreoffice_en_zh/train.jsonl"
    write(
        "translation", [row[side] for row in rows_of(help_pages) for side in ("source", "target")]
    )


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def column_of(path: Path, column: str) -> Iterator[str]:
    return (row[column] for row in rows_of(path))


def write(name: str, texts: Iterable[str]) -> None:
    """Distinct texts, an empty line between them. Left alone if it is there."""
    path = TEXTS / f"{name}.txt"
    if not path.exists():
        distinct = dict.fromkeys(" ".join(text.split()) for text in texts)
        path.write_text("\n\n".join(filter(None, distinct)) + "\n", encoding="utf-8")


def plmctl(*arguments: str) -> str:
    """Run a command as a user would, and show which; what it printed."""
    Console(stderr=True).print(f"[bold cyan]$ plmctl {' '.join(arguments)}[/]", highlight=False)
    done = subprocess.run([*PLMCTL, *arguments], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


if __name__ == "__main__":
    main()
