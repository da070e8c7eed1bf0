"""Age of acquisition: does a model learn words in the order in which children do?

BabyLM's measure (after Chang and Bergen, 2022, TACL 10, on the words of the CDI). Of a single model
it is the surprisal of each word in its contexts. Over the checkpoints of a run, a word's age is
where its mean surprisal crosses half of the way from chance to its lowest value, on a sigmoid
fitted over the words seen; a child's is the month at which half of the children know it. The score
is the correlation of the two. The rules are those of the final pipeline of 2026.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from plmctl.arrays import Floats
from plmctl.config.base import MeasureConfig, Text
from plmctl.corpus.cells import number_of
from plmctl.corpus.labelled import read_rows
from plmctl.corpus.source import resolve
from plmctl.errors import DataError
from plmctl.evaluation.completions import completion_scorer
from plmctl.evaluation.model import LoadedModel
from plmctl.measures.base import AtCheckpoint, Measure, Measurement, tell

_MONTHS = range(16, 31)
_FEWEST = 3  # words with both ages
_P = 0.1  # a correlation that is less sure than this counts as 0
_LEAST = 1e-6  # height and slope of a sigmoid
_HINT = "name BabyLM's cdi_childes.json and cdi_human.csv under `data`, which is all it reads"


class Config(MeasureConfig):
    """Surprisal of words; over checkpoints, whether model and child learn them in one order."""

    name: Literal["age_of_acquisition"] = "age_of_acquisition"
    data: tuple[Text, ...] = Field(min_length=1)
    """BabyLM's `cdi_childes.json` (words, each with objects that have a `context`) and
    `cdi_human.csv` (columns `word` and 16 to 30: the share of children who know it)."""


class AgeOfAcquisition(Measure[Config], config=Config):
    """See ``Config``."""

    OVER_CHECKPOINTS = True

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """The mean surprisal in nats, and in ``predictions`` that of every word in every context.

        Raises:
            ConfigError: The model has no likelihood of a word after its context (ELMo).
            DataError: The files are not those of this measure.
        """
        scorer = completion_scorer(model, self.config.name)
        words = _contexts(self._file("json"))
        items = [
            (word, number, text) for word, of in words.items() for number, text in enumerate(of)
        ]
        pairs = [(text.strip(), f" {word}") for word, _, text in items]
        unique = list(dict.fromkeys(pairs))
        nll = {pair: -one.log_prob for pair, one in zip(unique, scorer(unique), strict=True)}
        surprisals: list[dict[str, Any]] = [
            {"target_word": word, "context_id": number, "context": text, "surprisal": nll[pair]}
            for (word, number, text), pair in zip(items, pairs, strict=True)
        ]
        one, size = model.count("The"), math.log(model.vocab.size)
        chance = [
            {"word": word, "nats": (model.count(f"The {word}") - one) * size} for word in words
        ]
        results = {
            "surprisal": sum(of["surprisal"] for of in surprisals) / len(surprisals),
            "items": len(surprisals),
            "words": len(words),
            "definition": "mean of -ln p(word | context); encoders: one token of the word masked, "
            "nothing after it; the age needs every checkpoint: --at-checkpoints",
        }
        return Measurement(results, predictions={"surprisals": surprisals, "chance": chance})

    def over_checkpoints(self, series: Sequence[AtCheckpoint]) -> dict[str, Any]:
        """The correlation ``age_of_acquisition`` of the ages of model and child, from -1 to 1."""
        from scipy.stats import pearsonr

        seen = np.log10(np.array([one.words for one in series], dtype=np.float64) + 1)
        curves = _mean_surprisals(series)
        chance = {one["word"]: one["nats"] for one in series[0].predictions["chance"]}
        children = _ages_of_children(self._file("csv"))
        ages = {word: model_age(seen, curve, chance[word]) for word, curve in curves.items()}
        both = [word for word, age in ages.items() if None not in (age, children.get(word))]
        r, p = 0.0, 1.0
        if len(both) >= _FEWEST:
            correlation = pearsonr([ages[word] for word in both], [children[word] for word in both])
            r, p = float(correlation.statistic), float(correlation.pvalue)
        counted = "" if p <= _P else ", which counts as 0"
        tell(
            f"age of acquisition: r = {r:.3f}, p = {p:.2g}{counted}; {len(both)} of {len(curves)} "
            f"words have an age of the model, of {len(series)} checkpoints, and of children"
        )
        return {
            "age_of_acquisition": r if p <= _P else 0.0,
            "pearson": r,
            "p": p,
            "items": series[-1].results["items"],
            "checkpoints": len(series),
            "words": len(curves),
            "with_age": sum(age is not None for age in ages.values()),
            "with_both": len(both),
            "ages": [{"word": w, "model": ages[w], "child": children.get(w)} for w in ages],
            "definition": "Pearson's r of log10 of the words seen and of the month at which a word "
            f"is known, 0 if p > {_P} or fewer than {_FEWEST} words have both ages",
        }

    def _file(self, kind: str) -> Path:
        paths = [Path(source.name) for source in resolve(self.config.data)]
        of_kind = [path for path in paths if path.suffix == f".{kind}"]
        if len(of_kind) != 1:
            names = ", ".join(map(str, paths))
            raise DataError(f"{names}: {len(of_kind)} {kind} files, but one is needed", _HINT)
        return of_kind[0]


# --- The files ---


def _contexts(path: Path) -> dict[str, list[str]]:
    """The contexts of each word; words of one character do not count."""
    try:
        whole = json.loads(path.read_bytes())
        words = {
            word: [str(one["context"]) for one in of] for word, of in whole.items() if len(word) > 1
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise DataError(f"{path}: not words with contexts: {error!r}", _HINT) from error
    if not any(words.values()):
        raise DataError(f"{path}: no word has a context", _HINT)
    return {word: of for word, of in words.items() if of}


def _ages_of_children(path: Path) -> dict[str, float | None]:
    """The month at which half of the children know a word; None: before 16 or after 30."""
    ages: dict[str, float | None] = {}
    for row in read_rows([str(path)]):
        shares = [number_of(row.cell(str(month))) for month in _MONTHS]
        if None not in shares:
            ages[str(row.cell("word"))] = child_age(np.array(shares, dtype=np.float64))
    return ages


def _mean_surprisals(series: Sequence[AtCheckpoint]) -> dict[str, Floats]:
    """[checkpoints] the mean surprisal of each word over its contexts."""
    curves: dict[str, list[float]] = {}
    for one in series:
        of_word: dict[str, list[float]] = {}
        for item in one.predictions["surprisals"]:
            of_word.setdefault(item["target_word"], []).append(item["surprisal"])
        for word, values in of_word.items():
            curves.setdefault(word, []).append(sum(values) / len(values))
    return {word: np.array(curve) for word, curve in curves.items()}


# --- Ages, on fitted sigmoids ---


def model_age(seen: Floats, surprisals: Floats, chance: float) -> float | None:
    """log10 of the words seen at which a word is known; None: not between the checkpoints.

    Args:
        seen: [checkpoints] log10 of the words seen.
        surprisals: [checkpoints] in nats.
    """
    y = -surprisals
    spread = float(np.ptp(y))
    start = (spread, 1.0, float(seen.mean()), float(y.min()))
    low = (0.0, 0.0, float(seen.min()) - 1, float(y.min()) - 2 * spread - 1)
    high = (10 * spread + 1, 100.0, float(seen.max()) + 1, float(y.max()) + 1)
    threshold = chance - 0.5 * (chance - float(surprisals.min()))
    return _crossing(seen, y, start, (low, high), -threshold)


def child_age(shares: Floats) -> float | None:
    """The month at which half of the children know a word, from their share in each month."""
    months = np.array(_MONTHS, dtype=np.float64)
    start = (1.0, 0.1, float(months.mean()), 0.0)
    bounds = (0.0, 0.0, months[0], -0.5), (2.0, 1.0, months[-1], 0.5)
    return _crossing(months, shares, start, bounds, 0.5)


def sigmoid(x: Floats, a: float, b: float, c: float, d: float) -> Floats:
    """``a / (1 + exp(-b (x - c))) + d``."""
    return np.asarray(a / (1 + np.exp(-b * (x - c))) + d)


def _crossing(
    x: Floats,
    y: Floats,
    start: Sequence[float],
    bounds: tuple[Sequence[float], Sequence[float]],
    level: float,
) -> float | None:
    """The ``x`` at which the sigmoid that fits ``y`` has a level; None: outside of ``x``."""
    from scipy.optimize import curve_fit

    try:
        with warnings.catch_warnings(), np.errstate(over="ignore"):
            warnings.simplefilter("ignore")  # that the covariance is unknown, which is not used
            (a, b, c, d), _ = curve_fit(sigmoid, x, y, start, bounds=bounds, max_nfev=20_000)
    except (RuntimeError, ValueError):  # it has not converged, or the values are not finite
        return None
    if a <= _LEAST or b <= _LEAST or not d < level < a + d:
        return None
    at = float(c - math.log(a / (level - d) - 1) / b)
    return at if x.min() <= at <= x.max() else None
