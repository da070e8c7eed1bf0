"""Commands on a machine that refuses something: disk, permissions, files, memory, streams, locale.

Each ends well, or with one message and exit code 1, and leaves no temporary files; the same command
goes on afterwards.
"""

import json
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from plmctl.errors import machine_error
from tests.commands.conftest import pretrain_config, run_main, sentence, write
from tests.commands.test_bad_input import finetune_config
from tests.processes import forked, within

PLMCTL = [sys.executable, "-m", "plmctl"]

COMMANDS = {
    "config copy": ["config", "copy", "demo/pretrain", "c.yaml"],
    "config list": ["config", "list"],
    "train-tokenizer": ["train-tokenizer", "tok-bert.yaml", "run=t"],
    "prepare": ["prepare", "bert.yaml", "data.store=s"],
    "preview": ["preview", "gpt2.yaml", "data.store=s", "--json"],
    "pretrain": ["pretrain", "bert.yaml", "run=r", "data.store=s"],
    "finetune": ["finetune", "ft.yaml", "run=f"],
    "eval": ["eval", "eval.yaml", "run=e"],
    "compare-tokenizers": [
        "compare-tokenizers", "tok-bert", "--text", "text.txt", "--out", "t.html",
    ],
    "export": ["export", "done-bert", "x"],
    "push": ["push", "done-bert", "a/b", "--license", "mit", "--dry-run"],
    "predict": ["predict", "done-bert/model", "Anna [MASK]"],
    "predict rows": ["predict", "done-ft/model", "--input", "rows.tsv", "--output", "p.jsonl"],
    "generate": ["generate", "done-gpt2/model", "--prompt", "A", "--max-new-tokens", "4"],
    "generate to a file": [
        "generate", "done-gpt2/model", "--prompt", "A", "--max-new-tokens", "4", "--output", "g"
    ],
    "neighbours": ["neighbours", "done-bert/model", "text.txt", "--word", "Anna"],
    "compare": ["compare", "done-bert", "done-gpt2", "--out", "cmp.html"],
    "report": ["report", "done-bert", "--out", "rep.html", "--plots", "plots"],
    "init": ["init", "text.txt", "--out", "initial", "--no-smoke"],
    "submit": ["submit", "bert.yaml", "--slurm", "--out", "job.sh", "time=1h"],
    "plan": ["plan", "bert.yaml"],
    "scaling": ["scaling", "gpt2.yaml", "--plan", "--out", "sc"],
    "board": ["board", ".", "--out", "b"],
    "status": ["status", "done-bert"],
    "eval of a suite": [
        "suite", "done-bert/model", "glue", "--data", "glue", "--tasks", "cola", "run=u",
        "train.epochs=0.1", "train.max_length=32", "compute.device=cpu",
    ],
    "doctor": ["doctor", "bert.yaml"],
    "reproduce": ["reproduce", "done-gpt2", "--lines", "1"],
    "verify-resume": ["verify-resume", "gpt2.yaml", "run=v", "--kills", "0", "--steps", "4"],
}  # fmt: skip


@pytest.fixture(scope="module")
def models(world: Path) -> Path:
    """Finished runs, and the configs of all commands."""
    for name in ("bert", "gpt2"):
        every = {"checkpoint": {"every": 2}}
        write(f"every-{name}.yaml", pretrain_config(name) | every)
        assert run_main("pretrain", f"every-{name}.yaml", f"run=done-{name}") == 0
    write("ft.yaml", finetune_config(world / "done-bert") | {"run": "done-ft"})
    assert run_main("finetune", "ft.yaml") == 0
    measure = {"name": "mlm", "data": ["text.txt"]}
    for name, start, count in (("train", 0, 80), ("dev", 80, 40)):
        texts = [{"sentence": sentence(n), "label": n % 2} for n in range(start, start + count)]
        lines = "".join(f"{json.dumps(row)}\n" for row in texts)
        Path("glue/cola").mkdir(parents=True, exist_ok=True)
        Path(f"glue/cola/{name}.jsonl").write_text(lines, encoding="utf-8")
    write("eval.yaml", {"run": "e", "model": "done-bert/model", "measures": [measure]})
    return world


