"""Device, precision and processes."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import BertConfig, GPT2Config, MPNetConfig, T5Config

from plmctl.commands.doctor import _devices
from plmctl.config.sections import ComputeConfig, LaunchConfig, OptimConfig
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError, DataError, PlmError, Preempted
from plmctl.families.base import family_of
from plmctl.models.elmo import ElmoConfig
from plmctl.run.folder import write_environment
from plmctl.run.launch import world_size
from plmctl.training.data import StepLoader
from plmctl.training.engine import (
    Engine,
    emulation_note,
    make_accelerator,
    make_engine,
    native_bf16,
    of_training,
    precision,
    precision_of,
)
from plmctl.training.peers import Peers
from plmctl.training.plan import Guard, Plan
from tests.builders import ChangedExamples, cpu_engine
from tests.training.conftest import Train, exact, tiny_network, tiny_plan, weights

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
        return precision(of_training(auto, tmp_path, fp16=True), cuda=False)

    assert decided() == ("bf16" if native else "fp32")
    told = ComputeConfig(device="cpu", precision="fp32")
    assert of_training(told, tmp_path, fp16=True).precision == "fp32"
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


CARDS = {
    "H100": ((9, 0), "bf16", "bf16"),
    "A100": ((8, 0), "bf16", "bf16"),
    "Tesla T4": ((7, 5), "fp16", "fp32"),
    "GTX 1660": ((7, 5), "fp16", "fp32"),
    "Tesla V100": ((7, 0), "fp16", "fp32"),
    "GTX 1080": ((6, 1), "fp32", "fp32"),
    "Tesla P100": ((6, 0), "fp16", "fp32"),
}
"""Compute capability; the precision of a run that can be trained in fp16, and of another."""


@pytest.fixture
def insert(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a card of that name into the machine, as far as its properties are asked for."""

    def put(name: str) -> None:
        capability, *_ = CARDS[name]
        card = SimpleNamespace(
            name=name, major=capability[0], minor=capability[1], total_memory=1e9
        )
        for asked, answer in {
            "is_available": lambda: True,
            "current_device": lambda: 0,
            "device_count": lambda: 1,
            "get_device_name": lambda *_: name,
            "get_device_capability": lambda *_: capability,
            "get_device_properties": lambda *_: card,
            "_check_bf16_tensor_supported": lambda *_: True,  # a tensor of bf16 can be made on each
            "device": lambda number: nullcontext(),
        }.items():
            monkeypatch.setattr(f"torch.cuda.{asked}", answer)
        monkeypatch.setattr("torch.accelerator.is_available", lambda: True)

    return put


@pytest.mark.parametrize("name", CARDS)
def test_no_gpu_emulates_bf16(name: str, insert: Callable[[str], None], tmp_path: Path) -> None:
    _, with_fp16, without = CARDS[name]
    insert(name)
    auto = ComputeConfig()
    assert of_training(auto, tmp_path, fp16=True).precision == with_fp16
    assert of_training(auto, tmp_path, fp16=False).precision == without
    assert precision(auto, cuda=True) == without  # an evaluation's auto
    made = SimpleNamespace(device=torch.device("cuda"), mixed_precision="fp16")
    (line,) = _devices()
    if without == "bf16":
        assert precision(ComputeConfig(precision="bf16"), cuda=True) == "bf16"
        assert emulation_note(auto, made) == ""
        assert line.endswith(", bf16")
        return
    with pytest.raises(ConfigError, match=f"{name} cannot compute in bf16"):
        precision(ComputeConfig(precision="bf16"), cuda=True)
    assert emulation_note(auto, made) == f"compute.precision: fp16: {name} cannot compute in bf16"
    assert f"no bf16: trainings use {with_fp16}" in line


