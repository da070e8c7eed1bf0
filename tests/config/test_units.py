"""Units as people write them; hand-computed values."""

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from plmctl.config.units import Budget, Bytes, Count, Mark, Share, StepsOrShare

COUNT: TypeAdapter[int] = TypeAdapter(Count)
BYTES: TypeAdapter[int] = TypeAdapter(Bytes)
SHARE: TypeAdapter[float] = TypeAdapter(Share)
STEPS: TypeAdapter[StepsOrShare] = TypeAdapter(StepsOrShare)


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (7, 7),
        ("7", 7),
        ("10_000", 10_000),
        ("10k", 10_000),
        ("10K", 10_000),
        (" 2 B ", 2_000_000_000),
        ("1.5M", 1_500_000),
        ("0.1k", 100),
        ("2e3k", 2_000_000),
        (1e6, 1_000_000),
        # More digits than a float holds.
        ("9007199254740993", 9007199254740993),
        ("9007199254740.993k", 9007199254740993),
        ("1T", 10**12),
    ],
)
def test_counts(written: object, number: int) -> None:
    assert COUNT.validate_python(written, strict=True) == number


@pytest.mark.parametrize(
    ("written", "number"),
    [("500MB", 500_000_000), ("2GB", 2_000_000_000), ("1.5 kB", 1500), ("10b", 10), (1024, 1024)],
)
def test_sizes(written: object, number: int) -> None:
    assert BYTES.validate_python(written, strict=True) == number


@pytest.mark.parametrize(
    ("written", "share"),
    [("1%", 0.01), ("7%", 0.07), ("12.5 %", 0.125), ("0%", 0.0), (".5%", 0.005), (0.1, 0.1)],
)
def test_shares(written: object, share: float) -> None:
    assert SHARE.validate_python(written, strict=True) == share


@pytest.mark.parametrize(
    ("written", "of_1000"),
    [(0, 0), (400, 400), ("2k", 2000), ("6%", 60), (0.06, 60), (1.0, 1000), (1, 1), ("100%", 1000)],
)
def test_steps_or_share(written: object, of_1000: int) -> None:
    assert STEPS.validate_python(written, strict=True).of(1000) == of_1000


@pytest.mark.parametrize(
    ("adapter", "written"),
    [
        (COUNT, "ten"),
        (COUNT, "1.5"),
        (COUNT, 1.5),
        (COUNT, "10x"),
        (COUNT, "-3"),
        (COUNT, -3),
        (COUNT, True),
        (COUNT, "10 MB"),
        (COUNT, ""),
        (COUNT, "1e999999999"),
        (COUNT, float("inf")),
        (BYTES, "2G"),
        (BYTES, 0),
        (SHARE, "100%"),
        (SHARE, "1"),
        (SHARE, "-1%"),
        (SHARE, "1e-2%"),
        (SHARE, True),
        (SHARE, 1),
        (STEPS, 1.5),
        (STEPS, -1),
        (STEPS, -0.1),
        (STEPS, "150%"),
        (STEPS, True),
        (STEPS, None),
        (STEPS, "a few"),
        (STEPS, float("nan")),
    ],
)
def test_what_is_no_such_number(adapter: TypeAdapter[object], written: object) -> None:
    with pytest.raises(ValidationError):
        adapter.validate_python(written, strict=True)


@settings(deadline=None)
@given(st.integers(0, 10**15), st.sampled_from(["", "k", "M", "B", "T"]))
def test_a_unit_multiplies_exactly(number: int, unit: str) -> None:
    factor = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}[unit]
    if number * factor < 2**63:
        assert COUNT.validate_python(f"{number}{unit}") == number * factor
    else:
        with pytest.raises(ValidationError, match="less than or equal to"):
            COUNT.validate_python(f"{number}{unit}")


@settings(deadline=None)
@given(st.decimals(0, Decimal("99.99"), places=2))
def test_a_percentage_is_the_float_nearest_to_it(percent: Decimal) -> None:
    assert SHARE.validate_python(f"{percent}%") == float(percent / 100)


BUDGET: TypeAdapter[Budget] = TypeAdapter(Budget)
MARK: TypeAdapter[Mark] = TypeAdapter(Mark)


@pytest.mark.parametrize(
    ("written", "kept", "unit", "shown"),
    [
        ("2h", "7200 seconds", "seconds", "2h"),
        ("1h30m", "5400 seconds", "seconds", "1h30m"),
        ("90m", "5400 seconds", "seconds", "1h30m"),
        ("1.5 s", "1.5 seconds", "seconds", "1.5s"),
        ("100M tokens", "100000000 tokens", "tokens", "100,000,000 tokens"),
        ("10Mw", "10000000 words", "words", "10,000,000 words"),
        ("1B words", "1000000000 words", "words", "1,000,000,000 words"),
        ("1e17 FLOPs", "1e+17 FLOPs", "FLOPs", "1e+17 FLOPs"),
        ("2.5e18flops", "2.5e+18 FLOPs", "FLOPs", "2.5e+18 FLOPs"),
    ],
)
def test_budgets(written: str, kept: str, unit: str, shown: str) -> None:
    budget = BUDGET.validate_python(written, strict=True)
    assert (budget.root, budget.unit, str(budget)) == (kept, unit, shown)
    assert BUDGET.validate_python(kept, strict=True) == budget
    assert Budget.of(budget.written, "--budget") == budget


@pytest.mark.parametrize(
    "written",
    [
        7,
        "7",
        "90M",
        "2 hours",
        "0h",
        "-1h",
        "0 tokens",
        "1.5 tokens",
        "30y",
        "1e31 FLOPs",
        True,
        "",
    ],
)
def test_no_budgets(written: object) -> None:
    with pytest.raises(ValidationError):
        BUDGET.validate_python(written, strict=True)


@pytest.mark.parametrize(
    ("written", "number", "unit"),
    [(1000, 1000, "steps"), ("10k", 10_000, "steps"), ("5M tokens", 5_000_000, "tokens")],
)
def test_marks(written: object, number: int, unit: str) -> None:
    mark = MARK.validate_python(written, strict=True)
    assert (mark.number, mark.unit) == (number, unit)


@pytest.mark.parametrize("written", ["2h", "1e17 FLOPs", 0, -1])
def test_no_marks(written: object) -> None:
    with pytest.raises(ValidationError):
        MARK.validate_python(written, strict=True)
