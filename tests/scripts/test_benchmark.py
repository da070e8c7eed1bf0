"""The benchmark's own check, on a text of a few kilobytes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "scripts" / "benchmark.py"


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    text = folder / "text.txt"
    text.write_text("".join(f"the {number} of {number % 7} words\n" for number in range(2000)))
    command = [sys.executable, str(BENCHMARK), "encode", "--data", str(text), "--json"]
    command += ["--vocab-size", "200", "--rounds", "1", *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_ratio_below_the_required_one_is_exit_status_1_after_the_result(tmp_path: Path) -> None:
    done = run(tmp_path, "--at-least", "1e9")
    assert done.returncode == 1
    result = json.loads(done.stdout)
    assert result["cpu_range"] == [result["cpu_ratio"]] * 2
    assert result["same_ids"]
    (line,) = done.stderr.splitlines()
    assert line.startswith("encode, wordpiece, V = 200: ")
    assert line.endswith("and at least 1e+09 is required")


def test_a_ratio_that_is_reached_is_exit_status_0(tmp_path: Path) -> None:
    done = run(tmp_path, "--at-least", "1e-9")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_time_to_loss_trains_both_sides_and_scores_both_models(tmp_path: Path) -> None:
    words = [f"word{number % 97}" for number in range(9000)]
    sentences = [" ".join(words[at : at + 9 + at % 5]) + "." for at in range(0, 9000, 15)]
    documents = ["\n".join(sentences[at : at + 8]) for at in range(0, len(sentences), 8)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents) + "\n")
    command = [sys.executable, str(BENCHMARK), "time-to-loss", "--data", "text.txt", "--json"]
    command += ["--size", "tiny", "--vocab-size", "1500", "--length", "32", "--batch", "8"]
    command += ["--steps", "6", "--rounds", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    (sides,) = result["rounds"]
    assert result["medians"] == sides
    assert all(0 < side["loss"] < 12 and side["seconds"] > 0 for side in sides.values())
    assert result["reached"] == (sides["plmctl"]["loss"] <= sides["stock"]["loss"])
    assert result["ratio"] == sides["stock"]["seconds"] / sides["plmctl"]["seconds"]
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]  # nothing is left beside it


@pytest.mark.parametrize(("ratio", "enough"), [(1.49, False), (1.5, True), (2.0, True)])
def test_the_median_decides(monkeypatch: pytest.MonkeyPatch, ratio: float, enough: bool) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    from benchmarks.duel import too_slow  # type: ignore[import-not-found]

    result: dict[str, Any] = {"title": "mlm", "cpu_ratio": ratio, "cpu_range": [0.5, 9.0]}
    assert (too_slow(result, 1.5) is None) == enough
