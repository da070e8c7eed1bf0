"""One run on two hosts: network namespaces of this machine, with a cable between them."""

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.commands.conftest import pretrain_config, write
from tests.commands.test_faults import LONG, PLMCTL, records

pytestmark = pytest.mark.slow

ADDRESS = "10.77.17.1:29517"
LIMIT = 30  # seconds: launch.timeout
PATIENCE = 600  # seconds more, for a busy machine


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Hosts:
    """Two network namespaces, and what runs in them."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self.names = [f"plmctl-{os.getpid()}-{side}" for side in "ab"]
        self.ends = [f"plm{os.getpid() % 10**6}{side}" for side in "ab"]
        self._started: list[subprocess.Popen[bytes]] = []

    def make(self) -> None:
        for name in self.names:
            ip("netns", "add", name)
        ip("link", "add", self.ends[0], "type", "veth", "peer", "name", self.ends[1])
        for number, (name, end) in enumerate(zip(self.names, self.ends, strict=True)):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"10.77.17.{number + 1}/24", "dev", end)
            ip("-n", name, "link", "set", end, "up")
            ip("-n", name, "link", "set", "lo", "up")

    def remove(self) -> None:
        for process in self._started:
            process.kill()
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def cable(self, state: str) -> None:
        ip("-n", self.names[1], "link", "set", self.ends[1], state)

    def start(self, number: int, *command: str, folder: Path | None = None) -> "Running":
        """A command on a host, in its own folder if it does not share this one."""
        place = [f"launch.machine={number}", "launch.machines=2", f"launch.address={ADDRESS}"]
        log = self._logs / f"{len(self._started)}"
        with log.open("w") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[number], *PLMCTL, *command, *place],
                stderr=file,
                stdout=subprocess.DEVNULL,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                cwd=folder,
            )
        self._started.append(process)
        return Running(process, log)

    def both(self, *command: str, folder: Path | None = None) -> list["Running"]:
        """The same command on both hosts; ``folder`` is that of the second."""
        return [self.start(0, *command), self.start(1, *command, folder=folder)]


@dataclass(frozen=True)
class Running:
    """A command on a host, and the file with its stderr."""

    process: subprocess.Popen[bytes]
    log: Path

    def end(self) -> tuple[int, str]:
        """Exit code and stderr."""
        code = self.process.wait(timeout=LIMIT + PATIENCE)
        return code, self.log.read_text()

    def wait_for_line(self, text: str) -> str:
        """The first line of stderr that contains a text, as soon as it is there."""
        while not (lines := [line for line in self.log.read_text().splitlines() if text in line]):
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.1)
        return lines[0]


@pytest.fixture
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    made = Hosts(tmp_path_factory.mktemp("logs"))
    try:
        made.make()
    except (OSError, subprocess.CalledProcessError) as error:
        made.remove()
        pytest.skip(f"network namespaces are not allowed here: {error}")
    yield made
    made.remove()


def wait_for_steps(run: str, steps: int, running: list[Running]) -> None:
    log = Path(run, "metrics.jsonl")
    while not log.exists() or log.read_text().count("\n") < steps:
        for one in running:
            assert one.process.poll() is None, one.log.read_text()
        time.sleep(0.05)


def config_of(run: str, **changes: object) -> str:
    """The name of a config with a line per step and a checkpoint every five."""
    extra = {"log": {"every": 1}, "checkpoint": {"every": 5}, "launch": {"timeout": f"{LIMIT}s"}}
    write(f"{run}.yaml", pretrain_config("bert") | extra | {"run": run} | changes)
    return f"{run}.yaml"


@pytest.mark.sweep
def test_a_cut_network_is_named_on_both_hosts_and_the_run_continues_exactly(
    hosts: Hosts, world: Path
) -> None:
    command = ["pretrain", config_of("cut"), LONG]
    processes = hosts.both(*command)
    wait_for_steps("cut", 8, processes)
    hosts.cable("down")
    began = time.monotonic()
    named = [one.wait_for_line(" is lost: nothing heard from it for ") for one in processes]
    assert time.monotonic() - began < LIMIT + 10, "on both hosts, and some seconds to spare"
    for number, (code, text) in enumerate(one.end() for one in processes):
        assert code == 1, text
        assert f"process {1 - number} on " in named[number]
        assert "the checkpoints are intact: run the same command again on every machine" in text
        assert "in compute_gradient" in text, "the stack"
    status = json.loads(Path("cut", "status.json").read_text())
    assert status["status"] == "failed"
    assert named[0].removeprefix("plmctl: ") in status["message"]

    hosts.cable("up")
    saved = sorted(path.name for path in Path("cut", "checkpoints").glob("step-*"))[-1]
    until = int(saved.removeprefix("step-")) + 3
    for code, text in [one.end() for one in hosts.both(*command, f"--until={until}")]:
        assert code == 75, text
    whole = [*PLMCTL, *command, "run=whole", "launch.processes=2", f"--until={until}"]
    assert subprocess.run(whole, check=False).returncode == 75
    assert records("cut") == records("whole")


def test_a_signal_to_one_launcher_saves_once_and_folders_need_not_be_shared(
    hosts: Hosts, world: Path, tmp_path: Path
) -> None:
    config = config_of("apart")
    for name in ("text.txt", config):
        shutil.copy(name, tmp_path)
    shutil.copytree("tok-bert", tmp_path / "tok-bert")
    command = ["pretrain", config, LONG]
    processes = hosts.both(*command, folder=tmp_path)
    wait_for_steps("apart", 2, processes)
    processes[1].process.send_signal(signal.SIGTERM)
    first, second = (one.end() for one in processes)
    assert (first[0], second[0]) == (75, 75), first[1] + second[1]
    assert "checkpoint saved" in first[1]
    events = [
        json.loads(line)["event"] for line in Path("apart", "events").read_text().splitlines()
    ]
    assert events.count("saved") == len(list(Path("apart", "checkpoints").glob("step-*")))
    assert not (tmp_path / "apart").exists()
    assert list(tmp_path.glob("stores/*/manifest.json")), "it built its own"

    for code, text in [one.end() for one in hosts.both(*command, folder=tmp_path)]:
        assert code == 2, text
        assert "process 1 on " in text
        assert "does not see apart/checkpoints/step-" in text
        assert "must be a shared folder" in text


def test_other_text_and_another_config_are_named(hosts: Hosts, world: Path, tmp_path: Path) -> None:
    config = config_of("other")
    shutil.copytree("tok-bert", tmp_path / "tok-bert")
    text = Path("text.txt").read_text()
    (tmp_path / "text.txt").write_text(text.replace("garden", "forest", 1))
    shutil.copy(config, tmp_path)
    for code, text in [one.end() for one in hosts.both("pretrain", config, folder=tmp_path)]:
        assert code == 3, text
        assert "process 1 on " in text
        assert "has another data (hash " in text
    changed = yaml.safe_load(Path(config).read_text()) | {"seed": 7}
    (tmp_path / config).write_text(yaml.safe_dump(changed))
    for code, text in [one.end() for one in hosts.both("pretrain", config, folder=tmp_path)]:
        assert code == 2, text
        assert "has another config than process 0 on " in text
        assert "seed: 42 -> 7" in text
    assert not Path("other").exists()
