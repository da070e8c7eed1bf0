"""The benchmark's own check, on a text of a few kilobytes."""

import json
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.builders import json_lines

BENCHMARK = Path(__file__).parents[2] / "scripts" / "benchmark.py"


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    text = folder / "text.txt"
    text.write_text("".join(f"the {number} of {number % 7} words\n" for number in range(2000)))
    command = [sys.executable, str(BENCHMARK), "encode", "--data", str(text), "--json"]
    command += ["--vocab-size", "200", "--rounds", "1", "--quiet", "1", *options]
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


@pytest.mark.sweep
def test_a_disturbed_round_is_repeated_and_then_counts_as_disturbed(tmp_path: Path) -> None:
    done = run(tmp_path, "--quiet=-1", "--repeats", "1")  # as if others used more than that
    assert done.returncode == 0
    if not Path("/proc/stat").is_file():
        return
    result = json.loads(done.stdout)
    assert (result["repeated"], result["disturbed"]) == (1, 1)
    assert 0 <= result["others"][0] <= 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("others used ")
    assert line.endswith("round 1 is repeated")


@pytest.mark.skipif(not Path("/proc/stat").is_file(), reason="needs Linux's /proc/stat")
def test_the_work_of_others_is_what_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    from benchmarks import load  # type: ignore[import-not-found]

    counts = iter([(100.0, 40.0, 10.0), (120.0, 52.0, 16.0), (120.0, 52.0, 16.0)])
    monkeypatch.setattr(load, "_counts", lambda: next(counts))
    # 20 seconds of CPUs, 12 of them at work, 6 of these for us
    assert load.Load().of_others() == pytest.approx(6 / 20)
    monkeypatch.undo()
    total, busy, own = load._counts()
    assert total > busy > own > 0


@pytest.mark.sweep
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


