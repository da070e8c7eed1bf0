"""Faults of a run on the command line: locks, signals, changed text, lost processes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from plmctl.commands import pretrain
from plmctl.errors import PlmError
from plmctl.run.launch import children_of, descendants
from tests.commands.conftest import Cli, at_work, corpus_text, pretrain_config, run_main, write
from tests.commands.test_bad_input import finetune_config
from tests.processes import in_two_processes, is_running, start_processes

PLMCTL = [sys.executable, "-m", "plmctl"]
LONG = "train.phases=[{seq_len: 32, steps: 3000}]"
EXACT = ("step", "loss", "lr", "grad_norm", "tokens")


def records(run: str | Path) -> list[dict]:
    lines = (Path(run) / "metrics.jsonl").read_text().splitlines()
    return [{key: json.loads(line).get(key) for key in EXACT} for line in lines]


@contextmanager
def launched(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a process that is not forked, and may start others; it has logged a step."""
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*PLMCTL, *arguments], stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("step "):
                break
        try:
            yield process
        finally:
            process.kill()


def test_a_second_process_is_refused_until_the_first_is_gone(cli: Cli, tmp_path: Path) -> None:
    command = ["pretrain", "gpt2.yaml", "run=shared", LONG, "checkpoint.every=2"]
    with at_work(tmp_path / "log", *command) as first:
        for more in ([], ["--fresh"]):
            code, _, err = cli(*command, *more)
            assert code == 1
            assert f"shared: another process is working here (process {first.pid} on" in err
        first.kill()
    code, _, err = cli(*command, f"--until={records('shared')[-1]['step'] + 5}")
    assert code == 75, err
    assert not list(Path().glob("shared.old-*"))


def test_a_damaged_checkpoint_is_told_of_and_the_run_is_the_same(cli: Cli) -> None:
    command = ["pretrain", "gpt2.yaml", "log.every=1", "checkpoint.every=2"]
    assert cli(*command, "run=hurt", "--until=4")[0] == 75
    weights = Path("hurt/checkpoints/step-000004/model.safetensors")
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    code, _, err = cli(*command, "run=hurt", "--until=5")
    assert code == 75
    assert "step-000004: model.safetensors has other bytes than were written" in err
    assert "continuing after step 2" in err
    assert cli(*command, "run=unhurt", "--until=5")[0] == 75
    assert records("hurt") == records("unhurt")
    assert Path("hurt/checkpoints/.step-000004.damaged-1/model.safetensors").is_file()


def test_text_that_changed_is_refused(cli: Cli) -> None:
    Path("changing.txt").write_text(corpus_text(40), encoding="utf-8")
    command = ["pretrain", "gpt2.yaml", "run=changed", "data.train=[changing.txt]"]
    assert cli(*command, "--until=3")[0] == 75
    before = {path: path.read_bytes() for path in Path("changed").rglob("*") if path.is_file()}
    Path("changing.txt").write_text(corpus_text(40).replace("Anna", "Hanna"), encoding="utf-8")
    code, _, err = cli(*command)
    assert code == 3
    assert "changed: the data changed since this run started" in err
    assert "--fresh" in err
    assert {p: p.read_bytes() for p in Path("changed").rglob("*") if p.is_file()} == before
    Path("changing.txt").write_text(corpus_text(40), encoding="utf-8")  # later, the same text
    assert cli(*command)[0] == 0


def test_rows_that_changed_are_refused(cli: Cli, pretrained: dict[str, Path]) -> None:
    shutil.copy("rows.tsv", "moving.tsv")
    config = finetune_config(pretrained["bert"]) | {"run": "moved"}
    config["data"] = {"train": ["moving.tsv"], "valid": 0.2}
    write("moving.yaml", config)
    assert cli("finetune", "moving.yaml", "--until=2")[0] == 75
    text = Path("moving.tsv").read_text()
    Path("moving.tsv").write_text(text.replace("day 3", "day 4"))
    code, _, err = cli("finetune", "moving.yaml")
    assert code == 3
    assert "moved: the data changed since this run started" in err