@pytest.mark.parametrize(("supported", "told"), [(True, None), (False, "1")])
def test_cards_that_cannot_reach_each_other_are_told_so(
    supported: bool,
    told: str | None,
    insert: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    insert("H100")
    for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"):
        monkeypatch.setenv(name, "0")
        monkeypatch.delenv(name)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("plmctl.training.engine.check_cuda_p2p_ib_support", lambda: supported)
    monkeypatch.setattr("plmctl.training.engine.Accelerator", lambda **fields: None)
    make_accelerator(ComputeConfig())
    assert os.environ.get("NCCL_P2P_DISABLE") == os.environ.get("NCCL_IB_DISABLE") == told


def test_unequal_gpus_train_in_what_each_of_them_has(
    insert: Callable[[str], None], tmp_path: Path
) -> None:
    insert("H100")
    peers = Peers()
    peers.compare = lambda name, facts: [facts, {"name": "fp16"}]  # type: ignore[method-assign]
    assert of_training(ComputeConfig(), tmp_path, peers, fp16=True).precision == "fp16"


def test_the_family_says_whether_it_can_be_trained_in_fp16() -> None:
    assert family_of(BertConfig()).FP16
    assert family_of(GPT2Config()).FP16
    assert not family_of(T5Config()).FP16
    assert not family_of(ElmoConfig()).FP16
    assert not family_of(MPNetConfig()).FP16  # no family


# --- Apple's GPU ---


def test_apples_gpu_takes_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """And bf16 from macOS 14 on."""
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    assert world_size(LaunchConfig(), "auto") == 1
    assert world_size(LaunchConfig(processes=2), "cpu") == 2
    for wanted in (LaunchConfig(processes=2), LaunchConfig(machines=2)):
        for device in ("auto", "mps"):
            with pytest.raises(ConfigError, match="several processes cannot train on Apple's GPU"):
                world_size(wanted, device)
    bf16 = ComputeConfig(device="mps", precision="bf16")
    monkeypatch.setattr("torch.backends.mps.is_macos_or_newer", lambda *version: False)
    with pytest.raises(ConfigError, match="bf16 needs macOS 14"):
        precision(bf16, cuda=False)
    monkeypatch.setattr("torch.backends.mps.is_macos_or_newer", lambda *version: True)
    assert precision(bf16, cuda=False) == "bf16"


# --- The same bits on a GPU ---


def switches() -> tuple[bool, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.deterministic,
        not torch.utils.deterministic.fill_uninitialized_memory,
        not torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def test_a_gpu_repeats_its_bits_if_told_and_only_then(monkeypatch: pytest.MonkeyPatch) -> None:
    def made(**fields: Any) -> tuple[bool, ...]:
        with suppress(RuntimeError, AssertionError):  # there is no such device
            make_accelerator(ComputeConfig(**fields))
        return switches()

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is put back
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    off = (False, False, False, True)
    assert made(device="cpu", deterministic=True) == off  # a CPU does so anyway
    with monkeypatch.context() as patch:
        patch.setattr("torch.cuda.is_available", lambda: True)
        patch.setattr("plmctl.training.engine.precision", lambda compute, cuda: "fp32")
        patch.setattr("plmctl.training.engine.Accelerator", lambda **fields: None)
        assert made() == made(deterministic=False) == off
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
        assert made(deterministic=True) == (True,) * 4
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert not torch.backends.cudnn.benchmark
        assert made() == off  # the next run of this process
    assert made(device="cpu") == off


def test_float32_is_rounded_to_tf32_only_if_told(monkeypatch: pytest.MonkeyPatch) -> None:
    fp32, tf32 = (ComputeConfig(device="cpu", precision=name) for name in ("fp32", "tf32"))
    torch.backends.cudnn.allow_tf32 = True  # PyTorch's default, for ELMo's layers
    assert precision_of(make_accelerator(fp32)) == "fp32"
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # whose gradients can be NaN
    with pytest.raises(ConfigError, match="tf32 needs an NVIDIA GPU since RTX 30"):
        make_accelerator(tf32)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    with pytest.raises(ConfigError, match="tf32 needs"):
        precision(tf32, cuda=True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    assert precision(tf32, cuda=True) == "tf32"
    with monkeypatch.context() as on_a_card:
        on_a_card.setattr("plmctl.training.engine.precision", lambda *_, **__: "tf32")
        accelerator = make_accelerator(tf32)
        assert precision_of(accelerator) == "tf32"
        assert accelerator.mixed_precision == "no"
        assert torch.backends.cuda.matmul.allow_tf32
    make_accelerator(fp32)
    assert not torch.backends.cuda.matmul.allow_tf32


def test_an_operation_without_such_a_kernel_is_named(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    plan = tiny_plan("mlm", store)
    (phase,) = plan.phases

    class Failing(ChangedExamples):
        def loss(self, network: Any, batch: Any) -> Any:
            reason = "cumsum_cuda_kernel does not have a deterministic implementation, but"
            raise RuntimeError(reason)

    plan = replace(plan, phases=(replace(phase, examples=Failing(phase.examples)),))
    with pytest.raises(PlmError, match=r"(?s)step 1: cumsum_cuda_kernel.*compute\.deterministic"):
        run_plan(cpu_engine(tiny_network("mlm")), plan, tmp_path / "run")


# --- fp16: a scaled loss, an unscaled gradient, a scale that a checkpoint has ---


def fp16_engine(scale: float) -> Engine:
    """On a CPU, which Accelerate refuses in fp16: it is given a scaler afterwards."""
    compute = ComputeConfig(device="cpu", compile=False)
    accelerator = make_accelerator(compute)
    accelerator.state._mixed_precision = "fp16"
    accelerator.native_amp = True
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
    network = tiny_network("mlm", dropout=0.1)
    return make_engine(accelerator, network, OptimConfig(lr=0.01), compute)


@pytest.mark.slow
def test_fp16_resumes_with_its_scale_to_the_last_bit(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """Clipped after it is unscaled; the first updates, whose gradient overflows, are left out."""
    plan = tiny_plan("mlm", store, steps=(9,), batch=16, micro=8)
    whole, begun, resumed = (fp16_engine(2.0**24) for _ in range(3))
    before = weights(whole)
    run_plan(whole, plan, tmp_path / "whole")
    with pytest.raises(Preempted):
        run_plan(begun, replace(plan, until=4), tmp_path / "cut")
    run_plan(resumed, plan, tmp_path / "cut")
    assert exact(tmp_path / "whole") == exact(tmp_path / "cut")
    for name, value in weights(whole).items():
        assert torch.equal(weights(resumed)[name], value), name
    assert any(not torch.equal(value, before[name]) for name, value in weights(whole).items())
    scales = [engine.accelerator.scaler.state_dict() for engine in (whole, resumed)]
    assert scales[0] == scales[1]
    norms = [line["grad_norm"] for line in exact(tmp_path / "whole")]
    assert not isinstance(norms[0], float)  # JSON has no such number
    assert scales[0]["scale"] < 2.0**24
    finite = [norm for norm in norms if norm is not None]
    assert finite
    assert 0.01 < min(finite) <= max(finite) < 100  # of the gradient, not of the scaled one


@pytest.mark.parametrize("verdict", ["skip", "rollback"])
def test_fp16_goes_on_after_a_step_that_is_not_applied(
    verdict: str,
    store: TokenStore,
    tmp_path: Path,
    run_plan: Train,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = replace(tiny_plan("mlm", store, steps=(4,), save_every=1))
    asked = []

    def decide(self: Guard, done: Any, progress: Any, *, scaled: bool) -> tuple[str, str]:
        asked.append(scaled)
        return (verdict, "a spike") if len(asked) == 3 else ("good", "")

    monkeypatch.setattr(Guard, "verdict", decide)
    assert run_plan(fp16_engine(2.0**10), plan, tmp_path / "run").step == 4
    assert all(asked)


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

    def at_step(self, step: int, steps: int) -> Any:
        return Slow(self._step.at_step(step, steps))

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
        loader.warn_of_slow_data(wait, 30.0, say)
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