@pytest.mark.sweep
@pytest.mark.parametrize("work", ["finetune", "evaluation", "generation"])
def test_both_sides_of_a_comparison_compute_the_same(tmp_path: Path, work: str) -> None:
    command = [sys.executable, str(BENCHMARK), work, "--json", "--size", "tiny", "--quiet", "1"]
    command += ["--length", "64", "--batch", "8", "--rounds", "1", "--steps", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert 0 <= result["loss_difference"] < 1e-5
    assert result["ratio"] > 0


def _on_a_gpu(folder: Path, *options: str) -> tuple[list[dict[str, Any]], str]:
    """The lines of the GPU's stages on a CPU, and all that is printed."""
    command = [sys.executable, str(BENCHMARK), "gpu", *options, "--device", "cpu", "--size", "tiny"]
    command += ["--out", str(folder / "out")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json_lines(folder / "out" / "gpu.jsonl"), done.stdout


@pytest.mark.slow
def test_the_stages_of_a_gpu_are_walked_through_on_a_cpu(tmp_path: Path) -> None:
    """What it prints is in the file too: a line for each result, and no error among them."""
    lines, printed = _on_a_gpu(tmp_path, "bert", "--seconds", "240", "--peak-tflops", "0.1")
    assert printed.startswith("".join(f"{json.dumps(line)}\n" for line in lines))
    stages = (
        "machine",
        "families",
        "bf16",
        "optimizers",
        "speed",
        "options",
        "stock",
        "bits",
        "resume",
    )
    assert tuple(dict.fromkeys(line["stage"] for line in lines)) == stages
    assert not [line for line in lines if "error" in line or "skipped" in line]
    by_stage = {stage: [line for line in lines if line["stage"] == stage] for stage in stages}
    assert [line["of"] for line in by_stage["families"]] == ["bert mlm", "bert mlm+nsp"]
    assert all(line["close"] for line in by_stage["families"])
    assert all(0 < line["mfu"] < 1 and len(line["longest"]) == 10 for line in by_stage["speed"])
    assert all(line["kernels"] > 100 for line in by_stage["optimizers"])
    assert all(line["equal"] for line in by_stage["bits"] + by_stage["resume"])


@pytest.mark.slow
def test_what_no_longer_fits_on_a_gpu_is_skipped_and_said(tmp_path: Path) -> None:
    lines, printed = _on_a_gpu(tmp_path, "--stages", "speed", "--seconds", "1", "--markdown")
    assert [line["skipped"] for line in lines] == ["it takes about 1 s"] * 12
    assert "| T5-base 64 x 512, compiled | it takes about 1 s |" in printed


@pytest.mark.usefixtures("scripts")
def test_a_failure_on_a_gpu_is_a_line_and_the_next_case_follows(tmp_path: Path) -> None:
    from benchmarks.gpu import Report  # type: ignore[import-not-found]

    began = time.time()
    args = Namespace(out=tmp_path, size="tiny", device="cpu", began=began, seconds=600)
    report = Report(args)
    report.attempt("speed", "first", 1, lambda: {"ms": 1 / 0})
    report.attempt("speed", "second", 1, lambda: {"ms": 0.5})
    first, second = json_lines(tmp_path / "gpu.jsonl")
    assert first["error"] == "ZeroDivisionError: division by zero"
    assert first["where"][-1].startswith("test_benchmark.py:")
    assert (second["stage"], second["of"], second["ms"]) == ("speed", "second", 0.5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_gpu_its_table_is_refused_with_what_to_do() -> None:
    command = [sys.executable, str(BENCHMARK), "gpu"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "no CUDA device found; --device cpu" in done.stderr


@pytest.mark.parametrize(("ratio", "enough"), [(1.49, False), (1.5, True), (2.0, True)])
def test_the_median_decides(monkeypatch: pytest.MonkeyPatch, ratio: float, enough: bool) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    from benchmarks.duel import too_slow  # type: ignore[import-not-found]

    result: dict[str, Any] = {"title": "mlm", "cpu_ratio": ratio, "cpu_range": [0.5, 9.0]}
    assert (too_slow(result, 1.5) is None) == enough


def test_the_rounds_are_a_picture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    from benchmarks.plot import write

    rounds = {"plmctl": [100.0, 120.0], "other <x>": [90.0, 95.0]}
    write({"by_round": rounds, "title": "a & b", "tokens_per_second": rounds}, tmp_path / "r.svg")
    texts = [text.text for text in ElementTree.parse(tmp_path / "r.svg").iter() if text.text]
    assert {"a & b", "plmctl", "other <x>", "round"} <= set(texts)


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))


@pytest.mark.usefixtures("scripts")
def test_the_products_of_a_step_are_recorded_and_run_alone() -> None:
    from benchmarks.products import Products  # type: ignore[import-not-found]

    layer = torch.nn.Linear(6, 5)
    weight = torch.zeros(3, 5)
    query = torch.randn(2, 4, 7, 8, requires_grad=True)
    products = Products()
    with products.recording():
        layer(torch.ones(3, 6)).relu().sum().backward()  # no gradient for its input
        weight.addmm_(torch.ones(3, 4), torch.ones(5, 4).t())
        scaled_dot_product_attention(query, query, query).sum().backward()
    assert products.counts() == {
        "aten.addmm": 1,
        "aten.mm": 1,
        "aten.addmm_": 1,
        "aten._scaled_dot_product_flash_attention_for_cpu": 1,
        "aten._scaled_dot_product_flash_attention_for_cpu_backward": 1,
    }
    attention = 2 * 2 * 4 * 7 * 7 * 8  # of one of its products: 2 forward, 5 backward
    assert products.flops() == 2 * 3 * 6 * 5 * 2 + 2 * 3 * 4 * 5 + 7 * attention
    assert layer.weight.grad is not None
    before = [weight.clone(), layer.weight.clone(), layer.weight.grad.clone()]
    products.run()  # with operands of its own
    after = [weight, layer.weight, layer.weight.grad]
    assert all(map(torch.equal, before, after))


@pytest.mark.usefixtures("scripts")
def test_operands_alone_have_the_strides_of_the_step() -> None:
    from benchmarks.products import Products

    products = Products()
    left, right = torch.ones(9, 2, 4).transpose(0, 1), torch.ones(4, 5).expand(2, 4, 5)
    with products.recording():
        left.bmm(right)
    ((_, (first, second), _),) = products._calls.values()
    assert (first.shape, first.stride()) == (left.shape, left.stride())
    assert (second.shape, second.stride()) == (right.shape, right.stride())
    assert second.untyped_storage().nbytes() == 4 * 5 * 4  # one matrix, as in the step


@pytest.mark.usefixtures("scripts")
def test_a_profile_has_the_share_of_the_products_and_what_is_beside_them() -> None:
    from benchmarks.profile import Call, rows_of, split  # type: ignore[import-not-found]

    calls = [
        Call("aten::mm", 5000.0, True),
        Call("aten::copy_", 1000.0, True),  # called by a product
        Call("aten::copy_", 1500.0, False),
        Call("aten::copy_", 500.0, False),
        Call("aten::gelu", 4000.0, False),
    ]
    profile = split(calls, steps=2)
    assert (profile["products_ms"], profile["share"]) == (3.0, 0.5)
    assert profile["operators"] == [
        {"name": "gelu", "ms": 2.0, "calls": 0.5},
        {"name": "copy_", "ms": 1.0, "calls": 1.0},
    ]
    family = profile | {"step_ms": 84.0, "alone_ms": 56.0, "gflops": 120.4, "cpu_ratio": 1.4}
    titles, row = rows_of({"families": {"bert": family}})
    assert len(titles) == len(row)
    assert row == ("bert", "84", "3 (50%)", "56", "1.50", "1.40", "120", "gelu 2.0, copy_ 1.0")


@pytest.mark.usefixtures("scripts")
def test_memory_is_compared_above_what_the_start_took() -> None:
    from benchmarks.memory import rows_of  # type: ignore[import-not-found]

    plain = {"peak_mb": 1500.0, "before_mb": 500.0, "step_ms": 90.0}
    plmctl = {"peak_mb": 900.0, "before_mb": 400.0, "step_ms": 60.0}
    again = {"peak_mb": 650.0, "before_mb": 400.0, "step_ms": 75.0}
    families = {
        "bert": {"plain": plain, "plmctl": plmctl, "recomputing": again},
        "elmo": {"plain": plain, "plmctl": plmctl},
    }
    titles, bert, elmo = rows_of({"families": families})
    assert len(titles) == len(bert) == len(elmo)
    assert bert[1:7] == ("400", "1,500", "900", "650", "0.50", "0.25")
    assert elmo[4:] == ("", "0.50", "", "90", "60", "")


@pytest.mark.sweep
@pytest.mark.usefixtures("scripts")
@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "gpt2", "t5", "elmo"])
def test_both_sides_of_a_family_have_the_same_losses(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that memory and time are compared of the same work."""
    from benchmark import arguments  # type: ignore[import-not-found]
    from benchmarks.pretraining import check  # type: ignore[import-not-found]

    options = ["--family", family, "--size", "tiny", "--vocab-size", "900", "--batch", "8"]
    losses = []
    for side in ("plmctl", "stock"):
        command = ["benchmark.py", "memory", *options, "--side", side]
        monkeypatch.setattr("sys.argv", [*command, "--precision", "fp32"])
        losses.append(check(arguments(), side)["losses"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        "profile berd",
        "gpu elm",
        "mlm bert",
        "memory --plain",
        "gpu --length 64",
        "clm --device cpu",
    ],
)
def test_what_a_work_has_not_is_refused(options: str) -> None:
    command = [sys.executable, str(BENCHMARK), *options.split()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
