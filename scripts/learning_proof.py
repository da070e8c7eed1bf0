"""Does every family learn? Small runs whose loss on held-out text is set beside word frequencies.

    python scripts/learning_proof.py                 # all of configs/pretrain/proof
    python scripts/learning_proof.py bert gpt2       # some of them

Each configs/pretrain/proof/NAME.yaml is a pretraining of minutes on two CPU cores. The column
"frequency" is the cross-entropy, on the same held-out targets, of a guess that knows how frequent
tokens are and nothing else: a network that has learned to use context is well below it. For pairs
of segments the columns are accuracies: of the larger class, and of the network.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from plmctl.arrays import IGNORE, spread
from plmctl.commands.prepare import prepare
from plmctl.config.load import configs_folder
from plmctl.reporting.tables import rows_table
from plmctl.run.configs import PretrainConfig, load
from plmctl.run.preflight import Prepared, preflight
from plmctl.run.pretraining import examples_of

FOLDER = configs_folder() / "pretrain/proof"
TOKENIZERS = configs_folder() / "tokenizer/proof"
PLMCTL = [sys.executable, "-m", "plmctl"]
COLUMNS = ["family", "objective", "size", "steps", "minutes", "target", "frequency", "learned"]
_SAMPLES = 2000  # examples that the targets' frequencies are counted on
_PAIRS = {"nsp", "sop"}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("names", nargs="*", help="files of that folder, without .yaml")
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                           help="an override for every run")  # fmt: skip
    args = arguments.parse_args()
    paths = [FOLDER / f"{name}.yaml" for name in args.names] or sorted(FOLDER.glob("*.yaml"))
    rows: list[list[object]] = []
    for path in paths:
        rows += proof(path, args.set)
        Console().print(rows_table("Learnt from held-out text", COLUMNS, rows))


def proof(path: Path, overrides: list[str]) -> list[list[object]]:
    """Train a tokenizer and a network; a row for each part of the loss."""
    config = cast(PretrainConfig, load("pretrain", path, tuple(overrides)))
    tokenizer = TOKENIZERS / f"{Path(config.tokenizer).name}.yaml"
    plmctl("train-tokenizer", str(tokenizer), f"run={config.tokenizer}")
    plmctl("pretrain", str(path), *overrides)
    run = Path(config.run)
    results = json.loads((run / "eval" / "valid.json").read_text("utf-8"))["results"]
    return [
        [
            config.model.family,
            config.objective.name,
            f"{parameters(run) / 1e6:.2f} M",
            config.train.steps,
            f"{minutes(run):.1f}",
            f"{part} accuracy" if part in _PAIRS else part,
            *formatted(part, results, alone),
        ]
        for part, alone in frequencies(preflight(config)).items()
        if f"valid/accuracy/{part}" in results  # others, as distances to a teacher, have no classes
    ]


def formatted(part: str, results: dict[str, Any], alone: tuple[float, float]) -> tuple[str, str]:
    """What frequencies alone give, and what was learned: nats, or accuracies of pairs."""
    if part in _PAIRS:
        return f"{alone[1]:.3f}", f"{results[f'valid/accuracy/{part}']:.3f}"
    return f"{alone[0]:.2f}", f"{results[f'valid/loss/{part}']:.2f}"


def frequencies(prepared: Prepared) -> dict[str, tuple[float, float]]:
    """For each part: cross-entropy of the held-out targets, and share of the most frequent one."""
    text = prepare(prepared.config, prepared.encoder)
    assert text.valid is not None
    learned, held_out = (targets(prepared, store) for store in (text.train, text.valid))
    by_part = {}
    for part, seen in learned.items():
        if not np.issubdtype(seen.dtype, np.integer) or seen.min(initial=0) < 0:
            continue
        counts = np.bincount(seen, minlength=max(prepared.vocab.size, 2)) + 1.0
        shares = counts / counts.sum()
        there = held_out[part]
        by_part[part] = (
            float(-np.log(shares[there]).mean()),
            float((there == counts.argmax()).mean()),
        )
    return by_part


def targets(prepared: Prepared, store: Any) -> dict[str, NDArray[np.int64]]:
    """The targets of examples that are spread over a store."""
    step = examples_of(prepared, store, prepared.config.train.phases[-1].seq_len)
    values_of: dict[str, list[NDArray[np.int64]]] = {}
    for samples in np.array_split(spread(len(step), _SAMPLES), 32):
        if not len(samples):
            continue
        batch = step.collate(np.zeros_like(samples), samples)
        for part, target in batch.targets.items():
            values = target.numpy().reshape(-1)
            values_of.setdefault(part, []).append(values[values != IGNORE])
    return {part: np.concatenate(values) for part, values in values_of.items()}


def parameters(run: Path) -> int:
    """Parameters of a run's network, read off the file's header."""
    from safetensors import safe_open

    with safe_open(run / "model" / "model.safetensors", "np") as file:
        return sum(int(np.prod(file.get_slice(name).get_shape())) for name in file.keys())  # noqa: SIM118


def minutes(run: Path) -> float:
    """Time of training."""
    lines = (run / "metrics.jsonl").read_text("utf-8").splitlines()
    return max(json.loads(line).get("time", 0.0) for line in lines) / 60


def plmctl(*arguments: str) -> None:
    """Run a command as a user would, and show which."""
    Console().print(f"[bold cyan]$ plmctl {' '.join(arguments)}[/]", highlight=False)
    done = subprocess.run([*PLMCTL, *arguments], check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