def test_a_clock_set_back_takes_no_folder(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """--fresh twice at the same time of the clock: both old folders are kept."""
    monkeypatch.setattr(time, "strftime", lambda *_: "20200101-000000")
    for _ in range(3):
        assert cli("pretrain", "gpt2.yaml", "run=clocked", "--fresh", "--until=1")[0] == 75
    assert len(list(Path().glob("clocked.old-20200101-000000*"))) == 2


def test_a_run_folder_that_cannot_be_written(cli: Cli) -> None:
    """An immutable folder binds root too."""
    assert cli("pretrain", "gpt2.yaml", "run=frozen", "--until=1")[0] == 75
    folder = Path("frozen")
    freeze = ["chattr", "+i", "frozen"] if shutil.which("chattr") else ["false"]
    if os.geteuid():
        folder.chmod(0o500)
    elif subprocess.run(freeze, capture_output=True, check=False).returncode:
        pytest.skip("needs a file system with immutable folders, or a user who is not root")
    try:
        code, _, err = cli("pretrain", "gpt2.yaml", "run=frozen")
    finally:
        subprocess.run(["chattr", "-i", "frozen"], capture_output=True, check=False)
        folder.chmod(0o700)
    assert code == 1
    assert "frozen: cannot be written" in err
    assert cli("pretrain", "gpt2.yaml", "run=frozen")[0] == 0


def status(run: str) -> dict:
    return json.loads(Path(run, "status.json").read_text())


def test_a_run_says_how_it_stands(cli: Cli) -> None:
    """Stopped, failed, finished; running only while it is, or after a kill."""
    command = ["pretrain", "gpt2.yaml", "run=stands", "log.every=1"]
    assert cli(*command, "--until=3")[0] == 75
    assert status("stands")["status"] == "stopped"
    assert "after step 3 of 6" in status("stands")["message"]
    log = Path("stands/metrics.jsonl")
    whole = log.read_bytes()
    log.unlink()
    code, _, err = cli(*command)
    assert code == 3
    assert "--accept-gap" in err
    assert status("stands")["status"] == "failed"
    assert "metrics.jsonl" in status("stands")["message"]
    assert not log.exists()
    log.write_bytes(whole)
    assert cli(*command)[0] == 0
    assert status("stands")["status"] == "finished"
    assert status("stands")["files"] == [
        "model", "eval/valid.json", "eval/samples.json", "report.html",
    ]  # fmt: skip
    assert "gridfinished" not in Path("stands/report.html").read_text()
    assert "not finished" not in Path("stands/report.html").read_text()


def test_a_gap_in_the_log_is_accepted_on_request(cli: Cli) -> None:
    command = ["pretrain", "gpt2.yaml", "run=gap", "log.every=1"]
    assert cli(*command, "--until=3")[0] == 75
    lines = Path("gap/metrics.jsonl").read_bytes().splitlines(keepends=True)
    Path("gap/metrics.jsonl").write_bytes(lines[0])
    assert cli(*command)[0] == 3
    code, _, err = cli(*command, "--accept-gap")
    assert code == 0
    assert "continuing with a gap: the checkpoint belongs to 3 lines, and 1 are there" in err
    steps = [line["step"] for line in records("gap")]
    assert steps == [1, 4, 5, 6, 6]


@pytest.mark.slow
def test_two_processes_refuse_a_log_that_lost_lines(world: Path, tmp_path: Path) -> None:
    """Both end: none waits for the other in a collective."""
    command = ["pretrain", "gpt2.yaml", "run=gap-of-two", "launch.processes=2", "log.every=1"]

    def exits(code: int, *more: str) -> None:
        def body(rank: int) -> None:
            assert run_main(*command, *more) == code

        in_two_processes(body, tmp_path)

    exits(75, "--until=3")
    whole = Path("gap-of-two/metrics.jsonl").read_bytes()
    Path("gap-of-two/metrics.jsonl").write_bytes(whole[:-20])
    exits(3)
    assert status("gap-of-two")["status"] == "failed"
    exits(0, "--accept-gap")
    assert [line["step"] for line in records("gap-of-two")] == [1, 2, 4, 5, 6, 6]


@pytest.mark.parametrize("left", [[], [".lock"], [".config.yaml.writing"]])
def test_what_a_kill_in_the_first_write_leaves_is_continued(cli: Cli, left: list[str]) -> None:
    folder = Path(f"begun-{len(left)}{''.join(left)[:4]}")
    folder.mkdir()
    for name in left:
        (folder / name).write_text("run: beg")
    assert cli("pretrain", "gpt2.yaml", f"run={folder}", "--until=1")[0] == 75
    assert not (folder / ".config.yaml.writing").exists()
    (folder / "config.yaml").unlink()
    assert cli("pretrain", "gpt2.yaml", f"run={folder}", "--until=1")[0] == 2  # it has a log


def test_an_empty_model_folder_is_no_finished_run(cli: Cli, pretrained: dict[str, Path]) -> None:
    """Nor is one without weights, whose files are kept. Runs of older versions have no status."""
    run = Path("emptied")
    shutil.copytree(pretrained["gpt2"], run)
    command = ["pretrain", "gpt2.yaml", "run=emptied"]
    (run / "status.json").unlink()
    whole = (run / "model/model.safetensors").read_bytes()
    code, _, err = cli(*command)
    assert code == 0
    assert "is finished" in err
    assert not (run / "status.json").exists()
    (run / "model/model.safetensors").unlink()
    assert cli(*command)[0] == 0
    assert (run / "model/model.safetensors").read_bytes() == whole
    assert (run / "model.incomplete-1/config.json").is_file()
    shutil.rmtree(run / "model")
    (run / "model").mkdir()
    assert cli(*command)[0] == 0
    assert (run / "model/model.safetensors").read_bytes() == whole
    assert not (run / "model.incomplete-2").exists()


def test_a_model_without_results_and_checkpoints_is_not_trained_again(
    cli: Cli, pretrained: dict[str, Path]
) -> None:
    run = Path("pruned")
    shutil.copytree(pretrained["gpt2"], run)
    shutil.rmtree(run / "checkpoints")
    (run / "report.html").unlink()
    before = (run / "model/model.safetensors").stat().st_mtime_ns
    command = ["pretrain", "gpt2.yaml", "run=pruned"]
    assert cli(*command)[0] == 0  # the report alone
    assert (run / "report.html").is_file()
    assert (run / "model/model.safetensors").stat().st_mtime_ns == before
    (run / "eval/valid.json").unlink()
    code, _, err = cli(*command)
    assert code == 1
    assert "the model exists, but eval/valid.json is missing, and no checkpoint is left" in err
    (run / "status.json").write_text("{")
    assert cli(*command)[0] == 1
    assert (run / "model/model.safetensors").stat().st_mtime_ns == before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGINT])  # SIGTERM: the next test
