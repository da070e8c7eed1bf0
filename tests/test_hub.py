"""Names that are no folders, where there is no network."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plmctl.corpus.source import Source
from plmctl.corpus.tabular import _is_downloaded, open_dataset
from plmctl.errors import ConfigError
from plmctl.run.preflight import check_model
from plmctl.tokenization.encode import Encoder

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


def test_a_data_set_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(*_: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("socket.getaddrinfo", nobody)
    monkeypatch.setattr("plmctl.hub.getproxies", dict)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    (tmp_path / "somebody___old_text").mkdir()
    with pytest.raises(ConfigError, match="hf:somebody/NewText: the Hub .* cannot be reached"):
        open_dataset(Source("hf:somebody/NewText:test", "hf"))
    assert _is_downloaded("somebody/OldText")
    assert not _is_downloaded("somebody/NewText")


def test_a_folder_that_does_not_exist_is_named_with_the_working_directory() -> None:
    for check in (Encoder, check_model):
        with pytest.raises(ConfigError, match=f"runs/t/wp: no such folder in {Path.cwd()}"):
            check("runs/t/wp")
