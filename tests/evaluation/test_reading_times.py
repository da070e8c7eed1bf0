"""Reading times against the organisers' formulas, written out by hand, on generated tables."""

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.model import LoadedModel
from plmctl.measures.base import Measurement, get_measure
from plmctl.measures.reading_times import partial_r2
from tests.commands.conftest import sentence
from tests.evaluation.models import opened
from tests.evaluation.test_ranked_completions import Folders, causal

EYE = ("RTfirstfix", "RTfirstpass", "RTgopast", "RTrightbound")
SPR = "self_paced_reading_time"


def reading_rows(sentences: int = 8) -> list[dict[str, Any]]:
    """A row per word of generated sentences, with drawn times."""
    draw, rows = np.random.default_rng(3), []
    for number in range(sentences):
        words = sentence(number).split()[:7]
        words = [words[0], *(f" {word}" for word in words[1:])]
        for place, word in enumerate(words):
            rows.append(
                {
                    "item": "".join(words[:place]),
                    "word": word,
                    "prev_item": "".join(words[: max(0, place - 1)]) if place else "",
                    "prev_word": words[place - 1] if place else "",
                    "prev_length": len(words[place - 1].strip()) if place else "",
                    "Subtlex_log10": round(float(draw.uniform(1, 6)), 3),
                    "length": len(word.strip()),
                    "context_length": place,
                    **{name: round(float(draw.normal(250, 40)), 2) for name in (*EYE, SPR)},
                }
            )
    rows[5][SPR] = ""
    rows[6]["RTgopast"] = "NaN"
    return rows


def table(path: Path, rows: list[dict[str, Any]]) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def take(folder: Path, data: str) -> Measurement:
    measure = get_measure("reading_times")
    return measure(measure.Config(data=(data,))).measure(opened(folder), 7)


def three_masks(model: LoadedModel, context: str, word: str) -> float:
    """The sum over the word's tokens of log p(token | all before it, two more masks after it)."""
    (whole,), (bare,) = model.tokens([[context + word]]), model.tokens([[context]])
    mask, total = model.special("mask"), 0.0
    for end in range(len(bare.ids), len(whole.ids)):
        ids = [model.special("cls"), *whole.ids[:end].tolist(), mask, mask, mask]
        row = torch.tensor([[*ids, model.special("sep")]])
        with torch.inference_mode():
            logits = model.network(("mlm",)).model(row).logits[0, 1 + end]
        total += float(logits.float().log_softmax(-1)[whole.ids[end]])
    return total


def r2(y: np.ndarray, columns: list[np.ndarray]) -> float:
    """R squared of ordinary least squares, by the normal equations."""
    x = np.column_stack([np.ones(len(y)), *columns])
    fitted = x @ np.linalg.solve(x.T @ x, x.T @ y)
    return 1 - ((y - fitted) ** 2).sum() / ((y - y.mean()) ** 2).sum()


def official(rows: list[dict[str, Any]], predictions: list[dict[str, Any]], name: str) -> float:
    """The formula of the official script for one column of times."""
    number = [
        {k: float(row[k]) if row[k] != "" else math.nan for k in (name, "Subtlex_log10", "length",
         "context_length", "prev_length")}
        | {"pred": p["pred"], "prev_pred": math.nan if p["prev_pred"] is None else p["prev_pred"]}
        for row, p in zip(rows, predictions, strict=True)
    ]  # fmt: skip
    terms = ["Subtlex_log10", "length", "context_length"]
    if name == SPR:
        terms += ["prev_length", "prev_pred"]
    used = [row for row in number if not any(math.isnan(row[k]) for k in (name, "pred", *terms))]
    column = {k: np.array([row[k] for row in used]) for k in (name, "pred", *terms)}
    base = [column[k] for k in terms]
    base += [column[a] * column[b] for i, a in enumerate(terms) for b in terms[i + 1 :]]
    before, after = r2(column[name], base), r2(column[name], [*base, column["pred"]])
    return (after - before) / (1 - before)


