"""``plmctl status``, ``plmctl board`` and ``plmctl report --terminal``."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from tests.commands.conftest import run_main
from tests.reporting import sample_runs


def test_the_status_says_what_to_do_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = sample_runs.pretrain(tmp_path / "half", steps=400, upto=200)
    text = json.dumps({"status": "failed", "time": "2026-01-02T03:04:05", "message": "disk full"})
    (run / "status.json").write_text(text)
    (run / "checkpoints" / "step-000200").mkdir(parents=True)
    assert run_main("status", str(run)) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines() if line]
    shown = {line[0]: line[1].strip() for line in lines[1:] if len(line) == 2}
    assert shown["state"] == "failed at 2026-01-02 03:04:05"
    assert shown["message"] == "disk full"
    assert shown["step"] == "200 of 400 (50%)"
    assert shown["last"].split() == ["checkpoint", "step-000200"]
    assert shown["command"] == "plmctl pretrain configs/demo/pretrain.yaml"


def test_the_status_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = sample_runs.finetune(tmp_path / "era")
    assert run_main("status", str(run), "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["kind"], status["step"]) == ("finished", "finetune", 200)
    assert status["scores"][0] == ["accuracy", 0.72]


@pytest.mark.parametrize("text", ["a: [", "theme: dark", ""])
def test_the_status_of_a_damaged_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (tmp_path / "config.yaml").write_text(text)
    assert run_main("status", str(tmp_path)) == 0
    assert "config.yaml" in capsys.readouterr().out


def test_a_folder_without_a_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main("status", str(tmp_path)) == 2
    assert "no run here" in capsys.readouterr().err
    assert run_main("board", str(tmp_path / "none")) == 2
    assert "no such folder" in capsys.readouterr().err


def test_curves_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(sample_runs.pretrain(tmp_path / name, steps=400, seed=n)) for n, name in _NAMED]
    assert run_main("report", *runs, "--terminal") == 0
    out = capsys.readouterr().out
    assert out.startswith("Loss (nats per target)\n")
    assert "  * one  o two" in out
    assert not (tmp_path / "one" / "report.html").exists()
    assert run_main("report", runs[0], "--terminal", "--json") == 2
    assert "--terminal cannot be used with" in capsys.readouterr().err


_NAMED = ((0, "one"), (1, "two"))


def test_the_board_as_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample_runs.finetune(tmp_path / "runs" / "era")
    out = tmp_path / "site"
    assert run_main("board", str(tmp_path / "runs"), "--out", str(out), "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"page": str(out / "index.html"), "runs": 1}
    (tmp_path / "file").write_text("")
    assert run_main("board", str(tmp_path / "runs"), "--out", str(tmp_path / "file")) == 1
    assert "cannot be written" in capsys.readouterr().err


@pytest.mark.slow
def test_the_board_serves_until_ctrl_c(tmp_path: Path) -> None:
    sample_runs.finetune(tmp_path / "runs" / "era")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    command = [sys.executable, "-m", "plmctl", "board", str(tmp_path / "runs")]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        with urllib.request.urlopen(f"{url}api/runs", timeout=20) as answer:
            assert [row["name"] for row in json.load(answer)["rows"]] == ["era"]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0  # Ctrl-C is its usual end
    assert "Traceback" not in err
    assert "ssh -L" in err
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("*")}
    assert after == before  # nothing is written to the runs


# ``plmctl report`` with image files.


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


def test_a_format_without_plots_and_plots_of_nothing(tmp_path: Path, capsys) -> None:
    run = sample_runs.finetune(tmp_path / "era")
    assert run_main("report", str(run), "--format", "svg") == 2
    assert "--format: no plots are written" in capsys.readouterr().err
    (run / "metrics.jsonl").write_text("", encoding="utf-8")
    assert run_main("report", str(run), "--plots", str(tmp_path / "plots")) == 0
    assert "no curve has two points" in capsys.readouterr().err
