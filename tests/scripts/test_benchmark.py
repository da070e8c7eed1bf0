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


@pytest.mark.parametrize(("ratio", "enough"), [(1.49, False), (1.5, True), (2.0, True)])
def test_the_median_decides(monkeypatch: pytest.MonkeyPatch, ratio: float, enough: bool) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    from benchmarks.duel import too_slow  # type: ignore[import-not-found]

    result: dict[str, Any] = {"title": "mlm", "cpu_ratio": ratio, "cpu_range": [0.5, 9.0]}
    assert (too_slow(result, 1.5) is None) == enough
