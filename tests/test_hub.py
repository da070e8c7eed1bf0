"""Names that are no folders, where there is no network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

NOWHERE = {"HF_ENDPOINT": "https://hub.invalid", "HF_HUB_OFFLINE": "0"}
CONFIG = """
run: r
tokenizer: tokeniser
model: {family: bert, size: tiny}
data: {train: [text.txt]}
train: {phases: [{seq_len: 32, steps: 2}]}
"""


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["pretrain", "p.yaml"], "tokeniser"), (["generate", "a/model", "--prompt=x"], "a/model")],
)
def test_a_slip_is_reported_immediately(arguments: list[str], name: str, tmp_path: Path) -> None:
    """Not after half a minute of somebody's tries."""
    (tmp_path / "p.yaml").write_text(CONFIG)
    (tmp_path / "text.txt").write_text("a b c")
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    done = subprocess.run(
        [sys.executable, "-m", "plmctl", *arguments],
        cwd=tmp_path, env=environment | NOWHERE | {"HF_HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"plmctl: {name}: no such folder, and the Hub (hub.invalid) cannot" in done.stderr
    assert "etry" not in done.stderr
    assert len(done.stderr.splitlines()) == 2
