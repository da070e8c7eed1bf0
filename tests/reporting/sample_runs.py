"""Run folders as a run leaves them, made from formulas."""

import json
import math
from pathlib import Path

import numpy as np
import yaml

ERAS = ["founding", "civil war", "industrial", "modern"]


def pretrain(
    folder: Path, *, steps: int = 4000, upto: int | None = None, seed: int = 0, valid: bool = True
) -> Path:
    """A pretraining run of BERT with two phases; unfinished if it goes ``upto`` a step only."""
    draws = np.random.default_rng(seed)
    phases = [{"seq_len": 64, "steps": steps * 9 // 10}, {"seq_len": 128, "steps": steps // 10}]
    config = {
        "run": str(folder),
        "seed": 42,
        "tokenizer": "runs/demo/tokenizer",
        "model": {"family": "bert", "size": "mini", "num_hidden_layers": 2, "hidden_size": 128},
        "data": {"train": ["sample:sotu"], "valid": 0.1, "sentences": "en"},
        "objective": {"name": "mlm+nsp", "masking": "dynamic", "rate": 0.15},
        "train": {"batch_size": 32, "phases": phases},
        "optim": {"name": "adamw", "lr": 0.0015 * (1 + seed), "weight_decay": 0.01},
        "schedule": {"name": "linear", "warmup": steps // 10},
    }
    lines = []
    for step in range(10, (upto or steps) + 1, 10):
        mlm = 2.9 - 0.2 * seed + 4.4 * math.exp(-step / 900) + draws.normal(0, 0.09)
        nsp = 0.42 + 0.27 * math.exp(-step / 700) + draws.normal(0, 0.04)
        late = step > phases[0]["steps"]
        line = {
            "step": step,
            "phase": int(late),
            "tokens": 2048 * step,
            "loss": mlm + nsp,
            "loss/mlm": mlm,
            "loss/nsp": nsp,
            "lr": config["optim"]["lr"] * min(10 * step / steps, (steps - step) / (0.9 * steps)),
            "grad_norm": 0.9 + 2.2 * math.exp(-step / 300) + abs(draws.normal(0, 0.25)),
            "tokens_per_second": (27_000 if late else 31_000) + draws.normal(0, 500),
            "memory_gb": 0.91,
            "time": step * 0.066,
        }
        lines.append(line)
        if valid and step % 100 == 0:
            lines.append({"step": step, **_validation(mlm, nsp)})
    write(folder, config, lines)
    if upto is None:
        results = {"steps": steps, "tokens": 2048 * steps}
        results |= _validation(mlm, nsp) if valid else {}
        evaluation(folder, "valid", {"kind": "pretrain", "results": results})
        evaluation(folder, "samples", filled())
        model(folder)
    return folder


def finetune(folder: Path, *, seed: int = 0, accuracy: float = 0.72) -> Path:
    """A finetuning run for four classes."""
    draws = np.random.default_rng(seed)
    config = {
        "run": str(folder),
        "seed": seed,
        "model": "runs/demo/bert/model",
        "init": "pretrained" if accuracy > 0.65 else "random",
        "task": {"name": "classification", "text": "text", "label": "label"},
        "data": {"train": ["sample:sotu-era:train"], "valid": ["sample:sotu-era:test"]},
        "train": {"epochs": 6, "batch_size": 32},
        "optim": {"lr": 5e-4},
    }
    lines = []
    for step in range(10, 201, 10):
        loss = 0.6 + 0.8 * math.exp(-step / 60) + draws.normal(0, 0.05)
        lines.append({"step": step, "phase": 0, "loss": loss, "lr": 5e-4 * (1 - step / 200)})
        lines[-1] |= {
            "grad_norm": 1 + draws.random(),
            "tokens_per_second": 21_000.0,
            "time": step / 9,
        }
    write(folder, config, lines)
    evaluation(folder, "valid", {"kind": "finetune", "results": classes(accuracy)})
    model(folder)
    return folder


def grid(folder: Path, *, seeds: tuple[int, ...] = (9, 10), status: str | None = None) -> Path:
    """A folder of ``--grid``: two settings, and some seeds of each."""
    values = {0.001: 0.7, 0.003: 0.72}
    write(folder, {"run": str(folder), "model": "m", "task": {"name": "classification"}}, [])
    for name in ("metrics.jsonl", "events", "environment.json"):
        (folder / name).unlink()
    rows = []
    for rate, accuracy in values.items():
        runs = {}
        for seed in seeds:
            member = finetune(folder / f"lr={rate}" / f"seed={seed}", seed=seed, accuracy=accuracy)
            runs[str(member)] = accuracy
        rows.append({"setting": {"optim.lr": rate}, "runs": runs, "n": len(seeds), "std": 0.0})
        rows[-1] |= dict.fromkeys(("median", "mean", "min", "max", "best"), accuracy)
        rows[-1]["best_run"] = str(member)
    document = {"kind": "protocol", "metric": "accuracy", "settings": rows, "chosen": rows[1]}
    evaluation(folder, "protocol", document)
    if status is not None:
        files = ["eval/protocol.json", "report.html"]
        text = json.dumps({"status": status, "files": files, "message": "no rows <left>"})
        (folder / "status.json").write_text(text)
    return folder


def model(folder: Path) -> None:
    """What says that a model folder is one; no weights are in it."""
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "model" / "model.safetensors").write_bytes(b"")


def classes(accuracy: float = 0.72, labels: list[str] = ERAS) -> dict[str, object]:
    """The results of a classifier."""
    support = [60, 90, 270, 580]
    off = [[round(n * (1 - accuracy) / 3) for _ in range(4)] for n in support]
    matrix = [
        [n - sum(row) + row[k] if column == k else row[column] for column in range(4)]
        for k, (n, row) in enumerate(zip(support, off, strict=True))
    ]
    per_class = [
        {
            "label": label,
            "precision": accuracy - 0.05 * k,
            "recall": accuracy,
            "f1": accuracy - 0.02 * k,
        }
        | {"support": n}
        for k, (label, n) in enumerate(zip(labels, support, strict=True))
    ]
    return {
        "accuracy": accuracy,
        "majority": 0.58,
        "f1_macro": accuracy - 0.11,
        "matthews": accuracy - 0.2,
        "per_class": per_class,
        "confusion": {"labels": labels, "matrix": matrix},
        "rows": 1000,
        "valid_rows": 1000,
        "init": "pretrained",
    }


def filled() -> dict[str, object]:
    """Samples of a masked model."""
    texts = {
        "the secretary of the [MASK] will report on the finances .": "treasury",
        "our relations with foreign [MASK] continue to be friendly .": "nations",
        "i recommend the passage of a law for the [MASK] of the public lands .": "sale",
    }
    guesses = [
        ["treasury", "navy", "interior", "state", "union"],
        ["powers", "nations", "countries", "affairs", "governments"],
        ["purpose", "protection", "benefit", "use", "government"],
    ]
    scores = [0.412, 0.203, 0.118, 0.044, 0.021]
    items = [
        {
            "text": text,
            "answer": answer,
            "predictions": [{"token": t, "score": s} for t, s in zip(row, scores, strict=True)],
        }
        for (text, answer), row in zip(texts.items(), guesses, strict=True)
    ]
    return {"kind": "fill-mask", "items": items}


def samples_by_step(folder: Path, steps: list[int], **changes: object) -> None:
    """The samples of some validations: the share of the first guess is the step / 1,000."""
    with (folder / "samples.jsonl").open("w", encoding="utf-8") as file:
        for step in steps:
            line: dict[str, object] = {"step": step, **filled(), **changes}
            for item in line["items"]:  # type: ignore[attr-defined]
                for guess in item.get("predictions", [])[:1]:
                    guess["score"] = step / 1000
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def write(folder: Path, config: dict[str, object], lines: list[dict[str, object]]) -> None:
    """The files that every run has."""
    folder.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    (folder / "config.yaml").write_text(text, encoding="utf-8")
    records = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(records, encoding="utf-8")
    happened = [
        {"time": "2026-02-03T10:00:00+0000", "event": "started"},
        {"time": "2026-02-03T10:01:10+0000", "event": "saved", "checkpoint": "step-000500"},
    ]
    (folder / "events").write_text("".join(json.dumps(e) + "\n" for e in happened))
    facts = {
        "command": ["plmctl", "pretrain", "configs/demo/pretrain.yaml"],
        "versions": {"plmctl": "0.1.0", "torch": "2.13.0", "transformers": "5.23.0"},
        "python": "3.11.7",
        "cpus": 2,
        "git_commit": "0123456789abcdef0123456789abcdef01234567",
        "hashes": {"data": "9f86d081884c7d659a2feaa0c55ad015", "tokenizer": "e3b0c44298fc1c14"},
    }
    (folder / "environment.json").write_text(json.dumps(facts))


def evaluation(folder: Path, name: str, document: dict[str, object]) -> None:
    """One document of eval/."""
    (folder / "eval").mkdir(exist_ok=True)
    text = json.dumps(document, ensure_ascii=False)
    (folder / "eval" / f"{name}.json").write_text(text, encoding="utf-8")


def _validation(mlm: float, nsp: float) -> dict[str, float]:
    return {
        "valid/loss": mlm + nsp + 0.1,
        "valid/loss/mlm": mlm + 0.08,
        "valid/accuracy/mlm": 1.1 / mlm,
        "valid/loss/nsp": nsp + 0.02,
        "valid/accuracy/nsp": 1.05 - nsp / 2,
    }