def limit_files(size: int) -> None:
    """No file may become larger: what a quota or a full disk does, for any user."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def limit_handles(more: int) -> None:
    """So many files may be open beside those that are."""
    free = [os.open("/dev/null", os.O_RDONLY) for _ in range(more + 1)]  # the lowest numbers
    for handle in free:
        os.close(handle)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1], hard))


def limit_memory(more: int) -> None:
    """So many bytes more than now may be reserved."""
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


def full(number: int) -> None:
    """Nothing can be written to stdout (1) or stderr (2)."""
    os.dup2(os.open("/dev/full", os.O_WRONLY), number)


def outcome(folder: Path, arguments: list[str], before: Callable[[], None]) -> tuple[int, str]:
    """Exit code and output of a command in a forked process on a changed machine."""
    reads, writes = os.pipe()  # a file would have its own limit

    def body() -> None:
        os.chdir(folder)
        errors = os.dup(2)
        sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # as in a process of its own
        logging.raiseExceptions = False  # handlers of before have pytest's file as their stream
        before()
        try:
            code = run_main(*arguments)
        except BaseException as error:
            os.write(errors, f"Traceback: {error!r}".encode())
            code = 99
        os._exit(code)

    child = forked(body, Path(f"/dev/fd/{writes}"))
    os.close(writes)
    with os.fdopen(reads, errors="replace") as output:
        text = output.read()
    return child.wait(), text


def linked(models: Path, folder: Path) -> Path:
    """A working directory with links to all inputs."""
    folder.mkdir(exist_ok=True)
    for path in models.iterdir():
        if path.suffix in (".yaml", ".txt", ".tsv") or path.name.startswith(
            ("done-", "tok-", "glue")
        ):
            (folder / path.name).symlink_to(path)
    return folder


def left_over(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob(".*writing*")]


CONDITIONS: dict[str, tuple[Callable[[], None], tuple[int, ...]]] = {
    "no file may grow": (lambda: limit_files(0), (0, 1)),
    "no file over 30 kB": (lambda: limit_files(30_000), (0, 1)),
    "stdout is full": (lambda: full(1), (0, 1)),
    "stderr is full": (lambda: full(2), (0,)),
    "no more open files": (lambda: limit_handles(0), (1,)),
    "6 more open files": (lambda: limit_handles(6), (0, 1)),
    "32 MB more memory": (lambda: limit_memory(1 << 25), (0, 1)),
    "others may not read": (lambda: os.umask(0o077) and None, (0,)),
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_on_every_machine(
    name: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(linked(models, tmp_path / "well"))
    assert run_main(*COMMANDS[name]) == 0  # all is imported: the first file is one of the command
    wrong: list[str] = []
    for condition, (before, allowed) in CONDITIONS.items():
        folder = linked(models, tmp_path / condition.replace(" ", "-"))
        code, output = outcome(folder, COMMANDS[name], before)
        fine = code in allowed and "Traceback" not in output and not left_over(folder)
        if code and condition.endswith("open files"):
            fine &= "(`ulimit -n` is " in output
        if fine and code and condition != "stdout is full":  # all else is written there
            again, output = outcome(folder, COMMANDS[name], lambda: None)
            fine = again == 0
        if not fine:
            wrong.append(f"{condition}: {code} {left_over(folder)}\n{output[-2000:]}")
        shutil.rmtree(folder)
    assert not wrong, "\n".join(wrong)


def test_no_memory_for_a_call_is_no_defect(tmp_path: Path) -> None:
    """Python reserves the frames of deep calls in pieces; 3.11 does not say when there is none."""

    def depth(calls: int) -> int:
        return calls and depth(calls - 1) + 1

    def body() -> None:
        limit_memory(0)
        kept: BaseException | None = None
        try:
            depth(900)
        except BaseException as error:
            kept = error
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert kept is not None
        known = machine_error(kept)
        assert known is not None, repr(kept)
        assert "memory ran out" in known.message

    within(60, body, tmp_path / "log")


@pytest.mark.parametrize(
    "name",
    ["config copy", "predict rows", "generate to a file", "report", "compare"],
)
def test_a_full_disk_is_one_message_with_the_name_of_the_file(
    name: str, models: Path, tmp_path: Path
) -> None:
    folder = linked(models, tmp_path / "here")
    code, output = outcome(folder, COMMANDS[name], lambda: limit_files(0))
    assert code == 1, output
    assert "Traceback" not in output
    assert ": cannot be written: File too large\n  no file may be larger there" in output
    assert not left_over(folder)


def test_a_training_on_a_full_disk_goes_on_to_the_same_weights(
    models: Path, tmp_path: Path
) -> None:
    folder = linked(models, tmp_path / "here")
    command = ["pretrain", "every-gpt2.yaml", "run=r", "data.store=s"]
    code, output = outcome(folder, command, lambda: limit_files(200_000))
    assert code == 1
    assert "step-000002: cannot be written: File too large" in output
    assert "it resumes from the last checkpoint (" in output
    assert not left_over(folder)
    code, output = outcome(folder, command, lambda: None)
    assert code == 0, output
    weights = load_file(folder / "r/model/model.safetensors")
    reference = load_file(models / "done-gpt2/model/model.safetensors")
    assert all(weights[key].equal(value) for key, value in reference.items())


def test_a_model_is_not_damaged_because_no_file_can_be_opened(models: Path, tmp_path: Path) -> None:
    folder = linked(models, tmp_path / "here")
    code, output = outcome(folder, COMMANDS["predict"], lambda: limit_handles(0))
    assert code == 1, output
    assert "damaged" not in output
    assert "(`ulimit -n` is " in output


@pytest.mark.sweep
@pytest.mark.parametrize("limit", ["ulimit -n 24", "ulimit -f 30"])
def test_two_processes_on_a_limited_machine(limit: str, models: Path, tmp_path: Path) -> None:
    folder = linked(models, tmp_path / "here")
    command = ["pretrain", "bert.yaml", "run=r", "data.store=s", "launch.processes=2"]
    shell = ["bash", "-c", f'{limit}; exec "$@"', "bash", *PLMCTL, *command]
    ended = subprocess.run(shell, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 1, ended.stderr
    assert ended.stderr.count("plmctl: ") == 1
    assert "Traceback" not in ended.stderr
    assert "machines came" not in ended.stderr, "there is one machine"
    assert not left_over(folder)
    code, output = outcome(folder, command, lambda: None)
    assert code == 0, output


@pytest.mark.sweep
def test_a_message_that_nobody_reads_stops_no_training(models: Path, tmp_path: Path) -> None:
    folder = linked(models, tmp_path / "here")
    command = ["pretrain", "gpt2.yaml", "run=r", "data.store=s"]
    with subprocess.Popen(
        [*PLMCTL, *command], cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    ) as process:
        assert process.stderr is not None
        process.stderr.close()
    assert process.returncode == 0
    assert (folder / "r/report.html").is_file()


def test_a_run_whose_folder_is_gone_stops_and_makes_no_other(models: Path, tmp_path: Path) -> None:
    """At the next save; nothing is logged before it."""
    folder = linked(models, tmp_path / "here")
    phases = "train.phases=[{seq_len: 32, steps: 3000}]"
    command = ["pretrain", "every-gpt2.yaml", "run=r", "data.store=s", phases, "log.every=3000"]

    def body() -> None:
        os.chdir(folder)
        raise SystemExit(run_main(*command))

    child = forked(body, tmp_path / "log")
    while not (folder / "r/checkpoints/step-000002").is_dir():
        assert not child.ended(), (tmp_path / "log").read_text()
        time.sleep(0.01)
    (folder / "r").rename(folder / "moved")
    assert child.wait() == 1
    output = (tmp_path / "log").read_text()
    assert "cannot be written: No such file or directory" in output
    assert "Traceback" not in output
    assert not (folder / "r").exists()


@pytest.mark.parametrize("mask", [0o027, 0o002])
def test_all_files_follow_the_umask(mask: int, models: Path, tmp_path: Path) -> None:
    """Of a tokenizer, a store, a run with the best weights, and an exported model."""
    folder = linked(models, tmp_path / "here")
    run = ["pretrain", "every-gpt2.yaml", "run=r", "data.store=s", "checkpoint.keep_best=true"]
    for command in (COMMANDS["train-tokenizer"], run, ["export", "r", "x"]):
        code, output = outcome(folder, command, lambda: os.umask(mask) and None)
        assert code == 0, output
    written = [path for name in ("t", "s", "r", "x") for path in (folder / name).rglob("*")]
    assert any(path.suffix == ".safetensors" for path in written)
    wrong = {
        str(path): oct(path.stat().st_mode & 0o777)
        for path in written
        if path.stat().st_mode & 0o777 != (0o777 if path.is_dir() else 0o666) & ~mask
    }
    assert not wrong
