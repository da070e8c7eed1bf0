"""`compute.attention: varlen` from the command: a run without padding, and what refuses it."""

import json
from pathlib import Path

import pytest

from plmctl.runs.exactness import compare_states, records
from tests.runs.conftest import Cli

VARLEN = "compute.attention=varlen"


def losses(run: str) -> list[float]:
    found = [record["loss"] for record in records(Path(run)) if "loss" in record]
    assert len(found) == 6
    return found


@pytest.mark.parametrize("more", [(), ("compute.checkpoint_activations=true",)])
def test_an_interrupted_run_is_the_same_run(more: tuple[str, ...], cli: Cli) -> None:
    command = ("pretrain", "bert.yaml", VARLEN, "log.every=1", "--fresh")
    assert cli(*command, "run=flat", *more)[0] == 0
    assert cli(*command, "run=flat-cut", *more, "--until=3")[0] == 75
    assert cli(*command[:-1], "run=flat-cut", *more)[0] == 0
    assert losses("flat") == losses("flat-cut")
    assert records(Path("flat")) == records(Path("flat-cut"))
    last = "checkpoints/step-000006"
    checks = compare_states(Path("flat", last), Path("flat-cut", last))
    assert sum(check.compared for check in checks) > 50
    assert not any(check.different for check in checks)


def test_without_dropout_it_is_the_run_with_padding(cli: Cli) -> None:
    still = ("model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0", "log.every=1")
    found = {}
    for name in ("varlen", "sdpa"):
        asked = (f"compute.attention={name}", f"run=still-{name}", *still)
        assert cli("pretrain", "bert.yaml", *asked)[0] == 0
        found[name] = losses(f"still-{name}")
    assert found["varlen"] == pytest.approx(found["sdpa"], rel=1e-4)
    figures = [
        next(r["valid/loss"] for r in records(Path(f"still-{name}")) if "valid/loss" in r)
        for name in found
    ]
    assert figures[0] == pytest.approx(figures[1], rel=1e-4)


@pytest.mark.parametrize("command", ["pretrain", "doctor", "plan"])
def test_a_decoder_has_no_use_for_it(command: str, cli: Cli) -> None:
    code, _, err = cli(command, "gpt2.yaml", VARLEN)
    assert code == 2
    assert "varlen is of encoders, and gpt2 is none; leave it out" in err


def test_nor_has_a_finetuning(cli: Cli, pretrained: dict[str, Path]) -> None:
    del pretrained
    Path("flat.yaml").write_text(
        "run: flat-tuned\nmodel: done-bert/model\ntask: {name: classification}\n"
        "data: {train: rows.tsv}\n"
    )
    code, _, err = cli("finetune", "flat.yaml", VARLEN)
    assert code == 2
    assert "varlen is of pretraining; leave it out" in err


def test_doctor_names_the_kernel(cli: Cli) -> None:
    code, out, _ = cli("doctor", "bert.yaml", VARLEN, "--json")
    assert code == 0
    found = json.loads(out)["run"]["attention"]
    assert found == "varlen (sdpa on padded rows, no padding elsewhere)"


@pytest.mark.parametrize(
    ("precision", "head", "expected"),
    [("bf16", 64, True), ("fp32", 64, False), ("bf16", 20, False)],
)
def test_what_the_kernel_takes(
    precision: str, head: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import BertConfig

    from plmctl.modeling import varlen

    config = BertConfig(hidden_size=4 * head, num_attention_heads=4)
    monkeypatch.setattr(varlen, "_built", lambda: True)
    assert varlen.in_words(config, "cuda", precision).startswith("flash") == expected
    assert varlen.in_words(config, "cpu", precision).startswith("sdpa")
    monkeypatch.setattr(varlen, "_built", lambda: False)
    assert varlen.in_words(config, "cuda", precision).startswith("sdpa")
