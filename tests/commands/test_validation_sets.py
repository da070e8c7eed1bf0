"""Several validation sets, and rows without a gold label, through the commands."""

import json
from pathlib import Path

import pytest

from tests.commands.conftest import NAMES, VERBS, Cli, write
from tests.commands.test_bad_input import finetune_config, refused


def lines(path: str, start: int, stop: int, *, unlabelled: int) -> None:
    """Rows whose label follows from their verb; the first ones have none."""
    rows = []
    for n in range(start, stop):
        label = ("-", -1, None)[n % 3] if n - start < unlabelled else ("no", "yes")[n % 2]
        rows.append({"text": f"{NAMES[n % 10]} {VERBS[n % 2]} {NAMES[n % 7]}.", "label": label})
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def config(world: Path, pretrained: dict[str, Path]) -> dict:
    lines("gold.jsonl", 0, 96, unlabelled=5)
    lines("near.jsonl", 100, 130, unlabelled=4)
    lines("far.jsonl", 200, 250, unlabelled=0)
    valid = {"near": ["near.jsonl"], "other": ["far.jsonl"]}
    return finetune_config(pretrained["bert"]) | {
        "run": "sets",
        "task": {"name": "classification", "unlabelled": "drop"},
        "data": {"train": ["gold.jsonl"], "valid": valid},
        "train": {"epochs": 2, "batch_size": 16, "max_length": 32, "keep": "best"},
    }


def test_all_sets_are_scored_and_the_first_one_judges(cli: Cli, config: dict) -> None:
    write("sets.yaml", config)
    code, out, err = cli("finetune", "sets.yaml", "--json")
    assert code == 0, err
    results = json.loads(out)
    assert (results["rows"], results["valid_rows"]) == (91, 26)
    assert "  5 rows without a gold label are left out" in err
    check = json.loads(Path("sets/eval/data.json").read_text())
    assert [check[name]["unlabelled"] for name in ("train", "near", "other")] == [5, 4, 0]
    assert [check[name]["rows"] for name in ("train", "near", "other")] == [91, 26, 50]
    first, second = (
        json.loads(Path(f"sets/eval/rows/{name}.json").read_text())["values"]
        for name in ("valid", "valid-other")
    )
    assert results["accuracy"] == pytest.approx(sum(first) / 26)
    assert results["other/accuracy"] == pytest.approx(sum(second) / 50)
    measured = {"name": "task", "data": ["near.jsonl"]}
    card = Path("sets/model/README.md").read_text()
    assert "- validation (other): `far.jsonl`" in card
    write(
        "ev.yaml",
        {
            "run": "ev-sets",
            "model": "sets/model",
            "measures": [measured],
            "compute": {"device": "cpu"},
        },
    )
    code, out, err = cli("eval", "ev.yaml", "--json")
    assert code == 0, err
    scored = json.loads(out)["results"]["task"]
    assert (scored["rows"], scored["unlabelled"]) == (26, 4)
    assert scored["accuracy"] == pytest.approx(results["accuracy"])
    code, out, err = cli("predict", "sets/model", "--input", "near.jsonl")
    assert code == 0, err
    assert len(out.splitlines()) == 30  # rows are answered whatever they say of themselves


def test_what_is_refused(cli: Cli, config: dict) -> None:
    write("sets.yaml", config)
    near = "{near: [near.jsonl]"
    for valid in ("{}", "{train: [near.jsonl]}", "{near: []}", "[]"):
        refused(cli("finetune", "sets.yaml", "run=x4", f"data.valid={valid}"), 2, "data.valid")
    refused(cli("finetune", "sets.yaml", "run=x4", f"data.valid={near}, a b: [x]}}"), 2, "a b")
    refused(
        cli("finetune", "sets.yaml", "run=x4", "task.unlabelled=refuse"),
        3,
        "gold.jsonl:3",
        "'label' is empty",
        "task.unlabelled=drop",
    )
    Path("none.jsonl").write_text('{"text": "a", "label": -1}\n')
    setting = "data.valid={near: [near.jsonl], none: [none.jsonl]}"
    refused(cli("finetune", "sets.yaml", "run=x4", setting), 3, "0 of none")
    assert not Path("x4").exists()
