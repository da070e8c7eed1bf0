"""Which kind of model learns most from the same text with the same compute?

    python scripts/contest.py --size tiny --layers 4 --budget 7e13   # as in docs/learning.md
    python scripts/contest.py gpt2 bert --budget 3e13 --rates 0.5 1 2 --seeds 3
    python scripts/contest.py bert gpt_bert-1:1 --text chinese

Every kind trains a network of one size by its fast recipe (configs/fast) on one text, for the same
FLOPs as `plmctl plan` counts them: 7e13 are 13 to 18 minutes of one core with bf16 instructions
(AVX-512), beside another such run. The rates are factors on the recipe's learning rate; the best
by held-out loss is scored. Then BLiMP's paradigms without finetuning, and the tasks of
configs/finetune/transfer, with what counting gives on the same rows. All of ``data`` is as
docs/learning.md says. A finished run is not repeated, so the command can be stopped, and given
again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from plmctl.config.load import configs_folder
from plmctl.families.base import get_family
from plmctl.reporting.tables import rows_table

CONFIGS = configs_folder()


def _mixed(causal: int, masked: int) -> dict[str, Any]:
    parts = [{"name": "clm", "weight": causal}, {"name": "mntp", "weight": masked}]
    return {"name": "mixture", "of": parts}


# Of each kind its file in configs/fast, its tokenizer (algorithm, family), and its objective where
# it is another than the recipe's.
Tokenizer = tuple[str, str, list[str]]
BYTES: Tokenizer = ("byte_bpe", "gpt2", [])
MASK: Tokenizer = ("byte_bpe", "gpt2", ["<mask>"])
KINDS: dict[str, tuple[str, Tokenizer, dict[str, Any] | None]] = {
    "bert": ("bert", ("wordpiece", "bert", []), {"name": "mlm", "rate": 0.4}),
    "electra": ("electra", ("wordpiece", "bert", []), None),
    "deberta": ("deberta", ("unigram", "deberta", []), None),
    "modernbert": ("modernbert", ("byte_bpe", "modernbert", []), None),
    "gpt2": ("gpt2", BYTES, None),
    "llama": ("llama", BYTES, None),
    "gpt_bert-1:3": ("gpt_bert", MASK, _mixed(1, 3)),
    "gpt_bert-1:1": ("gpt_bert", MASK, _mixed(1, 1)),
    "gpt_bert-3:1": ("gpt_bert", MASK, _mixed(3, 1)),
}
TEXTS = {
    "english": (
        "data/corpora/english10m/train.txt",
        {"sst2": "accuracy", "cola": "matthews", "rotten-tomatoes": "accuracy"},
    ),
    "chinese": ("data/corpora/zh_news/train.txt", {"msra-ner": "f1"}),
}
IDS = {"english": 15_000, "chinese": 6_000}


def main() -> None:
    """Run what has not been run; print the table after each kind."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", help=", ".join(KINDS))
    parser.add_argument("--budget", default="2.8e14", help="FLOPs of each pretraining")
    parser.add_argument("--size", default="mini", help="of every network")
    parser.add_argument("--layers", type=int, help="in place of those of the size")
    parser.add_argument("--text", choices=TEXTS, default="english")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 1.0], help="factors")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/contest"))
    args = parser.parse_args()
    if unknown := set(args.kinds) - set(KINDS):
        parser.error(f"{', '.join(unknown)}: expected {', '.join(KINDS)}")
    tasks: dict[str, str] = TEXTS[args.text][1]
    header = ["kind", "rate", "held-out loss", *(["BLiMP"] if args.text == "english" else []),
              *(f"{task} (counting)" for task in tasks)]  # fmt: skip
    rows: list[list[object]] = []
    for kind in args.kinds or KINDS:
        losses = {rate: pretrain(args, kind, rate, 1) for rate in args.rates}
        rate = min(losses, key=losses.__getitem__)
        seeds = range(1, args.seeds + 1)
        values = [
            (pretrain(args, kind, rate, seed), *scores(args, kind, rate, seed)) for seed in seeds
        ]
        folder = folder_of(args, kind, rate, 1)
        yardsticks = [counting(folder / task, metric) for task, metric in tasks.items()]
        cells = [mean(column) for column in zip(*values, strict=True)]
        notes = ["", *([""] if args.text == "english" else []), *yardsticks]
        rows.append([kind, f"{rate:g}", *(a + b for a, b in zip(cells, notes, strict=True))])
        Console().print(rows_table(f"{args.budget} FLOPs, {args.text}", header, rows))


