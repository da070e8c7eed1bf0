"""Device, precision and processes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from plmctl.config.sections import ComputeConfig
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError, DataError
from plmctl.run.folder import write_environment
from plmctl.training.data import StepLoader
from plmctl.training.engine import make_accelerator, native_bf16, of_training, precision
from plmctl.training.loop import Plan
from tests.builders import cpu_engine
from tests.training.conftest import Train, tiny_network, tiny_plan

# --- What would make a run slow beyond use is refused or told of ---


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("flags\t\t: fpu sse2 avx2 fma", False),
        ("flags\t\t: fpu avx512f avx512_bf16", True),
        ("flags\t\t: fpu avx512f amx_bf16 amx_tile", True),
        ("Features\t: fp asimd bf16", True),
        ("Features\t: fp asimd", False),
        ("processor\t: 0", None),
    ],
)
def test_bf16_is_known_by_the_flags_of_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, expected: bool | None
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"model name\t: any, not bf16\n{flags}\n")
    assert native_bf16(cpuinfo) is expected
    assert native_bf16(tmp_path / "none") is None


def test_bf16_is_refused_where_it_would_be_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ComputeConfig(device="cpu", precision="bf16")
    monkeypatch.setattr("plmctl.training.engine.native_bf16", lambda: False)
    with pytest.raises(ConfigError, match="27 times") as refused:
        make_accelerator(wanted)
    assert "use compute.precision=fp32" in str(refused.value)
    for native in (True, None):  # None: nobody knows
        monkeypatch.setattr("plmctl.training.engine.native_bf16", lambda native=native: native)
        assert precision(wanted, cuda=False) == "bf16"
    assert precision(ComputeConfig(device="cpu"), cuda=False) == "fp32"


@pytest.mark.parametrize("native", [True, False, None])
def test_a_run_trains_in_bf16_where_the_cpu_has_it_and_stays_in_its_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool | None
) -> None:
    monkeypatch.setattr("plmctl.training.engine.native_bf16", lambda: native)
    auto = ComputeConfig(device="cpu")

    def decided() -> str:
        return precision(of_training(auto, tmp_path), cuda=False)

    assert decided() == ("bf16" if native else "fp32")
    assert of_training(ComputeConfig(device="cpu", precision="fp32"), tmp_path).precision == "fp32"
    (tmp_path / "checkpoints" / "step-000002").mkdir(parents=True)
    with pytest.raises(DataError, match="environment.json"):
        decided()
    write_environment(tmp_path, {})  # by an earlier version
    assert decided() == "fp32"
    write_environment(tmp_path, {}, precision="fp32")
    assert decided() == "fp32"
    write_environment(tmp_path, {}, precision="bf16")
    if native is False:
        with pytest.raises(ConfigError, match=r"use compute\.precision=fp32"):
            decided()
    else:
        assert decided() == "bf16"


def test_a_network_is_not_compiled_unless_told(store: TokenStore) -> None:
    network = tiny_network("mlm")
    cpu_engine(network)
    assert network._compiled_call_impl is None


class Slow:
    """A step whose batches take much longer than what is done with them."""

    def __init__(self, step: Any) -> None:
        self._step = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def __len__(self) -> int:
        return len(self._step)

    def during(self, share: float) -> Any:
        return Slow(self._step.during(share))

    def collate(self, *args: Any) -> Any:
        time.sleep(0.2)
        return self._step.collate(*args)


def slowed(plan: Plan) -> Plan:
    return replace(plan, phases=tuple(replace(p, examples=Slow(p.examples)) for p in plan.phases))


@pytest.mark.parametrize(("short", "count"), [(0.0, 1), (30.0, 0)])
def test_waiting_for_data_is_told_of_once_and_not_in_a_short_run(
    store: TokenStore,
    tmp_path: Path,
    run_plan: Train,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    short: float,
    count: int,
) -> None:
    monkeypatch.setattr("plmctl.training.data._SHORT_RUN", short)
    plan = slowed(tiny_plan("mlm", store, steps=(4,)))
    run_plan(cpu_engine(tiny_network("mlm")), plan, tmp_path / "run")
    assert capfd.readouterr().err.count("is spent waiting for batches") == count


@pytest.mark.parametrize(
    ("waits", "expected"),
    [
        ((0.9, 0.04, 0.02), []),
        ((0.9, 0.04, 0.2, 0.3, 0.3), ["30 %"]),
        ((0.0, 0.06, 0.06), ["6 %"]),
        ((0.9, 0.3), []),  # the first: the start of the processes
        ((0.0, 0.3, 0.01, 0.3, 0.01), []),  # the examples of an epoch
    ],
)
def test_a_twentieth_of_the_time_twice_in_a_row_is_much(
    store: TokenStore, waits: tuple[float, ...], expected: list[str]
) -> None:
    messages: list[str] = []
    say: Callable[[str], None] = messages.append
    loader = StepLoader(tiny_plan("mlm", store))
    for wait in waits:
        loader.advise(wait, 30.0, say)
    assert [message.partition(" of the time")[0] for message in messages] == expected
    assert all("compute.workers=2" in message for message in messages)


# --- Processes that were started together find each other ---

ASK = """
from plmctl.config.sections import ComputeConfig
from plmctl.training.engine import make_accelerator
made = make_accelerator(ComputeConfig())
open(f"{made.process_index}.txt", "w").write(str(made.num_processes))
"""


@pytest.mark.slow
@pytest.mark.skipif(torch.accelerator.is_available(), reason="the processes would take the devices")
def test_two_processes_on_a_cpu_that_nobody_named(tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text(ASK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--nproc-per-node", "2", "ask.py"],
        cwd=tmp_path, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"{rank}.txt").read_text() for rank in (0, 1)] == ["2", "2"]
