"""The same command under other launchers, and on several machines."""

import json
import os
import platform
import socket
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from plmctl.config.sections import LaunchConfig
from plmctl.errors import ConfigError
from plmctl.run.launch import MachinePlace, first_host, place_of
from tests.commands.conftest import Cli

QUIET = ["model.hidden_dropout_prob=0", "model.attention_probs_dropout_prob=0"]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "launcher"),
    [
        ("torchrun", ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]),
        ("accelerate", ["accelerate.commands.launch", "--cpu", "--num_processes", "1"]),
        # --multi_gpu starts two processes; with --cpu, --num_processes 2 would start one.
        (
            "accelerate-2",
            ["accelerate.commands.launch", "--multi_gpu", "--num_machines=1", "--num_processes=2"],
        ),
    ],
)
def test_the_command_under_other_launchers(name: str, launcher: list[str], cli: Cli) -> None:
    command = ["pretrain", "bert.yaml", *QUIET]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "-m", "plmctl", *command, f"run=by-{name}"],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert cli(*command, f"run=alone-{name}")[0] == 0
    logs = [
        [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
        for run in (f"by-{name}", f"alone-{name}")
    ]
    assert len(logs[0]) == len(logs[1])
    for ours, alone in zip(*logs, strict=True):
        for key in ours.keys() & {"loss", "valid/loss", "grad_norm"}:
            assert ours[key] == pytest.approx(alone[key], rel=2e-6)


# --- Which machine this is ---

SRUN = {"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "1234567"}
SLURM = {"SLURM_NNODES": "3", "SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "gpu[07-09]", **SRUN}
TORCH_JOB = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "job-0", "MASTER_PORT": "23456"}
JOB_SET = {"JOB_COMPLETION_INDEX": "2", "MASTER_ADDR": "job-0-0.job"}
TRAIN_JOB = {
    "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "node-0",
    "PET_MASTER_PORT": "29400",
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "variables", "place"),
    [
        ({}, {}, MachinePlace()),
        ({"machines": 2, "machine": 1, "address": "a:1"}, {}, MachinePlace(1, 2, "a", 1)),
        ({"machines": 2, "machine": 0, "address": "a"}, {}, MachinePlace(0, 2, "a", 29500)),
        ({}, SLURM, MachinePlace(1, 3, "gpu07", 24567)),
        ({"machines": 3, "address": "10.0.0.1:9"}, SLURM, MachinePlace(1, 3, "10.0.0.1", 9)),
        ({"machines": 1}, SLURM, MachinePlace()),
        ({}, SLURM | {"SLURM_NNODES": "1", "SLURM_NODEID": "0"}, MachinePlace()),
        (
            {},
            {"SLURM_NNODES": "3", "SLURM_JOB_NODELIST": "gpu[07-09]"},
            MachinePlace(),
        ),  # salloc's shell
        ({}, TORCH_JOB, MachinePlace(1, 2, "job-0", 23456)),
        ({}, TRAIN_JOB, MachinePlace(1, 2, "node-0", 29400)),
        ({"machines": 4}, JOB_SET, MachinePlace(2, 4, "job-0-0.job", 29500)),
        ({}, JOB_SET, MachinePlace()),
        ({}, {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost"}, MachinePlace()),
        ({}, TORCH_JOB | {"MASTER_PORT": "tcp://10.0.0.1:80"}, MachinePlace(1, 2, "job-0", 29500)),
    ],
)
def test_the_place_of_a_machine(
    config: dict[str, object], variables: dict[str, str], place: MachinePlace
) -> None:
    assert place_of(LaunchConfig.model_validate(config), variables) == place


@pytest.mark.parametrize(
    ("config", "variables", "message", "hint"),
    [
        (
            {"machines": 2, "address": "a:1"},
            {},
            "which of the 2 machines is this",
            "launch.machine=0",
        ),
        (
            {"machines": 2, "machine": 2, "address": "a:1"},
            {},
            "machines have the numbers 0 to 1",
            "",
        ),
        ({"machines": 2, "machine": 0}, {}, "where do the machines meet", "HOST:PORT"),
        ({"machines": 2}, SLURM, "Slurm starts this command on 3", "leave launch.machines out"),
        ({"machine": 0}, SLURM, "for Slurm this machine is number 1", "leave launch.machine out"),
        ({}, SLURM | {"SLURM_STEP_NUM_TASKS": "24"}, "24 times on 3 machines", "ntasks-per-node=1"),
        (
            {},
            {name: value for name, value in SLURM.items() if name != "SLURM_STEP_ID"},
            "this command runs on one of them",
            "srun plmctl",
        ),
        ({}, TRAIN_JOB | {"PET_NNODES": "1:4"}, "PET_NNODES is '1:4', and not a whole number", ""),
    ],
)
def test_a_place_that_is_unclear(
    config: dict[str, object], variables: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(ConfigError) as error:
        place_of(LaunchConfig.model_validate(config), variables)
    assert message in error.value.message
    assert hint in (error.value.hint or "")


@pytest.mark.parametrize(
    ("names", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[07-09,12],big1", "gpu07"),
        ("gpu[12,07-09]", "gpu12"),
        ("rack[1-2]n[03-04]", "rack1n03"),
        ("a-b[001-128]-ib0,c", "a-b001-ib0"),
        ("", ""),
    ],
)
def test_the_first_name_of_a_list(names: str, first: str) -> None:
    assert first_host(names) == first


@pytest.mark.parametrize("address", ["", "a b", "host:x", "host:99999", "http://host"])
def test_an_address_that_is_none(address: str, cli: Cli) -> None:
    code, _, err = cli("pretrain", "bert.yaml", f'launch.address="{address}"')
    assert code == 2
    assert "launch.address" in err
    assert "HOST:PORT" in err


@pytest.mark.slow
def test_nobody_comes_to_the_meeting(cli: Cli) -> None:
    """Machine 0 without machine 1, and the other way round: both end in time."""
    two = ["launch.machines=2", "launch.timeout=1s", "launch.address=127.0.0.1:1"]
    code, _, err = cli("pretrain", "bert.yaml", "run=unmet", *two, "launch.machine=1")
    assert code == 1
    assert (
        "machine 1: machine 0 cannot be reached at 127.0.0.1:1 within 1 s (launch.timeout)" in err
    )
    assert "firewall" in err
    assert "frame #" not in err, "PyTorch's stack"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        two[-1] = f"launch.address=127.0.0.1:{probe.getsockname()[1]}"
    code, _, err = cli("pretrain", "bert.yaml", "run=unmet", *two, "launch.machine=0")
    assert code == 1
    assert "not all of the 2 machines came to 127.0.0.1:" in err
    assert "the same command on every machine" in err
    assert not Path("unmet").exists()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("launch.processes=9", "train.batch_size: 8 sequences for 9 processes"),
        ("launch.processes=100000", "launch.processes: 100,000 processes, and this machine has"),
    ],
)
def test_more_processes_than_there_is_work_for(setting: str, message: str, cli: Cli) -> None:
    code, _, err = cli("pretrain", "bert.yaml", "run=crowd", setting)
    assert code == 2
    assert message in err
    assert not Path("crowd").exists()


# --- Two machines, of one host: what must agree between them, and what may differ ---


def two_machines(
    *command: str, second: list[str], path: Path | None = None
) -> list[tuple[int, str]]:
    """Exit code and stderr of each.

    Args:
        command: Of both.
        second: Overrides of the second.
        path: A folder in which the second looks for packages first.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"launch.address=127.0.0.1:{probe.getsockname()[1]}"
    meeting, started = ["launch.machines=2", "launch.timeout=60s", address], []
    for number in (0, 1):
        more = [f"launch.machine={number}", *(second if number else [])]
        paths = [*([str(path)] if number and path else []), os.environ.get("PYTHONPATH", "")]
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "plmctl", *command, *meeting, *more],
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    texts = [one.communicate(timeout=600)[1] for one in started]
    return [(one.returncode, text) for one, text in zip(started, texts, strict=True)]


@pytest.mark.slow
def test_machines_may_have_unequal_numbers_of_processes(cli: Cli) -> None:
    command = ["pretrain", "bert.yaml", *QUIET, "log.every=1"]
    for code, text in two_machines(*command, "run=unequal", second=["launch.processes=2"]):
        assert code == 0, text
    assert json.loads(Path("unequal/environment.json").read_text())["processes"] == 3
    assert cli(*command, "run=equal")[0] == 0
    logs = [
        [json.loads(line) for line in Path(run, "metrics.jsonl").read_text().splitlines()]
        for run in ("unequal", "equal")
    ]
    for ours, alone in zip(*logs, strict=True):
        for key in ours.keys() & {"loss", "valid/loss", "grad_norm"}:
            assert ours[key] == pytest.approx(alone[key], rel=2e-6)


@pytest.mark.slow
def test_machines_with_other_versions_are_named_with_the_fix(world: Path, tmp_path: Path) -> None:
    """The second machine has other packages: what importlib.metadata finds first."""
    other = {"transformers": "5.1.0"}
    for name, number in other.items():
        folder = tmp_path / f"{name}-{number}.dist-info"
        folder.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n"
        (folder / "METADATA").write_text(metadata)
    here = {name: version(name) for name in other}
    host, shown = platform.node(), ", ".join(f"{k} {v}" for k, v in other.items())
    wanted = ", ".join(f"{name} {number}" for name, number in here.items())
    fix = " ".join(f"{name}=={number.partition('+')[0]}" for name, number in here.items())
    ends = two_machines("pretrain", "bert.yaml", "run=versions", second=[], path=tmp_path)
    for code, text in ends:
        assert code == 2, text
        assert f"process 1 on {host} has {shown}, but process 0 on {host} has {wanted}" in text
        assert f"pip install {fix}\n" in text
    assert not Path("versions").exists()


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("setting", "difference"),
    [
        ("launch.strategy=fsdp", 'launch.strategy: "ddp" -> "fsdp"'),
        ("launch.machines=3", "launch.machines: 2 -> 3"),
    ],
)
def test_machines_that_would_not_train_the_same_run(
    setting: str, difference: str, world: Path
) -> None:
    for code, text in two_machines("pretrain", "bert.yaml", "run=differ", second=[setting]):
        assert code == 2, text
        assert "has another config than process 0 on " in text
        assert difference in text
    assert not Path("differ").exists()
