"""Checkpoints as models: exported, and measured one after the other."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from plmctl.run.pretraining import Validation
from tests.builders import json_lines
from tests.commands.conftest import Cli, write
from tests.commands.test_bad_input import refused

SAVING = ["run=kept", "checkpoint.every=2", "checkpoint.keep=5"]


@pytest.mark.parametrize("average", ["ema", "last"])
def test_the_average_of_the_weights_is_the_model(
    average: str, cli: Cli, pretrained: dict[str, Path]
) -> None:
    """Saved, validated and exported; the last weights are those of a run without it."""
    run = f"run=average-{average}"
    settings = [f"train.average.name={average}", "train.average.over=3", "train.average.every=1"]
    code, _, err = cli("pretrain", "bert.yaml", run, *settings, "train.average.decay=0.5")
    assert code == 0, err
    folder = Path(run.removeprefix("run="))
    checkpoint = folder / "checkpoints" / "step-000006"
    model = load_file(folder / "model" / "model.safetensors")
    means = load_file(checkpoint / "average.safetensors")
    shared = model.keys() & means.keys()
    assert len(shared) > 10
    assert all(model[name].equal(means[name]) for name in shared)
    last = load_file(checkpoint / "model.safetensors")
    plain = load_file("done-bert/checkpoints/step-000006/model.safetensors")
    assert all(last[name].equal(plain[name]) for name in plain)
    assert not any(last[name].equal(means[name]) for name in plain)

    results, without = (
        json.loads((one / "eval" / "valid.json").read_text())["results"]
        for one in (folder, Path("done-bert"))
    )
    assert results["valid/loss_of_last_weights"] == without["valid/loss"]
    assert results["valid/loss"] != without["valid/loss"]
    logged = json_lines(folder / "metrics.jsonl")
    assert logged[-1]["valid/loss"] == results["valid/loss"]

    assert cli("export", str(folder), f"out-{average}")[0] == 0
    exported = load_file(f"out-{average}/model.safetensors")
    assert all(model[name].equal(exported[name]) for name in model)
    refused(cli("pretrain", "bert.yaml", "train.average.name=swa"), 2, "train.average.name", "ema")
    refused(cli("pretrain", "bert.yaml", "train.average.nme=ema"), 2, "did you mean 'name'")
    tokens = "train.average={name: last, over: 5M tokens}"
    refused(cli("pretrain", "bert.yaml", tokens), 2, "train.average.over", "share such as 20%")


def test_the_last_step_is_validated_once(
    cli: Cli, pretrained: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, validate = [], Validation.__call__

    def counted(validation: Validation, step: int, **options: Any) -> Any:
        steps.append(step)
        return validate(validation, step, **options)

    monkeypatch.setattr(Validation, "__call__", counted)
    assert cli("pretrain", "bert.yaml", "run=once", "log.validate_every=3")[0] == 0
    assert steps == [3, 6]
    results = json.loads(Path("once/eval/valid.json").read_text())["results"]
    logged = json_lines(Path("once/metrics.jsonl"))
    assert logged[-1]["valid/loss"] == results["valid/loss"]


def test_a_checkpoint_is_a_model(cli: Cli, pretrained: dict[str, Path]) -> None:
    assert cli("pretrain", "bert.yaml", *SAVING)[0] == 0
    code, out, err = cli("export", "kept", "last", "--json")
    assert code == 0, err
    assert json.loads(out) == {"model": "last", "step": 6}
    whole = load_file("kept/model/model.safetensors")
    exported = load_file("last/model.safetensors")
    assert whole.keys() == exported.keys()
    assert all(whole[name].equal(exported[name]) for name in whole)
    assert cli("predict", "last", "Anna sees [MASK].")[0] == 0

    assert cli("export", "kept", "early", "--step", "2")[0] == 0
    early = load_file("early/model.safetensors")
    assert any(not whole[name].equal(early[name]) for name in whole)

    refused(cli("export", "kept", "never", "--step", "3"), 2, "no checkpoint of step 3", "2, 4, 6")
    refused(cli("export", "kept", "early"), 2, "early exists already")
    refused(cli("export", "tok-bert", "never"), 2, "not a run folder of `plmctl pretrain`")
    refused(cli("export", "nothing", "never"), 2, "nothing: no such folder in ")
    assert not Path("never").exists()

    # Measured at every step, and the last step is measured as the model is.
    measures = [{"name": "mlm", "data": ["text.txt"], "seq_len": 32}]
    base = {"model": "kept", "measures": measures, "compute": {"device": "cpu"}}
    write("over.yaml", {"run": "over", **base})
    code, out, err = cli("eval", "over.yaml", "--at-checkpoints", "--json")
    assert code == 0, err
    steps = json.loads(out)["steps"]
    assert list(steps) == ["2", "4", "6"]
    code, out, _ = cli("eval", "over.yaml", "run=whole", "model=kept/model", "--json")
    assert json.loads(out)["results"]["mlm"] == steps["6"]["mlm"]
    assert steps["2"]["mlm"]["loss"] != steps["6"]["mlm"]["loss"]
    again = cli("eval", "over.yaml", "--at-checkpoints")
    assert "measuring" not in again[2]  # what has been measured is kept
    # A damaged checkpoint is no model.
    Path("kept/checkpoints/step-000006/model.safetensors").write_bytes(b"")
    assert cli("export", "kept", "sound", "--json")[1].count('"step": 4')
    refused(
        cli("eval", "over.yaml", "run=none", "model=tok-bert", "--at-checkpoints"), 2, "no check"
    )
    assert not Path("none").exists()
