"""What the tab key offers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plmctl.cli.app import app


def offers(line: str) -> list[str]:
    """What a shell is given for the last word of a command line."""
    words = ["plmctl", *line.split(" ")]
    asked = {"_PLMCTL_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words)}
    asked["COMP_CWORD"] = str(len(words) - 1)
    return CliRunner().invoke(app, env=asked, prog_name="plmctl").stdout.splitlines()


def test_configs_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bert-mine.yaml").touch()
    Path("bert.txt").touch()
    Path("berts").mkdir()
    offered = offers("pretrain bert")
    assert offered[:2] == ["bert-mine.yaml", "berts/"]
    assert "bert-base" in offered
    assert "bert-cased" not in offered  # a tokenizer's
    assert offers("train-tokenizer bert-c") == ["bert-cased"]
    # Of a name that two kinds have, what makes it one of them.
    assert {"pretrain/gpt1", "tokenizer/gpt1"} <= set(offers("config show "))
    assert "gpt1" in offers("pretrain ")


def test_keys_and_values() -> None:
    assert {"optim.lr=", "optim.clip="} <= set(offers("pretrain bert-base optim."))
    assert offers("pretrain bert-base compute.prec")[:2] == [
        "compute.precision=",  # and a second one, so that the shell adds no space
        "compute.precision=auto",
    ]
    assert offers("pretrain bert-base compute.precision=bf") == ["compute.precision=bf16"]
    assert "task.name=" not in offers("pretrain bert-base ")  # finetuning's
    assert offers("finetune glue/bert/sst2 optim.lr=") == ["optim.lr=3e-05"]
    assert "task.name=" in offers("config show glue/bert/sst2 task.n")
    assert offers("config explain train.phases[].s") == [
        "train.phases[].seq_len",
        "train.phases[].share",
        "train.phases[].steps",
    ]


def test_bash_splits_at_the_equals_sign() -> None:
    assert offers("pretrain bert-base compute.precision =") == [
        "auto",
        "fp32",
        "tf32",
        "bf16",
        "fp16",
    ]
    assert offers("pretrain bert-base compute.precision = bf") == ["bf16"]
    after_a_value = offers("pretrain bert-base compute.precision = bf16 ")
    assert {"optim.lr=", "seed="} <= set(after_a_value)


def test_the_shell_asks_a_new_process() -> None:
    """From Typer's variables to the words, without torch."""
    code = (
        "import sys, plmctl.__main__ as m\n"
        "try: m.main()\n"
        "finally: sys.exit(9 if {'torch', 'transformers', 'datasets'} & set(sys.modules) else 0)"
    )
    words = ["plmctl", "pretrain", "bert-base", "objective.rat"]
    asked = {"_PLMCTL_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": "3"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "objective.rate="), done.stderr