def test_preparation_stops_and_goes_on(number: signal.Signals, world: Path) -> None:
    name = f"much-{number.name}"
    Path(f"{name}.txt").write_text("\n\n".join([corpus_text(150)] * 60), encoding="utf-8")
    command = [*PLMCTL, "prepare", "bert.yaml", f"data.train=[{name}.txt]", f"data.store={name}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        while not list(Path(name).glob("*/shards/*/facts.json")):
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(number)
        err = process.communicate()[1]
    assert process.returncode == 75, err
    assert f"stopped by {number.name}; finished work is kept" in err
    times = {path: path.stat().st_mtime_ns for path in Path(name).glob("*/shards/*/facts.json")}
    assert subprocess.run(command, check=False).returncode == 0
    assert all(path.stat().st_mtime_ns == when for path, when in times.items())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_all_processes_stop_after_one_save(number: signal.Signals, world: Path) -> None:
    """The signal reaches the launcher alone."""
    name = f"two-{number.name}"
    command = ["pretrain", "bert.yaml", f"run={name}", LONG, "launch.processes=2"]
    with launched(*command) as process:
        process.send_signal(number)
        err = process.communicate()[1]
    assert process.returncode == 75, err
    assert err.count("run the same command again to resume") == 1
    events = [json.loads(line)["event"] for line in Path(name, "events").read_text().splitlines()]
    assert events == ["started", "saved"]


@pytest.mark.slow
def test_a_process_of_a_run_is_lost(world: Path) -> None:
    config = pretrain_config("bert") | {"checkpoint": {"every": 2}, "run": "lost"}
    write("lost.yaml", config)
    with launched("pretrain", "lost.yaml", LONG, "launch.processes=2") as process:
        os.kill(descendants(process.pid)[-1], signal.SIGKILL)
        err = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGKILL, err
    killed = "of 2 was killed by SIGKILL, perhaps because memory ran out\n  run the same command"
    assert killed in err
    assert status("lost")["status"] == "failed"
    assert killed in status("lost")["message"]
    more = records("lost")[-1]["step"] + 3
    again = [*PLMCTL, "pretrain", "lost.yaml", LONG, "launch.processes=1", f"--until={more}"]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
    assert done.returncode == 75, done.stderr
    assert "continuing after step" in done.stderr


SHORT = "launch.timeout=4s"


@pytest.mark.slow
def test_the_others_wait_while_one_counts(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer than any work with a limit may take, which is six times `launch.timeout`."""

    def count(*_: object) -> None:
        time.sleep(26)
        raise PlmError("counted to the end")

    monkeypatch.setattr(pretrain, "yardsticks", count)
    command = ["pretrain", str(world / "gpt2.yaml"), f"run={tmp_path / 'counting'}", SHORT]
    children = start_processes(2, lambda rank: sys.exit(run_main(*command)), tmp_path)
    assert [child.wait() for child in children] == [1, 1]
    texts = [(tmp_path / f"log-{rank}").read_text() for rank in (0, 1)]
    assert "counted to the end" in texts[0]
    assert not any("stuck" in text or "no process makes progress" in text for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_the_status_names_a_lost_process(lost: int, cli: Cli, tmp_path: Path) -> None:
    """The main process writes it, or, if that is lost, another one; there is no launcher."""
    run = f"hears-nothing-of-{lost}"
    command = ["pretrain", "bert.yaml", f"run={run}", LONG, "log.every=1", SHORT]
    children = start_processes(2, lambda rank: sys.exit(run_main(*command)), tmp_path)
    while not Path(run, "metrics.jsonl").exists():
        assert not any(child.ended() for child in children), (tmp_path / "log-0").read_text()
        time.sleep(0.01)
    os.kill(children[lost].pid, signal.SIGSTOP)
    code = children[1 - lost].wait()
    children[lost].kill()
    text = (tmp_path / f"log-{1 - lost}").read_text()
    assert code == 1, text
    assert status(run)["status"] == "failed", text
    code, out, _ = cli("status", run, "--json")
    assert code == 0
    message = json.loads(out)["message"]
    assert json.loads(out)["state"] == "failed"
    assert f"process {lost} on {socket.gethostname()} is lost: nothing heard from it" in message
    assert "run the same command again" in message


@pytest.mark.slow
def test_a_killed_process_without_a_launcher_is_named(world: Path, tmp_path: Path) -> None:
    """On another machine its launcher knows, and this one has only a connection that broke."""
    command = ["pretrain", "bert.yaml", "run=broke", LONG, "log.every=1", SHORT]
    children = start_processes(3, lambda rank: sys.exit(run_main(*command)), tmp_path)
    while not Path("broke", "metrics.jsonl").exists():
        assert not any(child.ended() for child in children), (tmp_path / "log-0").read_text()
        time.sleep(0.01)
    children[1].kill()
    codes = [children[0].wait(), children[2].wait()]
    text = (tmp_path / "log-0").read_text()
    assert codes == [1, 1], text
    message = status("broke")["message"]
    assert f"process 1 on {socket.gethostname()} is lost: the connection broke" in message


@pytest.mark.slow
def test_a_process_whose_data_loading_hangs_is_named(world: Path) -> None:
    """The process that makes the batches of one rank is stopped, as by a file server."""
    run, more = "no-batch", ["compute.workers=1", "launch.processes=2", "launch.timeout=6s"]
    with launched("pretrain", "bert.yaml", f"run={run}", LONG, *more) as process:
        ranks = {rank_of(pid): pid for pid in children_of(process.pid)}
        (worker,) = descendants(ranks["1"])
        os.kill(worker, signal.SIGSTOP)
        err = process.communicate()[1]
    assert process.returncode == 1, err
    named = f"process 1 on {socket.gethostname()} is stuck: waiting for the batch, step "
    assert named in err
    assert named in status(run)["message"]
    assert not is_running(worker)


def rank_of(pid: int) -> str:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return dict(one.decode().partition("=")[::2] for one in variables)["RANK"]


@pytest.mark.slow
def test_a_run_comes_out_again_and_what_changed_is_named(
    cli: Cli, pretrained: dict[str, Path]
) -> None:
    shutil.copytree(pretrained["bert"], "first")
    environment = json.loads(Path("first/environment.json").read_text())
    environment["versions"]["torch"] = "1.0"
    Path("first/environment.json").write_text(json.dumps(environment))

    def reproduced() -> tuple[int, dict]:
        command = [*PLMCTL, "reproduce", "first", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, json.loads(done.stdout)

    code, report = reproduced()
    assert code == 0
    assert report["equal"]
    assert report["losses"] == 3
    assert report["changed"]["torch"][0] == "1.0"
    assert not list(Path().glob("first.again*"))

    lines = Path("first/metrics.jsonl").read_text().splitlines(keepends=True)
    second = json.loads(lines[1]) | {"loss": 1.0}
    Path("first/metrics.jsonl").write_text(
        "".join([lines[0], json.dumps(second) + "\n", *lines[2:]])
    )
    code, report = reproduced()
    assert code == 1
    assert report["first_difference"].startswith("step 4: loss 1.0, ")
