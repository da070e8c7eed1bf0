"""Processes that meet, compare what they have, and notice one that is lost or stuck."""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from plmctl.commands import prepare
from plmctl.commands.verify_resume import start_child
from plmctl.config.sections import LaunchConfig
from plmctl.config.units import Duration
from plmctl.errors import DataError, PlmError, Preempted
from plmctl.models.batch import Batch
from plmctl.run.agreement import agree_on_start, agree_on_text
from plmctl.run.configs import PretrainConfig
from plmctl.training.data import training_batches
from plmctl.training.judge import COMPUTING, FINISHING, LOADING, PREPARING, Work
from plmctl.training.peers import Peers

Body = Callable[[Peers], None]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def together(
    body: Body, logs: Path, *, world: int = 2, timeout: str = "2s", stopped: int | None = None
) -> list[tuple[int, str]]:
    """Exit code and output of each process that calls ``body``, as a launcher starts them.

    The process ``stopped`` is killed when all others have ended.
    """
    port = free_port()

    def joined(rank: int) -> None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115  # not pytest's
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        with Peers.meet(LaunchConfig(timeout=Duration(timeout))) as peers:
            body(peers)

    children = [start_child(partial(joined, rank), logs / f"{rank}") for rank in range(world)]
    codes = [-1 if rank == stopped else child.wait() for rank, child in enumerate(children)]
    if stopped is not None:
        os.kill(children[stopped].pid, signal.SIGKILL)
        children[stopped].wait()
    return [(code, (logs / f"{rank}").read_text()) for rank, code in enumerate(codes)]


@pytest.mark.parametrize("world", [2, 4])
def test_facts_of_all_are_compared(world: int, tmp_path: Path) -> None:
    def body(peers: Peers) -> None:
        for name in ("a", "b"):
            time.sleep(0.1 * peers.rank)
            facts = peers.compare(name, {"rank": peers.rank, "name": name})
            assert facts == [{"rank": rank, "name": name} for rank in range(peers.world)]

    assert [code for code, _ in together(body, tmp_path, world=world)] == [0] * world


def test_who_is_stuck_is_named_with_the_stacks_of_all(tmp_path: Path) -> None:
    def body(peers: Peers) -> None:
        peers.doing(COMPUTING, 7)
        if peers.rank == 1:
            peers.doing(LOADING, 8)
        time.sleep(60)

    began = time.monotonic()
    ends = together(body, tmp_path)
    assert time.monotonic() - began < 20
    for rank, (code, text) in enumerate(ends):
        assert code == 1, text
        assert f"process {rank} on {socket.gethostname()}: " in text
        assert "in body" in text, "the stack of the main thread"
    assert (
        f"process 1 on {socket.gethostname()} is stuck: waiting for the batch, step 8" in ends[0][1]
    )
    assert "run the same command again" in ends[0][1]
    assert "launch.timeout" in ends[0][1]


def test_who_is_lost_is_named(tmp_path: Path) -> None:
    def body(peers: Peers) -> None:
        peers.doing(COMPUTING, 3)
        time.sleep(0.5)
        if peers.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(60)

    code, text = together(body, tmp_path, stopped=1)[0]
    assert code == 1
    assert f"step 3: process 1 on {socket.gethostname()} is lost: nothing heard from it for" in text
    assert "the last was: computing, step 3" in text


@pytest.mark.slow
def test_work_that_takes_long_is_not_stuck(tmp_path: Path) -> None:
    """Process 0 saves for longer than the limit; process 1 waits for it in a collective."""

    def body(peers: Peers) -> None:
        peers.doing(Work("saving", 6) if peers.rank == 0 else COMPUTING, 4)
        time.sleep(4 if peers.rank == 0 else 4.2)

    assert [code for code, _ in together(body, tmp_path)] == [0, 0]


@pytest.mark.slow
def test_text_may_take_as_long_as_it_takes(tmp_path: Path) -> None:
    def body(peers: Peers) -> None:
        peers.doing(PREPARING)
        time.sleep(4 if peers.rank == 0 else 0)
        peers.compare("text", {})

    assert [code for code, _ in together(body, tmp_path)] == [0, 0]


def test_a_failure_of_one_ends_all(tmp_path: Path) -> None:
    def body(peers: Peers) -> None:
        peers.doing(PREPARING)
        if peers.rank == 1:
            raise DataError("text.txt:3: no text")
        peers.compare("text", {})

    ends = together(body, tmp_path)
    assert [code for code, _ in ends] == [3, 3]
    assert f"process 1 on {socket.gethostname()} failed: text.txt:3: no text" in ends[0][1]


@pytest.mark.slow
def test_a_store_that_is_built_elsewhere(tmp_path: Path) -> None:
    """Process 0 has built it in a folder that process 1, of the same machine, does not see."""

    def body(peers: Peers) -> None:
        if peers.rank == 0:
            peers.compare(prepare.BUILT, {})
            return
        prepare._APPEARS = 0.2
        prepare.StoreBuilder(peers, 0).wait_for(lambda: None, str(Path("store").absolute()))

    first, second = together(body, tmp_path, timeout="4s")
    assert (first[0], second[0]) == (1, 1), first[1] + second[1]
    assert f"it is not in {Path('store').absolute()}" in first[1]
    assert "data.store must be a folder that the processes of a machine share" in second[1]


