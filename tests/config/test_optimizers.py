"""The optimizers of a config: by name, AdamW without one, mistakes in words."""

from pathlib import Path

import pytest
import yaml

from plmctl import registry
from plmctl.config.load import dump
from plmctl.errors import ConfigError
from plmctl.run.configs import load

BASE = {
    "run": "r",
    "tokenizer": "t",
    "model": {"family": "bert"},
    "data": {"train": ["a.txt"]},
    "train": {"phases": [{"seq_len": 32, "steps": 5}]},
}


def written(folder: Path, optim: object) -> Path:
    path = folder / "c.yaml"
    path.write_text(yaml.safe_dump(BASE | {"optim": optim}))
    return path


def test_without_a_name_it_is_adamw(tmp_path: Path) -> None:
    config = load("pretrain", written(tmp_path, {"lr": 0.002, "betas": [0.9, 0.98]}))
    assert (config.optim.name, config.optim.lr) == ("adamw", 0.002)
    assert config.optim.betas == (0.9, 0.98)


@pytest.mark.parametrize("name", registry.names("optimizers"))
def test_a_resolved_config_is_read_back(name: str, tmp_path: Path) -> None:
    config = load("pretrain", written(tmp_path, {"name": name}))
    assert config.optim.name == name
    (tmp_path / "again.yaml").write_text(dump(config))
    assert load("pretrain", tmp_path / "again.yaml") == config


@pytest.mark.parametrize(
    ("optim", "message"),
    [
        ({"name": "lam"}, "optim.name: unknown name \"lam\"; did you mean 'lamb'?"),
        ({"name": "adagrad", "betas": [0.9, 0.9]}, "optim.betas: unknown key"),
        ({"weight_decai": 1}, "did you mean 'weight_decay'?"),
        ({"name": "muon", "momentun": 1}, "did you mean 'momentum'?"),
        ({"lr": -1}, "optim.lr: expected more than 0"),
        ({"name": 3}, "optim.name: unknown name 3"),
        (3, "optim: "),
    ],
)
def test_mistakes(optim: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load("pretrain", written(tmp_path, optim))
    assert message in str(error.value)
