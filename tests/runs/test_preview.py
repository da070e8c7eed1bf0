"""``plmctl preview`` as a user sees it."""

import json
import re

import pytest

from tests.runs.conftest import Cli
from tests.runs.test_bad_input import refused


def test_masked_examples_with_plain_marks(cli: Cli) -> None:
    code, out, err = cli("preview", "bert.yaml", "--count", "200", "--examples", "2")
    assert code == 0, err
    assert "\x1b" not in out  # no terminal, no colours
    assert out.count("[CLS]") == 2
    assert re.search(r"\[MASK\]\{\S+\}", out)
    assert len(re.findall(r"label [01]: B ", out)) == 2
    assert re.search(r"random_next_share_multi +0\.\d+ +0\.500", out)


def test_figures_of_a_masked_objective_as_numbers(cli: Cli) -> None:
    code, out, err = cli("preview", "bert.yaml", "--count", "600", "--json")
    assert code == 0, err
    figures = json.loads(out)
    assert figures["examples"] == 600
    assert all(isinstance(value, int | float) for value in figures.values())
    assert figures["masked_share"] == pytest.approx(0.15, abs=0.02)
    assert figures["mask_share"] == pytest.approx(0.8, abs=0.03)
    assert figures["random_next_share"] >= figures["random_next_share_multi"]
    segments = figures["mean_length_a"] + figures["mean_length_b"]
    assert segments + 3 == pytest.approx(figures["mean_length"])


def test_causal_examples(cli: Cli) -> None:
    code, out, err = cli("preview", "gpt2.yaml", "--count", "20", "--examples", "1")
    assert code == 0, err
    assert "last target: " in out
    assert "mean_length" in out


def test_more_examples_than_an_epoch_has(cli: Cli) -> None:
    few, many = (
        json.loads(cli("preview", "gpt2.yaml", "--count", count, "--json")[1])
        for count in ("10", "5000")
    )
    assert few["mean_length"] == many["mean_length"]
    assert many["examples"] == 5000


def test_wrong_counts_and_configs_are_refused(cli: Cli) -> None:
    refused(cli("preview", "bert.yaml", "--count", "0"), 2, "--count")
    refused(cli("preview", "bert.yaml", "data.train=[none.txt]"), 3, "none.txt: no such file")
