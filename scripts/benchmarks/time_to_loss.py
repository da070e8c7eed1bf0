"""Seconds from a text file to a saved model of a given quality: the fast recipe, and the Trainer.

Both sides have the same text, tokenizer, network, batch and sequence length, no dropout, and the
same masking rate. The stock side is what transformers' example scripts do: ``datasets`` tokenizes
and groups the text, Trainer with AdamW (its learning rate is ``--stock-lr``) trains for ``--steps``
steps. plmctl's side has the initial weights and the optimizer of its fast recipe and a share of
these steps, ``--share``. Then one measure scores both saved models on the same held-out text. The
seconds are of the whole process, preparation included.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.whole import call, trainer, write_config, write_network, write_text

# The network's first attention and embeddings; published ones on the stock side.
_INITIAL = {"initial_attention": "local", "initial_embeddings": "cooccurrence"}
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
        write_text(args.data, folder)
        kind = _KINDS[args.objective]
        tokenizer = {
            "run": str(folder / "tokenizer"),
            "algorithm": kind["algorithm"],
            "family": kind["family"],
            "vocab_size": args.vocab_size,
            "data": {"train": [str(folder / "train.txt")]},
        }
        call("-m", "plmctl", "train-tokenizer", write_config(folder / "tokenizer.yaml", tokenizer))
        write_network(args, folder, kind["family"], kind["model"])
        for number in range(args.rounds):
            seed, sides = number + 1, {}
            for side in ("plmctl", "stock") if number % 2 == 0 else ("stock", "plmctl"):
                began = time.perf_counter()
                run = folder / f"{side}-{seed}"
                if side == "plmctl":
                    config = _pretrain(args, folder, run, seed)
                    call("-m", "plmctl", "pretrain", write_config(folder / "pretrain.yaml", config))
                else:
                    command = trainer(
                        folder, run / "model", causal=args.objective == "clm",
                        bf16=args.precision == "bf16", steps=args.steps,
                        batch=args.batch, length=args.length, lr=args.stock_lr, beta2=0.98,
                        warmup=args.steps // 15, rate=0.4, seed=seed,
                    )  # fmt: skip
                    call(*command)
                seconds = time.perf_counter() - began
                sides[side] = {"seconds": seconds, "loss": _loss(args, folder, run / "model")}
            rounds.append(sides)
            print(f"round {seed}: {json.dumps(sides)}", file=sys.stderr, flush=True)
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


def _pretrain(args: argparse.Namespace, folder: Path, run: Path, seed: int) -> dict[str, Any]:
    kind = _KINDS[args.objective]
    steps = round(args.steps * args.share)
    positions = {"n_positions": args.length} if args.objective == "clm" else {}
    return {
        "run": str(run),
        "seed": seed,
        "tokenizer": str(folder / "tokenizer"),
        "model": {
            "family": kind["family"],
            "size": args.size,
            **kind["model"],
            **positions,
            **_INITIAL,
        },
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
        "compute": {"device": "cpu", "precision": args.precision},
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
    output = call("-m", "plmctl", "eval", write_config(folder / "eval.yaml", config), "--json")
    return float(json.loads(output)["results"][args.objective]["loss"])
