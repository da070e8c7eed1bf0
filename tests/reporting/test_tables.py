import io

from rich.console import Console

from plmctl.reporting.tables import (
    classification_tables,
    confusion_table,
    metrics_table,
    rows_table,
)
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
