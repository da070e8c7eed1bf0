"""Budgets, words and checkpoints at words: the arithmetic, and real runs of seconds."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.commands.plan import effective_tokens, predicted_loss
from plmctl.commands.verify_resume import compare_states, records
from plmctl.config.sections import BatchRamp, Phase, ScheduleConfig, TrainConfig
from plmctl.config.units import Budget, Mark, StepsOrShare
from plmctl.errors import ConfigError
from plmctl.run.budget import SampleCosts, decide, save_steps
from plmctl.training.schedule import course, most_steps, nearest_step, split_steps
from plmctl.training.timing import Timing
from tests.commands.conftest import Cli, corpus_text, pretrain_config, run_in_two, write

TWO = (Phase(seq_len=32, share=0.75), Phase(seq_len=64, share=0.25))
COSTS = SampleCosts((32, 64), (3200.0, 6400.0), (20.0, 40.0))


def train(budget: str, phases: tuple[Phase, ...] = TWO, **more: object) -> TrainConfig:
    return TrainConfig(batch_size=8, budget=Budget(budget), phases=phases, **more)


# --- Arithmetic ---


@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        # A step has 8 * 32 tokens in three quarters of the steps, and 8 * 64 in the others.
        ("3200 tokens", (8, 2)),  # 8 * 256 + 2 * 512 = 3072; an 11th step would need 3328
        ("2000 words", (8, 2)),  # 8 * 160 + 2 * 320 = 1920
        ("320000 FLOPs", (8, 2)),
    ],
)
def test_the_most_steps_within_a_budget(budget: str, steps: tuple[int, ...]) -> None:
    decision = decide(train(budget), ScheduleConfig(), COSTS)
    assert decision.steps == steps
    assert (decision.tokens, decision.words, decision.flops) == (3072, 1920, 307200)


@settings(max_examples=60, deadline=None)
@given(st.integers(2_000, 10**7), st.sampled_from([None, BatchRamp(start=2, tokens=5000)]))
def test_no_budget_is_exceeded_and_no_step_is_left(tokens: int, ramp: BatchRamp | None) -> None:
    limited = train(f"{tokens} tokens", batch_ramp=ramp)
    decision = decide(limited, ScheduleConfig(), COSTS)
    steps = sum(decision.steps)
    assert decision.tokens <= tokens
    assert course(limited, split_steps(steps + 1, (0.75, 0.25))).tokens[-1] > tokens


def test_a_time_leaves_room_for_what_comes_around_the_steps() -> None:
    timing = Timing((1.0, 2.0), spent=10, validation=5, save=1, validate_every=20, save_every=50)
    decision = decide(train("600 seconds"), ScheduleConfig(), COSTS, timing)
    steps, (short, long) = sum(decision.steps), decision.steps
    assert short + 2 * long + timing.overhead(steps) <= 600
    assert short + 2 * long + timing.overhead(steps) > 585
    capped = decide(train("600 seconds", max_words=1000), ScheduleConfig(), COSTS, timing)
    assert capped.words is not None
    assert capped.words <= 1000
    assert "max_words" in capped.reason


@pytest.mark.parametrize(
    ("budget", "more", "schedule", "costs", "message"),
    [
        ("300 tokens", {}, {}, COSTS, "300 tokens is less than a step of each phase"),
        ("9000 tokens", {}, {"warmup": StepsOrShare(500)}, COSTS, "no more than schedule.warmup"),
        ("9000 tokens", {}, {"warmup": StepsOrShare("1M tokens")}, COSTS, "schedule.warmup"),
        ("9000 words", {}, {}, SampleCosts((32, 64), (1, 2), None, "no count"), "no count"),
        ("9000 tokens", {"max_words": 100}, {}, COSTS, "train.max_words: the run would see"),
    ],
)
def test_what_cannot_be(
    budget: str, more: dict, schedule: dict, costs: SampleCosts, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        decide(train(budget, **more), ScheduleConfig(**schedule), costs)


@given(st.integers(0, 10**6), st.integers(1, 1000))
def test_most_steps(budget: int, cost: int) -> None:
    assert most_steps(lambda steps: steps * cost, budget) == budget // cost


def test_marks_are_the_nearest_steps() -> None:
    path = course(TrainConfig(batch_size=8, phases=(Phase(seq_len=32, steps=100),)))
    marks = (Mark(7), Mark("1000 tokens"), Mark("1000 words"), Mark("16100 words"))
    steps, late = save_steps((*marks, Mark("1M words")), path, (20.0,))
    # 1,000 tokens are 3.9 steps of 256, 1,000 words 6.25 steps of 160; 16,100 words is less than a
    # step after the end.
    assert (steps, late) == ({7, 4, 6, 100}, ["1,000,000 words"])
    assert save_steps("log", path, None) == ({1, 2, 4, 8, 16, 32, 64}, [])
    assert nearest_step(float, 0.2, 10) == 1
    with pytest.raises(ConfigError, match=r"checkpoint\.at: the words .* not counted \(why\)"):
        save_steps((Mark("1M words"),), path, None, "why")


def test_the_loss_law_and_repeated_text() -> None:
    # Besiroglu's constants, 1 B parameters and 20 B tokens: 1.8172 + 0.3575 + 0.3542.
    assert predicted_loss(1e9, 2e10) == pytest.approx(2.529, abs=2e-3)
    assert predicted_loss(70e9, 1.4e12, "hoffmann") == pytest.approx(1.937, abs=1e-3)
    assert effective_tokens(90, 100) == 90
    # Four epochs are nearly four times new text, a hundred are worth 16 epochs.
    assert effective_tokens(400, 100) == pytest.approx(372, abs=2)
    assert effective_tokens(1e6, 100) == pytest.approx(100 + 1540)


# --- Real runs ---


def config(budget: str | None = None, **more: object) -> dict:
    found = pretrain_config("bert") | {"log": {"every": 1, "validate_samples": 20}}
    phases = [{"seq_len": 32}] if budget else [{"seq_len": 32, "steps": 6}]
    found["train"] = {"batch_size": 8, "phases": phases} | ({"budget": budget} if budget else {})
    found["train"] |= more
    return found


def words_of_text() -> int:
    return len(corpus_text().split())


def test_words_are_counted_and_budgeted(cli: Cli) -> None:
    write("words.yaml", config("800 words") | {"run": "words", "checkpoint": {"at": ["400w", 1]}})
    code, out, err = cli("prepare", "words.yaml", "--json")
    assert code == 0
    prepared = json.loads(out)
    assert "words: split by white space" in err
    assert 0.7 * words_of_text() < prepared["words"] < words_of_text()  # a tenth is held out
    assert cli("plan", "words.yaml")[0] == 0
    code, out, err = cli("pretrain", "words.yaml")
    assert code == 0, err
    decision = json.loads(Path("words/budget.json").read_text())
    last = [line for line in records(Path("words")) if "words" in line][-1]
    assert last["words"] == decision["words"] <= 800
    assert last["words"] == pytest.approx(last["epoch"] * prepared["words"], abs=2)
    assert f"train.budget: {decision['words']} words of 800 words used" in err
    saved = {path.name: path for path in Path("words/checkpoints").iterdir()}
    at = min(saved, key=lambda name: abs(_state(saved[name])["words"] - 400))
    assert {"step-000001", at, f"step-{last['step']:06d}"} == set(saved)
    events = [json.loads(line) for line in Path("words/events").read_text().splitlines()]
    assert [e["steps"] for e in events if e["event"] == "budget"] == [last["step"]]
    code, _, err = cli("pretrain", "words.yaml", "run=refused", "train.max_words=700w")
    assert code == 2
    assert "train.max_words: the run would see" in err
    assert not Path("refused").exists()


def _state(folder: Path) -> dict:
    return json.loads((folder / "state.json").read_text())


def test_an_older_store_gets_its_words_from_prepare(cli: Cli) -> None:
    from plmctl.files import read_checked, write_checked

    settings = ["data.store=older", "run=older-run"]
    write("older.yaml", config("800 words"))
    assert cli("prepare", "older.yaml", *settings)[0] == 0
    (manifest,) = Path("older").glob("*/manifest.json")
    whole = read_checked(manifest)
    assert whole is not None
    write_checked(manifest, {k: v for k, v in whole.items() if k not in ("words", "checksum")})
    code, _, err = cli("pretrain", "older.yaml", *settings)
    assert code == 2
    assert "plmctl prepare" in err
    assert cli("prepare", "older.yaml", *settings)[0] == 0
    assert (read_checked(manifest) or {})["words"] == whole["words"]


def test_an_interrupted_run_has_the_steps_of_its_measurement(cli: Cli) -> None:
    write("timed.yaml", config("1m", max_words="600") | {"schedule": {"warmup": "10%"}})
    assert cli("preview", "timed.yaml", "run=timed", "--batch", "1")[0] == 2  # not measured yet
    code, _, err = cli("pretrain", "timed.yaml", "run=timed")
    assert code == 0, err
    assert "measured here: a step takes" in err
    assert "of 1m used" in err
    decision = json.loads(Path("timed/budget.json").read_text())
    # The same steps without a measurement, interrupted: the measurement left no trace.
    steps = f"train.phases=[{{seq_len: 32, steps: {decision['steps'][0]}}}]"
    plain = ["train.budget=null", "train.max_words=null", steps, "run=plain"]
    assert cli("pretrain", "timed.yaml", *plain, "--until", "2")[0] == 75
    assert cli("pretrain", "timed.yaml", *plain)[0] == 0
    last = f"checkpoints/step-{decision['steps'][0]:06d}"
    checks = compare_states(Path("timed") / last, Path("plain") / last)
    assert checks
    assert not any(check.different for check in checks)
    Path("timed/budget.json").unlink()
    Path("timed/status.json").unlink()
    (Path("timed") / "model" / "config.json").unlink()
    code, _, err = cli("pretrain", "timed.yaml", "run=timed")
    assert code == 3
    assert "budget.json: missing or damaged" in err


def test_two_processes_have_the_same_steps(cli: Cli, tmp_path: Path) -> None:
    write("both.yaml", config("2k tokens"))
    run_in_two(tmp_path, "pretrain", "both.yaml", "run=both", "data.store=both-store")
    assert json.loads(Path("both/budget.json").read_text())["steps"] == [7]
    assert records(Path("both"))[-1]["step"] == 7


def test_a_size_is_proposed(cli: Cli) -> None:
    code, out, err = cli("plan", "bert.yaml", "--budget", "1e14FLOPs", "--json")
    assert code == 0
    found = json.loads(out)
    assert [row["size"] for row in found["sizes"]][:2] == ["tiny", "mini"]
    assert all(row["flops"] <= 1e14 for row in found["sizes"])
    best = min(found["sizes"], key=lambda row: row["loss"])
    assert found["proposed"] == best["size"]
    assert found["overrides"][0] == f"model.size={best['size']}"
    assert "copy: model.size=" in err
    code, _, err = cli("plan", "bert.yaml", "--budget", "1 token")
    assert code == 2
    assert cli("plan", "bert.yaml", "--budget", "soon")[0] == 2
