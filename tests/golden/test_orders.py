"""No order comes from a set, a hash or a locale: the same commands in two unlike processes.

Python gives every process another order of sets of texts, by PYTHONHASHSEED. The commands are those
of the golden net, on its made-up text; what they write and print is compared byte for byte, but for
times.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from plmctl.errors import nearest
from tests.golden.test_golden import (
    ALL,
    COMPUTE,
    TIMES,
    TOKENIZERS,
    finetuning,
    pretraining,
    write_texts,
)

FIRST = {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "UTC"}
SECOND = {"PYTHONHASHSEED": "20261127", "LC_ALL": "C.UTF-8", "TZ": "Pacific/Kiritimati"}
ROWS = ("single", "several", "tagged")
WRONG = [
    ("pretrain", "bert.yaml", "model.size=huge", "run=wrong"),
    ("pretrain", "bert.yaml", "model.sizes=tiny", "run=wrong"),
    ("finetune", "single.yaml", "task.labels=[calm,bad]", "run=wrong"),
    ("finetune", "single.yaml", "task.metrics=[acuracy]", "run=wrong"),
    ("suite", "bert", "clue", "--tasks", "afqm"),
    ("plan", "nothing-like-it"),
]
"""Command lines with a mistake: their messages list names."""
MOMENT = ("environment.json", "status.json", "events", "README.md", "report.html")
TIMELESS = {
    *TIMES, "created", "began", "ended", "date", "started", "command", "hostname", "pid", "spent",
    "training time", "tokens/s", "peak memory (GB)",
}  # fmt: skip


def write_world(folder: Path) -> list[tuple[str, ...]]:
    """Texts, rows and configs, and the command lines to run there."""
    write_texts(folder)
    for path in folder.iterdir():
        os.utime(path, (1e9, 1e9))  # a token store is named by what its text was made of
    lines: list[tuple[str, ...]] = []

    def config(name: str, document: dict[str, Any]) -> str:
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
        return f"{name}.yaml"

    for name in ("bert", "gpt2", "t5", "elmo"):
        fields = {"run": f"tok-{name}", **TOKENIZERS[name], "data": {"train": ALL}}
        lines.append(("train-tokenizer", config(f"tok-{name}", fields)))
    for name in ("bert", "t5"):
        text = {"train": ["mixed.jsonl"], "valid": 0.2}
        train = {"batch_size": 8, "phases": [{"seq_len": 32, "steps": 3}]}
        changes = {"run": name, "train": train, "log": {"every": 1, "validate_samples": 20}}
        lines.append(("pretrain", config(name, pretraining(name, name, text, **changes))))
    for rows in ROWS:
        one = {**finetuning("tagged" if rows == "tagged" else rows), "run": rows}
        one["train"] = {"epochs": 1, "batch_size": 8, "max_length": 40}
        lines.append(("finetune", config(rows, one)))
        lines.append(("predict", f"{rows}/model", "--input", f"{rows}-valid.jsonl", "--json"))
    measures = [{"name": name, "data": ["other.txt"]} for name in ("mlm", "bits_per_byte")]
    ev = {"run": "ev", "model": "bert/model", "measures": measures, "compute": COMPUTE}
    lines.append(("eval", config("ev", ev), "--json"))
    lines.append(
        ("init", "mixed.jsonl", "chinese.txt", "--out", "proposed", "--budget", "1M tokens")
    )
    lines.append(("compare", *ROWS, "--json"))
    return lines + WRONG


def outcome(folder: Path, variables: dict[str, str]) -> dict[str, str]:
    """What the command lines print, and the files that they leave, by name."""
    folder.mkdir()
    lines = write_world(folder)
    program = (
        "import json, sys\nfrom tests.conftest import run_main\n"
        "for line in json.load(open(sys.argv[1])):\n"
        "    print('$', *line, flush=True)\n    code = run_main(*line)\n"
        "    print('exit', code, flush=True)\n"
    )
    path = folder / "lines.json"
    path.write_text(json.dumps(lines), encoding="utf-8")
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)],
        cwd=folder,
        env={**os.environ, **variables, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\nexit 0\n") == len(lines) - len(WRONG), done.stdout + done.stderr
    messages = [line for line in done.stderr.splitlines() if "plmctl: " in line]
    files = {"printed": timeless(done.stdout), "messages": "\n".join(messages)}
    for file in sorted(folder.rglob("[!.]*")):
        of_the_moment = file.name in MOMENT or file.parent.name.startswith("step-")
        if file.is_file() and (not of_the_moment or file.suffix == ".safetensors"):
            files[str(file.relative_to(folder))] = content(file)
    return files


def content(file: Path) -> str:
    """A hash of bytes; a text without times."""
    if file.suffix in (".json", ".jsonl", ".yaml"):
        return timeless(file.read_text(encoding="utf-8"))
    return hashlib.sha256(file.read_bytes()).hexdigest()


def timeless(text: str) -> str:
    for key in TIMELESS:
        text = re.sub(rf'"?{re.escape(key)}"?[: ]+("[^"]*"|[-\d.,e]+|null)', f"{key} 0", text)
    return re.sub(
        r"\d+(\.\d+)? ?(s|seconds|minutes|hours|h)\b|\d{4}-\d\d-\d\d[T \d:.Z]*", "T", text
    )


@pytest.mark.xdist_group("golden-text")
@pytest.mark.slow
def test_two_unlike_processes_do_the_same(tmp_path: Path) -> None:
    world = tmp_path / "world"
    first = outcome(world, FIRST)
    world.rename(tmp_path / "first")
    second = outcome(world, SECOND)
    assert first.keys() == second.keys()
    for name, was in first.items():
        assert second[name] == was, name


def test_the_names_of_a_set_are_sorted() -> None:
    """A message lists them; a list keeps its order."""
    names = {f"name{number}" for number in range(9)}
    assert nearest("x", names) == f"; one of: {', '.join(sorted(names))}"
    assert nearest("x", ["b", "a"]) == "; one of: b, a"
