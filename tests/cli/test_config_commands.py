"""config show, list and schema."""

import json
from pathlib import Path

import pytest
import yaml

from plmctl import registry
from plmctl.config.load import KINDS, kind_of, load
from tests.cli.conftest import ROOT, Cli

PRETRAIN = "configs/demo/pretrain.yaml"


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_show_prints_what_loads_as_the_same(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli(
        "config", "show", PRETRAIN, "schedule.warmup=6%", "train.phases.0.steps=2k"
    )
    assert (code, err) == (0, "")
    shown = tmp_path / "shown.yaml"
    shown.write_text(out)
    assert load("pretrain", shown) == load(
        "pretrain", PRETRAIN, ["schedule.warmup=0.06", "train.phases.0.steps=2000"]
    )
    assert yaml.safe_load(out)["train"]["phases"][0]["steps"] == 2000
    assert yaml.safe_load(out)["optim"]["eps"] == 1e-6  # a default, written out


def test_show_as_json_is_the_same(cli: Cli) -> None:
    _, as_yaml, _ = cli("config", "show", PRETRAIN)
    code, as_json, err = cli("config", "show", PRETRAIN, "--json")
    assert (code, err) == (0, "")
    assert json.loads(as_json) == yaml.safe_load(as_yaml)


def test_show_says_every_mistake(cli: Cli) -> None:
    code, out, err = cli("config", "show", PRETRAIN, "optim.lrr=1", "seed=x")
    assert (code, out) == (2, "")
    assert err == (
        "plmctl: 2 mistakes\n"
        "  override optim.lrr=1: optim.lrr: unknown key; did you mean 'lr'?\n"
        '  override seed=x: seed: expected a whole number, not "x"\n'
    )


@pytest.mark.parametrize("kind", KINDS)
def test_schema(cli: Cli, kind: str) -> None:
    code, out, err = cli("config", "schema", kind)
    assert (code, err) == (0, "")
    assert "run" in json.loads(out)["required"]


def test_list_has_every_shipped_config_and_every_member(cli: Cli) -> None:
    code, out, err = cli("config", "list", "--json")
    assert (code, err) == (0, "")
    listed = json.loads(out)
    files = sorted(str(path) for path in Path("configs").rglob("*.yaml"))
    assert sorted(file for kind in KINDS for file in listed["configs"][kind]) == files
    assert all(kind_of(file) == kind for kind in KINDS for file in listed["configs"][kind])
    for folder in ("families", "objectives", "optimizers", "tasks", "evaluation.measures"):
        assert tuple(listed["members"][folder]) == registry.names(folder)
        assert all(listed["members"][folder].values())
    assert "sotu" in listed["samples"]["text"]


def test_list_is_for_reading(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    _, out, _ = cli("config", "list")
    assert f"{PRETRAIN} " in out
    assert "bert" in out
    assert "sample:sotu" in out
    assert "plmctl pretrain configs/" not in out  # the launch line says nothing about the file


def test_list_elsewhere(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, out, _ = cli("config", "list", "--json")
    assert not any(json.loads(out)["configs"].values())
    Path("configs").mkdir()
    Path("configs/ci.yaml").write_text("on: push\n")  # another program's
    Path("configs/broken.yaml").write_text("a: [\n")
    Path("configs/mine.yaml").write_text(
        "# plmctl train-tokenizer configs/mine.yaml\n# Of my corpus, version 1.5: the first\n"
        "# that is good. More about it.\nrun: r\nalgorithm: wordpiece\n"
    )
    code, out, _ = cli("config", "list", "--json")
    assert code == 0
    assert json.loads(out)["configs"]["tokenizer"] == {
        "configs/mine.yaml": "Of my corpus, version 1.5: the first that is good."
    }
