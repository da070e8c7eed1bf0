"""Micro-batches that fit in memory: found by trials, made smaller, agreed on, kept by a resume."""

import ctypes
import json
import os
import resource
import socket
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plmctl.commands.verify_resume import Child, start_child
from plmctl.corpus.store import TokenStore
from plmctl.errors import PlmError
from plmctl.examples.keys import fold
from plmctl.training.checkpoint import Checkpoints
from plmctl.training.journal import Journal
from plmctl.training.loop import train
from plmctl.training.memory import heaviest, largest, search, try_micro_batch
from plmctl.training.out_of_memory import is_out_of_memory
from plmctl.training.plan import Plan, Slicing
from tests.builders import ChangedExamples, cpu_engine
from tests.training.conftest import (
    Train,
    events,
    exact,
    nothing,
    tiny_network,
    tiny_plan,
    weights,
)


@given(st.integers(1, 5000), st.integers(0, 6000), st.integers(1, 6000))
def test_the_largest_that_fits_is_found(most: int, border: int, first: int) -> None:
    tried = []

    def fits(size: int) -> bool:
        assert 1 <= size <= most
        tried.append(size)
        return size <= border

    micro_batch = largest(fits, most, first)
    assert micro_batch <= border
    assert (micro_batch == 0) == (border == 0)
    if micro_batch:
        best = min(border, most)
        assert -(-most // micro_batch) == -(-most // best)  # no fewer pieces are possible
    assert len(tried) == len(set(tried))
    assert len(tried) <= 2 * most.bit_length() + 1


def test_the_first_guess_is_enough_where_all_fits() -> None:
    tried: list[int] = []
    assert largest(lambda size: not tried.append(size), 64, 64) == 64
    assert tried == [64]


CUDA = "CUDA error: {}\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."
SAID = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
    torch.AcceleratorError(CUDA.format("out of memory")),
    MemoryError(),
    RuntimeError("std::bad_alloc"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate`"),
    RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
    RuntimeError("HIP out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("Triton Error [CUDA]: out of memory"),
    torch.distributed.DistBackendError(
        "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error, NCCL version 2.27.5\n"
        "ncclUnhandledCudaError: Call to CUDA function failed.\n"
        "Last error:\nCuda failure 2 'out of memory'"
    ),
    RuntimeError("MPS backend out of memory (MPS allocated: 17.9 GB, other allocations: 1.1 MB)"),
    RuntimeError(
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: "
        "you tried to allocate 400000000000 bytes. Error code 12 (Cannot allocate memory)"
    ),
    RuntimeError("alloc_cpu.cpp:116 data. DefaultCPUAllocator: not enough memory: you tried to"),
]  # fmt: skip
OTHER = [
    torch.AcceleratorError(CUDA.format("an illegal memory access was encountered")),
    RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED"),
    RuntimeError("out of resource: shared memory, Required: 147456, Hardware limit: 101376"),
    ValueError("the text ran out of memory"),
]


def test_every_form_of_out_of_memory_is_seen_as_that() -> None:
    assert [str(error) for error in SAID if not is_out_of_memory(error)] == []
    assert [str(error) for error in OTHER if is_out_of_memory(error)] == []


@pytest.mark.parametrize("objective", ["mlm+nsp", "clm"])
def test_a_trial_leaves_no_trace(
    objective: str, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """Neither in the weights, nor in the draws of dropout that come after it."""
    plan = tiny_plan(objective, store, steps=(3,), batch=8, micro=4)
    tried, other = (cpu_engine(tiny_network(objective, dropout=0.1)) for _ in range(2))
    before = weights(tried)
    assert try_micro_batch(tried, heaviest(plan.phases[0], 7, 8), plan.phases[0])
    assert all(torch.equal(value, before[name]) for name, value in weights(tried).items())
    assert all(p.grad is None for p in tried.network.parameters())
    assert not tried.trained().optimizer.state
    run_plan(tried, plan, tmp_path / "a")
    run_plan(other, plan, tmp_path / "b")
    assert exact(tmp_path / "a") == exact(tmp_path / "b")


def test_a_trial_is_of_the_longest_rows_or_of_a_batch_that_has_grown(store: TokenStore) -> None:
    (phase,) = tiny_plan("mlm", store, batch=32, micro=4).phases
    assert len(heaviest(phase, 7, 16).inputs["input_ids"]) == 16

    class Rows:
        def __getattr__(self, name: str) -> object:
            return getattr(phase.examples, name)

        def __len__(self) -> int:
            return len(phase.examples)

        def lengths(self) -> object:
            return torch.arange(len(phase.examples)).numpy() % 11

    longest = heaviest(replace(phase, examples=Rows()), 7, 3)
    wanted = [n for n in range(len(phase.examples)) if n % 11 == 10][:3]
    same = phase.examples.collate(torch.zeros(3, dtype=torch.int64).numpy(), torch.tensor(wanted))
    assert torch.equal(longest.inputs["input_ids"], same.inputs["input_ids"])


def _find_in_a_tight_place(folder: Path, room: int) -> None:
    torch.set_num_threads(1)
    store = TokenStore.from_lists([[list(range(6, 106))] * 3] * 600, vocab_size=120)
    plan = tiny_plan("clm", store, steps=(2,), batch=1024, micro=64)
    engine = cpu_engine(tiny_network("clm"))
    assert try_micro_batch(
        engine, heaviest(plan.phases[0], 7, 8), plan.phases[0]
    )  # what is made but once
    ctypes.CDLL(None).malloc_trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages + room, hard))
    (size,) = search(engine, plan)
    sizes = (max(1, size // 2), 1024)  # at the border itself, what was freed decides
    fits = [try_micro_batch(engine, heaviest(plan.phases[0], 7, n), plan.phases[0]) for n in sizes]
    (folder / "found").write_text(json.dumps([size, *fits]))


@pytest.mark.slow
def test_a_search_under_a_real_limit_of_memory(tmp_path: Path) -> None:
    """The kernel refuses the process more address space than a part of the step needs."""
    # A process of its own: what one that has done other work has freed would count as room.
    child = get_context("spawn").Process(target=_find_in_a_tight_place, args=(tmp_path, 60_000_000))
    child.start()
    child.join()
    assert child.exitcode == 0
    size, fits, whole = json.loads((tmp_path / "found").read_text())
    assert 1 <= size < 1024
    assert fits
    assert not whole


@dataclass(frozen=True)
class Greedy(ChangedExamples):
    """An objective that asks for more memory than there is, where a micro-batch is too large.

    Attributes:
        step: The objective.
        most: Examples that fit.
        backward: Ask for it in the backward.
    """

    most: int
    backward: bool = False

    def loss(self, network: object, batch: object) -> dict[str, torch.Tensor]:
        losses = self.step.loss(network, batch)
        rows = len(batch.inputs["input_ids"])
        if rows > self.most:
            if not self.backward:
                torch.empty(2**60)  # refused by the allocator itself
            losses = {part: _Demand.apply(loss) for part, loss in losses.items()}
        return losses


class _Demand(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, loss: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return torch.empty(2**60)


def greedy(plan: Plan, step: Greedy) -> Plan:
    (phase,) = plan.phases
    return replace(plan, phases=(replace(phase, examples=step),), auto_micro_batch=True)


@pytest.mark.parametrize("backward", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_resume_keeps_the_smaller_micro_batches(
    backward: bool, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """The run that is stopped is the one that is not, and runs out of memory once."""

    def run(name: str, until: int | None = None, *, auto_micro_batch: bool = True) -> dict:
        plan = tiny_plan("clm", store, steps=(6,), batch=16, micro=16)
        plan = greedy(plan, Greedy(plan.phases[0].examples, 15, backward=backward))
        engine = cpu_engine(tiny_network("clm", dropout=0.1))
        run_plan(
            engine, replace(plan, until=until, auto_micro_batch=auto_micro_batch), tmp_path / name
        )
        return weights(engine)

    whole = run("whole")
    with pytest.raises(PlmError, match="after step 3 of 6"):
        run("cut", 3)
    with_sizes = run("cut")
    assert exact(tmp_path / "cut") == exact(tmp_path / "whole")
    assert all(torch.equal(value, with_sizes[name]) for name, value in whole.items())
    assert events(tmp_path / "cut").count("smaller") == 1
    with pytest.raises(PlmError, match="after step 3 of 6"):
        run("asked", 3)
    hint = "run the same command again with train.micro_batch_size=8"
    with pytest.raises(PlmError, match=f"(?s)step 4: out of memory.*{hint}"):
        run("asked", auto_micro_batch=False)


def test_a_run_goes_on_with_other_micro_batches(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """The same examples in the same steps; losses to the order of sums."""
    plan = tiny_plan("clm", store, steps=(6,), batch=16, micro=16)
    other = tiny_plan("clm", store, steps=(6,), batch=16, micro=3)
    with pytest.raises(PlmError, match="after step 3 of 6"):
        run_plan(cpu_engine(tiny_network("clm")), replace(plan, until=3), tmp_path / "a")
    run_plan(cpu_engine(tiny_network("clm")), other, tmp_path / "a")
    run_plan(cpu_engine(tiny_network("clm")), plan, tmp_path / "b")
    ours, theirs = exact(tmp_path / "a"), exact(tmp_path / "b")
    assert [line["tokens"] for line in ours] == [line["tokens"] for line in theirs]
    losses = [line["loss"] for line in theirs]
    assert [line["loss"] for line in ours] == pytest.approx(losses, rel=1e-5)


def _one_of_two(folder: Path, rank: int, port: int, store: TokenStore) -> None:
    """A process; the second one is out of memory in its first step."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    torch.set_num_threads(1)
    plan = tiny_plan("clm", store, steps=(4,), batch=14, micro=4)
    (phase,) = plan.phases
    slicing = replace(phase.slicing, rank=rank, world=2)
    plan = replace(plan, phases=(replace(phase, slicing=slicing),), auto_micro_batch=True)
    if rank == 1:
        plan = greedy(plan, Greedy(phase.examples, 3))
    engine = cpu_engine(tiny_network("clm"))
    with Journal(folder, title="t", total_steps=4, trackers=(), quiet=rank > 0) as journal:
        try:
            train(engine, plan, Checkpoints(folder / "checkpoints", 3), journal, nothing)
        except PlmError as error:
            (folder / "message").write_text(str(error))
            raise


def test_several_processes_stop_and_name_the_size(store: TokenStore, tmp_path: Path) -> None:
    """The one that is out of memory ends with the message; a launcher then ends the others."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children: list[Child] = [
        start_child(partial(_one_of_two, tmp_path, rank, port, store), tmp_path / f"log-{rank}")
        for rank in range(2)
    ]
    assert children[1].wait() != 0
    message = (tmp_path / "message").read_text()
    assert "step 1: out of memory" in message
    assert "run the same command again with train.micro_batch_size=2" in message
    assert children[0].wait() != 0  # its peer is gone


def test_the_plan_of_a_cpu_stays_as_it_is(store: TokenStore, tmp_path: Path) -> None:
    from plmctl.training.memory import with_found_sizes, with_sizes

    plan = replace(tiny_plan("clm", store, steps=(2, 2)), auto_micro_batch=True)
    assert with_found_sizes(cpu_engine(tiny_network("clm")), plan, tmp_path) is plan
    sizes = [phase.slicing for phase in with_sizes(plan, (5, 3)).phases]
    assert sizes == [Slicing(16, 5), Slicing(16, 3)]
    assert int(fold(plan.seed, 0)) != int(fold(plan.seed, 1))
