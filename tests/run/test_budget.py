"""What a budget pays for, and the steps of words and checkpoints: the arithmetic."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.config.sections import BatchRamp, Phase, ScheduleConfig, TrainConfig
from plmctl.config.units import Budget, Mark, StepsOrShare
from plmctl.errors import ConfigError
from plmctl.run.budget import decide
from plmctl.run.sample_costs import SampleCosts, save_steps
from plmctl.training.schedule import course, most_steps, nearest_step, split_steps
from plmctl.training.timing import Timing

TWO = (Phase(seq_len=32, share=0.75), Phase(seq_len=64, share=0.25))
COSTS = SampleCosts((32, 64), (3200.0, 6400.0), (20.0, 40.0))


def train(budget: str, phases: tuple[Phase, ...] = TWO, **more: object) -> TrainConfig:
    return TrainConfig(batch_size=8, budget=Budget(budget), phases=phases, **more)


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
