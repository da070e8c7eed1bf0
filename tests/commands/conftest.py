"""A small corpus, its tokenizers and runs on it: real commands in seconds."""

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from plmctl.commands.verify_resume import Child
from plmctl.corpus.store import TokenStore
from plmctl.evaluation.model import LoadedModel
from plmctl.reporting import report
from plmctl.run import pretraining
from tests.conftest import Cli, made_once, run_main
from tests.processes import forked, in_processes

NAMES = ["Anna", "Bela", "Carl", "Dora", "Emil", "Fritz", "Gerda", "Hugo", "Ida", "Jonas"]
VERBS = ["sees", "likes", "follows", "greets", "forgets", "paints", "calls", "helps"]
PLACES = ["garden", "river", "market", "tower", "bridge", "forest", "harbour", "station"]


def sentence(number: int) -> str:
    a, b = NAMES[number % 10], NAMES[(number * 7 + 3) % 10]
    return f"{a} {VERBS[number % 8]} {b} at the {PLACES[(number // 3) % 8]} on day {number % 31}."


@pytest.fixture(scope="session", autouse=True)
def one_sample() -> Iterator[None]:
    """A validation writes one sample, not six: they take longer than a tiny training."""
    all_of = pretraining.held_out_samples

    def one(model: LoadedModel, store: TokenStore, seed: int, objective: Any, count: int) -> dict:
        return all_of(model, store, seed, objective, min(count, 1))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pretraining, "held_out_samples", one)
        yield


def corpus_text(documents: int = 60, sentences: int = 12) -> str:
    return "\n\n".join(
        "\n".join(sentence(d * 17 + s) for s in range(sentences)) for d in range(documents)
    )


@pytest.fixture(scope="module", autouse=True)
def one_plot() -> Iterator[None]:
    """A report has one plot, not five: they take a third of a tiny run. Other folders have all."""
    all_of = report.plots_of
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "plots_of", lambda runs: all_of(runs)[:1])
        yield


@contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """With another working directory."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture(scope="session")
def first_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every world begins with: a corpus, rows, two tokenizers and two configs."""
    return made_once(tmp_path_factory, "first-world", make_world)


def make_world(folder: Path) -> None:
    (folder / "text.txt").write_text(corpus_text(), encoding="utf-8")
    rows = [
        f"{sentence(n)}\t{VERBS[n % 8] in ('sees', 'likes', 'helps', 'greets')}" for n in range(200)
    ]
    (folder / "rows.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    with working_in(folder):
        for name, algorithm, size in (("bert", "wordpiece", 300), ("gpt2", "byte_bpe", 400)):
            tokenizer = {
                "run": f"tok-{name}",
                "algorithm": algorithm,
                "family": name,
                "vocab_size": size,
                "data": {"train": ["text.txt"]},
            }
            write(f"tok-{name}.yaml", tokenizer)
            assert run_main("train-tokenizer", f"tok-{name}.yaml") == 0
            write(f"{name}.yaml", pretrain_config(name))


@pytest.fixture(scope="session")
def first_runs(first_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two finished runs, which ``pretrained`` copies."""

    def make(folder: Path) -> None:
        shutil.copytree(first_world, folder, dirs_exist_ok=True)
        with working_in(folder):
            for name in ("bert", "gpt2"):
                assert run_main("pretrain", f"{name}.yaml", f"run=done-{name}") == 0

    return made_once(tmp_path_factory, "first-runs", make)


@pytest.fixture(scope="module")
def world(first_world: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with a corpus, rows and two tokenizers; commands run in it.

    Each file of tests has its own: the names of its runs are no concern of the others.
    """
    folder = tmp_path_factory.mktemp("world")
    shutil.copytree(first_world, folder, dirs_exist_ok=True)
    with working_in(folder):
        yield folder


def pretrain_config(family: str) -> dict:
    size = (
        {"hidden_size": 32, "num_attention_heads": 2}
        if family == "bert"
        else {"n_embd": 32, "n_head": 2}
    )
    return {
        "run": f"run-{family}",
        "tokenizer": f"tok-{family}",
        "model": {"family": family, "size": "tiny", **size},
        "data": {"train": ["text.txt"], "valid": 0.1},
        "train": {"batch_size": 8, "phases": [{"seq_len": 32, "steps": 6}]},
        "optim": {"lr": 0.001},
        "log": {"every": 2},
        "compute": {"device": "cpu", "precision": "fp32"},
    }


def write(name: str, data: object) -> None:
    Path(name).write_text(yaml.safe_dump(data), encoding="utf-8")


def run_in(count: int, logs: Path, *arguments: str, code: int = 0) -> None:
    """A command line that ends with a code, in processes as a launcher starts them."""

    def body(rank: int) -> None:
        assert run_main(*arguments) == code

    in_processes(count, body, logs)


def run_in_two(logs: Path, *arguments: str) -> None:
    """A command line that succeeds, in two processes as a launcher starts them."""
    run_in(2, logs, *arguments)


@contextmanager
def at_work(log: Path, *arguments: str) -> Iterator[Child]:
    """A command line at work in a forked process, which has printed a step to ``log``."""

    def body() -> None:
        raise SystemExit(run_main(*arguments))

    child = forked(body, log)
    try:
        while not (log.is_file() and re.search("^step ", log.read_text(), re.MULTILINE)):
            assert not child.ended(), log.read_text()
            time.sleep(0.01)
        yield child
    finally:
        if not child.ended():
            child.kill()


@pytest.fixture
def cli(world: Path, cli: Cli) -> Cli:
    """As everywhere; the working directory is ``world``."""
    return cli


@pytest.fixture(scope="module")
def pretrained(world: Path, first_runs: Path) -> dict[str, Path]:
    """A finished tiny run of each family."""
    for name in ("bert", "gpt2"):
        shutil.copytree(first_runs / f"done-{name}", world / f"done-{name}")
    return {name: world / f"done-{name}" for name in ("bert", "gpt2")}
