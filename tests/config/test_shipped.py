"""Shipped configs: every one has a name, and names that are wrong are told."""

from pathlib import Path

import pytest

from plmctl.config.load import KINDS, configs_folder, find_config, kind_of, shipped_configs
from plmctl.errors import ConfigError

HERE = {
    (Path("bert-base"), "pretrain"): "pretrain/bert-base",
    (Path("bert-base.yaml"), "pretrain"): "pretrain/bert-base",
    (Path("pretrain/bert-base"), "pretrain"): "pretrain/bert-base",
    (Path("configs/pretrain/bert-base.yaml"), "pretrain"): "pretrain/bert-base",
    (Path("demo/pretrain"), "pretrain"): "demo/pretrain",
    (Path("glue/bert/mnli"), "finetune"): "finetune/glue/bert/mnli",
    (Path("gpt3-2.7b"), "pretrain"): "pretrain/gpt3-2.7b",
    (Path("gpt1"), "tokenizer"): "tokenizer/gpt1",
    (Path("gpt1"), "pretrain"): "pretrain/gpt1",
    (Path("squad"), "pretrain"): "finetune/squad",  # `load` names the right command
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_every_shipped_config_is_found_by_its_names() -> None:
    configs = list(shipped_configs())
    assert [one.path for one in configs] == sorted(configs_folder().rglob("*.yaml"))
    assert len({(one.kind, one.name) for one in configs}) == len(configs)
    for one in configs:
        assert kind_of(one.path) == one.kind
        for name in (one.name, one.place, f"configs/{one.place}.yaml"):
            assert find_config(Path(name), [one.kind]) == one.path


def test_the_kind_decides_and_a_file_wins() -> None:
    for (name, kind), place in HERE.items():
        assert find_config(name, [kind]) == configs_folder() / f"{place}.yaml"
    Path("configs/pretrain").mkdir(parents=True)
    own_file = Path("configs/pretrain/bert-base.yaml")
    own_file.touch()
    assert find_config(own_file, ["pretrain"]) == own_file
    Path("bert-base").mkdir()  # a folder is no config: the name still means the shipped one
    assert (
        find_config(Path("bert-base"), ["pretrain"]) == configs_folder() / "pretrain/bert-base.yaml"
    )
    assert find_config(Path("configs")) == Path("configs")  # `load` says that it is a folder


@pytest.mark.parametrize(
    ("name", "kinds", "message"),
    [
        (
            "gpt1",
            KINDS,
            r"; write one of\n  pretrain/gpt1 for `plmctl pretrain`\n  tok",
        ),
        ("bert-bsae", ("pretrain",), r"no such file, and no .* did you mean 'bert-base' or "),
        ("rte", ("finetune",), r"did you mean 'babylm/rte' or 'glue/albert/rte' or 'glue/b"),
        ("configs/demo/pretrian.yaml", ("pretrain",), r"did you mean 'demo/pretrain' or"),
        ("mien.yaml", ("eval",), r"did you mean 'mine.yaml'\?"),
        ("sub/mien.yaml", KINDS, r"no shipped config has this name\n  `plmctl config list`"),
        ("a" * 5000, KINDS, "no shipped config has this name\n"),
        (f"{'a' * 5000}/b", KINDS, "no shipped config has this name\n"),
    ],
)
def test_wrong_names(name: str, kinds: tuple, message: str) -> None:
    Path("mine.yaml").touch()
    with pytest.raises(ConfigError, match=message) as raised:
        find_config(Path(name), kinds)
    assert raised.value.exit_code == 2
