"""Learning rates and batch sizes by the number of the step."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from plmctl.config.sections import ScheduleConfig, TrainConfig
from plmctl.config.units import StepsOrShare
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError
from plmctl.training.data import StepBatches
from plmctl.training.plan import Phase, Plan, Slicing
from plmctl.training.schedule import constant, course, factor, ramp, rate
from tests.builders import cpu_engine
from tests.training.conftest import Train, metrics, tiny_network, tiny_plan, weights

# --- Learning rates ---


def rates(steps: int, **fields: object) -> list[float]:
    config = ScheduleConfig.model_validate(fields)
    return [rate(config, step, steps) for step in range(steps)]


def test_linear_by_hand() -> None:
    assert rates(6, name="linear", warmup=2) == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_cosine_by_hand() -> None:
    got = rates(5, name="cosine", warmup=1, min_lr_ratio=0.1)
    assert got == pytest.approx([1.0, 1.0, 0.1 + 0.9 * 0.8535534, 0.55, 0.1 + 0.9 * 0.1464466])


def test_inverse_sqrt_by_hand() -> None:
    assert rates(9, name="inverse_sqrt", warmup=4)[3:] == pytest.approx(
        [1.0, (4 / 5) ** 0.5, (4 / 6) ** 0.5, (4 / 7) ** 0.5, (4 / 8) ** 0.5, (4 / 9) ** 0.5]
    )


def test_wsd_stays_and_falls() -> None:
    got = rates(10, name="wsd", warmup="10%", decay="40%")
    assert got == pytest.approx([1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])


def test_wsd_falls_by_the_root_as_modernbert() -> None:
    """alpha + (1 - alpha)(1 - sqrt(x)), x the share of the decay that is done."""
    got = rates(8, name="wsd", decay=4, decay_shape="1-sqrt", min_lr_ratio=0.001)
    roots = [0.001 + 0.999 * (1 - (done / 4) ** 0.5) for done in range(4)]
    assert got == pytest.approx([1, 1, 1, 1, *roots])
    assert roots[1] == pytest.approx(0.5005)


def test_cosine_cools_down_as_gpt_bert() -> None:
    """A cosine to a tenth over the whole run; the last steps from there to 0."""
    got = rates(1000, name="cosine", warmup="1.6%", min_lr_ratio=0.1, cooldown="1.6%")
    plain = rates(1000, name="cosine", warmup="1.6%", min_lr_ratio=0.1)
    assert got[:984] == plain[:984]
    assert got[984:] == pytest.approx([p * (16 - n) / 16 for n, p in enumerate(plain[984:])])
    assert got[-1] == pytest.approx(0.1 / 16, rel=1e-4)


def test_polynomial_multiplies_as_electra() -> None:
    """lr * (1 - step/T) * min(1, step/warmup): equal to BERT's from the warm-up's end on."""
    fields = {"name": "polynomial", "warmup": 10_000}
    electra, bert = (
        ScheduleConfig.model_validate({**fields, "warmup_rule": rule})
        for rule in ("multiply", "replace")
    )
    for step in (0, 1, 5_000, 9_999, 10_000, 500_000, 999_999):
        expected = (1 - step / 1e6) * min(1, step / 1e4)
        assert rate(electra, step, 10**6) == pytest.approx(expected, rel=1e-9)
        if step >= 10_000:
            assert rate(electra, step, 10**6) == rate(bert, step, 10**6)


def test_constant_and_share() -> None:
    assert rates(4, name="constant", warmup="50%") == [0.5, 1, 1, 1]


@pytest.mark.parametrize("name", ["linear", "cosine", "constant", "inverse_sqrt", "wsd"])
def test_no_update_is_wasted(name: str) -> None:
    got = rates(50, name=name, warmup=5)
    assert min(got) > 0
    assert max(got) == 1.0


def test_t5_is_one_over_the_root_to_the_number() -> None:
    """Published: 1/sqrt(max(n, 10^4)), a peak of 0.01 without any ramp."""
    config = ScheduleConfig.model_validate({"name": "inverse_sqrt", "plateau": 10_000})
    for n in (0, 1, 9_999, 10_000, 10_001, 40_000, 1_000_000):
        got = 0.01 * rate(config, n, 2**20)
        assert got == pytest.approx(max(n, 10_000) ** -0.5, rel=1e-12)


def test_polynomial_is_the_code_of_bert() -> None:
    """The warm-up replaces a line that falls from step 0: the maximum is 0.99 of the rate."""
    config = ScheduleConfig.model_validate({"name": "polynomial", "warmup": 10_000})
    points = {0: 0.0, 5_000: 0.5, 9_999: 0.9999, 10_000: 0.99, 500_000: 0.5, 999_999: 1e-6}
    for step, expected in points.items():
        assert rate(config, step, 10**6) == pytest.approx(expected, rel=1e-9)
    square = ScheduleConfig.model_validate({"name": "polynomial", "power": 2.0})
    assert rate(square, 50, 100) == 0.25


def test_gpt3_falls_to_a_tenth_over_260_of_300_and_stays() -> None:
    config = ScheduleConfig.model_validate(
        {"name": "cosine", "decay_until": 260_000, "min_lr_ratio": 0.1}
    )
    assert rate(config, 0, 300_000) == 1.0
    assert rate(config, 130_000, 300_000) == pytest.approx(0.55)
    assert rate(config, 260_000, 300_000) == pytest.approx(0.1)
    assert rate(config, 299_999, 300_000) == pytest.approx(0.1)


# --- The batch ramp against a plain loop over steps, and schedules that go by tokens ---


def train(*phases: tuple[int, int], **fields: object) -> TrainConfig:
    listed = [{"seq_len": seq_len, "steps": steps} for seq_len, steps in phases]
    return TrainConfig.model_validate({"batch_size": 64, "phases": listed, **fields})


def plain(start: int, full: int, over: int, phases: list[tuple[int, int]]) -> list[list[int]]:
    """Batch sizes of every step of every phase, from the definition."""
    tokens, sizes = 0, []
    for seq_len, steps in phases:
        sizes.append([])
        for _ in range(steps):
            size = start + (full - start) * min(tokens, over) // over
            sizes[-1].append(size)
            tokens += size * seq_len
    return sizes


@given(
    st.integers(1, 40),
    st.integers(0, 200),
    st.integers(1, 200_000),
    st.lists(st.tuples(st.integers(8, 64), st.integers(1, 60)), min_size=1, max_size=3),
)
def test_closed_form_is_the_plain_loop(
    start: int, growth: int, over: int, phases: list[tuple[int, int]]
) -> None:
    full = start + growth
    config = train(*phases, batch_size=full, batch_ramp={"start": start, "tokens": over})
    run, seen, step = course(config), 0, 0
    for sizes, expected, (seq_len, _) in zip(
        run.sizes, plain(start, full, over, phases), phases, strict=True
    ):
        first = 0
        for within, size in enumerate(expected):
            assert (sizes.first(within), sizes.of(within)) == (first, size)
            assert run.seen(step) == seen
            first, seen, step = first + size, seen + size * seq_len, step + 1
    assert run.seen(step) == seen
    assert run.steps == step


def test_gpt3_ramps_over_its_tokens() -> None:
    """175B: 16 sequences of 2,048 are 32k tokens; 3.2M tokens are 1,600, from 12 billion on."""
    sizes = ramp(16, 1600, 12 * 10**9, 2048)
    assert (sizes.of(0), sizes.of(10**6)) == (16, 1600)
    last = sizes.stages[-1]
    assert 12 * 10**9 <= last.sample * 2048 < 12 * 10**9 + 1600 * 2048
    halfway = [s.size for s in sizes.stages if s.sample * 2048 <= 6 * 10**9][-1]
    assert halfway == pytest.approx(808, abs=1)
    assert sizes.first(10**9) == last.sample + (10**9 - last.step) * 1600


def test_without_a_ramp() -> None:
    run = course(train((32, 5), (128, 3)))
    assert run.sizes == (constant(64), constant(64))
    assert [run.seen(step) for step in (0, 5, 8)] == [0, 5 * 64 * 32, 5 * 64 * 32 + 3 * 64 * 128]


def test_a_batch_size_per_phase() -> None:
    """GPT-BERT halves the batch where the length doubles: each step has as many tokens."""
    phases = [
        {"seq_len": 128, "steps": 70},
        {"seq_len": 256, "steps": 20, "batch_size": 32},
        {"seq_len": 512, "steps": 10, "batch_size": 16},
    ]
    config = TrainConfig.model_validate({"batch_size": 64, "phases": phases})
    run = course(config)
    assert config.batch_sizes == (64, 32, 16)
    assert run.sizes == (constant(64), constant(32), constant(16))
    assert [run.seen(step) for step in (1, 70, 75, 100)] == [64 * 128 * n for n in (1, 70, 75, 100)]
    assert run.samples == (70 * 64, 20 * 32, 10 * 16)
    assert run.spent(95, (1.0, 10.0, 100.0)) == 70 * 64 + 10 * 20 * 32 + 100 * 5 * 16
    assert config.with_steps([3, 2, 1]).batch_sizes == (64, 32, 16)


def test_a_batch_grows_to_the_size_of_each_phase() -> None:
    fields = {"batch_size": 64, "batch_ramp": {"start": 8, "tokens": 8_000}}
    phases = [{"seq_len": 32, "steps": 5}, {"seq_len": 64, "steps": 50, "batch_size": 16}]
    run = course(TrainConfig.model_validate({**fields, "phases": phases}))
    assert run.sizes[0].of(0) == 8
    assert run.sizes[1].of(0) == 8 + 8 * run.tokens[1] // 8_000
    assert run.sizes[1].of(49) == 16
    phases[1]["batch_size"] = 4
    with pytest.raises(ValidationError, match="no larger than the batch of any phase, 4"):
        TrainConfig.model_validate({**fields, "phases": phases})


@pytest.mark.parametrize("name", ["linear", "cosine", "constant", "wsd"])
def test_tokens_are_steps_while_the_batch_is_constant(name: str) -> None:
    run = course(train((32, 50)))  # 2,048 tokens a step
    shape = {"name": name, "min_lr_ratio": 0.1}
    steps = factor(ScheduleConfig(**shape, warmup=8, decay=10), run)
    tokens = factor(ScheduleConfig(**shape, warmup="16_384 tokens", decay=10), run)
    expected = [steps(step) for step in range(50)]
    assert [tokens(step) for step in range(50)] == pytest.approx(expected, rel=1e-12)


def test_gpt3s_schedule_by_hand() -> None:
    """Up over 400 tokens, a cosine to 10 % at 2,600, flat to the end; 100 tokens a step."""
    config = train((10, 40), batch_size=10)
    schedule = ScheduleConfig(
        name="cosine", warmup="400 tokens", decay_until="2600 tokens", min_lr_ratio=0.1
    )
    of = factor(schedule, course(config))
    assert [of(step) for step in range(5)] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert of(15) == pytest.approx(0.55)  # 1,500 tokens: halfway
    assert [of(26), of(39)] == pytest.approx([0.1, 0.1])


def test_the_schedule_goes_by_tokens_while_the_batch_grows() -> None:
    run = course(train((8, 400), batch_ramp={"start": 2, "tokens": 20_000}))
    schedule = ScheduleConfig(name="linear", warmup="5k tokens", decay_until="100k tokens")
    of = factor(schedule, run)
    for step in range(400):
        seen, following = run.seen(step), run.seen(step + 1)
        if following <= 5_000:
            assert of(step) == pytest.approx(following / 5_000)
        elif seen >= 5_000:
            assert of(step) == pytest.approx(max(0.0, (100_000 - seen) / 95_000))
        else:
            assert of(step) == pytest.approx(1.0, abs=0.01)


@given(st.integers(1, 30), st.integers(0, 29))
def test_the_end_of_the_schedule_in_steps(until: int, warmup: int) -> None:
    run = course(train((32, 30)))
    shape = {"name": "cosine", "warmup": min(warmup, until), "min_lr_ratio": 0.2}
    of = factor(ScheduleConfig(**shape, decay_until=until), run)
    for step in range(30):
        expected = rate(ScheduleConfig(**shape), step, until) if step < until else 0.2
        assert of(step) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("written", "tokens"),
    [("375M tokens", 375 * 10**6), ("12_000 tokens", 12_000), ("1.5Btokens", 15 * 10**8)],
)
def test_tokens_as_people_write_them(written: str, tokens: int) -> None:
    mark = StepsOrShare.model_validate(written)
    assert mark.tokens == tokens
    assert StepsOrShare.model_validate(mark.model_dump()) == mark
    with pytest.raises(ConfigError, match="tokens"):
        mark.of(100)


def test_steps_and_shares_are_no_tokens() -> None:
    assert StepsOrShare(1000).tokens is None
    assert StepsOrShare.model_validate("6%").tokens is None
    for wrong in ("tokens", "x tokens", "5 token", "6% tokens", "1.5 tokens"):
        with pytest.raises(ValidationError):
            StepsOrShare.model_validate(wrong)


def test_a_ramp_that_falls_is_refused() -> None:
    with pytest.raises(ValidationError):
        train((32, 5), batch_ramp={"start": 65, "tokens": 100})


@pytest.mark.parametrize("until", [0, "0%", "0 tokens"])
def test_a_schedule_that_ends_at_once_is_refused(until: object) -> None:
    with pytest.raises(ValidationError):
        ScheduleConfig(decay_until=until)


GROWING = ramp(4, 16, 32 * 90, 32)


@pytest.mark.parametrize(("world", "micro"), [(1, 16), (1, 3), (2, 4), (4, 1)])
def test_each_step_has_the_next_samples(store: TokenStore, world: int, micro: int) -> None:
    """Every sample of the phase once, in the plain order, however the steps are cut."""
    step = tiny_plan("clm", store).phases[0].examples
    whole = StepBatches(step, Slicing(1, 1), 7)  # one sample a step: the order itself
    at = 0
    for number in range(14):
        rows = []
        for rank in range(world):
            batches = StepBatches(step, Slicing(16, micro, rank, world, GROWING), 7)
            for batch in batches[number]:
                assert len(batch.inputs["input_ids"]) <= micro
                rows += batch.inputs["input_ids"].tolist()
        expected = [whole[at + i][0].inputs["input_ids"][0].tolist() for i in range(len(rows))]
        assert rows == expected
        at += len(rows)
    assert at == GROWING.first(14)


def growing_plan(store: TokenStore, micro: int) -> Plan:
    plan = tiny_plan("clm", store, steps=(14,), micro=micro)
    only = plan.phases[0]
    grown = Phase(only.examples, only.steps, Slicing(16, micro, growth=GROWING))
    return Plan((grown,), plan.seed, plan.learning_rate, plan.clip, 1, None, plan.save_every)


def test_a_growing_batch_trains_the_same_in_any_micro_batches(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """And the progress counts the samples that there were."""
    results = {}
    for micro in (16, 5):
        engine = cpu_engine(tiny_network("clm"))
        progress = run_plan(engine, growing_plan(store, micro), tmp_path / str(micro))
        assert progress.samples == GROWING.first(14)
        assert progress.tokens == GROWING.first(14) * 32
        results[micro] = (metrics(tmp_path / str(micro)), weights(engine))
    for one, other in zip(results[16][0], results[5][0], strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    assert np.diff([record["tokens"] for record in results[16][0]]).max() == 16 * 32
