"""``plmctl scaling``: the ladder is what a budget pays for, and its runs are ordinary runs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from plmctl.commands.scaling_ladder import (
    LadderBudget,
    SizeMaker,
    make_plan,
    requested_sizes,
    rounded_up,
    rung_config,
)
from plmctl.errors import ConfigError
from plmctl.run.configs import load
from plmctl.tokenization.load import Vocab, open_tokenizer
from tests.commands.conftest import Cli, pretrain_config, run_main, write
from tests.reporting.markup import read

SIZES = [
    f"model.n_layer={n} model.n_embd={w} model.n_head={h}"
    for n, w, h in ((1, 8, 1), (1, 24, 1), (2, 48, 2))
]


def scaled(name: str, **changes: Any) -> str:
    """A config for ladders."""
    config = pretrain_config("gpt2") | {
        "model": {"family": "gpt2", "size": "tiny", "n_positions": 32},
        "schedule": {"name": "wsd", "warmup": "10%", "decay": "20%"},
        "train": {"batch_size": 4, "phases": [{"seq_len": 32, "steps": 100}]},
    }
    write(f"{name}.yaml", config | changes)
    return f"{name}.yaml"


def maker(path: str) -> SizeMaker:
    config = load("pretrain", path)
    return SizeMaker(Path(path), (), config, Vocab.of(open_tokenizer(config.tokenizer)))


def options(*sizes: str) -> list[str]:
    return [word for size in sizes for word in ("--sizes", size)]


@pytest.fixture(scope="module")
def ladder(world: Path) -> Path:
    """Two sizes, three lengths each, all trained."""
    command = scaled("ladder"), *options(*SIZES[:2]), "--budget", "130k tokens", "--out", "ladder"
    assert run_main("scaling", *command) == 0
    return world / "ladder"


# --- The budget and the lengths ---


@pytest.mark.parametrize(
    ("text", "unit", "amount"),
    [
        ("1h", "seconds", 3600),
        ("1h 30m", "seconds", 5400),
        ("90s", "seconds", 90),
        ("1e15 FLOPs", "FLOPs", 1e15),
        ("2.5e12flop", "FLOPs", 2.5e12),
        ("20M tokens", "tokens", 20e6),
    ],
)
def test_a_budget_as_written(text: str, unit: str, amount: float) -> None:
    budget = LadderBudget.of(text, "--budget")
    assert (budget.unit, budget.number) == (unit, amount)
    again = LadderBudget.of(rounded_up(amount, budget.unit), "--budget")
    assert amount <= again.number <= 1.1 * amount


@pytest.mark.parametrize(
    "text", ["", "h", "-1h", "0s", "1e15", "5 parsecs", "x tokens", "0 tokens", "10M words"]
)
def test_no_budget(text: str) -> None:
    with pytest.raises(ConfigError, match="--budget"):
        LadderBudget.of(text, "--budget")


@pytest.mark.parametrize("amount", ["3e11 FLOPs", "900k tokens"])
def test_a_plan_spends_its_budget(world: Path, amount: str) -> None:
    sizes = maker(scaled("spent"))
    budget = LadderBudget.of(amount, "--budget")
    plan = make_plan(sizes, requested_sizes(sizes, SIZES), budget, 4)
    rungs = plan.rungs(Path("out"))
    spent = sum(rung.flops if budget.unit == "FLOPs" else rung.tokens for rung in rungs)
    assert 0.9 * budget.number <= spent <= budget.number
    longest = [rung for rung in rungs if rung.level == 2]
    assert max(r.flops for r in longest) / min(r.flops for r in longest) <= 21
    largest = longest[-1].tokens / longest[-1].parameters
    assert all(rung.tokens / rung.parameters >= 0.97 * largest for rung in longest)


def test_sizes_are_chosen_by_the_budget(world: Path) -> None:
    train = {"batch_size": 256, "phases": [{"seq_len": 32, "steps": 100}]}  # not millions of steps
    sizes = maker(scaled("chosen", train=train))
    small = make_plan(sizes, [], LadderBudget.of("20M tokens", "--budget"), 3)
    large = make_plan(sizes, [], LadderBudget.of("2B tokens", "--budget"), 3)
    assert [size.name for size in small.sizes] == ["1x64", "2x128", "3x192"]
    assert large.sizes[-1].parameters > 10 * small.sizes[-1].parameters
    for plan in (small, large):
        assert len({size.parameters for size in plan.sizes}) == 3


def test_a_size_of_the_family_decides_the_whole_shape(world: Path) -> None:
    """Whatever shape the config sets itself."""
    sizes = maker("gpt2.yaml")
    assert sizes.config.model.n_embd == 32
    model = sizes.named("mini").config.model
    assert (model.size, model.n_layer, model.n_embd, model.n_head) == ("mini", None, None, None)
    assert sizes.named("mini").parameters > 3_000_000


def test_lengths_keep_the_shape_of_the_schedule(world: Path) -> None:
    phases = [{"seq_len": 16, "steps": 900}, {"seq_len": 32, "steps": 100}]
    schedule = {"name": "cosine", "warmup": 50}
    path = scaled("shape", train={"batch_size": 4, "phases": phases}, schedule=schedule)
    size = maker(path).make("one", tuple(SIZES[0].split()))
    config = rung_config(size, 200, Path("out"))
    assert [phase.steps for phase in config.train.phases] == [180, 20]
    assert config.schedule.warmup.root == 10
    assert config.schedule.decay_until.root == 200


# --- The runs ---


@pytest.mark.slow
def test_a_ladder_is_finished_and_fitted(ladder: Path) -> None:
    document = json.loads((ladder / "scaling.json").read_text(encoding="utf-8"))
    rungs = document["rungs"]
    assert [rung["size"] for rung in rungs] == ["1x8"] * 3 + ["1x24"] * 3
    assert len({rung["tokens"] for rung in rungs}) > 3
    for rung in rungs:
        run = Path(rung["run"])
        valid = json.loads((run / "eval" / "valid.json").read_text(encoding="utf-8"))["results"]
        assert rung["loss"] == valid["valid/loss/lm"]
        assert (run / "report.html").is_file()
        config = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
        assert config["train"]["phases"][0]["steps"] == rung["steps"]
    assert document["law"] is None
    assert "too few" in document["warnings"][0]
    assert document["power_law"]["gamma"]["value"] > 0
    assert [one["factor"] for one in document["predictions"]] == [2, 4, 10]
    page = read((ladder / "scaling.html").read_text(encoding="utf-8"))
    assert len(page.texts("svg")) == 2
    assert any("L(C)" in text for text in page.texts("p"))


@pytest.mark.slow
def test_only_what_is_missing_of_a_ladder_is_trained(ladder: Path, cli: Cli) -> None:
    *before, last = sorted(ladder.glob("rung-1x24-*"), key=lambda run: int(run.name[10:]))
    weights = (last / "model/model.safetensors").read_bytes()
    times = [path.stat().st_mtime_ns for run in before for path in run.rglob("*.json")]
    shutil.rmtree(last)
    arguments = (*options(*SIZES[:2]), "--budget", "130k tokens", "--out", "ladder", "--json")
    code, out, err = cli("scaling", "ladder.yaml", *arguments)
    assert code == 0, err
    assert "5 of 6 runs are finished" in err
    assert f"1 of 1: ladder/{last.name}: finished" in err
    assert json.loads(out)["rungs"][-1]["rung"] == last.name
    assert (last / "model/model.safetensors").read_bytes() == weights
    assert times == [path.stat().st_mtime_ns for run in before for path in run.rglob("*.json")]


@pytest.mark.slow
def test_three_sizes_give_the_whole_law(world: Path, cli: Cli) -> None:
    path = scaled("whole", optim={"lr": 0.003})
    command = ("scaling", path, *options(*SIZES), "--budget", "300k tokens", "--out", "whole")
    code, _, err = cli(*command)
    assert code == 0, err
    document = json.loads(Path("whole/scaling.json").read_text(encoding="utf-8"))
    assert set(document["law"]) == {"E", "A", "alpha", "B", "beta"}
    for one in document["predictions"]:
        assert one["low"] <= one["loss"] <= one["high"]
        assert one["steps"] * 4 * 32 == one["tokens"]
    page = read(Path("whole/scaling.html").read_text(encoding="utf-8"))
    assert any("E + A / N^alpha" in text for text in page.texts("td"))


# --- Wrong input ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sizes", "tinny,mini"], "did you mean 'tiny'"),
        (["--sizes", "tiny"], "two sizes or more"),
        (["--sizes", "tiny,tiny"], "the same"),
        (["--sizes", "tiny,mini", "--rungs", "3"], "--rungs cannot be used with --sizes"),
        (["--sizes", "model.n_layers=3", "--sizes", "tiny"], "n_layer"),
        (["--sizes", "train.batch_size=3", "--sizes", "tiny"], "train.batch_size"),
        (["--sizes", "tiny,mini", "--budget", "soon"], "--budget"),
        (["--sizes", "tiny,mini", "--budget", "6k tokens"], "needs 20"),
        (["--sizes", "tiny,mini", "--budget", "10M words"], "--budget"),
        (["train.budget=1M tokens", "train.phases=[{seq_len: 32}]"], "train.budget"),
        (["data.valid=null"], "nothing is validated"),
        (["data.valid=0"], "nothing is validated"),
        (["model.init_from=done-gpt2/model"], "init_from"),
        (["--out", "tok-gpt2"], "is not the folder of a ladder"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_wrong_input(world: Path, cli: Cli, arguments: list[str], message: str) -> None:
    code, out, err = cli("scaling", scaled("wrong"), *arguments)
    assert code == 2, err
    assert message in err
    assert not out
    assert not Path("run-gpt2-scaling").exists()


def test_which_runs_fit_a_budget(world: Path, cli: Cli) -> None:
    arguments = [*options(*SIZES), "--plan", "--budget"]
    code, _, err = cli("scaling", scaled("small"), *arguments, "40k tokens")
    assert code == 2
    assert "fits" in err
    needed = err.rpartition("--budget '")[2].partition("'")[0]
    code, out, err = cli("scaling", "small.yaml", *arguments, needed)
    assert code == 0, err
    assert "9 runs" in out or "6 runs" in out


def test_no_document_is_held_out(world: Path, cli: Cli) -> None:
    path = scaled("empty", data={"train": ["text.txt"], "valid": 1e-9})
    code, _, err = cli("scaling", path, *options(*SIZES), "--budget", "900k tokens", "--plan")
    assert code == 3
    assert "increase data.valid" in err


def test_a_config_of_another_kind(world: Path, cli: Cli) -> None:
    code, _, err = cli("scaling", "tok-gpt2.yaml")
    assert code == 2
    assert "train-tokenizer" in err


@pytest.mark.slow
def test_the_folder_of_another_ladder(ladder: Path, cli: Cli) -> None:
    arguments = (*options(*SIZES[:2]), "--budget", "130k tokens", "--out", "ladder")
    code, _, err = cli("scaling", "ladder.yaml", "optim.lr=0.5", *arguments)
    assert code == 2
    assert "pretrain.optim.lr: 0.001 -> 0.5" in err
    code, _, err = cli("scaling", "ladder.yaml", "log.every=1", *arguments, "--plan")
    assert code == 0, err
    before = Path("text.txt").read_text()
    Path("text.txt").write_text(before.replace("Anna", "Bela"))
    code, _, err = cli("scaling", "ladder.yaml", *arguments)
    Path("text.txt").write_text(before)
    assert code == 3
    assert "the data changed since it was trained" in err