@pytest.mark.parametrize(("family", "score"), [("gpt2", causal), ("bert", three_masks)])
def test_both_scores_are_those_of_the_official_formula(
    family: str, score: Callable[..., float], folder_of: Folders, tmp_path: Path
) -> None:
    rows = reading_rows()
    found = take(folder_of(family), table(tmp_path / "reading_data.csv", rows))
    model, given = opened(folder_of(family)), found.predictions["reading"]
    assert len(given) == found.results["items"] == len(rows)
    for row, one in zip(rows, given, strict=True):
        first = (row["item"] or "None", row["word"] if row["item"] else f" {row['word']}")
        assert one["pred"] == pytest.approx(-score(model, *first), rel=1e-5)
        if not row["prev_word"]:
            assert one["prev_pred"] is None
        elif row["prev_item"]:
            before = -score(model, row["prev_item"], row["prev_word"])
            assert one["prev_pred"] == pytest.approx(before, rel=1e-5)
    by_hand = {name: official(rows, given, name) for name in (*EYE, SPR)}
    for name, value in by_hand.items():
        assert found.results[f"partial_r2/{name}"] == pytest.approx(value, rel=1e-6)
    eye = sum(by_hand[name] for name in EYE) / 4
    assert found.results["eye_tracking"] == pytest.approx(eye)
    assert found.results["reading"] == pytest.approx((eye + by_hand[SPR]) / 2)
    assert 0 < eye < 1
    assert found.results["used/RTgopast"] == len(rows) - 1
    assert found.results[f"used/{SPR}"] == len(rows) - 8 - 1  # first words have no word before


def test_a_word_keeps_its_leading_space(folder_of: Folders, tmp_path: Path) -> None:
    rows = reading_rows()
    spaced = take(folder_of("gpt2"), table(tmp_path / "a.csv", rows)).predictions["reading"]
    bare = [{**row, "word": row["word"].strip()} for row in rows]
    joined = take(folder_of("gpt2"), table(tmp_path / "b.csv", bare)).predictions["reading"]
    differ = [abs(a["pred"] - b["pred"]) > 0.001 for a, b in zip(spaced, joined, strict=True)]
    assert differ == [bool(row["item"]) for row in rows]


def test_t5_reads_them_too(folder_of: Folders, tmp_path: Path) -> None:
    found = take(folder_of("t5"), table(tmp_path / "reading_data.csv", reading_rows()))
    assert all(one["pred"] > 0 for one in found.predictions["reading"])


def test_partial_r2_of_a_known_case() -> None:
    """The times are the surprisal and noise that is orthogonal to it: half of each is 0.5."""
    a = np.array([1.0, 1, -1, -1, 1, 1, -1, -1])
    b = np.array([1.0, -1, 1, -1, 1, -1, 1, -1])
    flat = np.zeros(8)
    assert partial_r2(a + b, [flat], a, "x") == (pytest.approx(0.5), 8)
    assert partial_r2(a + b, [b], a, "x") == (pytest.approx(1.0), 8)


def test_what_is_refused(folder_of: Folders, tmp_path: Path) -> None:
    rows = reading_rows()
    with pytest.raises(ConfigError, match="reading_times does not support elmo"):
        take(folder_of("elmo"), table(tmp_path / "a.csv", rows))
    with pytest.raises(DataError, match=r"RTfirstfix: 7 words .* too few for 7 predictors"):
        take(folder_of("gpt2"), table(tmp_path / "b.csv", rows[:7]))
    rows[2]["length"] = "long"
    with pytest.raises(DataError, match=r"c.csv:4: column 'length' is 'long', not a number"):
        take(folder_of("gpt2"), table(tmp_path / "c.csv", rows))
    for row in rows:
        del row["prev_word"]
    with pytest.raises(DataError, match="no column 'prev_word'"):
        take(folder_of("gpt2"), table(tmp_path / "d.csv", rows))
