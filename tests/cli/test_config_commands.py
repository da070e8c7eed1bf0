"""config show, list, copy and schema."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from plmctl import registry
from plmctl.commands.config import example_of
from plmctl.config.keys import keys_of
from plmctl.config.load import COMMANDS, KINDS, Kind, find_config, kind_of, schema_of
from plmctl.run.configs import load, model_of
from tests.conftest import Cli

ROOT = Path(__file__).parents[2]

PRETRAIN = "configs/demo/pretrain.yaml"
SHIPPED = ROOT / "configs" / "pretrain" / "bert-base.yaml"


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
    assert yaml.safe_load(out)["optim"]["eps"] == 1e-8  # a default, written out


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
    names = [(kind, name) for kind in KINDS for name in listed["configs"][kind]]
    files = [find_config(Path(name), [kind]) for kind, name in names]
    assert ("pretrain", "fast/bert") in names
    assert sorted(files) == sorted(Path(listed["folder"]).rglob("*.yaml"))
    assert all(kind_of(file) == kind for (kind, _), file in zip(names, files, strict=True))
    assert all(text for kind in KINDS for text in listed["configs"][kind].values())
    for folder in ("families", "objectives", "optimizers", "tasks", "measures"):
        assert tuple(listed["members"][folder]) == registry.names(folder)
        assert all(listed["members"][folder].values())
    assert "sotu" in listed["samples"]["text"]


def test_list_is_for_reading(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pipe nothing is cut, however narrow the terminal is."""
    monkeypatch.setenv("COLUMNS", "60")
    _, out, err = cli("config", "list")
    _, document, _ = cli("config", "list", "--json")
    lines = [line.strip() for line in out.splitlines()]
    fast = [line.strip() for line in cli("config", "list", "fast/")[1].splitlines()]
    for kind in KINDS:
        for name, text in json.loads(document)["configs"][kind].items():
            if "/" not in name:
                assert any(line.startswith(f"{name} ") and line.endswith(text) for line in lines)
            elif name.startswith("fast/"):  # a folder is one row of the overview
                assert any(line.startswith(f"{name} ") and line.endswith(text) for line in fast)
    (folder,) = [line for line in lines if line.startswith("fast/")]
    assert folder.startswith("fast/ (")
    assert "`plmctl config list fast/`: albert, bert, " in folder
    assert "sample:sotu" in out
    assert "plmctl pretrain configs/" not in out  # the launch line says nothing about the file
    assert "`plmctl config copy NAME FILE`" in err


