"""Reading times: how much of them does the surprisal of words explain beyond length and frequency?

The data are those of de Varda et al. (2023), as BabyLM scores them: eye tracking in four times, and
self-paced reading. Each time is regressed by least squares on properties of the word and their
pairwise products, without and with the surprisal of the word. The score is the share of the
variance left by the first regression that the second one explains.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from plmctl.arrays import Floats
from plmctl.config.base import MeasureConfig, Text
from plmctl.corpus.cells import MISSING, number_of
from plmctl.corpus.labelled import Row, read_rows
from plmctl.errors import DataError
from plmctl.evaluation.completions import MaskedCompletions, Pair, completion_scorer
from plmctl.evaluation.likelihood import FROM_BEFORE
from plmctl.evaluation.model import LoadedModel
from plmctl.evaluation.prompting import column_text
from plmctl.measures.base import Measure, Measurement

_EYE = ("RTfirstfix", "RTfirstpass", "RTgopast", "RTrightbound")
_SELF_PACED = "self_paced_reading_time"
_WORD = ("Subtlex_log10", "length", "context_length")
_NOTHING = ("", "nan", "NaN")
_FIRST = "None"  # what the official script reads before the first word of a sentence


class Config(MeasureConfig):
    """Share of the variance of reading times that surprisal adds (BabyLM's reading data)."""

    name: Literal["reading_times"] = "reading_times"
    data: tuple[Text, ...] = Field(min_length=1)
    """A table as BabyLM's `reading_data.csv`: columns item, word, prev_item, prev_word, their
    frequency, length and place, and the times."""


class ReadingTimes(Measure[Config], config=Config):
    """See ``Config``."""

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """``eye_tracking``, ``self_paced``, and their mean ``reading``, from 0 to 1.

        Raises:
            ConfigError: The model has no likelihood of a word after its context (ELMo).
            DataError: A column is missing, or there are fewer words than the regression needs.
        """
        score = completion_scorer(model, self.config.name)
        if model.is_masked:
            score = MaskedCompletions(model).continued
        rows = read_rows(self.config.data)
        words = [_pair(row, "item", "word") for row in rows]
        before = [_pair(row, "prev_item", "prev_word") for row in rows]
        unique = list(dict.fromkeys(pair for pair in (*words, *before) if pair is not None))
        nll = {pair: -one.log_prob for pair, one in zip(unique, score(unique), strict=True)}
        table = {name: _numbers(rows, name) for name in (*_WORD, "prev_length", *_EYE, _SELF_PACED)}
        table["pred"], table["prev_pred"] = (
            np.array([math.nan if pair is None else nll[pair] for pair in pairs])
            for pairs in (words, before)
        )
        scores: dict[str, float] = {}
        used: dict[str, int] = {}
        for name in (*_EYE, _SELF_PACED):
            predictors = [*_WORD, *(("prev_length", "prev_pred") if name == _SELF_PACED else ())]
            base = [table[predictor] for predictor in predictors]
            scores[name], used[name] = partial_r2(table[name], base, table["pred"], name)
        eye = sum(scores[name] for name in _EYE) / len(_EYE)
        results: dict[str, Any] = {
            "reading": (eye + scores[_SELF_PACED]) / 2,
            "eye_tracking": eye,
            "self_paced": scores[_SELF_PACED],
            **{f"partial_r2/{name}": value for name, value in scores.items()},
            "items": len(rows),
            **{f"used/{name}": count for name, count in used.items()},
            "definition": (
                "(R2 with surprisal - R2 without) / (1 - R2 without), least squares on frequency, "
                "length, place and their products, self-paced reading also on the word before; "
                f"eye_tracking: mean of four times; surprisal: {_likelihood(model)}"
            ),
        }
        predictions = [
            {"pred": now, "prev_pred": None if math.isnan(last) else last}
            for now, last in zip(table["pred"].tolist(), table["prev_pred"].tolist(), strict=True)
        ]
        return Measurement(results, predictions={"reading": predictions})


def partial_r2(
    times: Floats, base: Sequence[Floats], added: Floats, name: str
) -> tuple[float, int]:
    """The share of the variance left by ``base`` that ``added`` explains, and the rows used.

    Args:
        times: [N]; NaN: none, and the row is not used.
        base: [N] each; their pairwise products are predictors too.

    Raises:
        DataError: There are fewer rows than predictors, or the times are all the same.
    """
    columns = np.stack([*base, *(a * b for a, b in combinations(base, 2)), added], axis=1)
    there = np.isfinite(times) & np.isfinite(columns).all(axis=1)
    y, x = times[there], columns[there]
    if len(y) < x.shape[1] + 2 or not np.ptp(y):
        raise DataError(
            f"{name}: {len(y)} words have all values, which is too few for {x.shape[1]} predictors",
            "use BabyLM's reading_data.csv as it is",
        )
    x = (x - x.mean(0)) / np.where(np.ptp(x, axis=0) > 0, x.std(0), 1)
    without, whole = _unexplained(x[:, :-1], y), _unexplained(x, y)
    return 1 - whole / without, len(y)


def _unexplained(x: NDArray[np.float64], y: Floats) -> float:
    """The sum of squares that least squares leaves, with an intercept."""
    x = np.column_stack([np.ones(len(y)), x])
    return float(np.sum((y - x @ np.linalg.lstsq(x, y, rcond=None)[0]) ** 2))


def _pair(row: Row, item: str, word: str) -> Pair | None:
    """The context and the word as they are in the data, with its space; None: there is no word."""
    context, text = (column_text(row.values, name, row.origin) for name in (item, word))
    if text.strip() in _NOTHING:
        return None
    if context.strip() in _NOTHING:
        return _FIRST, text if text[:1].isspace() else f" {text}"
    return context, text


def _numbers(rows: Sequence[Row], column: str) -> Floats:
    """A column, NaN where it has no value.

    Raises:
        DataError: A value is no number.
    """
    numbers = []
    for row in rows:
        text = column_text(row.values, column, row.origin).strip()
        number = math.nan if text in ("", *MISSING) else number_of(text)
        if number is None:
            raise DataError(
                f"{row.origin}: column {column!r} is {text!r}, not a number",
                "use BabyLM's reading_data.csv as it is",
            )
        numbers.append(number)
    return np.array(numbers)


def _likelihood(model: LoadedModel) -> str:
    if model.is_masked:
        place = FROM_BEFORE if model.sees_both_sides else ""
        return f"of each token with three masks after what is before it, the first its own{place}"
    if model.text_to_text:
        return "in the decoder, after a sentinel at the end of the context in the encoder"
    return "of each token given all before it, without a begin token"
