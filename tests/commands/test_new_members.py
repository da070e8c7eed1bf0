"""The worked examples of docs/new-*.md as a user follows them: file, config and commands.

Then each goes through all other commands, as the members of plmctl do in ``test_every_member``.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest
from transformers import AutoModelForMaskedLM

from tests.builders import json_lines

ROOT = Path(__file__).parents[2]


def blocks_of(page: str, package: Path, member: str) -> dict[str, str]:
    """The code of a page by its language; the Python file is put into a copy of the package."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    blocks = dict(reversed(re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)))  # the first of each
    shutil.copytree(ROOT / "plmctl", package / "plmctl")
    shutil.copytree(ROOT / "configs", package / "configs")
    (package / "plmctl" / member).write_text(blocks["python"], encoding="utf-8")
    return blocks


def run(line: str, folder: Path, package: Path) -> str:
    """What a command of a page prints."""
    program, *arguments = shlex.split(line)
    return run_python(["-m", program, *arguments], folder, package)


def through_all_commands(call: str, folder: Path, package: Path) -> None:
    """Call a function of ``walk`` in a process that has the new file."""
    run_python(["-c", f"from tests.commands.walk import *; {call}"], folder, package)


def run_python(arguments: list[str], folder: Path, package: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{package}:{ROOT}", "CUDA_VISIBLE_DEVICES": ""},
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
    through_all_commands("walk('gpt2', 'backward_lm')", world, tmp_path)


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
    through_all_commands("walk('electra_generator')", world, tmp_path)
    proposed = (world / "electra_generator-mlm" / "tokenizer.yaml").read_text()
    assert "algorithm: wordpiece" in proposed
    proposed = (world / "electra_generator-mlm" / "pretrain.yaml").read_text()
    assert "as in ElectraGenerator" in proposed


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
    call = f"walk_task({{'name': 'cloze'}}, {str(pretrained['bert'] / 'model')!r}, 'cloze.jsonl')"
    through_all_commands(call, tmp_path, tmp_path)


def test_a_task_with_a_head_of_its_own(pretrained: dict[str, Path], tmp_path: Path) -> None:
    blocks = blocks_of("new-task.md", tmp_path, "tasks/cloze.py")
    text = (ROOT / "docs" / "new-task.md").read_text(encoding="utf-8")
    methods = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1]
    file = tmp_path / "plmctl" / "tasks" / "cloze.py"
    begin, end = blocks["python"].index("    def load("), blocks["python"].index("@dataclass")
    file.write_text(
        blocks["python"][:begin] + indent(methods, "    ") + "\n\n" + blocks["python"][end:],
        encoding="utf-8",
    )
    (tmp_path / "cloze.jsonl").write_text(blocks["json"], encoding="utf-8")
    (tmp_path / "cloze.yaml").write_text(blocks["yaml"], encoding="utf-8")
    model = f"model={pretrained['bert'] / 'model'}"
    run(f"plmctl finetune cloze.yaml {model} compute.device=cpu", tmp_path, tmp_path)
    saved = tmp_path / "runs" / "cloze" / "model"
    config = json.loads((saved / "config.json").read_text())
    assert (config["model_type"], config["encoder"]["model_type"]) == ("own-head", "bert")
    results = json.loads((tmp_path / "runs" / "cloze" / "eval" / "valid.json").read_text())
    output = run("plmctl predict runs/cloze --input cloze.jsonl --json", tmp_path, tmp_path)
    answers = [json.loads(line) for line in output.splitlines()]
    rows = [json.loads(line) for line in blocks["json"].splitlines()]
    right = [answer["prediction"] == row["word"] for answer, row in zip(answers, rows, strict=True)]
    assert sum(right) / len(right) == results["results"]["accuracy"]
    # Another training goes on from this folder, with the head that it has.
    again = "model=runs/cloze/model run=runs/again compute.device=cpu"
    run(f"plmctl finetune cloze.yaml {again}", tmp_path, tmp_path)