def folder_of(args: argparse.Namespace, kind: str, rate: float, seed: int) -> Path:
    """The folder of one network and its scores."""
    name = f"{args.text}-{args.budget}-{args.size}{args.layers or ''}"
    return Path(args.out) / name / kind.replace(":", "-") / f"rate-{rate:g}-seed-{seed}"


def pretrain(args: argparse.Namespace, kind: str, rate: float, seed: int) -> float:
    """The held-out loss of a network, which is trained unless it is there."""
    recipe, (algorithm, family, special), objective = KINDS[kind]
    text, folder = TEXTS[args.text][0], folder_of(args, kind, rate, seed)
    config = yaml.safe_load((CONFIGS / "fast" / f"{recipe}.yaml").read_text("utf-8"))
    tokenizer = Path(args.out) / "tokenizers" / f"{args.text}-{family}{'-mask' * bool(special)}"
    write_and_run("train-tokenizer", tokenizer.with_suffix(".yaml"), {
        "run": str(tokenizer), "algorithm": algorithm, "family": family,
        "vocab_size": IDS[args.text], "special_tokens": special, "data": {"train": [text]},
    })  # fmt: skip
    length = config["train"]["phases"][0]["seq_len"]
    causal = (objective or config["objective"])["name"] in ("clm", "mixture")
    config |= {
        "run": str(folder / "pretrain"), "tokenizer": str(tokenizer), "seed": seed,
        "objective": objective or config["objective"],
        # Grammar is asked in sentences that stand alone: a decoder must have seen such.
        "data": {"train": [text], "valid": "1%", "documents": "line" if causal else "auto"},
        "schedule": {"name": "wsd", "warmup": "3%", "decay": 0.3},
    }  # fmt: skip
    config["model"] |= {"size": args.size}
    if args.layers:
        layers, *_ = get_family(config["model"]["family"]).SIZE_FIELDS
        config["model"][layers] = args.layers
    if config["objective"]["name"] == "clm":
        config["objective"] |= {"attention": "within"}
    config["train"] |= {"budget": f"{args.budget} FLOPs", "phases": [{"seq_len": length}]}
    config["optim"]["lr"] = float(config["optim"]["lr"]) * rate
    write_and_run("pretrain", folder / "pretrain.yaml", config)
    lines = (folder / "pretrain/metrics.jsonl").read_text("utf-8").splitlines()
    return float([r["valid/loss"] for line in lines if "valid/loss" in (r := json.loads(line))][-1])


def scores(args: argparse.Namespace, kind: str, rate: float, seed: int) -> list[float]:
    """BLiMP without finetuning, and the metric of each task."""
    folder, values = folder_of(args, kind, rate, seed), []
    model = f"model={folder}/pretrain/model"
    if args.text == "english":
        run = folder / "blimp"
        plmctl("eval", "babylm/blimp", model, f"run={run}",
               'measures.0.data=["data/minimal_pairs/blimp/*.jsonl"]')  # fmt: skip
        results = json.loads((run / "eval/minimal_pairs.json").read_text("utf-8"))["results"]
        values.append(float(results["accuracy/macro"]))
    for task, metric in TEXTS[args.text][1].items():
        run = folder / task
        # A decoder has not seen the rest of a word at its first piece.
        decoder = task == "msra-ner" and KINDS[kind][1] in (BYTES, MASK)
        piece = ["task.piece=last"] * decoder
        plmctl("finetune", f"transfer/{task}", model, f"run={run}", f"seed={seed}", *piece)
        results = json.loads((run / "eval/valid.json").read_text("utf-8"))["results"]
        values.append(float(results[metric]))
    return values


def counting(run: Path, metric: str) -> str:
    """The best that counting gives on the rows of a finetuning, in brackets."""
    methods = json.loads((run / "eval/yardstick.json").read_text("utf-8"))["methods"]
    return f" ({max(method['metrics'][metric] for method in methods):.3f})"


def mean(values: tuple[float, ...]) -> str:
    """The mean, and the standard deviation of several seeds."""
    spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.3f}{spread}"


def write_and_run(command: str, path: Path, config: dict[str, Any]) -> None:
    """Write a config and run it; a finished run is left as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True), "utf-8")
    plmctl(command, str(path))


def plmctl(*arguments: str) -> None:
    """Run a command as a user would, and show which."""
    Console().print(f"[bold cyan]$ plmctl {' '.join(arguments)}[/]", highlight=False)
    code = subprocess.run([sys.executable, "-m", "plmctl", *arguments], check=False).returncode
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    main()
