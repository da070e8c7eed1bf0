"""``docs/new-family.md`` as a user follows it: the file, the config, the commands."""

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

import plmctl

PACKAGE = Path(plmctl.__file__).parent
PAGE = PACKAGE.parent / "docs" / "new-family.md"


@pytest.mark.slow
def test_the_worked_example_runs(world: Path, tmp_path: Path) -> None:
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    shutil.copytree(PACKAGE, tmp_path / "plmctl")
    family = tmp_path / "plmctl/families/electra_generator.py"
    family.write_text(blocks["python"], encoding="utf-8")
    (world / "electra.yaml").write_text(blocks["yaml"], encoding="utf-8")
    for line in blocks["sh"].splitlines():
        program, *arguments = shlex.split(line)
        done = subprocess.run(
            [sys.executable, "-m", program, *arguments],
            cwd=world,
            env=os.environ | {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    lines = (world / "run-electra/metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [record["loss"] for record in map(json.loads, lines) if "loss" in record]
    assert len(losses) >= 3
    config = AutoModelForMaskedLM.from_pretrained(world / "run-electra/model").config
    assert (config.model_type, config.hidden_size, config.embedding_size) == ("electra", 64, 32)
    assert (config.num_attention_heads, config.intermediate_size) == (1, 256)
