"""What the tab key offers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from click import Context

from plmctl.cli.app import app
from plmctl.cli.completion import complete_config, complete_key, complete_override


def context(*path: str, **params: object) -> Context:
    """The parsed arguments of a command, as the shell's completion has them."""
    command = typer.main.get_command(app)
    ctx = Context(command, info_name="plmctl")
    for name in path:
        command = command.commands[name]
        ctx = Context(command, parent=ctx, info_name=name)
    ctx.params = params
    return ctx


def test_configs_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bert-mine.yaml").touch()
    Path("bert.txt").touch()
    Path("berts").mkdir()
    found = complete_config(context("pretrain"), "bert")
    assert found[:2] == ["bert-mine.yaml", "berts/"]
    assert "bert-base" in found
    assert "bert-cased" not in found  # a tokenizer's
    assert complete_config(context("train-tokenizer"), "bert-c") == ["bert-cased"]
    # Of a name that two kinds have, what makes it one of them.
    assert {"pretrain/gpt1", "tokenizer/gpt1"} <= set(
        complete_config(context("config", "show"), "")
    )
    assert "gpt1" in complete_config(context("pretrain"), "")


def test_keys_and_values() -> None:
    ctx = context("pretrain", config=Path("bert-base"), overrides=[])
    assert {"optim.lr=", "optim.clip="} <= set(complete_override(ctx, "optim."))
    assert complete_override(ctx, "compute.prec")[:2] == [
        "compute.precision=",  # and a second one, so that the shell adds no space
        "compute.precision=auto",
    ]
    assert complete_override(ctx, "compute.precision=bf") == ["compute.precision=bf16"]
    assert "task.name=" not in complete_override(ctx, "")  # finetuning's
    assert complete_override(context("finetune"), "optim.lr=") == ["optim.lr=3e-05"]
    shown = context("config", "show", config=Path("glue/bert/sst2"), overrides=[])
    assert "task.name=" in complete_override(shown, "task.n")
    assert complete_key(context("config", "explain"), "train.phases[].s") == [
        "train.phases[].seq_len",
        "train.phases[].share",
        "train.phases[].steps",
    ]


def test_bash_splits_at_the_equals_sign() -> None:
    ctx = context("pretrain", config=Path("bert-base"), overrides=["compute.precision"])
    assert complete_override(ctx, "=") == ["auto", "fp32", "bf16", "fp16"]
    ctx.params["overrides"] = ["compute.precision", "="]
    assert complete_override(ctx, "bf") == ["bf16"]


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
