"""The config of a continued model does not claim the family's sizes for it."""

from pathlib import Path

import pytest
import yaml

from plmctl import registry
from plmctl.config.load import difference, dump
from plmctl.run.configs import load


@pytest.mark.parametrize("family", registry.names("families"))
def test_sizes_that_the_folder_decides_are_not_written(family: str, tmp_path: Path) -> None:
    file = tmp_path / "continued.yaml"
    document = {
        "run": "run",
        "tokenizer": "tok",
        "model": {"family": family, "init_from": "published"},
        **({"objective": {"name": "mlm"}} if family in ("auto", "distilbert") else {}),
        "data": {"train": ["a.txt"]},
        "train": {"phases": [{"seq_len": 32, "steps": 6}]},
    }
    file.write_text(yaml.safe_dump(document))
    config = load("pretrain", file)
    written = yaml.safe_load(dump(config))["model"]
    assert set(written) <= {"family", "init_from", "extend_vocab"}
    file.write_text(dump(config))
    assert difference(load("pretrain", file), config) == []
    fresh = load("pretrain", file, ["model.init_from=null"])
    assert len(yaml.safe_load(dump(fresh))["model"]) > 3
