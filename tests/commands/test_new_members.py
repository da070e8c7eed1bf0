"""The worked examples of docs/new-*.md as a user follows them: file, config and commands."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoModelForMaskedLM

from tests.builders import json_lines

ROOT = Path(__file__).parents[2]


def blocks_of(page: str, package: Path, member: str) -> dict[str, str]:
    """The code of a page by its language; the Python file is put into a copy of the package."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL))
    shutil.copytree(ROOT / "plmctl", package / "plmctl")
    (package / "plmctl" / member).write_text(blocks["python"], encoding="utf-8")
    return blocks


def run(line: str, folder: Path, package: Path) -> str:
    """What a command of a page prints."""
    program, *arguments = shlex.split(line)
    done = subprocess.run(
        [sys.executable, "-m", program, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(package), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses_of(folder: Path) -> list[float]:
    records = json_lines(folder / "metrics.jsonl")
    return [record["loss"] for record in records if "loss" in record]


@pytest.mark.slow
def test_an_objective(world: Path, tmp_path: Path) -> None:
    blocks = blocks_of("new-objective.md", tmp_path, "objectives/backward_lm.py")
    (world / "backward.yaml").write_text(blocks["yaml"], encoding="utf-8")
    outputs = [run(line, world, tmp_path) for line in blocks["sh"].splitlines()]
    assert re.search(r"mean_targets_lm +32", outputs[0])
    losses = losses_of(world / "run-backward")
    assert len(losses) >= 3
    assert losses[2] < losses[0]
    assert not (world / "run-backward" / "eval" / "samples.json").exists()  # it has none
    assert "the killed run equals the uninterrupted run" in outputs[2]


@pytest.mark.slow
def test_a_family(world: Path, tmp_path: Path) -> None:
    blocks = blocks_of("new-family.md", tmp_path, "families/electra_generator.py")
    (world / "electra.yaml").write_text(blocks["yaml"], encoding="utf-8")
    for line in blocks["sh"].splitlines():
        run(line, world, tmp_path)
    assert len(losses_of(world / "run-electra")) >= 3
    config = AutoModelForMaskedLM.from_pretrained(world / "run-electra/model").config
    assert (config.model_type, config.hidden_size, config.embedding_size) == ("electra", 64, 32)
    assert (config.num_attention_heads, config.intermediate_size) == (1, 256)


def test_a_task(pretrained: dict[str, Path], tmp_path: Path) -> None:
    blocks = blocks_of("new-task.md", tmp_path, "tasks/cloze.py")
    (tmp_path / "cloze.jsonl").write_text(blocks["json"], encoding="utf-8")
    (tmp_path / "cloze.yaml").write_text(blocks["yaml"], encoding="utf-8")
    model = f"model={pretrained['bert'] / 'model'}"
    run(f"plmctl finetune cloze.yaml {model} compute.device=cpu", tmp_path, tmp_path)
    document = json.loads((tmp_path / "runs" / "cloze" / "eval" / "valid.json").read_text())
    assert document["results"]["steps"] == 8
    assert document["results"]["majority"] == 0.5
    assert 0 <= document["results"]["accuracy"] <= 1
    saved = json.loads((tmp_path / "runs" / "cloze" / "model" / "task.json").read_text())
    assert saved["labels"] == ["likes", "sees"]
