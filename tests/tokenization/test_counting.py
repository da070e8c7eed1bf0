"""Counts: exact while they fit, unbiased and bounded when they do not."""

import random
import re
from collections import Counter

import numpy as np
import pytest

from plmctl.tokenization.train import LONGEST_UNIT, count_units
from plmctl.tokenization.units import Kind, pattern
from tests.tokenization.conftest import TEXTS


@pytest.mark.parametrize("kind", ["bert", "bytes", "spaces"])
def test_counts_are_exact_while_they_fit(kind: Kind) -> None:
    expected = Counter(unit for text in TEXTS for unit in pattern(kind).findall(text))
    counts = count_units(TEXTS, kind, budget=10_000, seed=1)
    assert dict(zip(counts.units, counts.numbers.tolist(), strict=True)) == expected
    assert counts.units == sorted(expected)
    assert counts.threshold == 1
    assert counts.characters == sum(map(len, TEXTS))


@pytest.mark.parametrize("kind", ["bert", "bytes", "spaces"])
def test_units_have_all_of_a_text(kind: Kind) -> None:
    removed = re.compile(r"\s+") if kind != "bytes" else re.compile("$^")
    for text in TEXTS:
        assert "".join(pattern(kind).findall(text)) == removed.sub("", text)


def test_long_units_are_cut() -> None:
    counts = count_units(["x" * 1000, "中" * 1000], "bytes", budget=10**6, seed=1)
    assert max(map(len, counts.units)) == LONGEST_UNIT
    assert sum(np.array(list(map(len, counts.units))) * counts.numbers) == 2000


def noise(lines: int) -> list[str]:
    """Lines of a frequent word, some less frequent ones, and words that never come again."""
    draws = random.Random(7)
    return [
        f"the w{draws.randrange(50)} " + " ".join(f"{draws.getrandbits(64):016x}" for _ in range(8))
        for _ in range(lines)
    ]


@pytest.fixture
def small_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plmctl.tokenization.train._CHECK_EVERY", 1000)


@pytest.mark.usefixtures("small_looks")
def test_a_full_table_is_thinned_without_bias() -> None:
    lines = noise(4000)
    counts = count_units(lines, "spaces", budget=20_000, seed=1)
    table = dict(zip(counts.units, counts.numbers.tolist(), strict=True))
    assert counts.threshold > 1
    assert sum(map(len, table)) <= 20_000
    # What is frequent is there and exact, but for what was lost while it was rare: nothing here.
    assert table["the"] == 4000
    # Together the words that never come again count as often as they were seen: 32,000 times,
    # with a standard deviation of the square root of that times the threshold.
    rare = sum(number for unit, number in table.items() if len(unit) == 16)
    assert abs(rare - 32_000) < 5 * (32_000 * counts.threshold) ** 0.5


@pytest.mark.usefixtures("small_looks")
def test_thinning_depends_on_the_seed_alone() -> None:
    lines = noise(2000)
    first = count_units(lines, "spaces", budget=20_000, seed=1)
    again = count_units(lines, "spaces", budget=20_000, seed=1)
    other = count_units(lines, "spaces", budget=20_000, seed=2)
    assert first.units == again.units
    assert first.numbers.tolist() == again.numbers.tolist()
    assert first.units != other.units
