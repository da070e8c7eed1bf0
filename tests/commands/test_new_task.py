"""The worked example of docs/new-task.md: its file is added to plmctl, its config is run."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_task_of_the_page_is_finetuned(pretrained: dict[str, Path], tmp_path: Path) -> None:
    page = (ROOT / "docs" / "new-task.md").read_text(encoding="utf-8")
    blocks = dict(re.findall(r"```(python|json|yaml)\n(.*?)```", page, re.DOTALL))
    shutil.copytree(ROOT / "plmctl", tmp_path / "plmctl")
    (tmp_path / "plmctl" / "tasks" / "cloze.py").write_text(blocks["python"], encoding="utf-8")
    (tmp_path / "cloze.jsonl").write_text(blocks["json"], encoding="utf-8")
    (tmp_path / "cloze.yaml").write_text(blocks["yaml"], encoding="utf-8")
    model = f"model={pretrained['bert'] / 'model'}"
    command = [sys.executable, "-m", "plmctl", "finetune", "cloze.yaml", model]
    done = subprocess.run(
        [*command, "compute.device=cpu"], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "runs" / "cloze" / "eval" / "valid.json").read_text())
    assert document["results"]["steps"] == 8
    assert document["results"]["majority"] == 0.5
    assert 0 <= document["results"]["accuracy"] <= 1
    saved = json.loads((tmp_path / "runs" / "cloze" / "model" / "task.json").read_text())
    assert saved["labels"] == ["likes", "sees"]
