"""``plmctl submit``: the script, what is refused, and jobs under a Slurm that this file plays."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from plmctl.commands.submit import split_arguments, time_limit
from plmctl.errors import ConfigError
from plmctl.run.launch import descendants
from tests.commands.conftest import Cli, pretrain_config, write
from tests.commands.test_bad_input import finetune_config, refused
from tests.commands.test_main_job import records

# --- A Slurm of one machine: sbatch keeps the script, and the test is its controller ---


_SBATCH = """#!/bin/sh
[ "$1" = --parsable ] || exit 9
echo "$2" > "$FAKE_SLURM/submitted"
echo "4321;here"
"""

_SCONTROL = """#!/bin/sh
[ -e "$FAKE_SLURM/no-requeue" ] && exit 1
echo "$@" >> "$FAKE_SLURM/requeued"
"""

# A task per node, with the variables that Slurm gives it. Signals are passed on, as srun does, and
# the exit code is the highest of all.
_SRUN = f"""#!{sys.executable}
import os, signal, subprocess, sys
options = [a for a in sys.argv[1:] if a.startswith("--")]
place = next(n for n, a in enumerate(sys.argv) if n and not a.startswith("--"))
nodes = int(next(a for a in options if a.startswith("--nodes=")).partition("=")[2])
assert f"--ntasks={{nodes}}" in options and "--ntasks-per-node=1" in options
tasks = []
signal.signal(signal.SIGUSR1, lambda number, frame: [t.send_signal(number) for t in tasks])
for node in range(nodes):
    place_of = {{
        "SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURM_LOCALID": "0",
        "SLURM_NTASKS": str(nodes), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NODELIST": os.environ["SLURM_JOB_NODELIST"],
    }}
    tasks.append(subprocess.Popen(sys.argv[place:], env=os.environ | place_of))
codes = [task.wait() for task in tasks]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""


