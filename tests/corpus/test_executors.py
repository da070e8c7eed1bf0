"""The same store by any executor: this machine's processes, Slurm's jobs and Ray's workers."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from plmctl.config.sections import DataConfig, PrepareConfig
from plmctl.corpus.build import Executor, Root, Stores, TextEncoder, build_stores
from plmctl.corpus.remote import store_root
from plmctl.errors import ConfigError, DataError, PlmError
from tests.corpus.encoders import LetterEncoder, StuckEncoder
from tests.corpus.test_build import tree

PROJECT = Path(__file__).parents[2]
NOTICES: list[str] = []


def make(
    config: DataConfig,
    root: Root,
    executor: Executor | None = None,
    encoder: TextEncoder | None = None,
) -> Stores:
    return build_stores(
        config,
        encoder or LetterEncoder(),
        root=root,
        processes=1,
        progress=lambda done, total: None,
        notice=NOTICES.append,
        executor=executor,
    )


def machines(config: PrepareConfig) -> Executor:
    pytest.importorskip("datatrove", reason="needs datatrove: pip install 'plmctl[scale]'")
    from plmctl.corpus.executors import Machines

    return Machines(config, NOTICES.append)


def fake(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/bash\n{script}\n", encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand-ins for Slurm's commands: each task of an array is a process, one after another."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    fake(folder, "scontrol", "echo localhost")
    fake(
        folder, "srun", 'while [[ "$1" == -* ]]; do [ "$1" = -n ] && shift; shift; done; exec "$@"'
    )
    fake(folder, "squeue", f'[ -e {folder}/done ] || echo "$3 running"')
    fake(
        folder,
        "sbatch",
        f"""
        cp "${{@: -1}}" {folder}/script
        last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' {folder}/script)
        (for r in $(seq 0 $last); do
            SLURM_ARRAY_TASK_ID=$r SLURM_NODELIST=localhost RUN_OFFSET=0 \\
                bash {folder}/script || [ -z "$STOP" ] || break
         done; touch {folder}/done) >{folder}/log 2>&1 </dev/null &
        echo "Submitted batch job 17"
        """,
    )
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT), prepend=os.pathsep)
    return folder


SLURM = PrepareConfig(executor="slurm", workers=1, partition="cpu", time="1:00:00", memory_gb=3)


@pytest.mark.slow
def test_slurm_jobs_make_the_same_bytes(
    tmp_path: Path,
    corpus: Path,
    slurm: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = machines(SLURM)
    monkeypatch.setattr("plmctl.corpus.executors._LOOK", 0.1)
    monkeypatch.setattr("plmctl.corpus.executors._TASKS_PER_WORKER", 2)
    config = DataConfig(train=(f"{corpus}/*.txt",), valid=0.1)
    NOTICES.clear()
    make(config, tmp_path / "jobs", executor)
    make(config, tmp_path / "here")
    assert tree(tmp_path / "jobs") == tree(tmp_path / "here")
    assert NOTICES[0].startswith("submitted Slurm job 17: 2 tasks for")
    script = (slurm / "script").read_text()
    for line in ("partition=cpu", "time=1:00:00", "mem-per-cpu=3G", "array=0-1%1", "requeue"):
        assert f"#SBATCH --{line}\n" in script
    assert "launch_pickled_pipeline" in script
    assert f'export PATH="{Path(sys.executable).parent}:$PATH"' in script


@pytest.mark.slow
def test_slurm_jobs_write_to_a_url(
    tmp_path: Path, corpus: Path, slurm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = machines(SLURM)
    monkeypatch.setattr("plmctl.corpus.executors._LOOK", 0.1)
    monkeypatch.setattr("plmctl.corpus.executors._TASKS_PER_WORKER", 2)
    config = DataConfig(train=(f"file://{corpus}/*.txt",), valid=0.1)
    root = store_root(f"file://{tmp_path}/far", str(tmp_path / "cache"), 10**9)
    make(config, root, executor)
    make(config, tmp_path / "here")
    (there,) = (tmp_path / "far").iterdir()
    (there / "started").unlink()
    assert tree(there.parent) == tree(tmp_path / "here")


@pytest.mark.slow
def test_the_message_of_a_slurm_job_arrives(
    tmp_path: Path,
    corpus: Path,
    slurm: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = machines(SLURM)
    monkeypatch.setattr("plmctl.corpus.executors._LOOK", 0.1)
    monkeypatch.setattr("plmctl.corpus.executors._TASKS_PER_WORKER", 2)
    monkeypatch.setattr("plmctl.corpus.executors._ASK", 1)
    with (corpus / "b.txt").open("ab") as file:
        file.write(b"\xff\n")
    config = DataConfig(train=(f"{corpus}/*.txt",), valid=0.1)
    with pytest.raises(DataError, match=r"b\.txt:42001: not UTF-8") as caught:
        make(config, tmp_path / "jobs", executor)
    assert "iconv" in str(caught.value.hint)
    (folder,) = (tmp_path / "jobs").iterdir()
    assert not (folder / "manifest.json").exists()
    assert not list(folder.glob(".unfinished-*"))


def test_what_is_missing_is_refused_before_text_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="no command sbatch"):
        machines(SLURM).check()
    fake(tmp_path, "sbatch", "")
    with pytest.raises(ConfigError, match=r"prepare\.partition"):
        machines(SLURM.model_copy(update={"partition": None})).check()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match="ray is not installed") as caught:
        machines(PrepareConfig(executor="ray")).check()
    assert "pip install ray" in str(caught.value.hint)


def test_without_datatrove_the_line_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datatrove.executor.slurm", None)
    monkeypatch.delitem(sys.modules, "plmctl.corpus.executors", raising=False)
    with pytest.raises(ConfigError, match="datatrove") as caught:
        import plmctl.corpus.executors  # noqa: F401
    assert "pip install 'plmctl[scale]'" in str(caught.value.hint)


@pytest.mark.slow
def test_ray_on_two_nodes_and_a_killed_worker(
    tmp_path: Path,
    corpus: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cluster of two nodes on this machine; a worker killed midway; then the same command."""
    ray = pytest.importorskip("ray", reason="needs ray: pip install ray")
    executor = machines(PrepareConfig(executor="ray", memory_gb=1))
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", str(PROJECT), prepend=os.pathsep)
    config = DataConfig(train=(f"{corpus}/*.txt",), valid=0.1)
    make(config, tmp_path / "here")
    node = {"num_cpus": 1, "memory": 2 << 30, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    cluster.add_node(**node)
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        make(config, tmp_path / "ray", executor)
        assert tree(tmp_path / "ray") == tree(tmp_path / "here")

        (corpus / "x.txt").write_text("x b\n", encoding="utf-8")  # where a worker gets stuck
        pid_file = tmp_path / "stuck"
        encoder = StuckEncoder(pid_file)
        code = (
            "import os, signal, time\nfrom pathlib import Path\n"
            f"path = Path({str(pid_file)!r})\n"
            "while not (path.is_file() and path.read_text()):\n    time.sleep(0.1)\n"
            "os.kill(int(path.read_text()), signal.SIGKILL)\n"
        )
        with (
            subprocess.Popen([sys.executable, "-c", code]),
            pytest.raises(PlmError, match="was killed by SIGKILL, perhaps because memory"),
        ):
            make(config, tmp_path / "killed", executor, encoder)
        (folder,) = (tmp_path / "killed").iterdir()
        there = list(folder.glob("shards/*/facts.json"))
        assert there
        times = {path: path.stat().st_mtime_ns for path in there}
        make(config, tmp_path / "killed", executor)
        assert {path: path.stat().st_mtime_ns for path in there} == times
        make(config, tmp_path / "whole")
        assert tree(tmp_path / "killed") == tree(tmp_path / "whole")
    finally:
        ray.shutdown()
        cluster.shutdown()
