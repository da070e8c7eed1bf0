"""``plmctl report`` with image files."""

import json
from pathlib import Path

from tests.commands.conftest import run_main
from tests.reporting import sample_runs


def test_the_plots_are_files_beside_the_page(tmp_path: Path, capsys) -> None:
    run, plots = sample_runs.finetune(tmp_path / "era"), tmp_path / "plots"
    assert run_main("report", str(run), "--plots", str(plots), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["report"] == str(run / "report.html")
    assert sorted(document["plots"]) == sorted(map(str, plots.iterdir()))
    assert {Path(name).name for name in document["plots"]} >= {"loss.svg", "loss.png"}


def test_one_format_and_a_character_that_no_font_has(tmp_path: Path, capsys) -> None:
    runs = [sample_runs.finetune(tmp_path / name) for name in ("a\ue123", "b")]
    arguments = ["--plots", str(tmp_path / "plots"), "--format", "pdf"]
    assert run_main("report", *map(str, runs), *arguments) == 0
    assert {path.suffix for path in (tmp_path / "plots").iterdir()} == {".pdf"}
    assert "no installed font has \ue123" in capsys.readouterr().err


def test_a_format_that_is_not_known(tmp_path: Path, capsys) -> None:
    run = sample_runs.finetune(tmp_path / "era")
    assert run_main("report", str(run), "--plots", "x", "--format", "gif") == 2
    assert "--format gif: unknown format\n  use svg, png, pdf" in capsys.readouterr().err
    assert not (run / "report.html").exists()
