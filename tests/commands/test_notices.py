"""What finetune and eval say of results that a user may misread."""

import json
from pathlib import Path
from typing import Any

import pytest

from plmctl.commands.evaluate import longest_trained
from plmctl.commands.finetune import LabelledExamples, single_answer


@pytest.mark.parametrize(
    ("given", "right", "expected"),
    [
        (["a", "a", "a"], [0, 1, 0], "a"),
        (["a", "a", "a"], [0, 0, 0], None),
        (["a", "b", "a"], [0, 1, 0], None),
        ([["a"], ["a"]], [[1, 0], [0, 1]], None),
        ([0.5, 0.5], [1.0, 2.0], None),
    ],
)
def test_one_label_for_all_rows(given: list[Any], right: list[Any], expected: str | None) -> None:
    assert single_answer([{"prediction": one} for one in given], right) == expected


def test_rows_are_no_windows() -> None:
    check = {"train": {"rows": 3}, "valid": {"rows": 2}, "dropped": {"rows": 1}}
    examples: Any = [None] * 2
    rows = LabelledExamples((), examples, {"valid": examples}, check, examples, {})
    assert rows.counts() == {"rows": 2, "valid_rows": 2}
    more: Any = [None] * 5
    cut = LabelledExamples((), more, {"valid": examples}, check, examples, {})
    assert cut.counts() == {"rows": 2, "valid_rows": 2, "windows": 5, "valid_windows": 2}


def test_the_longest_phase_is_that_of_the_models_own_run(tmp_path: Path) -> None:
    phases = [{"seq_len": 64, "steps": 9}, {"seq_len": 128, "steps": 1}]
    (tmp_path / "model").mkdir()
    assert longest_trained(str(tmp_path / "model")) is None
    (tmp_path / "config.yaml").write_text(json.dumps({"train": {"phases": phases}}))
    assert longest_trained(str(tmp_path / "model")) == 128
    assert longest_trained(str(tmp_path)) == 128
    (tmp_path / "config.yaml").write_text(json.dumps({"train": {"epochs": 3}}))
    assert longest_trained(str(tmp_path / "model")) is None
