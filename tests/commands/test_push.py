"""``plmctl push`` against a local Hub: real requests, and what becomes of a model there."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from huggingface_hub import constants

from plmctl import hub as hub_of_plmctl
from plmctl.commands.export import branch_names
from tests import hub_stub
from tests.commands.conftest import Cli, run_main, write
from tests.commands.test_bad_input import refused
from tests.hub_stub import Hub


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_stub.running() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)  # HF_ENDPOINT, read at import
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.setenv("HF_TOKEN", hub_stub.WRITE)
        hub_of_plmctl._answers.cache_clear()
        yield server
        hub_of_plmctl._answers.cache_clear()


@pytest.fixture(scope="module")
def measured(pretrained: dict[str, Path]) -> str:
    """An evaluation of the finished tiny BERT."""
    measure = {"name": "mlm", "data": ["text.txt"], "seq_len": 32}
    base = {"run": "push-eval", "model": "done-bert/model", "measures": [measure]}
    write("push-eval.yaml", {**base, "compute": {"device": "cpu"}})
    assert run_main("eval", "push-eval.yaml") == 0
    return "push-eval"


def front_matter(card: str) -> dict:
    return yaml.safe_load(card.split("---\n")[1])


def test_a_run_is_on_the_hub(cli: Cli, measured: str, hub: Hub) -> None:
    options = ["--license", "mit", "--language", "en", "--eval", measured, "--private"]
    code, out, err = cli("push", "done-bert", "bert", *options, "--yes")
    assert code == 0, err
    assert out == f"{hub.url}/me/bert\n"
    repo = hub.repositories["me/bert"]
    assert repo.private
    files = repo.branches["main"]
    local = {p.name: p.read_bytes() for p in Path("done-bert/model").iterdir()}
    assert {name: files[name] for name in local if name != "README.md"} == {
        name: content for name, content in local.items() if name != "README.md"
    }
    assert len(hub.large) == 1  # the weights
    card = files["README.md"].decode()
    front = front_matter(card)
    assert (front["license"], front["language"]) == ("mit", ["en"])
    assert front["library_name"] == "transformers"
    assert front["tags"] == ["plmctl", "bert", "mlm+nsp"]
    (index,) = front["model-index"]
    by_data = {one["dataset"]["name"]: one["metrics"] for one in index["results"]}
    values = {one["type"]: one["value"] for one in by_data["held out of text.txt"]}
    results = json.loads(Path("done-bert/eval/valid.json").read_text())["results"]
    assert values["loss"] == pytest.approx(results["valid/loss"], abs=1e-6)
    assert {"loss", "accuracy_mlm", "accuracy_nsp"} <= set(values)
    results = json.loads(Path("push-eval/eval/mlm.json").read_text())["results"]
    values = {one["type"]: one["value"] for one in by_data["text.txt"]}
    assert values["loss"] == pytest.approx(results["loss"], abs=1e-6)
    for heading in (
        "Results",
        "Evaluation",
        "Data",
        "Compute",
        "Hyperparameters",
        "Use and limits",
    ):
        assert f"## {heading}\n" in card
    assert 'folder = "bert"' in card
    assert str(Path.cwd()) not in card
    # Again: nothing changed, so there is no second commit.
    assert cli("push", "done-bert", "bert", *options, "--yes")[0] == 0
    assert len(repo.commits) == 1


def test_a_dry_run_uses_no_network(cli: Cli, pretrained: dict[str, Path], hub: Hub) -> None:
    code, out, err = cli("push", "done-bert/model", "me/bert", "--dry-run", "--checkpoints")
    assert code == 0, err
    assert hub.requests == []
    assert "model.safetensors" in out
    assert "branch step-6: the weights after step 6" in out
    assert "library_name: transformers" in out
    assert "no --license" in err
    code, out, _ = cli("push", "done-bert", "me/bert", "--dry-run", "--json")
    document = json.loads(out)
    assert document["bytes"] == sum(document["files"].values())
    assert hub.requests == []


def test_checkpoints_are_branches(cli: Cli, pretrained: dict[str, Path], hub: Hub) -> None:
    saving = ["run=push-kept", "checkpoint.every=2", "checkpoint.keep=5", "log.validate_every=2"]
    assert cli("pretrain", "bert.yaml", *saving)[0] == 0
    code, _, err = cli("push", "push-kept", "me/kept", "--checkpoints", "--yes")
    assert code == 0, err
    branches = hub.repositories["me/kept"].branches
    assert set(branches) == {"main", "step-2", "step-4", "step-6"}
    weights = {name: files["model.safetensors"] for name, files in branches.items()}
    assert weights["step-6"] == weights["main"]
    assert len(set(weights.values())) == 3
    assert "| `step-2` | step 2 |" in branches["main"]["README.md"].decode()
    early = branches["step-2"]["README.md"].decode()
    assert "The weights after step 2," in early
    assert "| steps | 2 |" in early
    assert "model-index" not in front_matter(early)
    # An exported checkpoint has the card of its run.
    assert cli("export", "push-kept", "push-early", "--step", "2")[0] == 0
    assert cli("push", "push-early", "me/early", "--yes")[0] == 0
    exported = hub.repositories["me/early"].branches["main"]["README.md"].decode()
    assert "- training: `text.txt`" in exported
    assert "The weights after step 2," in exported


def test_branches_of_words() -> None:
    words = {10: 1_004_000, 20: 1_996_000, 21: 2_010_000, 25: 2_500_000, 30: None, 90: 10**9}
    assert branch_names(words) == {
        10: "chck_1M", 20: "chck_2M", 21: "step-21", 25: "step-25", 30: "step-30", 90: "chck_1000M",
    }  # fmt: skip


def test_an_edited_card_stays(cli: Cli, pretrained: dict[str, Path], hub: Hub) -> None:
    shutil.copytree("done-gpt2/model", "edited")
    Path("edited/README.md").write_text("---\nlicense: cc0-1.0\ntags: [mine]\n---\n# Our GPT\n")
    assert cli("push", "edited", "me/gpt", "--language", "zh", "--yes")[0] == 0
    card = hub.repositories["me/gpt"].branches["main"]["README.md"].decode()
    assert card.endswith("---\n\n# Our GPT\n")
    front = front_matter(card)
    assert (front["license"], front["tags"], front["language"]) == ("cc0-1.0", ["mine"], ["zh"])
    Path("edited/README.md").write_text("---\nlicense: [\n---\n")
    refused(cli("push", "edited", "me/gpt", "--yes"), 2, "edited/README.md", "not YAML")
    Path("edited/README.md").write_text("---\nlicence: mit\n---\n# Our GPT\n")
    refused(cli("push", "edited", "me/gpt", "--yes"), 2, '"licence" is not allowed')
    shutil.rmtree("edited")


def test_another_model_is_not_overwritten(cli: Cli, pretrained: dict[str, Path], hub: Hub) -> None:
    files = {"config.json": b"{}", ".gitattributes": b"", "notes.txt": b"mine"}
    repo = hub.repositories["me/other"] = hub_stub.Repository(branches={"main": files})
    arguments = ("push", "done-bert", "me/other", "--yes")
    refused(cli(*arguments), 2, "me/other exists and has files", "notes.txt", "--replace")
    del files["notes.txt"]
    refused(cli(*arguments), 2, "a model with another config.json")
    assert repo.commits == []
    files["notes.txt"] = b"mine"
    assert cli(*arguments, "--replace")[0] == 0
    assert "notes.txt" not in repo.branches["main"]
    assert ".gitattributes" in repo.branches["main"]


def test_what_cannot_be_pushed(
    cli: Cli, pretrained: dict[str, Path], measured: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    yes = ("done-bert", "me/bert", "--yes")
    refused(cli("push", "nowhere", "me/bert"), 2, "nowhere: no such folder")
    refused(cli("push", "tok-bert", "me/bert"), 2, "tok-bert is not a model folder")
    for name in ("me/a/b", "https://huggingface.co/me/bert", "me/bert--x", "", "me/bért"):
        refused(cli("push", "done-bert", name), 2, "is not a name of a repository", "OWNER/NAME")
    refused(cli("push", *yes, "--eval", "done-bert"), 2, "done-bert is not a run folder of `plmctl")
    refused(cli("push", "done-gpt2", "me/g", "--eval", measured), 2, "has measured done-bert/model")
    refused(cli("push", "done-bert", "me/bert"), 2, "nobody can be asked here", "--yes")
    shutil.copytree("done-bert/model", "damaged")
    refused(cli("push", "damaged", "me/bert", "--checkpoints"), 2, "not in a run folder")
    Path("damaged/model.safetensors").write_bytes(b"no weights")
    refused(cli("push", "damaged", "me/bert"), 3, "damaged/model.safetensors: the weights cannot")
    shutil.rmtree("damaged")
    assert hub.repositories == {}
    refused(cli("push", *yes, "--license", "Apache-2"), 2, '"license" must be one of', "--license")
    assert not hub.large  # the card is checked before the files are uploaded
    hub.fail = "/commit/main"
    refused(cli("push", *yes), 1, "me/bert: the Hub answers 500: the disk is full", "again")
    hub.fail = ""
    refused(cli("push", "done-bert", "you/bert", "--yes"), 2, "the token may not write here")
    monkeypatch.setenv("HF_TOKEN", hub_stub.READ)
    refused(cli("push", "done-bert", "me/new", "--yes"), 2, "the token may not write here")
    # The server repeats the token; plmctl does not.
    for token, message in (
        ("hf_wrong_secret", "the Hub does not accept the token"),
        ("hf_wrong secret", "an invalid character"),
    ):
        monkeypatch.setenv("HF_TOKEN", token)
        for debug in ((), ("--debug",)):
            try:
                code, out, err = cli("push", *yes, *debug)
            except Exception as error:
                assert debug
                code, out, err = 2, "", repr([error, error.__cause__])
            assert code == 2
            assert message in err
            assert "secret" not in out + err
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "nowhere")
    refused(cli("push", *yes), 2, "no token of the Hub", "hf auth login")
    monkeypatch.setenv("HF_TOKEN", hub_stub.WRITE)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    hub_of_plmctl._answers.cache_clear()
    refused(cli("push", *yes), 1, "the Hub (http://127.0.0.1:9) cannot be reached")
