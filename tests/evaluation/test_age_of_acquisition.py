"""The age of acquisition against the organisers' formulas, by hand, on made-up words."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import curve_fit
from scipy.stats import pearsonr

from plmctl.errors import ConfigError, DataError
from plmctl.measures.age_of_acquisition import child_age, model_age, sigmoid
from plmctl.measures.base import AtCheckpoint, Measurement, get_measure
from tests.commands.conftest import NAMES, VERBS, sentence
from tests.evaluation.models import opened
from tests.evaluation.test_ranked_completions import Folders, causal, masked

MONTHS = np.arange(16, 31)
WORDS = [*(name for name in NAMES), *VERBS]


def cdi(folder: Path, contexts: int = 3) -> list[str]:
    """Both files: each word in contexts, and the share of children who know it by month."""
    folder.mkdir(parents=True, exist_ok=True)
    words = {
        word: [
            {"context": " ".join(sentence(n + 5 * k).split()[: 2 + k]) + " "}
            for k in range(contexts)
        ]
        for n, word in enumerate(WORDS)
    }
    words["x"] = [{"context": "a letter"}]
    (folder / "cdi_childes.json").write_text(json.dumps(words), encoding="utf-8")
    with (folder / "cdi_human.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["word", *map(str, MONTHS)])
        for n, word in enumerate(WORDS):
            shares = 1 / (1 + np.exp(-0.6 * (MONTHS - (14.5 + n))))
            writer.writerow([word, *(f"{share:.4f}" for share in shares)])
    return [str(folder / "cdi_*")]


def take(folder: Path, data: list[str]) -> Measurement:
    measure = get_measure("age_of_acquisition")
    return measure(measure.Config(data=data)).measure(opened(folder), 7)


@pytest.mark.parametrize(("family", "score"), [("gpt2", causal), ("bert", masked)])
def test_the_surprisal_of_a_word_after_its_context(
    family: str, score: Any, folder_of: Folders, tmp_path: Path
) -> None:
    found = take(folder_of(family), cdi(tmp_path))
    model, given = opened(folder_of(family)), found.predictions["surprisals"]
    assert found.results["items"] == len(given) == 3 * len(WORDS)  # no word of one letter
    for one in given[::7]:
        by_hand = -score(model, one["context"].strip(), f" {one['target_word']}")
        assert one["surprisal"] == pytest.approx(by_hand, rel=1e-5)
    for one in found.predictions["chance"][::5]:
        tokens = model.count(f"The {one['word']}") - model.count("The")
        assert one["nats"] == pytest.approx(tokens * math.log(len(model.tokenizer)))


def official_age(words: np.ndarray, surprisal: np.ndarray, chance: float) -> float | None:
    """The organisers' steps of 2026: a bounded fit to minus surprisal over log10 of the words."""
    x, y = np.log10(words + 1), -surprisal
    span = y.max() - y.min()
    (a, b, c, d), _ = curve_fit(
        lambda x, a, b, c, d: a / (1 + np.exp(-b * (x - c))) + d,
        x,
        y,
        p0=[span, 1, x.mean(), y.min()],
        bounds=(
            [0, 0, x.min() - 1, y.min() - 2 * span - 1],
            [10 * span + 1, 100, x.max() + 1, y.max() + 1],
        ),
        maxfev=20000,
    )
    level = -(chance - 0.5 * (chance - surprisal.min()))
    if a <= 1e-6 or b <= 1e-6 or not d < level < a + d:
        return None
    age = c - math.log(a / (level - d) - 1) / b
    return age if x.min() <= age <= x.max() else None


def curve(words: np.ndarray, middle: float) -> np.ndarray:
    """A surprisal that falls from 9 to 3 around 10 ** middle words."""
    return 9 - 6 / (1 + np.exp(-4 * (np.log10(words + 1) - middle)))


SEEN = np.array([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100]) * 10**6