def test_list_elsewhere(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, shipped, _ = cli("config", "list", "--json")
    monkeypatch.chdir(tmp_path)
    assert cli("config", "list", "--json")[1] == shipped
    Path("configs").mkdir()
    Path("configs/ci.yaml").write_text("on: push\n")  # another program's
    Path("configs/broken.yaml").write_text("a: [\n")
    Path("configs/mine.yaml").write_text(
        "# plmctl train-tokenizer configs/mine.yaml\n# Of my corpus, version 1.5: the first\n"
        "# that is good. More about it.\nrun: r\nalgorithm: wordpiece\n"
    )
    code, out, _ = cli("config", "list", "--json")
    assert code == 0
    mine = json.loads(shipped)["configs"]["tokenizer"]
    mine["configs/mine.yaml"] = "Of my corpus, version 1.5: the first that is good."
    assert json.loads(out)["configs"] == json.loads(shipped)["configs"] | {"tokenizer": mine}


def test_a_name_shows_and_copies_the_shipped_config(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notice = f"using the shipped config {ROOT / 'configs/pretrain/bert-base.yaml'}\n"
    code, shown, err = cli("config", "show", "bert-base")
    assert (code, err) == (0, notice)
    code, out, err = cli("config", "copy", "bert-base", "a/mine.yaml")
    assert (code, out, err) == (0, "", f"{notice}wrote a/mine.yaml\n")
    assert cli("config", "show", "a/mine.yaml") == (0, shown, "")
    Path("a/mine.yaml").write_text("changed")
    code, _, err = cli("config", "copy", "gpt1", "a/mine.yaml")
    assert code == 2  # the name of a tokenizer's config too
    assert err.endswith(
        "  pretrain/gpt1 for `plmctl pretrain`\n  tokenizer/gpt1 for `plmctl train-tokenizer`\n"
    )
    code, _, err = cli("config", "copy", "pretrain/gpt1", "a/mine.yaml")
    assert code == 2
    assert "a/mine.yaml exists already" in err
    assert Path("a/mine.yaml").read_text() == "changed"


def test_a_file_here_wins_over_the_shipped_name(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bert-base").write_text(
        "run: mine\nalgorithm: wordpiece\nfamily: bert\nvocab_size: 999\ndata: {train: [a.txt]}\n"
    )
    code, out, err = cli("config", "show", "bert-base")
    assert (code, err) == (0, "using bert-base of this folder, not a shipped config\n")
    assert "run: mine\n" in out
    Path("bert-base").rename("bert-base.yaml")
    code, out, err = cli("config", "show", "bert-base")
    assert (code, err) == (0, "using bert-base.yaml of this folder, not a shipped config\n")
    assert "run: mine\n" in out
    Path("bert-base").mkdir()  # a model, perhaps
    code, out, err = cli("config", "show", "bert-base")
    assert (code, err.splitlines()[0]) == (0, f"using the shipped config {SHIPPED}")
    code, out, err = cli("config", "show", "bert-base.yaml")
    assert (code, err) == (0, "")


def test_explain(cli: Cli) -> None:
    code, out, err = cli("config", "explain", "train.phases.0.seq_len", "--json")
    assert (code, err) == (0, "")
    (key,) = json.loads(out)["keys"]
    assert (key["key"], key["kinds"]) == ("train.phases[].seq_len", ["pretrain"])
    assert (key["value"], key["required"]) == ("whole number ≥ 8", True)
    assert re.fullmatch(r"plmctl pretrain \S+ train\.phases\.0\.seq_len=\d+", key["example"])
    _, out, _ = cli("config", "explain", "train.phases")
    assert "train.phases[].steps" in out
    _, out, _ = cli("config", "explain", "optim.lr", "--json")
    defaults = {tuple(one["kinds"]): one["default"] for one in json.loads(out)["keys"]}
    assert defaults["finetune",] == "3e-05"  # of finetuning, whatever the optimizer
    _, out, _ = cli("config", "explain", "seed", "--json")
    assert {kind for one in json.loads(out)["keys"] for kind in one["kinds"]} == set(KINDS)


def test_explain_of_a_members_key(cli: Cli) -> None:
    _, out, _ = cli("config", "explain", "objective.masking", "--json")
    members = [member for one in json.loads(out)["keys"] for member in one["members"]]
    assert "objective: {name: mlm+nsp}" in members
    assert "objective: {name: clm}" not in members
    _, out, _ = cli("config", "explain", "objective.name", "--json")
    (key,) = json.loads(out)["keys"]
    assert all(f"`{name}`" in key["value"] for name in registry.names("objectives"))


@pytest.mark.parametrize(
    ("typo", "near"),
    [("lr", "'optim.lr'"), ("optim.lrr", "'optim.lr'"), ("train.phase.stps", "[].steps'")],
)
def test_explain_names_near_keys(cli: Cli, typo: str, near: str) -> None:
    code, out, err = cli("config", "explain", typo)
    assert (code, out) == (2, "")
    assert near in err


@pytest.mark.parametrize("kind", KINDS)
def test_every_example_is_right(kind: Kind) -> None:
    """An example that names a shipped config can be typed."""
    keys = list(keys_of(schema_of(model_of(kind))))
    tried = 0
    for key in {key.name: key for key in keys}.values():
        _, command, name, *override = shlex.split(example_of(kind, key) or "plmctl - CONFIG")
        if name != "CONFIG":
            assert command == COMMANDS[kind]
            load(kind, find_config(Path(name), [kind]), override)
            tried += 1
    assert tried > 5


def test_a_folder_of_data_does_not_hide_the_config_that_reads_it(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("blimp").mkdir()
    code, _, err = cli("eval", "blimp", "model=nothing/here")
    assert code == 2
    assert "nothing/here" in err
    assert f"using the shipped config {ROOT / 'configs/eval/blimp.yaml'}\n" in err
    Path("bert").mkdir()
    code, _, err = cli("eval", "bert")
    assert code == 2
    assert "bert: a folder, not a config" in err


def test_the_list_takes_words_and_has_the_published_recipes_first(cli: Cli) -> None:
    code, out, _ = cli("config", "list", "ELMO", "5.5", "--json")
    listed = json.loads(out)
    assert (code, list(listed["configs"]["pretrain"])) == (0, ["elmo-5.5b"])
    assert listed["configs"]["eval"] == {}
    names = list(json.loads(cli("config", "list", "bert", "--json")[1])["configs"]["pretrain"])
    folders = [name.count("/") for name in names]
    assert (folders, folders[0]) == (sorted(folders), 0)
    code, out, err = cli("config", "list", "no-such-word")
    assert (code, out.strip(), "'no-such-word'" in err) == (2, "", True)


def test_a_name_of_another_command_has_the_near_names_of_this_one(cli: Cli) -> None:
    code, _, err = cli("plan", "elmo")
    assert code == 2
    assert "is for `plmctl train-tokenizer`; did you mean 'elmo-5.5b' or 'elmo-medium'" in err


def test_sources_stand_beside_the_values(cli: Cli, tmp_path: Path) -> None:
    code, out, _ = cli("config", "show", "bert-base", "optim.lr=3e-4", "--sources")
    assert code == 0
    assert "Devlin et al., 2019, appendix A.2\n" in out
    assert "0.0003 (there 0.0001)" in out
    code, out, _ = cli("config", "show", "bert-base", "--sources", "--json")
    rows = {row["key"]: row for row in json.loads(out)["sources"]}
    assert rows["train.phases.1.seq_len"]["here"] == rows["train.phases.1.seq_len"]["value"] == 512
    code, _, err = cli("config", "show", "fast/bert", "--sources")
    assert code == 2
    assert "no source is noted for this config" in err
    _, out, _ = cli("config", "explain", "optim.lr", "--json")
    keys = [one for one in json.loads(out)["keys"] if one["kinds"] == ["pretrain"]]
    published = {one["members"][0]: one["published"] for one in keys}
    assert published["optim: {name: lamb}"][0].startswith("0.00176: albert-base-v1 and ")
    assert "(Devlin et al., 2019, appendix A.2)" in published["optim: {name: adamw}"][0]
