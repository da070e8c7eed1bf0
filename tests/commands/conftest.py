"""A small corpus, its tokenizers and runs on it: real commands in seconds."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from plmctl.__main__ import main
from tests.processes import in_two_processes

NAMES = ["Anna", "Bela", "Carl", "Dora", "Emil", "Fritz", "Gerda", "Hugo", "Ida", "Jonas"]
VERBS = ["sees", "likes", "follows", "greets", "forgets", "paints", "calls", "helps"]
PLACES = ["garden", "river", "market", "tower", "bridge", "forest", "harbour", "station"]


def sentence(number: int) -> str:
    a, b = NAMES[number % 10], NAMES[(number * 7 + 3) % 10]
    return f"{a} {VERBS[number % 8]} {b} at the {PLACES[(number // 3) % 8]} on day {number % 31}."


def corpus_text(documents: int = 60, sentences: int = 12) -> str:
    return "\n\n".join(
        "\n".join(sentence(d * 17 + s) for s in range(sentences)) for d in range(documents)
    )


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory with a corpus, rows and two tokenizers; commands run in it."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "text.txt").write_text(corpus_text(), encoding="utf-8")
    rows = [
        f"{sentence(n)}\t{VERBS[n % 8] in ('sees', 'likes', 'helps', 'greets')}" for n in range(200)
    ]
    (folder / "rows.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n", encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    for name, algorithm, size in (("bert", "wordpiece", 300), ("gpt2", "byte_bpe", 400)):
        write(
            f"tok-{name}.yaml",
            {
                "run": f"tok-{name}",
                "algorithm": algorithm,
                "family": name,
                "vocab_size": size,
                "data": {"train": ["text.txt"]},
            },
        )
        assert run_main("train-tokenizer", f"tok-{name}.yaml") == 0
    for name in ("bert", "gpt2"):
        write(f"{name}.yaml", pretrain_config(name))
    yield folder
    os.chdir(before)


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
        "compute": {"device": "cpu"},
    }


def write(name: str, data: object) -> None:
    Path(name).write_text(yaml.safe_dump(data), encoding="utf-8")


def run_main(*arguments: str) -> int:
    """The exit code of a command line, run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["plmctl", *arguments])
        try:
            main()
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


def run_in_two(logs: Path, *arguments: str) -> None:
    """A command line that succeeds, in two processes as a launcher starts them."""

    def body(rank: int) -> None:
        assert run_main(*arguments) == 0

    in_two_processes(body, logs)


Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(world: Path, capfd: pytest.CaptureFixture[str]) -> Cli:
    """``cli(*arguments)`` gives the exit code, stdout and stderr of a command."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run_main(*arguments)
        out, err = capfd.readouterr()
        return code, out, err

    return run


@pytest.fixture(scope="session")
def pretrained(world: Path) -> dict[str, Path]:
    """A finished tiny run of each family."""
    for name in ("bert", "gpt2"):
        assert run_main("pretrain", f"{name}.yaml", f"run=done-{name}") == 0
    return {name: world / f"done-{name}" for name in ("bert", "gpt2")}
