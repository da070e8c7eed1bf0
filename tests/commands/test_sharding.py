"""``launch.strategy=fsdp`` as a user meets it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.commands.conftest import Cli, run_in_two, write
from tests.commands.test_bad_input import finetune_config, refused
from tests.commands.test_main_job import records

# Without dropout: its draws are a process's own.
QUIET = ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]


def test_two_processes_with_parts_give_the_run_of_one(cli: Cli, tmp_path: Path) -> None:
    """Losses, validation, checkpoints and the model."""
    settings = [*QUIET, "launch.processes=2", "launch.strategy=fsdp"]
    run_in_two(tmp_path, "pretrain", "bert.yaml", "run=parts", *settings)
    assert cli("pretrain", "bert.yaml", "run=no-parts", *QUIET)[0] == 0
    one, two = records(Path("no-parts")), records(Path("parts"))
    for a, b in zip(one, two, strict=True):
        for key in a.keys() & {"loss", "valid/loss", "tokens", "grad_norm"}:
            assert a[key] == pytest.approx(b[key], rel=5e-6), key
    for file in ("model", "optimizer"):
        last = f"checkpoints/step-000006/{file}.safetensors"
        sharded = load_file(f"parts/{last}")
        for key, value in load_file(f"no-parts/{last}").items():
            torch.testing.assert_close(sharded[key], value, rtol=1e-3, atol=1e-5)
    model = load_file("parts/model/model.safetensors")
    for key, value in load_file("parts/checkpoints/step-000006/model.safetensors").items():
        assert torch.equal(model[key], value), key


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["optim.name=muon"], "muon"),
        (["compute.precision=fp16"], "fp16"),
        (["compute.compile=true"], "compile"),
    ],
)
def test_what_cannot_be_cut_up_is_refused(cli: Cli, arguments: list[str], reason: str) -> None:
    result = cli("pretrain", "bert.yaml", "run=not-cut", "launch.strategy=fsdp", *arguments)
    refused(result, 2, "launch.strategy: fsdp is not supported", reason, "ddp")
    assert not Path("not-cut").exists()


def test_finetuning_is_told_to_use_ddp(cli: Cli, pretrained: dict[str, Path]) -> None:
    write("cut-up.yaml", finetune_config(pretrained["bert"]) | {"run": "cut-up"})
    result = cli("finetune", "cut-up.yaml", "launch.strategy=fsdp")
    refused(result, 2, "launch.strategy", "for pretraining only", "ddp")
    assert not Path("cut-up").exists()
