from collections.abc import Callable
from pathlib import Path

import pytest

from plmctl.config.load import KINDS, Kind
from plmctl.errors import ConfigError
from plmctl.run.configs import load

# The least that each kind of config needs.
LEAST: dict[Kind, str] = {
    "tokenizer": (
        "run: r\nalgorithm: wordpiece\nfamily: bert\nvocab_size: 8k\ndata: {train: [a.txt]}\n"
    ),
    "pretrain": (
        "run: r\ntokenizer: t\nmodel: {family: bert}\ndata: {train: [a.txt]}\n"
        "train: {phases: [{seq_len: 64, steps: 1k}]}\n"
    ),
    "finetune": "run: r\nmodel: m\ntask: {name: classification}\ndata: {train: [a.csv]}\n",
    "eval": "run: r\nmodel: m\nmeasures: [{name: mlm, data: [a.txt]}]\n",
}
assert tuple(LEAST) == KINDS

Mistakes = Callable[..., list[str]]


@pytest.fixture
def mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mistakes:
    """``mistakes(kind, text, *overrides)``: the lines of the error about a file ``c.yaml``."""
    monkeypatch.chdir(tmp_path)

    def lines(kind: Kind, text: str, *overrides: str) -> list[str]:
        Path("c.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(ConfigError) as raised:
            load(kind, "c.yaml", overrides)
        assert raised.value.exit_code == 2
        head, *rest = raised.value.message.split("\n  ")
        if rest:
            assert head == f"{len(rest)} mistakes"
        return rest or [head]

    return lines
