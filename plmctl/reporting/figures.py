"""The figures that a run comes down to: for tiles, comparisons, cards and the terminal."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from plmctl.formatting import duration
from plmctl.reporting.reader import Run, number

Better = Literal["low", "high"]

_NAMES = {"f1_macro": "macro F1", "f1_weighted": "weighted F1", "majority": "majority class"}
_BETTER: dict[str, Better] = {
    "loss": "low",
    "perplexity": "low",
    "accuracy": "high",
    "f1": "high",
    "f1_macro": "high",
    "f1_weighted": "high",
    "matthews": "high",
}


@dataclass(frozen=True)
class Figure:
    """A named figure.

    Attributes:
        name: What it is, with its unit.
        value: Number or text.
        better: Which end is the good one, where there is one.
    """

    name: str
    value: float | int | str
    better: Better | None = None


def figures_of(run: Run) -> list[Figure]:
    """The key figures of a run, the most telling first; what is not known is left out."""
    if run.kind in ("eval", "tokenizer"):
        several = len(run.evaluations) > 1
        return [
            replace(figure, name=f"{stem}: {figure.name}") if several else figure
            for stem, document in run.evaluations.items()
            for figure in result_figures(document)
        ]
    quality = _classifier(run) if run.kind == "finetune" else _language_model(run)
    return [figure for figure in (*quality, *_effort(run)) if not _unknown(figure.value)]


def total_steps(run: Run) -> int | None:
    """The steps that the config asks for; None where it does not say."""
    phases = run.setting("train", "phases")
    if not isinstance(phases, list):
        return None
    return sum(int(phase.get("steps", 0)) for phase in phases)


def result_figures(document: Mapping[str, Any]) -> list[Figure]:
    """The numbers and short texts among the results of an evaluation."""
    results = document.get("results")
    return [
        Figure(_NAMES.get(key, key.replace("_", " ")), value, _BETTER.get(key))
        for key, value in (results.items() if isinstance(results, Mapping) else ())
        if isinstance(value, int | float | str) and not isinstance(value, bool)
    ]


def _language_model(run: Run) -> Iterator[Figure]:
    results = run.results
    parts = [key.removeprefix("valid/loss/") for key in results if key.startswith("valid/loss/")]
    yield Figure("validation loss", number(results.get("valid/loss")), "low")
    both = [part for part in parts if part in ("forward", "backward")]
    for part in both or parts[:1]:  # the others are classifications of a row
        loss = number(results[f"valid/loss/{part}"])
        perplexity = math.exp(loss) if loss < 700 else math.nan
        yield Figure(f"perplexity ({part})", perplexity, "low")
    for part in parts:
        accuracy = number(results.get(f"valid/accuracy/{part}"))
        yield Figure(f"accuracy ({part})", accuracy, "high")
    yield Figure("training loss", _recent_loss(run))


def _classifier(run: Run) -> Iterator[Figure]:
    results = run.results
    yield Figure("accuracy", number(results.get("accuracy")), "high")
    yield Figure("F1", number(results.get("f1")), "high")
    yield Figure("majority class", number(results.get("majority")))
    yield Figure("macro F1", number(results.get("f1_macro")), "high")
    yield Figure("Matthews", number(results.get("matthews")), "high")
    for name in ("pearson", "spearman"):
        yield Figure(name.capitalize(), number(results.get(name)), "high")
    yield Figure("training loss", _recent_loss(run))
    yield Figure("training rows", _whole(results.get("rows")))


def _effort(run: Run) -> Iterator[Figure]:
    last = run.last
    yield Figure("steps", _whole(last.get("step")))
    yield Figure("tokens", _whole(last.get("tokens")))
    yield Figure("training time", _clock(number(last.get("time"))))
    yield Figure("tokens/s", _median(run, "tokens_per_second"))
    yield Figure("peak memory (GB)", number(last.get("memory_gb")))


def _recent_loss(run: Run) -> float:
    """The mean of the last twentieth of the records: one batch alone says little."""
    _, values = run.series("loss")
    recent = values[-max(1, len(values) // 20) :]
    return float(recent.mean()) if recent.size else math.nan


def _median(run: Run, key: str) -> float:
    _, values = run.series(key)
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if finite.size else math.nan


def _whole(value: object) -> float | int:
    known = number(value)
    return int(known) if math.isfinite(known) else math.nan


def _clock(seconds: float) -> str:
    return duration(seconds) if math.isfinite(seconds) else ""


def _unknown(value: float | int | str) -> bool:
    return value == "" if isinstance(value, str) else not math.isfinite(value)