class Slurm:
    """Runs submitted scripts as batch jobs, one at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in {"sbatch": _SBATCH, "srun": _SRUN, "scontrol": _SCONTROL}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    @property
    def requeued(self) -> list[str]:
        file = self.folder / "requeued"
        return file.read_text().splitlines() if file.exists() else []

    def start(self, restarts: int = 0) -> subprocess.Popen[str]:
        """The batch shell of the submitted script, on the nodes that the script asks for."""
        script = Path((self.folder / "submitted").read_text().strip())
        options = directives(script.read_text())
        nodes = options["nodes"]
        # Only the first name is ever looked up.
        names = ["localhost", *(f"n{number}" for number in range(1, int(nodes)))]
        variables = {
            "SLURM_JOB_ID": "4321", "SLURM_JOBID": "4321", "SLURM_NODEID": "0",
            "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": nodes,
            "SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes,
            "SLURM_JOB_NODELIST": ",".join(names), "SLURM_NODELIST": ",".join(names),
            "SLURM_JOB_NAME": options["job-name"], "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        if restarts:
            variables["SLURM_RESTART_COUNT"] = str(restarts)
        environment = os.environ | variables
        with Path(options["output"].replace("%j", "4321")).open("a", encoding="utf-8") as log:
            return subprocess.Popen(
                ["bash", script], cwd=options["chdir"], env=environment, stdout=log, stderr=log,
                text=True,
            )  # fmt: skip


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    folder = tmp_path / "slurm"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(folder))
    return Slurm(folder)


def directives(script: str) -> dict[str, str]:
    """The options of sbatch in a script, as Slurm reads them: before the first command."""
    head = re.split(r"^[^#\n]", script, maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line.removeprefix("#SBATCH ") for line in head.splitlines() if "#SBATCH" in line]
    words = [word for line in lines for word in shlex.split(line)]
    return dict(word.removeprefix("--").partition("=")[::2] for word in words)


def wait_for_step(run: Path, job: subprocess.Popen[str]) -> None:
    """Wait until a run has logged a step."""
    while job.poll() is None:
        file = run / "metrics.jsonl"
        if file.exists() and '"loss"' in file.read_text():
            return
        time.sleep(0.05)
    raise AssertionError("the job ended before its first step")


# --- The script ---


def test_the_script_of_a_config(cli: Cli) -> None:
    settings = ["launch.processes=2", "compute.device=auto", "run=runs/a b"]
    code, out, err = cli(
        "submit", "bert.yaml", "--slurm", "partition=gpu", "time=26h", "nodes=3", "exclusive",
        *settings, "--before", "module load cuda", "--save-before", "10m",
    )  # fmt: skip
    assert code == 0, err
    script = Path("runs/a b.sbatch")
    assert script.read_text() + "\n" == out
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    here = Path.cwd()
    assert directives(out) == {
        "job-name": "a b", "output": f"{here}/runs/a b-%j.out", "open-mode": "append",
        "nodes": "3", "ntasks-per-node": "1", "gpus-per-node": "2", "cpus-per-task": "8",
        "chdir": str(here), "partition": "gpu", "time": "1-02:00:00", "exclusive": "",
        "signal": "B:USR1@600", "requeue": "",
    }  # fmt: skip
    step = out.replace("\\\n", " ").partition("\nsrun ")[2].partition(" &\n")[0]
    assert shlex.split(step)[:4] == [
        "--nodes=3", "--ntasks=3", "--ntasks-per-node=1", "--cpus-per-task=8",
    ]  # fmt: skip
    assert shlex.split(step)[-7:] == [
        sys.executable, "-m", "plmctl", "pretrain", "bert.yaml", *settings[:2], "run=runs/a b",
    ][-7:]  # fmt: skip
    # This shell must not expand what differs between nodes.
    assert set(re.findall(r"SLURM_\w+", out)) == {"SLURM_JOB_ID", "SLURM_RESTART_COUNT"}
    assert out.index("module load cuda") < out.index("export NCCL_DEBUG") < out.index("\nsrun ")
    assert "nothing is submitted yet" in err
    assert "on 3 nodes" in err


def test_kinds_of_jobs(cli: Cli) -> None:
    write("ft-job.yaml", finetune_config(Path("bert")) | {"run": "jobs/ft"})
    for arguments, command, name in (
        (["bert.yaml", "run=jobs/x"], "pretrain bert.yaml run=jobs/x", "x"),
        (["bert.yaml", "run=jobs/x", "--prepare"], "prepare bert.yaml run=jobs/x", "x-prepare"),
        (["ft-job.yaml"], "finetune ft-job.yaml", "ft"),
    ):
        code, out, err = cli("submit", *arguments, "--slurm", "--json")
        assert code == 0, err
        result = json.loads(out)
        assert result["command"] == command.split()[0]
        assert result["job"] is None
        assert result["script"] == f"jobs/{name}.sbatch"
        assert f"-m plmctl {command} &" in result["text"]
        # On a CPU the number of threads is unknown, and nobody has asked for a GPU.
        assert "gpus" not in result["text"]
        assert "cpus-per-task=16" in err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        ([], ["which scheduler", "--slurm"]),
        (["--slurm", "partitoin=gpu"], ["partitoin=gpu", "did you mean 'partition'"]),
        (["--slurm", "signal=USR2@3"], ["signal", "--save-before"]),
        (["--slurm", "array=0-3"], ["array", "a job trains one run"]),
        (["--slurm", "time=soon"], ["time: expected a time such as", "'soon'"]),
        (["--slurm", "time=5m"], ["time: 5m leaves no time to train", "--save-before"]),
        (["--slurm", "time=1h", "--save-before=19h"], ["--save-before: 19h", "65535"]),
        (["--slurm", "nodes=two"], ["nodes: expected a whole number", "'two'"]),
        (["--slurm", "nodes=3", "launch.machines=2"], ["nodes: 3, but launch.machines is 2"]),
        (
            ["--slurm", "gpus-per-node=2", "launch.processes=4", "compute.device=auto"],
            ["gpus-per-node: 2, but launch.processes is 4"],
        ),
        (["--slurm", "partition"], ["partition: expected a value"]),
        (["--slurm", "optim.lrr=1"], ["optim.lrr", "lr"]),
        (["--slurm", "--prepare", "nodes=2"], ["`plmctl prepare` runs on one node"]),
        (["--slurm", "--out=text.txt"], ["text.txt exists", "--out"]),
    ],
)
def test_what_is_refused(cli: Cli, arguments: list[str], parts: list[str]) -> None:
    before = Path("text.txt").read_text()
    refused(cli("submit", "bert.yaml", "run=refused/job", *arguments), 2, *parts)
    assert not Path("refused").exists()
    assert Path("text.txt").read_text() == before


def test_a_config_of_another_kind_is_refused(cli: Cli) -> None:
    refused(cli("submit", "tok-bert.yaml", "--slurm"), 2, "train-tokenizer", "pretrain or finetune")


def test_a_script_that_was_changed_is_kept(cli: Cli) -> None:
    command = ["submit", "bert.yaml", "run=edited/job", "--slurm", "--requeues=0"]
    assert cli(*command)[0] == 0
    assert cli(*command, "time=2h")[0] == 0
    script = Path("edited/job.sbatch")
    assert {"no-requeue", "time"} <= directives(script.read_text()).keys()
    script.write_text(script.read_text().replace("02:00:00", "03:00:00"))
    refused(cli(*command), 2, "was changed since", "sbatch edited/job.sbatch")
    assert "03:00:00" in script.read_text()


def test_without_sbatch_the_script_is_written(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, err = cli("submit", "bert.yaml", "run=alone/job", "--slurm", "--now")
    assert code == 1
    assert "sbatch cannot be run here" in err
    assert "sbatch alone/job.sbatch" in err
    assert Path("alone/job.sbatch").is_file()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24h", ("1-00:00:00", 86_400)),
        ("90m", ("01:30:00", 5400)),
        ("1d12h", ("1-12:00:00", 129_600)),
        ("90s", ("00:02:00", 120)),
        ("30", ("30", 1800)),
        ("30:15", ("30:15", 1815)),
        ("02:00:00", ("02:00:00", 7200)),
        ("1-12", ("1-12", 129_600)),
        ("1-12:30", ("1-12:30", 131_400)),
        ("infinite", ("UNLIMITED", sys.maxsize)),
    ],
)
def test_time_limits(text: str, expected: tuple[str, int]) -> None:
    assert time_limit(text) == expected


def test_arguments_are_of_the_config_or_of_slurm() -> None:
    sections = ["run", "train", "optim"]
    arguments = ["optim.lr=1", "qos=high", "train.phases[0].steps=2", "hold", "mem=4G", "run=a"]
    assert split_arguments(arguments, sections) == (
        ["optim.lr=1", "train.phases[0].steps=2", "run=a"],
        {"qos": "high", "hold": None, "mem": "4G"},
    )
    with pytest.raises(ConfigError, match="neither"):
        split_arguments(["hold=1"], sections)


# --- Jobs ---


STEPS = "train.phases=[{seq_len: 32, steps: 30}]"


def job(name: str, nodes: int, processes: int) -> list[str]:
    config = pretrain_config("bert") | {"run": name, "log": {"every": 1}}
    config["launch"] = {"processes": processes}
    config["model"] |= {"hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0}
    write(f"{name}.yaml", config)
    return [f"{name}.yaml", STEPS, "--slurm", f"nodes={nodes}", "time=1h", "cpus-per-task=1"]


@pytest.mark.sweep
@pytest.mark.parametrize(("nodes", "processes"), [(1, 1), (2, 1)])
def test_a_job_is_signalled_queued_again_and_finishes(
    nodes: int, processes: int, cli: Cli, slurm: Slurm
) -> None:
    name = f"job-{nodes}-{processes}"
    code, out, err = cli("submit", *job(name, nodes, processes), "--now", "--json")
    assert code == 0, err
    assert json.loads(out)["job"] == "4321"
    first = slurm.start()
    wait_for_step(Path(name), first)
    first.send_signal(signal.SIGUSR1)  # as --signal=B:USR1@300: the batch shell alone
    log = Path(f"{name}-4321.out")
    assert first.wait(100) == 75, log.read_text()
    assert slurm.requeued == ["requeue 4321"]
    stopped = records(Path(name))[-1]["step"]
    assert 1 <= stopped < 30
    assert slurm.start(restarts=1).wait(200) == 0, log.read_text()
    assert slurm.requeued == ["requeue 4321"]

    alone = ["pretrain", f"{name}.yaml", STEPS, f"run={name}-alone", "launch.processes=1"]
    assert cli(*alone)[0] == 0
    whole = records(Path(f"{name}-alone"))
    for ours, uninterrupted in zip(records(Path(name)), whole, strict=True):
        for key in ours.keys() & {"loss", "valid/loss", "grad_norm"}:
            assert ours[key] == pytest.approx(uninterrupted[key], rel=2e-6), key


def test_a_job_is_queued_again_only_after_the_signal_and_not_for_ever(
    cli: Cli, slurm: Slurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script around a command that stands for plmctl: it exits with 75 when it is signalled."""
    stand_in = slurm.folder / "python"
    stand_in.write_text(
        "#!/bin/bash\ntrap 'exit 75' USR1 TERM\n"
        'echo "$NCCL_DEBUG $TORCHINDUCTOR_CACHE_DIR" > "$FAKE_SLURM/environment"\n'
        'touch "$FAKE_SLURM/up"\n'
        "while :; do sleep 0.05; done\n"
    )
    stand_in.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(stand_in))
    arguments = ["submit", "bert.yaml", "run=stand-in", "--slurm", "--now", "--requeues", "2"]
    assert cli(*arguments)[0] == 0
    log = Path("stand-in-4321.out")

    def ended(number: signal.Signals, restarts: int, *, to_tasks: bool = False) -> int:
        (slurm.folder / "up").unlink(missing_ok=True)
        shell = slurm.start(restarts)
        while not (slurm.folder / "up").exists():
            assert shell.poll() is None, log.read_text()
            time.sleep(0.02)
        # The shell, srun, and the task that it has started.
        pids = [shell.pid, *descendants(shell.pid)]
        os.kill(pids[2] if to_tasks else pids[0], number)
        return shell.wait(20)

    monkeypatch.setenv("NCCL_DEBUG", "INFO")  # one's own stays
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared/cache")
    assert ended(signal.SIGUSR1, 1) == 75
    environment = (slurm.folder / "environment").read_text()
    assert environment == "INFO /shared/cache/plmctl/inductor\n"
    assert slurm.requeued == ["requeue 4321"]
    assert ended(signal.SIGUSR1, 2) == 75  # the last time
    assert "queued again 2 times already" in log.read_text()
    assert ended(signal.SIGTERM, 0, to_tasks=True) == 75  # as scancel: the job was cancelled
    assert slurm.requeued == ["requeue 4321"]
    (slurm.folder / "no-requeue").touch()
    assert ended(signal.SIGUSR1, 0) == 75
    assert "could not be put back" in log.read_text()
    assert log.read_text().count("sbatch stand-in.sbatch") == 2


# --- The files of the documentation for other schedulers ---


def test_the_files_for_other_schedulers_are_yaml() -> None:
    page = (Path(__file__).parents[2] / "docs" / "clusters.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```yaml\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    documents = [document for block in blocks for document in yaml.safe_load_all(block)]
    (jobset,) = (one for one in documents if one.get("kind") == "JobSet")
    (sky,) = (one for one in documents if "num_nodes" in one)
    (job_,) = jobset["spec"]["replicatedJobs"]
    pod = job_["template"]["spec"]
    assert pod["parallelism"] == pod["completions"]
    (container,) = pod["template"]["spec"]["containers"]
    assert "plmctl pretrain" in " ".join(container["command"])
    assert "plmctl pretrain" in sky["run"]