def test_a_stop_of_one_before_the_loop_stops_all(tmp_path: Path) -> None:
    def body(peers: Peers) -> None:
        peers.doing(PREPARING)
        if peers.rank == 1:
            raise Preempted("stopped by SIGTERM")
        peers.compare("text", {})

    ends = together(body, tmp_path)
    assert [code for code, _ in ends] == [75, 75]
    assert f"process 1 on {socket.gethostname()} was stopped: stopped by SIGTERM" in ends[0][1]


@pytest.mark.slow
def test_two_processes_of_one_number(tmp_path: Path) -> None:
    """Two machines with the same launch.machine."""
    host = socket.gethostname()

    def body(peers: Peers) -> None:
        raise AssertionError(peers.rank)

    def doubled(rank: int, port: int) -> None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        os.environ |= {
            "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": str(rank > 0),
        }  # fmt: skip
        config = LaunchConfig(timeout=Duration("3s"))
        if rank == 0:
            with Peers.meet(config) as peers:
                peers.doing(PREPARING)
                time.sleep(4)
                return
        with pytest.raises(PlmError, match=f"number 0: one on {host}, and one on {host}") as error:
            Peers.meet(config)
        assert "its own launch.machine" in str(error.value)

    port = free_port()
    children = [start_child(partial(doubled, rank, port), tmp_path / f"{rank}") for rank in (0, 1)]
    codes = [child.wait() for child in children]
    assert codes[1] == 0, (tmp_path / "1").read_text()
    assert codes[0] == 1, "it never hears of process 1"
    assert "process 1 on an unknown machine is lost" in (tmp_path / "0").read_text()


def tiny_config(**changes: object) -> PretrainConfig:
    config = {
        "run": "r", "tokenizer": "t", "model": {"family": "bert", "size": "tiny"},
        "data": {"train": ["a.txt"]}, "train": {"phases": [{"seq_len": 32, "steps": 6}]},
    }  # fmt: skip
    return PretrainConfig.model_validate_json(json.dumps(config | changes))


@pytest.mark.slow
def test_what_differs_is_named(tmp_path: Path) -> None:
    def other_config(peers: Peers) -> None:
        config = tiny_config(seed=1 + peers.rank)
        agree_on_start(peers, config, "unfinished", [])

    def other_options(peers: Peers) -> None:
        agree_on_start(peers, tiny_config(), "unfinished", [f"--until={1 + peers.rank}"])

    def other_text(peers: Peers) -> None:
        agree_on_text(peers, {"data": f"{peers.rank}", "tokenizer": "t"})

    def may_differ(peers: Peers) -> None:
        config = tiny_config(run=f"r{peers.rank}", launch={"machine": peers.rank})
        progress = agree_on_start(
            peers, config, "finished" if peers.rank == 0 else "unfinished", []
        )
        assert progress == "finished"

    host = socket.gethostname()
    for body, code, message in (
        (
            other_config,
            2,
            f"process 1 on {host} has another config than process 0 on {host}:\n  seed: 1 -> 2",
        ),
        (other_options, 2, "options: --until=1 -> --until=2"),
        (
            other_text,
            3,
            f"process 1 on {host} has another data (hash 1) than process 0 on {host} (0)",
        ),
        (may_differ, 0, ""),
    ):
        folder = tmp_path / body.__name__
        folder.mkdir()
        for end, text in together(body, folder):
            assert end == code, text
            assert message in text


def test_an_address_that_nobody_answers() -> None:
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
        }.items():  # fmt: skip
            patch.setenv(name, value)
        with pytest.raises(PlmError, match=f"cannot be reached at 127.0.0.1:{port} within 1 s"):
            Peers.meet(LaunchConfig(timeout=Duration("1s")))


# --- One process ---


def alone(body: Body, log: Path) -> tuple[int, str]:
    def watched() -> None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        with Peers(timeout=0.6) as peers:
            body(peers)

    code = start_child(watched, log).wait()
    return code, log.read_text()


def test_a_batch_that_never_comes(tmp_path: Path) -> None:
    def body(peers: Peers) -> None:
        peers.doing(LOADING, 5)
        time.sleep(30)

    code, text = alone(body, tmp_path / "log")
    assert code == 1
    assert "step 5: no batch for 0.6 s (launch.timeout)" in text
    assert "compute.workers=0" in text
    assert "in body" in text


def test_a_batch_that_takes_long_to_make(tmp_path: Path) -> None:
    def body(peers: Peers) -> None:
        peers.doing(LOADING, 5)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            sum(range(10_000))

    assert alone(body, tmp_path / "log")[0] == 0


def test_one_process_that_computes_is_left_alone(tmp_path: Path) -> None:
    def body(peers: Peers) -> None:
        for work in (COMPUTING, FINISHING):
            peers.doing(work, 5)
            time.sleep(1)

    assert alone(body, tmp_path / "log")[0] == 0


class HangsAtAStep:
    """Its worker process waits for ever, as for a file of a server that is gone."""

    def __getitem__(self, step: int) -> list[Batch]:
        if step == 3:
            time.sleep(1000)
        return [Batch({"ids": torch.zeros(2, 2)}, {}, 4, 4)]


@pytest.mark.slow
def test_a_worker_that_hangs_does_not_hang_the_run(tmp_path: Path) -> None:
    def body(peers: Peers) -> None:
        batches = training_batches(HangsAtAStep(), 0, 9, workers=1)
        for step in range(9):
            peers.doing(LOADING, step + 1)
            next(batches)
            peers.doing(COMPUTING, step + 1)

    code, text = alone(body, tmp_path / "log")
    assert code == 1
    assert "step 4: no batch for" in text
    assert "multiprocessing/connection.py" in text