def test_the_age_is_where_the_curve_crosses_half_of_the_way() -> None:
    for middle in (6.6, 7.0, 7.4):
        y = curve(SEEN, middle)
        found = model_age(np.log10(SEEN + 1), y, 9.0)
        assert found == pytest.approx(official_age(SEEN, y, 9.0), abs=1e-6)
        half = 9 - 0.5 * (9 - y.min())  # by hand: the point of the true curve with this surprisal
        assert found == pytest.approx(middle - math.log(6 / (9 - half) - 1) / 4, abs=1e-4)
    assert model_age(np.log10(SEEN + 1), curve(SEEN, 7.0), 30.0) is None  # never so far from chance
    assert model_age(np.log10(SEEN + 1), np.full(19, 5.0), 9.0) is None  # nothing is learned


def test_the_month_at_which_half_of_the_children_know_a_word() -> None:
    for month in (18.0, 23.5, 28.0):
        shares = 1 / (1 + np.exp(-0.6 * (MONTHS - month)))
        assert child_age(shares) == pytest.approx(month, abs=1e-3)
    assert child_age(1 / (1 + np.exp(-0.6 * (MONTHS - 40)))) is None
    assert child_age(np.full(15, 0.9)) is None


def series(middles: dict[str, float], words: Any = SEEN) -> list[AtCheckpoint]:
    """Checkpoints with two contexts a word, 0.5 nats around the curve."""
    curves = {word: curve(SEEN, middle) for word, middle in middles.items()}
    return [
        AtCheckpoint(
            n,
            f"chck_{seen}",
            int(seen),
            {"items": 2 * len(curves)},
            {
                "surprisals": [
                    {"target_word": word, "surprisal": float(of[n]) + side}
                    for word, of in curves.items()
                    for side in (-0.5, 0.5)
                ],
                "chance": [{"word": word, "nats": 9.0} for word in curves],
            },
        )
        for n, seen in enumerate(words)
    ]


def test_the_score_is_the_correlation_of_both_ages(tmp_path: Path) -> None:
    measure = get_measure("age_of_acquisition")
    aoa = measure(measure.Config(data=cdi(tmp_path)))
    middles = {word: 6.5 + 0.06 * n + 0.05 * (n % 3) for n, word in enumerate(WORDS[:14])}
    found = aoa.over_checkpoints(series(middles))
    # The children know word n at month 14.5 + n: the first two before month 16.
    months = {word: 14.5 + n for n, word in enumerate(WORDS[:14]) if 14.5 + n >= 16}
    ages = [official_age(SEEN, curve(SEEN, middles[word]), 9.0) for word in months]
    assert None not in ages
    assert found["with_both"] == len(months) == 12
    by_hand = pearsonr(ages, list(months.values())).statistic
    assert found["age_of_acquisition"] == pytest.approx(by_hand, abs=1e-3)
    assert (found["checkpoints"], found["words"], found["with_age"]) == (19, 14, 14)


def test_an_unsure_correlation_counts_as_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = get_measure("age_of_acquisition")
    aoa = measure(measure.Config(data=cdi(tmp_path)))
    mixed = [6.9, 7.1, 6.9, 7.2, 6.8, 7.0]
    found = aoa.over_checkpoints(series(dict(zip(WORDS[2:8], mixed, strict=True))))
    assert found["p"] > 0.1
    assert found["pearson"] != 0
    assert found["age_of_acquisition"] == 0
    assert "which counts as 0; 6 of 6 words have an age" in capsys.readouterr().err
    few = aoa.over_checkpoints(series(dict.fromkeys(WORDS[2:4], 7.0)))
    assert (few["with_both"], few["age_of_acquisition"]) == (2, 0)


def test_sigmoid_by_hand() -> None:
    assert sigmoid(np.array([0.0, 1.0]), 2, 1, 0, 3).tolist() == [4.0, 3 + 2 / (1 + math.exp(-1))]


def test_what_is_refused(folder_of: Folders, tmp_path: Path) -> None:
    data = cdi(tmp_path)
    with pytest.raises(ConfigError, match="age_of_acquisition does not support elmo"):
        take(folder_of("elmo"), data)
    with pytest.raises(DataError, match="0 json files, but one is needed"):
        take(folder_of("gpt2"), [str(tmp_path / "cdi_human.csv")])
    (tmp_path / "cdi_childes.json").write_text('{"dog": ["no context"]}', encoding="utf-8")
    with pytest.raises(DataError, match="not words with contexts"):
        take(folder_of("gpt2"), data)
    (tmp_path / "cdi_childes.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="no word has a context"):
        take(folder_of("gpt2"), data)
