"""The sections of a report on several runs: side by side, and what differs in their configs."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plmctl.formatting import shown
from plmctl.reporting.figures import Figure, figures_of
from plmctl.reporting.html import Html, element, join
from plmctl.reporting.reader import Run, number
from plmctl.reporting.svg import PALETTE

_NO_DIFFERENCE = ("run",)  # of course


def comparison(runs: Sequence[Run]) -> Html:
    """The key figures, a row a run; the best of a column is bold."""
    figures = [{figure.name: figure for figure in figures_of(run)} for run in runs]
    names = list(dict.fromkeys(name for found in figures for name in found))
    best = {name: _best([found.get(name) for found in figures]) for name in names}
    head = [element("th", "run"), *(element("th", name, class_="figure") for name in names)]
    rows = [
        element(
            "tr",
            element("th", swatch(place), run.name, _unfinished(run), scope="row"),
            *(_cell(found.get(name), best[name]) for name in names),
        )
        for place, (run, found) in enumerate(zip(runs, figures, strict=True))
    ]
    table = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    return element("div", table, class_="panel scroll")


def differences(runs: Sequence[Run]) -> Html:
    """The keys of the configs that are not the same everywhere."""
    settings = [dict(_leaves(run.config)) for run in runs]
    keys = list(dict.fromkeys(key for found in settings for key in found))
    differing = [
        key
        for key in keys
        # A key that one family has and leaves empty says nothing.
        if key not in _NO_DIFFERENCE and len({found.get(key, "null") for found in settings}) > 1
    ]
    if not differing:
        return Html()
    head = [
        element("th", "config"),
        *(element("th", swatch(n), r.name) for n, r in enumerate(runs)),
    ]
    rows = [
        element(
            "tr",
            element("th", key, scope="row"),
            *(element("td", found.get(key, ""), class_="text") for found in settings),
        )
        for key in differing
    ]
    table = element("table", element("thead", element("tr", *head)), element("tbody", *rows))
    return join(
        element("h3", "What differs in their configs", style="margin-top:22px"),
        element("div", table, class_="panel scroll"),
    )


def swatch(place: int) -> Html:
    """The color of a run in the plots."""
    return element("span", class_=f"swatch c{place % PALETTE}")


def _unfinished(run: Run) -> Html:
    if run.finished or run.kind in ("eval", "tokenizer"):
        return Html()
    return element("div", "not finished", class_="soft small")


def _cell(figure: Figure | None, best: float) -> Html:
    if figure is None:
        return element("td", "", class_="figure")
    is_best = number(figure.value) == best
    return element("td", shown(figure.value), class_="figure best" if is_best else "figure")


def _best(figures: Sequence[Figure | None]) -> float:
    """The best value of a column; nan, which nothing equals, where all are the same or equal."""
    known = [figure for figure in figures if figure is not None]
    values = [number(figure.value) for figure in known]
    if len(set(values)) < 2 or known[0].better is None:
        return math.nan
    return min(values) if known[0].better == "low" else max(values)


def _leaves(config: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(config, Mapping):
        for key, value in config.items():
            yield from _leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        text = config if isinstance(config, str) else json.dumps(config, ensure_ascii=False)
        yield prefix, text
