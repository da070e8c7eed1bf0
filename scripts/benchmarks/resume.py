"""From the command to the end of its first step: on a text prepared before, and after a stop.

The far step's checkpoint is that of step 10 under another number: everything that a step needs is a
function of its number, so that nothing else would be in it.
"""

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_NEAR = 10


def alone(args: argparse.Namespace) -> dict[str, Any]:
    """Median seconds of each kind of start; there is no baseline."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _plmctl("train-tokenizer", _written(folder / "tokenizer.yaml", _tokenizer(args, folder)))
        config = _written(folder / "pretrain.yaml", _pretrain(args, folder))
        _plmctl("prepare", config)
        kinds: dict[str, list[float]] = {}
        for _ in range(args.rounds):
            fresh = _seconds(folder, config, 1, "--fresh")
            _plmctl("pretrain", config, f"--until={_NEAR}")
            near = _seconds(folder, config, _NEAR + 1)
            _number_anew(folder / "run", args.far)
            far = _seconds(folder, config, args.far + 1)
            names = ("from the beginning", f"after step {_NEAR}", f"after step {args.far:,}")
            for kind, seconds in zip(names, (fresh, near, far), strict=True):
                kinds.setdefault(kind, []).append(seconds)
    middle = {kind: statistics.median(seconds) for kind, seconds in kinds.items()}
    return {"work": args.work, "size": args.size, "rounds": args.rounds, "seconds": middle,
            "range": {kind: [min(s), max(s)] for kind, s in kinds.items()}}  # fmt: skip


def _plmctl(*arguments: str) -> None:
    command = [sys.executable, "-m", "plmctl", *arguments]
    # As for users, whose second start finds the modules compiled.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode not in (0, 75):  # 75: stopped, as it was asked to
        raise SystemExit(f"{' '.join(command)}\n{done.stderr}")


def _seconds(folder: Path, config: str, step: int, *more: str) -> float:
    """Until the journal had the step, which is the last thing that is logged."""
    began = time.time()
    _plmctl("pretrain", config, f"--until={step}", *more)
    return (folder / "run" / "metrics.jsonl").stat().st_mtime - began


def _number_anew(run: Path, step: int) -> None:
    """Give the newest checkpoint another number."""
    newest = max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name[5:]))
    there = newest.rename(newest.with_name(f"step-{step:06d}"))
    state = json.loads((there / "state.json").read_text()) | {"step": step}
    (there / "state.json").write_text(json.dumps(state))
    manifest = json.loads((there / "manifest.json").read_text())
    changed = (there / "state.json").read_bytes()
    digest = hashlib.sha256(changed).hexdigest()
    manifest["state.json"] = {"size": len(changed), "sha256": digest}
    (there / "manifest.json").write_text(json.dumps(manifest))


def _written(path: Path, config: dict[str, Any]) -> str:
    path.write_text(json.dumps(config))  # YAML reads it
    return str(path)


def _tokenizer(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A tokenizer of made-up text, which is written here."""
    import numpy as np

    rng = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(rng.choice(syllables, size)) for size in rng.integers(1, 5, 20_000)]
    often = 1 / np.arange(1, len(words) + 1)
    drawn = rng.choice(len(words), 400_000, p=often / often.sum())
    lines = [" ".join(words[w] for w in drawn[at : at + 12]) for at in range(0, len(drawn), 12)]
    documents = ("\n".join(lines[at : at + 20]) for at in range(0, len(lines), 20))
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n")
    return {
        "run": str(folder / "tokenizer"),
        "algorithm": "wordpiece",
        "family": "bert",
        "vocab_size": args.vocab_size,
        "data": {"train": [str(folder / "text.txt")]},
    }


def _pretrain(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    phase = {"seq_len": args.length, "steps": 2 * args.far}
    return {
        "run": str(folder / "run"),
        "tokenizer": str(folder / "tokenizer"),
        "model": {"family": "bert", "size": args.size},
        "data": {"train": [str(folder / "text.txt")], "valid": "1%"},
        "objective": {"name": "mlm"},
        "train": {"batch_size": args.batch, "phases": [phase]},
        "compute": {"device": args.device, "precision": args.precision},
        "log": {"every": 1},
    }
