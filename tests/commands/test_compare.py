"""Runs side by side: the same rows are compared in pairs, others only in their figures."""

import json
from pathlib import Path

import numpy as np
import pytest

from plmctl.commands import compare
from plmctl.reporting.run_files import Run
from tests.commands.conftest import VERBS, Cli, write
from tests.commands.test_bad_input import refused
from tests.reporting import sample_runs


def tuned(pretrained: dict[str, Path], name: str, **changes: object) -> dict:
    return {
        "run": name,
        "model": str(pretrained["bert"] / "model"),
        "task": {"name": "classification"},
        "data": {"train": ["rows.tsv"], "valid": 0.3},
        "train": {"epochs": 1, "batch_size": 16, "max_length": 32},
        "optim": {"lr": 0.003},
        "compute": {"device": "cpu"},
        **changes,
    }


def test_pairs_of_runs(cli: Cli, pretrained: dict[str, Path]) -> None:
    write("one.yaml", tuned(pretrained, "one"))
    assert cli("finetune", "one.yaml")[0] == 0
    assert cli("finetune", "one.yaml", "run=two", "init=random", "optim.lr=0.0003")[0] == 0
    assert cli("finetune", "one.yaml", "run=three", "data.valid=0.5")[0] == 0
    code, out, err = cli("compare", "one", "two", "three", "--json", "--out", "page.html")
    assert code == 0, err
    comparison = json.loads(out)
    assert set(comparison["figures"]) == {"one", "two", "three"}
    (pair,) = comparison["differences"]  # the third was scored on other rows
    assert (pair["first"], pair["second"], pair["credit"]) == ("one", "two", "accuracy")
    results = {
        name: json.loads(Path(name, "eval/valid.json").read_text())["results"]
        for name in ("one", "two")
    }
    difference = results["two"]["accuracy"] - results["one"]["accuracy"]
    assert pair["difference"] == pytest.approx(difference)
    assert pair["low"] <= pair["difference"] <= pair["high"]
    assert pair["rows"] == results["one"]["valid_rows"]
    values = json.loads(Path("one/eval/rows/valid.json").read_text())["values"]
    assert np.mean(values) == pytest.approx(results["one"]["accuracy"])
    assert "one" in Path("page.html").read_text(encoding="utf-8")
    shown = cli("compare", "one", "two", str(pretrained["bert"]))[1]
    assert "two - one" in shown
    assert "paired bootstrap" in shown


def test_what_cannot_be_compared(cli: Cli, pretrained: dict[str, Path]) -> None:
    refused(cli("compare", str(pretrained["bert"])), 2, "only one run")
    refused(cli("compare", str(pretrained["bert"]), "tok-none"), 2, "no such folder in ")


def test_language_measures_are_compared_item_by_item(cli: Cli, pretrained: dict[str, Path]) -> None:
    Path("pairs.jsonl").write_text(
        "".join(
            json.dumps({"sentence_good": f"Anna {verb} Carl.", "sentence_bad": f"{verb} Anna Carl"})
            + "\n"
            for verb in VERBS
        ),
        encoding="utf-8",
    )
    measures = [
        {"name": "minimal_pairs", "data": ["pairs.jsonl"]},
        {"name": "bits_per_byte", "data": ["text.txt"], "max_documents": 5, "seq_len": 32},
    ]
    for name in ("bert", "gpt2"):
        config = {"run": f"pairs-{name}", "model": str(pretrained[name] / "model")}
        write(f"pairs-{name}.yaml", {**config, "measures": measures, "compute": {"device": "cpu"}})
        assert cli("eval", f"pairs-{name}.yaml")[0] == 0
    code, out, err = cli("compare", "pairs-bert", "pairs-gpt2", "--json", "--out", "lm.html")
    assert code == 0, err
    bits, pairs = json.loads(out)["differences"]
    assert (bits["measure"], bits["better"], bits["rows"]) == ("bits_per_byte", "low", 5)
    assert (pairs["measure"], pairs["better"], pairs["rows"]) == ("minimal_pairs", "high", 8)
    for pair, figure in ((bits, "bits_per_byte"), (pairs, "accuracy")):
        one, two = (
            json.loads(Path(run, f"eval/{pair['measure']}.json").read_text())["results"]
            for run in ("pairs-bert", "pairs-gpt2")
        )
        assert pair["difference"] == pytest.approx(two[figure] - one[figure])
        assert pair["low"] <= pair["difference"] <= pair["high"]
    assert "Differences" in Path("lm.html").read_text(encoding="utf-8")
    shown = cli("compare", "pairs-bert", "pairs-gpt2")[1]
    assert "lower is better" in " ".join(shown.split())

    # The same measure of other text is not compared.
    assert cli("eval", "pairs-gpt2.yaml", "run=pairs-other", "measures.1.max_documents=4")[0] == 0
    out = cli("compare", "pairs-bert", "pairs-other", "--json")[1]
    differences = json.loads(out)["differences"]
    assert [pair["measure"] for pair in differences] == ["minimal_pairs"]


def test_metrics_of_different_measures_have_their_own_rows(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def measured(name: str, measure: str, **results: object) -> Run:
        return Run(Path(name), name, "eval", {}, {}, (), (), {measure: {"results": results}})

    runs = [
        measured("one", "minimal_pairs", accuracy=0.6, definition="the share of pairs"),
        measured("two", "multiple_choice", accuracy=0.4),
        measured("three", "perplexity", perplexity=20.0),
        measured("four", "perplexity", perplexity=30.0),
    ]
    assert compare._shown(runs[0]) == {"minimal_pairs: accuracy": 0.6}
    monkeypatch.setattr(compare, "read_runs", lambda folders: runs)
    compare.run([run.name for run in runs], out=None, as_json=False)
    out, err = capfd.readouterr()
    assert "minimal_pairs: accuracy" in out
    assert "multiple_choice: accuracy" in out
    assert "only comparable between models with the same tokenizer" in err


def test_very_many_runs_are_compared_with_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [sample_runs.finetune(tmp_path / f"r{n}") for n in range(22)]
    for number, folder in enumerate(folders):
        (folder / "eval/rows").mkdir()
        scores = {"values": [number % 2, 1], "rows": "x", "credit": "accuracy"}
        (folder / "eval/rows/valid.json").write_text(json.dumps(scores))
    for count, pairs in ((3, 3), (22, 21)):
        compare.run([str(folder) for folder in folders[:count]], out=None, as_json=True)
        out, err = capsys.readouterr()
        result = json.loads(out)["differences"]
        assert len(result) == pairs
        assert ("each is compared with the first" in err) == (count == 22)
    assert {pair["first"] for pair in result} == {"r0"}
