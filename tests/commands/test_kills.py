"""Every command killed at every rename, and stopped by a full disk: the same command completes it.

Whatever a command leaves gets its name by a rename, so that the moments just before and just after
each rename are all that a kill can tell apart. A command is run in a forked process which counts
its renames; then, for each of them, in a process that ends itself with SIGKILL there, and again as
a user would. The folder must be that of a command that nobody disturbed.
"""

import json
import os
import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from plmctl.commands.verify_resume import records, start_child
from tests.commands.conftest import run_main, working_in, write
from tests.commands.test_bad_input import finetune_config

SMALL = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 1}
SMALL_GPT = {"n_layer": 1, "n_embd": 16, "n_head": 1}
# What tells of the moment, the machine or the command line: only that it is there is compared.
OF_THE_MOMENT = {
    "events", "environment.json", "status.json", "report.html", "out.html", "README.md",
    "manifest.json",
}  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A command line, and what it works on.

    Attributes:
        arguments: Of plmctl.
        makes: The files and folders that it makes.
        needs: The files and folders of the world that it reads.
        again: Exit codes of the same command after a kill.
    """

    arguments: list[str]
    makes: list[str]
    needs: list[str]
    again: tuple[int, ...] = (0,)


@dataclass
class Sweep:
    """What came of the kills of a command."""

    renames: list[str] = field(default_factory=list)
    kills: int = 0
    continued: int = 0
    different: list[str] = field(default_factory=list)


def commands(world: Path, pretrained: dict[str, Path]) -> dict[str, Command]:
    data = {"train": ["text.txt"], "valid": 0.1, "store": "store"}
    train = {"batch_size": 4, "phases": [{"seq_len": 16, "steps": 4}]}
    shared = {"data": data, "train": train, "checkpoint": {"every": 2, "keep": 1}}
    shared |= {"log": {"every": 1, "validate_every": 2, "validate_samples": 8}}
    shared |= {"compute": {"device": "cpu"}, "run": "run"}
    models = {"bert": SMALL, "gpt2": SMALL_GPT}
    for family, model in models.items():
        model = {"family": family, "size": "tiny", **model}
        objective = {"name": "mlm+nsp" if family == "bert" else "clm"}
        config = shared | {"model": model, "tokenizer": f"tok-{family}", "objective": objective}
        write(f"k-{family}.yaml", config)
    tuned = finetune_config(Path(pretrained["bert"].name)) | {"run": "run"}
    tuned["train"] |= {"epochs": 0.3, "batch_size": 16, "keep": "best", "validate_every": 1}
    tuned["checkpoint"] = {"every": 1, "keep": 1}
    tuned["log"] = {"every": 1}
    tuned["data"] |= {"valid": 0.1}
    write("k-ft.yaml", tuned)
    model = f"{pretrained['bert'].name}/model"
    measures = [{"name": name, "data": ["text.txt"], "seq_len": 16} for name in ("mlm", "nsp")]
    evaluation = {"run": "run", "model": model, "measures": measures}
    write("k-eval.yaml", evaluation | {"compute": {"device": "cpu"}})
    if not Path("store").is_dir():
        for family in models:
            assert run_main("prepare", f"k-{family}.yaml") == 0
    text, bert = ["text.txt"], [pretrained["bert"].name]
    return {
        "pretrain gpt2": Command(
            ["pretrain", "k-gpt2.yaml"],
            ["run", "store"],
            ["k-gpt2.yaml", "tok-gpt2", "store", *text],
        ),
        "finetune": Command(["finetune", "k-ft.yaml"], ["run"], ["k-ft.yaml", "rows.tsv", *bert]),
        "finetune --seeds": Command(
            ["finetune", "k-ft.yaml", "--seeds", "2", "train.epochs=0.1"],
            ["run"],
            ["k-ft.yaml", "rows.tsv", *bert],
        ),
        "train-tokenizer": Command(
            ["train-tokenizer", "tok-bert.yaml", "run=run"], ["run"], ["tok-bert.yaml", *text]
        ),
        "prepare": Command(
            ["prepare", "k-bert.yaml", "data.store=run"],
            ["run"],
            ["k-bert.yaml", "tok-bert", *text],
        ),
        "eval": Command(["eval", "k-eval.yaml"], ["run"], ["k-eval.yaml", *text, *bert]),
        "export": Command(["export", *bert, "run"], ["run"], ["tok-bert", *bert], again=(0, 2)),
        "report": Command(["report", *bert, "--out", "out.html"], ["out.html"], bert),
    }


def run(
    command: Command, place: Path, kill: tuple[int, bool] | None = None, limit: int | None = None
) -> tuple[int, list[str]]:
    """The exit code of a command in a process of its own, and what it renamed.

    Args:
        command: The command.
        place: Its working directory.
        kill: The number of a rename, from 1, and whether it is made before the kill.
        limit: Bytes that no file may grow over.
    """
    child = start_child(partial(_body, command.arguments, place, kill, limit), place / "log")
    code = child.wait()
    renamed = place / "renamed"
    targets = renamed.read_text().splitlines() if renamed.is_file() else []
    renamed.unlink(missing_ok=True)
    return code, targets


def _body(
    arguments: list[str], place: Path, kill: tuple[int, bool] | None, limit: int | None
) -> None:
    os.chdir(place)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    renamed: list[str] = []

    def counting(original: Callable[..., None]) -> Callable[..., None]:
        def rename(source: Any, target: Any, *more: Any, **also: Any) -> None:
            renamed.append(str(target))
            if kill == (len(renamed), False):
                os.kill(os.getpid(), signal.SIGKILL)
            original(source, target, *more, **also)
            if kill == (len(renamed), True):
                os.kill(os.getpid(), signal.SIGKILL)

        return rename

    os.rename, os.replace = counting(os.rename), counting(os.replace)
    code = run_main(*arguments)
    if limit is None:
        Path("renamed").write_text("\n".join(renamed))
    raise SystemExit(code)


def import_for(world: Path, command: Command, folder: Path) -> None:
    """Run a command here once: its forked processes then have what it imports."""
    with working_in(a_place(world, folder, command)):
        assert run_main(*command.arguments) == 0


def a_place(world: Path, folder: Path, command: Command) -> Path:
    folder.mkdir(parents=True)
    for name in command.needs:
        if name == "store":  # a run adds to it what it has found of the text
            shutil.copytree(world / name, folder / name)
        else:
            (folder / name).symlink_to(world / name)
    return folder


def contents(place: Path, command: Command) -> dict[str, object]:
    """Every file that a command has made, as far as it is the same each time."""
    content_of: dict[str, object] = {}
    for name in command.makes:
        top = place / name
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and path.name != ".lock" and not _is_left(path):
                content_of[str(path.relative_to(place))] = _content(path)
    return content_of


def _is_left(path: Path) -> bool:
    """What stays of a token store beside the store: of a kill, and when it was last checked."""
    name = path.name.removesuffix(".writing")
    hidden = name.startswith(".") and name.rpartition(".")[2].isdecimal()  # a process id
    return hidden or "shards" in path.parts or path.name.startswith(".checked-")


def _content(path: Path) -> object:
    if path.name == "status.json":
        return json.loads(path.read_text())["status"]
    if path.name in OF_THE_MOMENT:
        return "there"
    if path.name == "metrics.jsonl":
        return records(path.parent)
    if path.suffix != ".json":
        return path.read_bytes()
    document = json.loads(path.read_text(encoding="utf-8"))
    if isinstance(document, dict):
        results = document.get("results")
        counted = results.get("yardsticks", []) if isinstance(results, dict) else []
        for times in (document, results, *counted, *document.get("methods", [])):
            if isinstance(times, dict) and times.pop("seconds", None) is not None:
                document.pop("checksum", None)  # of the seconds, too
    return document


def differences(ours: dict[str, object], theirs: dict[str, object]) -> list[str]:
    return [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]


def sweep(world: Path, command: Command, base: Path, wanted: Callable[[str, bool], bool]) -> Sweep:
    """Kill a command at those of its renames that are wanted, by their target and the moment."""
    result = Sweep()
    import_for(world, command, base / "here")
    whole = a_place(world, base / "whole", command)
    code, result.renames = run(command, whole)
    assert code == 0, (whole / "log").read_text()
    expected = contents(whole, command)
    for number, target in enumerate(result.renames, 1):
        for after in (False, True):
            if not wanted(target, after):
                continue
            place = a_place(world, base / f"{number}-{after}", command)
            code, _ = run(command, place, (number, after))
            assert code == -signal.SIGKILL, (place / "log").read_text()
            code, _ = run(command, place)
            where = f"{'after' if after else 'before'} {target}"
            result.kills += 1
            result.continued += code in command.again
            wrong = differences(expected, contents(place, command))
            if code not in command.again:
                wrong.append(f"exit code {code}: {(place / 'log').read_text()[-500:]}")
            result.different += [f"{where}: {name}" for name in wrong]
            shutil.rmtree(place)
    return result


ALL = (
    "pretrain gpt2", "finetune", "finetune --seeds", "train-tokenizer", "prepare", "eval", "export",
    "report",
)  # fmt: skip
# Renames just after which a run once counted as finished, and others that are each a case: by the
# end of the target, and whether the rename is made.
SOME = {
    "pretrain gpt2": {("run/config.yaml", False), ("run/model", True), ("samples.json", True)},
    "train-tokenizer": {("run/SHA256SUMS", True), ("run/tokenizer.json", True)},
}


@pytest.mark.sweep
@pytest.mark.parametrize("name", ALL)
def test_a_kill_at_any_rename_is_made_good(
    name: str, world: Path, pretrained: dict[str, Path], tmp_path: Path
) -> None:
    command = commands(world, pretrained)[name]

    def wanted(target: str) -> bool:
        """Of the second of two seeds one moment: all others are those of ``finetune``."""
        return "seed=" not in target or target.endswith("seed=43/model")

    result = sweep(world, command, tmp_path, lambda target, after: wanted(target))
    print(
        f"\n{name:18} {len(result.renames):3} renames {result.kills:3} kills "
        f"{result.continued:3} continued {len(result.different):3} different"
    )
    assert result.kills == 2 * len(list(filter(wanted, result.renames))) > 0
    assert not result.different


@pytest.mark.parametrize("name", SOME)
def test_a_kill_at_some_renames_is_made_good(
    name: str, world: Path, pretrained: dict[str, Path], tmp_path: Path
) -> None:
    def wanted(target: str, after: bool) -> bool:
        return any(target.endswith(end) and after == count for end, count in SOME[name])

    result = sweep(world, commands(world, pretrained)[name], tmp_path, wanted)
    assert result.kills == len(SOME[name])
    assert not result.different


def fill_the_disk(world: Path, command: Command, base: Path) -> list[int]:
    """Run a command where no file may have the size of one that it makes, then where it may.

    A training is at its end before: it has saved its last checkpoint, the largest that it writes.

    Returns:
        The limits at which it failed.
    """
    import_for(world, command, base / "here")
    whole = a_place(world, base / "whole", command)
    code, renames = run(command, whole)
    assert code == 0, (whole / "log").read_text()
    trains = command.arguments[0] in ("pretrain", "finetune")
    end = 1 + renames.index("run/eval/valid.json") if trains else None
    expected, failed = contents(whole, command), []
    sizes = {
        path.stat().st_size
        for path in (whole / "run").rglob("*")
        if path.is_file() and path.name != ".lock"
    }
    for size in sorted(sizes - {0}):
        place = a_place(world, base / f"limit-{size - 1}", command)
        if end is not None:
            assert run(command, place, (end, False))[0] == -signal.SIGKILL
        code, _ = run(command, place, limit=size - 1)
        log = (place / "log").read_text()
        assert "Traceback" not in log, log
        assert code in (0, 1), log
        failed += [size - 1] if code else []
        code, _ = run(command, place)
        assert code == 0, (place / "log").read_text()
        assert not differences(expected, contents(place, command)), size
        shutil.rmtree(place)
    return failed


@pytest.mark.sweep
@pytest.mark.parametrize("name", ["pretrain gpt2", "finetune", "train-tokenizer", "export", "eval"])
def test_a_full_disk_is_told_and_made_good(
    name: str, world: Path, pretrained: dict[str, Path], tmp_path: Path
) -> None:
    command = commands(world, pretrained)[name]
    failed = fill_the_disk(world, command, tmp_path)
    print(f"\n{name:18} failed with files of at most {failed} bytes")
    assert len(failed) > 2
