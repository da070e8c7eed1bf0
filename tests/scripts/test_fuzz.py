"""The loops that look for faults: they run, and find one that is there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def run(script: str, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / f"{script}.py"), *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.sweep
def test_damaged_files(tmp_path: Path) -> None:
    done = run("fuzz", tmp_path, "--seconds", "5", "--seed", "0")
    assert done.returncode == 0, done.stdout + done.stderr
    counts = [line for line in done.stdout.splitlines() if line.startswith("| all ")]
    assert [part.strip() for part in counts[0].split("|")][4:6] == ["0", "0"]  # failed and slow
    assert not any(tmp_path.iterdir())


@pytest.mark.sweep
def test_what_fails_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import fuzz

    def reader(path: Path) -> None:
        json.loads(path.read_bytes())

    path = tmp_path / "a.json"
    path.write_text("[")
    outcome, trace = fuzz.tried(reader, path)
    assert outcome == "failed"
    assert "JSONDecodeError" in trace


@pytest.mark.sweep
def test_a_soak(tmp_path: Path) -> None:
    done = run("soak", tmp_path, "--minutes", "0.1", "--steps", "20", "--out", "soak.json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "soak.json").read_text())
    assert result["saves"] > 0
    assert result["open files"]["end"] > 0
