"""The sections of a report on one run: a function each, from data to markup."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from plmctl.formatting import shown
from plmctl.reporting.figures import Figure, figures_of, result_figures, total_steps
from plmctl.reporting.html import Html, element, escape, join
from plmctl.reporting.plots import plots_of
from plmctl.reporting.reader import Run, number
from plmctl.reporting.svg import draw

_KIND = {
    "pretrain": "Pretraining",
    "finetune": "Finetuning",
    "eval": "Evaluation",
    "tokenizer": "Tokenizer",
}
_MASK = re.compile(r"(\[MASK\]|<mask>)")


def kind_name(kind: str) -> str:
    """A kind of run in words."""
    return _KIND.get(kind, "Run")


def heading(run: Run) -> Html:
    """What it is, and whether it is finished."""
    about = ("model", "family"), ("model", "size"), ("objective", "name"), ("task", "name")
    words = [run.setting(*path) for path in about] + [run.setting("algorithm")]
    if isinstance(run.setting("model"), str):
        words.insert(0, run.setting("model"))
    if run.is_protocol:
        words.append(f"{len(run.members)} runs of one config")
    what = " · ".join([kind_name(run.kind), *(str(word) for word in words if word)])
    return element(
        "header",
        element("p", what, class_="eyebrow"),
        element("h1", run.name, status(run)),
        element("p", element("code", str(run.path)), class_="soft small"),
        notes(run),
    )


def status(run: Run) -> Html:
    """Finished, or how far it has come."""
    if run.finished:
        return element("span", "finished", class_="pill")
    recorded = run.status.name if run.status is not None else ""
    said = recorded if recorded in ("stopped", "failed") else "not finished"
    if run.is_protocol:
        done = sum(member.finished for member in run.members)
        how_far = f"{done} of {len(run.members)} runs"
    elif run.kind in ("eval", "tokenizer"):
        return Html()
    else:
        total, step = total_steps(run), run.last.get("step", 0)
        how_far = f"step {step:,} of {total:,}" if total else f"step {step:,}"
    return element("span", f"{said}: {how_far}", class_="pill open")


def notes(run: Run) -> Html:
    """What a reader of the figures has to know first; nothing when there is nothing."""
    found = []
    if run.status is not None and run.status.name == "failed":
        found.append(f"It failed: {run.status.message}")
    bad = [r["step"] for r in run.records if "loss" in r and not math.isfinite(number(r["loss"]))]
    if bad:
        many = f"{len(bad)} logged steps, first at " if len(bad) > 1 else ""
        found.append(f"The loss is not a finite number at {many}step {bad[0]:,}.")
    if run.kind == "pretrain" and run.records and not run.keys("valid/"):
        found.append("There is no validation so far: the figures are of the training data.")
    if run.kind in ("pretrain", "finetune") and not run.records and not run.is_protocol:
        found.append("Nothing has been logged so far.")
    if run.unreadable:
        listed = ", ".join(run.unreadable[:5]) + (" …" if len(run.unreadable) > 5 else "")
        found.append(f"Could not be read and was left out: {listed}")
    return element("ul", *(element("li", n) for n in found), class_="notes") if found else Html()


def tiles(run: Run) -> Html:
    """The key figures; those of an evaluation under the names of its measures."""
    if run.kind != "eval":
        return _tiles(figures_of(run))
    return join(
        *(
            join(element("h2", name), _tiles(result_figures(document)))
            for name, document in run.evaluations.items()
        )
    )


def _tiles(figures: Sequence[Figure]) -> Html:
    parts = [
        element(
            "div",
            element("dt", figure.name),
            element("dd", shown(figure.value), class_=_size(figure.value)),
            class_="tile",
        )
        for figure in figures
    ]
    return element("dl", *parts, class_="tiles") if parts else Html()


def _size(value: float | str) -> str | None:
    """Text and the longest numbers are set smaller."""
    return (
        "long"
        if isinstance(value, str) and not value[:1].isdigit() or len(shown(value)) > 10
        else None
    )


def settings(run: Run, of: str = "") -> Html:
    """The settings of a grid, or of several seeds: a row each, the chosen one bold.

    Args:
        run: A folder of several runs.
        of: Its name, where others are in the report.
    """
    document = run.protocol
    rows = document.get("settings")
    if not isinstance(rows, list):
        return Html()
    chosen = document.get("chosen")
    best = chosen.get("setting") if isinstance(chosen, Mapping) else None
    columns = ("n", "median", "std", "min", "max")
    head = [element("th", "setting"), element("th", "runs", class_="figure")]
    head += [element("th", column, class_="figure") for column in columns[1:]]
    head.append(element("th", "best run"))
    made = [
        element(
            "tr",
            element("th", _setting(row.get("setting")), scope="row"),
            *(
                element("td", shown(row.get(column, "")), class_=_figure(row, column, best))
                for column in columns
            ),
            element("td", "/".join(Path(str(row.get("best_run", ""))).parts[-2:]), class_="text"),
        )
        for row in rows
        if isinstance(row, Mapping)
    ]
    title = f"Settings by {document.get('metric', 'their results')}" + (f": {of}" if of else "")
    table = element("table", element("thead", element("tr", *head)), element("tbody", *made))
    return join(element("h2", title), element("div", table, class_="panel scroll"))


def _setting(values: object) -> str:
    """The values that a setting has of the grid."""
    known = values.items() if isinstance(values, Mapping) else ()
    return ", ".join(f"{key}={value}" for key, value in known) or "as given"


def _figure(row: Mapping[str, Any], column: str, best: object) -> str:
    return "figure best" if column == "median" and row.get("setting") == best else "figure"


def curves(runs: Sequence[Run]) -> Html:
    """All plots that there is data for, of one run or several together."""
    plots = plots_of(runs)
    if sum(not plot.wide for plot in plots) % 2:  # two in a row, so the last one takes a whole row
        plots[-1] = replace(plots[-1], wide=True)
    panels = [
        element(
            "figure",
            element("div", draw(plot), class_="scroll"),
            class_="panel wide" if plot.wide else "panel",
        )
        for plot in plots
    ]
    return element("div", *panels, class_="plots") if panels else Html()


def classifications(run: Run) -> Html:
    """The classes and the confusion matrix of every evaluation that has them."""
    parts = []
    for name, document in run.evaluations.items():
        results = document.get("results")
        if not isinstance(results, Mapping) or "per_class" not in results:
            continue
        where = "validation rows" if name == "valid" else name
        panels = [element("div", element("h3", f"By class, {where}"), _classes(results))]
        if isinstance(results.get("confusion"), Mapping):
            title = "Confusion: truth in rows, prediction in columns"
            panels.append(element("div", element("h3", title), _confusion(results["confusion"])))
        boxed = [element("div", panel, class_="panel scroll") for panel in panels]
        parts.append(element("div", *boxed, class_="columns"))
    return join(element("h2", "Classes"), *parts) if parts else Html()


_SAMPLES = {
    "fill-mask": "Samples: a masked word of held-out text",
    "fill-span": "Samples: the words that stood where the sentinel is",
    "deshuffle": "Samples: shuffled words put in order",
}


def samples(run: Run) -> Html:
    """What the model says: masked words filled in, or texts gone on with."""
    items = run.samples.get("items")
    if not isinstance(items, list) or not items:
        return Html()
    filled = run.samples.get("kind") == "fill-mask"
    parts = [_filled(item) if filled else _generated(item) for item in items]
    title = _SAMPLES.get(str(run.samples.get("kind")), "Samples: text gone on with")
    return join(element("h2", title), element("div", *parts, class_="panel"))


def events(run: Run) -> Html:
    """What happened, and when."""
    if not run.events:
        return Html()
    rows = [
        [
            element("td", str(event.get("time", "")).replace("T", " ")[:19], class_="figure"),
            element("td", event.get("event", "")),
            element("td", _fields(event), class_="text"),
        ]
        for event in run.events
    ]
    table = element("table", element("tbody", *(element("tr", *row) for row in rows)))
    return _folded(f"Events ({len(rows)})", table)


def config(run: Run) -> Html:
    """The resolved config as it is in the run folder."""
    text = (run.path / "config.yaml").read_text(encoding="utf-8").rstrip()
    marked = re.sub(
        r"(?m)^([ -]*)([\w./+-]+)(?=:(?: |$))", r'\1<span class="name">\2</span>', escape(text)
    )
    return _folded("Config", element("pre", Html(marked)))


def environment(run: Run) -> Html:
    """Versions, hardware, command, hashes."""
    facts = dict(_leaves(run.environment))
    rows = [
        element("tr", element("th", key, scope="row"), element("td", value, class_="text"))
        for key, value in facts.items()
    ]
    return _folded("Environment", element("table", element("tbody", *rows))) if rows else Html()


def _classes(results: Mapping[str, Any]) -> Html:
    columns = ("precision", "recall", "f1", "support")
    head = [element("th", "label")]
    head += [element("th", "F1" if c == "f1" else c, class_="figure") for c in columns]
    rows = [
        element(
            "tr",
            element("td", row["label"], class_="text"),
            *(element("td", shown(row[column]), class_="figure") for column in columns),
        )
        for row in results["per_class"]
    ]
    return element("table", element("thead", element("tr", *head)), element("tbody", *rows))


def _confusion(confusion: Mapping[str, Any]) -> Html:
    labels, matrix = confusion["labels"], np.array(confusion["matrix"], dtype=float)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    head = element("tr", element("th"), *(element("th", label, scope="col") for label in labels))
    rows = [
        element(
            "tr",
            element("th", label, scope="row"),
            *(_cell(int(c), s, label, to) for c, s, to in zip(counts, row, labels, strict=True)),
        )
        for label, counts, row in zip(labels, matrix, shares, strict=True)
    ]
    return element("table", element("thead", head), element("tbody", *rows), class_="confusion")


def _cell(count: int, share: float, truth: str, predicted: str) -> Html:
    # A strength of 0.6 at most: the count on it is to be read in light and in dark.
    return element(
        "td",
        f"{count:,}",
        class_="figure",
        style=f"background:rgba(0,114,178,{0.6 * share:.3f})",
        title=f"{share:.1%} of {truth} taken for {predicted}",
    )


def _filled(item: Mapping[str, Any]) -> Html:
    answer = str(item.get("answer", ""))
    pieces = _MASK.split(str(item.get("text", "")), maxsplit=1)
    text = [element("span", answer or p, class_="mask") if _MASK.match(p) else p for p in pieces]
    guesses = [_guess(guess, answer) for guess in item.get("predictions", ())]
    return element(
        "div", element("p", *text), element("ol", *guesses, class_="guesses"), class_="sample"
    )


def _guess(guess: Mapping[str, Any], answer: str) -> Html:
    token, share = str(guess.get("token", "")).strip(), number(guess.get("score"))
    share = share if math.isfinite(share) else 0.0
    right = token.casefold() == answer.strip().casefold()
    return element(
        "li",
        element("span", f"{token} ✓" if right else token, class_="right" if right else None),
        element("span", element("i", style=f"width:{100 * share:.1f}%"), class_="bar"),
        element("span", f"{share:.1%}", class_="share"),
    )


def _generated(item: Mapping[str, Any]) -> Html:
    text = element("span", item.get("text", ""), class_="made")
    body = element("p", element("strong", item.get("prompt", "")), text, class_="going")
    there = item.get("answer")
    answer = element("p", "The text: ", there, class_="going") if there else Html()
    return element("div", body, answer, class_="sample")


def _fields(event: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in event.items() if key not in ("time", "event")}
    return ", ".join(f"{key} {shown(value)}" for key, value in kept.items())


def _leaves(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for key, value in facts.items():
        if isinstance(value, Mapping):
            found += _leaves(value, f"{prefix}{key} ")
        elif isinstance(value, list):
            found.append((prefix + key, " ".join(map(str, value))))
        elif value is not None:
            found.append((prefix + key, str(value)))
    return found


def _folded(title: str, body: Html) -> Html:
    return element("details", element("summary", title), element("div", body))
