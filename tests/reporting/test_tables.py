import io

import numpy as np
import pytest
from rich.console import Console

from plmctl.reporting.plots import Curve, Plot
from plmctl.reporting.tables import (
    classification_tables,
    confusion_table,
    curves_text,
    metrics_table,
    rows_table,
    with_errors,
)
from plmctl.run.display import show_result
from tests.reporting import sample_runs


def printed(*tables):
    out = io.StringIO()
    console = Console(file=out, width=80, color_system=None)
    for table in tables:
        console.print(table)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_classifier_in_three_tables():
    lines = printed(*classification_tables("era [of runs]", sample_runs.classes()))
    assert lines[0] == "era [of runs]"  # no markup of rich's
    assert "accuracy          0.720" in lines
    assert "founding         0.720    0.720   0.720        60" in lines
    assert "industrial         25          25          195       25" in lines


def test_results_without_classes_are_one_table():
    assert len(classification_tables("mlm", {"loss": 3.0, "perplexity": 20.1})) == 1


def test_paths_are_whole_and_sentences_start_on_the_left():
    path = "runs/finetune/sst-grid/" + "lr=0.0003-" * 9 + "seed=3"
    sentence = "the share of rows whose label the model predicts, over all rows"
    lines = printed(metrics_table("t", {"best run": path, "definition": sentence, "rows": 3}))
    assert "".join(line.removeprefix("best run").strip() for line in lines[1:4]).startswith(path)
    (line,) = [line for line in lines if line.startswith("definition")]
    assert line.split(maxsplit=1) == ["definition", sentence]
    assert line.endswith("  " + sentence)
    assert len(line) < 79  # it starts on the left
    assert lines[-1].endswith(" 3")


def test_labels_and_cells_are_text_and_no_markup():
    lines = printed(
        confusion_table(["[red]", "负面"], [[1, 0], [12345, 2]]),
        rows_table("names", ["name", "text"], [["[b]a[/b]", 1000]]),
    )
    assert any("[red]" in line for line in lines)
    assert any("负面" in line and "12,345" in line for line in lines)
    assert any("[b]a[/b]" in line and "1,000" in line for line in lines)


def test_curves_in_plain_characters():
    x = np.arange(1.0, 101.0)
    falling = Curve("falling", x, 100 / x, 0)
    gaps = Curve("gaps", x, np.where(x % 2 == 0, 1.0, np.nan), 1)
    faint = Curve("", x, np.full(100, 1e6), 2, "faint")
    text = curves_text(Plot("loss", "Loss [of runs]", "nats", (faint, falling, gaps), log=True))
    lines = text.plain.splitlines()
    assert lines[0] == "Loss [of runs] (nats)"
    assert lines[1].startswith("      100 |*")
    assert lines[12].startswith("    1.000 | o")
    assert lines[13] == f"{'':9} +{'-' * 64}"
    assert lines[14].split() == ["1", "step", "100"]
    assert lines[15] == "  * falling  o gaps"
    assert max(map(len, lines)) <= 76
    assert not curves_text(Plot("loss", "Loss", "nats", (Curve("", x, x * np.nan, 0),)))


def test_a_flat_curve_and_a_single_point():
    for x in (np.array([5.0]), np.array([5.0, 6.0])):
        text = curves_text(Plot("p", "P", "u", (Curve("a", x, np.full(len(x), 3.0), 0),)))
        assert text.plain.count("*") == len(x) + 1  # and the legend's


def test_errors_stand_beside_their_metrics_and_definitions_stay_in_the_file() -> None:
    metrics = {"accuracy": 0.5, "accuracy_se": 0.0312, "definition": "a long text", "rows": 256}
    assert with_errors(metrics) == {"accuracy": "0.500 ± 0.031", "rows": 256}
    assert with_errors({"accuracy": 1.0, "accuracy_se": None}) == {"accuracy": 1.0}


def test_names_of_runs_stay_on_a_line_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "runs/pos-grid2/lr=0.0005,batch_size=16/seed=42"
    rows = [["lr=0.0005,batch_size=16", 2, 0.5, 0.01, 0.4, 0.6, name]]
    columns = ["setting", "runs", "median", "std", "min", "max", "best run"]
    show_result({}, [rows_table("settings", columns, rows)], as_json=False)
    assert name in capsys.readouterr().out
