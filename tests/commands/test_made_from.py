"""What a result was made from is part of it: an input changes, and the same command runs again.

It measures again, or refuses to go on, or names what changed; it never gives the old result as if
nothing had happened.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from plmctl.hashing import changed, model_hashes
from tests.commands.conftest import Cli, pretrain_config, run_main, sentence, write
from tests.commands.test_bad_input import finetune_config, refused

RESUMES = ("--until", "4")


# --- The inputs, and one change of each ---


def change(path: Path) -> None:
    """Another model, network, tokenizer or text in the same place."""
    if path.suffix == ".safetensors":
        weights = load_file(path)
        save_file({name: -tensor for name, tensor in weights.items()}, path, {"format": "pt"})
    elif path.name == "config.json":
        fields = json.loads(path.read_text())
        fields["layer_norm_eps"] = 0.1
        path.write_text(json.dumps(fields))
    elif path.name == "tokenizer.json":
        document = json.loads(path.read_text())
        vocab = document["model"]["vocab"]
        ordered = sorted(vocab, key=vocab.get)
        mixed = [*ordered[:10], *reversed(ordered[10:])]
        document["model"]["vocab"] = {token: number for number, token in enumerate(mixed)}
        path.write_text(json.dumps(document))
    elif path.suffix == ".tsv":
        path.write_text(path.read_text() + f"{sentence(5)}\tTrue\n")
    else:
        path.write_text(path.read_text().replace("Anna", "Bela"))


@contextmanager
def another(path: Path) -> Iterator[None]:
    """With something else in a place; what was there comes back."""
    before = path.read_bytes()
    change(path)
    try:
        yield
    finally:
        path.write_bytes(before)


@dataclass(frozen=True)
class Again:
    """A command that runs, and runs again when one of its inputs is another one.

    Attributes:
        first: What makes the result, or starts the run.
        again: The same command; what it says of a change is in ``names``.
        names: For each input the name by which a message tells of it.
        code: Of the second command.
    """

    first: tuple[str, ...]
    again: tuple[str, ...]
    names: dict[str, str]
    code: int


BASE = {
    "done-bert/model/model.safetensors": "model weights",
    "done-bert/model/config.json": "model config",
    "done-bert/model/tokenizer.json": "model tokenizer",
}
# With another tokenizer a continued pretraining is refused before that, with the token.
START = {name: what.replace("model", "init_from", 1) for name, what in BASE.items()}
TEACHER = {name: what.replace("model", "teacher", 1) for name, what in BASE.items()}
TEACHER.pop("done-bert/model/tokenizer.json")
ROWS, TEXT = {"rows.tsv": "data"}, {"text.txt": "data"}
TUNED = {name.replace("done-bert", "tuned-done"): what for name, what in BASE.items()}

COMMANDS = {
    "eval": Again(("eval", "ev.yaml"), ("eval", "ev.yaml"), BASE | TEXT, 0),
    "eval of a task": Again(("eval", "task.yaml"), ("eval", "task.yaml"), TUNED | ROWS, 0),
    "eval at checkpoints": Again(
        ("eval", "ev.yaml", "--at-checkpoints", "run=ev-at"),
        ("eval", "ev.yaml", "--at-checkpoints", "run=ev-at"),
        TEXT,
        0,
    ),
    "finetune, resumed": Again(
        ("finetune", "ft.yaml", "run=ft-r", *RESUMES),
        ("finetune", "ft.yaml", "run=ft-r"),
        BASE | ROWS,
        3,
    ),
    "finetune, finished": Again(
        ("finetune", "ft.yaml", "run=ft-f"), ("finetune", "ft.yaml", "run=ft-f"), BASE | ROWS, 0
    ),
    "finetune --seeds": Again(
        ("finetune", "ft.yaml", "run=ft-s", "--seeds", "2"),
        ("finetune", "ft.yaml", "run=ft-s", "--seeds", "3"),
        BASE | ROWS,
        3,
    ),
    "pretrain, resumed": Again(
        ("pretrain", "on.yaml", "run=on-r", *RESUMES),
        ("pretrain", "on.yaml", "run=on-r"),
        {name: what for name, what in (START | TEXT).items() if "tokenizer" not in name},
        3,
    ),
    "pretrain, finished": Again(
        ("pretrain", "on.yaml", "run=on-f"), ("pretrain", "on.yaml", "run=on-f"), START | TEXT, 0
    ),
    "distillation, resumed": Again(
        ("pretrain", "student.yaml", "run=st-r", *RESUMES),
        ("pretrain", "student.yaml", "run=st-r"),
        TEACHER,
        3,
    ),
    "distillation, finished": Again(
        ("pretrain", "student.yaml", "run=st-f"),
        ("pretrain", "student.yaml", "run=st-f"),
        TEACHER,
        0,
    ),
    "train-tokenizer": Again(
        ("train-tokenizer", "tok-bert.yaml", "run=tok-again"),
        ("train-tokenizer", "tok-bert.yaml", "run=tok-again"),
        {"text.txt": "text.txt may have"},
        0,
    ),
    "compare": Again(
        ("eval", "ev.yaml", "run=ev-c"), ("compare", "ev-c", "done-gpt2"), BASE, 0
    ),
    "push": Again(
        ("eval", "ev.yaml", "run=ev-u"),
        ("push", "done-bert", "me/bert", "--dry-run", "--eval", "ev-u"),
        {place: what for place, what in BASE.items() if what == "model weights"},
        3,
    ),
    "report": Again(("eval", "ev.yaml", "run=ev-p"), ("report", "ev-p"), BASE, 0),
}  # fmt: skip
QUICK = {("eval", "done-bert/model/model.safetensors"), ("finetune, resumed", "rows.tsv")}


@pytest.fixture(scope="module")
def inputs(world: Path, pretrained: dict[str, Path]) -> Path:
    """The configs; the model has no probes, as published ones: they do not tell of a change."""
    model = "done-bert/model"
    Path(model, "tokenizer_probe.json").unlink()
    compute = {"device": "cpu", "precision": "fp32"}
    measures = [{"name": "mlm", "data": ["text.txt"], "seq_len": 32, "held_out": 0.1}]
    write("ev.yaml", {"run": "ev", "model": model, "measures": measures, "compute": compute})
    task = [{"name": "task", "data": ["rows.tsv"]}]
    write("task.yaml", {"run": "ta", "model": "tuned-done/model", "measures": task})
    tuned = finetune_config(Path("done-bert")) | {"checkpoint": {"every": 4}}
    tuned["train"] |= {"epochs": 0.6, "batch_size": 16}
    write("ft.yaml", tuned)
    on = pretrain_config("bert") | {"tokenizer": "tok-bert", "checkpoint": {"every": 4}}
    write("on.yaml", on | {"model": {"family": "bert", "init_from": model}})
    student = {"family": "distilbert", "n_layers": 1, "dim": 32, "hidden_dim": 128, "n_heads": 2}
    teaching = {"objective": {"name": "distillation", "teacher": model}, "model": student}
    write("student.yaml", on | teaching)
    return world


@pytest.fixture(scope="module")
def made() -> set[str]:
    """The commands whose first part is done."""
    return set()


@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param(
            name,
            place,
            id=f"{name}: {place}",
            marks=[] if (name, place) in QUICK else [pytest.mark.slow, pytest.mark.sweep],
        )
        for name, command in COMMANDS.items()
        for place in command.names
    ],
)
def test_an_input_changes_and_the_command_runs_again(
    name: str, place: str, inputs: Path, made: set[str], cli: Cli
) -> None:
    command = COMMANDS[name]
    if any("tuned-done" in one for one in command.names) and "tuned" not in made:
        assert run_main("finetune", "ft.yaml", "run=tuned-done") == 0
        Path("tuned-done/model/tokenizer_probe.json").unlink()
        made.add("tuned")
    if name not in made:
        code, _, err = cli(*command.first)
        assert code in (0, 75), err
        made.add(name)
    with another(Path(place)):
        code, out, err = cli(*command.again)
    assert code == command.code, err
    told = [line for line in err.splitlines() if "changed since" in line]
    assert any(command.names[place] in line for line in told), err
    assert "Traceback" not in err
    if command.code == 0 and name.startswith("eval"):
        assert out  # measured again, and back again
        assert "changed since" in cli(*command.again)[2]
        assert "measuring" not in cli(*command.again)[2]


# --- Results and hashes ---


def test_a_result_that_was_edited_or_has_no_hashes_is_measured_again(
    inputs: Path, cli: Cli
) -> None:
    command = ("eval", "ev.yaml", "run=edited", "--json")
    code, right, err = cli(*command)
    assert code == 0, err
    path = Path("edited/eval/mlm.json")
    document = json.loads(path.read_text())
    edited = document | {"results": document["results"] | {"perplexity": 1.0}}
    older = {key: value for key, value in document.items() if key not in ("hashes", "checksum")}
    for content in (json.dumps(edited), json.dumps(older), '{"results": {"loss": 1.0}}', "{"):
        path.write_text(content)
        code, out, err = cli(*command)
        assert (code, json.loads(out)) == (0, json.loads(right))
        assert "edited, damaged, or written by an older version" in err
        assert json.loads(path.read_text()) == document
    # Where it cannot be measured again, it is refused or left out.
    path.write_text(json.dumps(edited))
    assert cli("report", "edited")[0] == 0
    assert "mlm.json (changed since it was written)" in Path("edited/report.html").read_text()


def test_a_run_of_an_older_version_resumes_with_a_line(inputs: Path, cli: Cli) -> None:
    assert cli("finetune", "ft.yaml", "run=older", *RESUMES)[0] == 75
    path = Path("older/environment.json")
    environment = json.loads(path.read_text())
    hashes = environment["hashes"]
    environment["hashes"] = {name: hashes[name] for name in ("data", "valid")}
    path.write_text(json.dumps(environment))
    code, _, err = cli("finetune", "ft.yaml", "run=older")
    assert code == 0, err
    assert "kept no hash of the model weights, model config, model tokenizer" in err
    assert json.loads(path.read_text())["hashes"] == hashes  # from now on it has them


@pytest.mark.slow
def test_runs_of_one_table_that_are_not_comparable(inputs: Path, cli: Cli) -> None:
    assert cli("finetune", "ft.yaml", "run=all")[0] == 0
    assert cli("finetune", "ft.yaml", "run=half", "data.valid=0.4")[0] == 0
    with another(Path("done-bert/model/model.safetensors")):
        assert cli("finetune", "ft.yaml", "run=other")[0] == 0
    code, _, err = cli("compare", "all", "half", "other")
    assert code == 0
    assert "the validation rows differ, so these runs cannot be compared by them: all (" in err
    assert "the model weights changed between these runs: all, half; other" in err
    rows = Path("half/eval/rows/valid.json")
    rows.write_text(rows.read_text().replace("1.0", "0.0", 1))
    refused(cli("compare", "all", "half"), 3, "half/eval/rows/valid.json", "changed since")


def test_text_with_the_size_and_time_of_another(inputs: Path, cli: Cli) -> None:
    text = Path("moved.txt")
    text.write_text(Path("text.txt").read_text())
    command = ("prepare", "on.yaml", "data.train=[moved.txt]")
    assert cli(*command)[0] == 0
    before = text.stat()
    text.write_text(text.read_text().replace("Anna", "Bela"))
    os.utime(text, ns=(before.st_atime_ns, before.st_mtime_ns))
    refused(cli(*command), 3, "moved.txt: its text changed", "touch moved.txt")
    text.touch()
    assert cli(*command)[0] == 0
    shutil.copy2(text, "again.txt")  # the same text in another file of the same name and time
    Path("again.txt").rename(text)
    code, _, err = cli(*command)
    assert (code, "nothing was built" in err) == (0, True)


def test_the_hashes_of_a_model_folder(inputs: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree("done-bert/model", model)
    first = model_hashes(str(model))
    assert list(first) == ["model weights", "model config", "model tokenizer"]
    (model / "README.md").write_text("another card")
    assert model_hashes(str(model)) == first
    for name, part in (("tokenizer_config.json", "tokenizer"), ("task.json", "config")):
        (model / name).write_text("{}")
        assert changed(first, model_hashes(str(model))) == ([f"model {part}"], [])
        first = model_hashes(str(model))
    assert model_hashes(str(tmp_path / "none" / "here")) == {}
    assert changed(None, first) == ([], list(first))
