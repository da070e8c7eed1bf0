"""Tokenizers side by side: tables for the terminal, and a page."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from plmctl.formatting import format_value
from plmctl.reporting.drawing import embedded_curves
from plmctl.reporting.html import Html, element, escape, join, page, panel, swatch, table
from plmctl.reporting.plots import Curve, Plot
from plmctl.reporting.tables import rows_table

_SHADES = ("on #b9dcf2", "on #fbd3b9", "on #bfe6d5")  # black is readable on these on any terminal
_LISTS = {"longest": "longest tokens", "unused": "tokens not used in this text, last ids"}
_FEW_WORDS = 20  # a script with fewer words is left out

Document = Mapping[str, Any]
"""The result of ``evaluate_tokenizers``: ``tokenizers`` by name, ``overlap``, ``samples``."""


def tokenizer_tables(document: Document) -> list[Table]:
    """Metrics, words by script, overlap and samples."""
    names = list(document["tokenizers"])
    tables = [rows_table("tokenizers", ["", *names], _metrics(document))]
    if languages := document.get("languages"):
        tables.append(fairness_table(languages))
    if rows := _scripts(document):
        tables.append(rows_table("tokens per word (words that are one token)", ["", *names], rows))
    if len(names) > 1:
        rows = _overlap(document)
        tables.append(rows_table("% of the smaller vocabulary in both", ["", *names], rows))
    for key, title in _LISTS.items():
        listed = [(n, Text(", ".join(f[key]))) for n, f in document["tokenizers"].items()]
        tables.append(_wrapped(title, listed))
    for sample in document["samples"]:
        tables.append(_wrapped("sample", [(n, _coloured(sample[n])) for n in names]))
    return tables


_PAID = "tokens per parallel sentence (pieces before merging: the least)"


def fairness_table(languages: Mapping[str, Mapping[str, Any]]) -> Table:
    """What each language pays, by tokenizer."""
    return rows_table(_PAID, ["", *languages], _paid(languages))


def tokenizer_page(document: Document) -> str:
    """The page as HTML."""
    names = list(document["tokenizers"])
    scripts = _table(names, _scripts(document))
    samples = [_sample(names, sample) for sample in document["samples"]]
    body = join(
        element("p", "Tokenizers", class_="eyebrow"),
        element("h1", ", ".join(names)),
        element("p", f"On {document['text']}.", class_="soft"),
        element("h2", "Metrics"),
        _table(names, _metrics(document)),
        element("div", embedded_curves(_plot(document)), class_="panel", style="margin-top:14px"),
        element("h2", "Tokens per word, by script (words that are one token)"),
        scripts,
        join(element("h2", _PAID.capitalize()), _table(names, _paid(languages)))
        if (languages := document.get("languages"))
        else "",
        join(
            element("h2", "Vocabulary in both, % of the smaller"), _table(names, _overlap(document))
        )
        if len(names) > 1
        else "",
        *(_list(document, key, title) for key, title in _LISTS.items()),
        element("h2", "Samples"),
        *samples,
    )
    return page("Tokenizers · plmctl report", element("main", body))


def _metrics(document: Document) -> list[list[object]]:
    every = [entry["figures"] for entry in document["tokenizers"].values()]
    return [[name, *(metrics[name] for metrics in every)] for name in every[0]]


def _scripts(document: Document) -> list[list[object]]:
    every = [entry["scripts"] for entry in document["tokenizers"].values()]
    names = [name for name, entry in every[0].items() if entry["words"] >= _FEW_WORDS]
    return [[name, *(_fertility(scripts[name]) for scripts in every)] for name in names]


def _paid(languages: Mapping[str, Mapping[str, Any]]) -> list[list[object]]:
    every = list(languages.values())
    rows: list[list[object]] = [
        [name, *(f"{one['tokens'][name]:.1f} ({one['pieces'][name]:.1f})" for one in every)]
        for name in every[0]["tokens"]
    ]
    dearest = [sorted(one["tokens"], key=one["tokens"].__getitem__) for one in every]
    spread = [
        f"{one['spread']:.2f} ({names[-1]} / {names[0]})"
        for one, names in zip(every, dearest, strict=True)
    ]
    rows += [["dearest / cheapest", *spread], ["Gini", *(f"{one['gini']:.3f}" for one in every)]]
    if any(any(one["unknown"].values()) for one in every):
        worst = [max(one["unknown"].items(), key=itemgetter(1)) for one in every]
        rows.append(["most unknown, %", *(f"{100 * share:.1f} ({name})" for name, share in worst)])
    return rows


def _fertility(counts: Mapping[str, int]) -> str:
    words = max(1, counts["words"])
    return f"{format_value(counts['tokens'] / words)} ({100 * counts['whole'] / words:.0f} %)"


def _overlap(document: Document) -> list[list[object]]:
    names = list(document["tokenizers"])
    return [
        [name, *(round(100 * share, 1) for share in row)]
        for name, row in zip(names, document["overlap"], strict=True)
    ]


def _plot(document: Document) -> Plot:
    lines = []
    for color, (name, entry) in enumerate(document["tokenizers"].items()):
        sizes, values = (np.array(column, dtype=np.float64) for column in entry["by_size"])
        lines.append(Curve(name, sizes, values, color, "dashed"))
    title = "Compression against vocabulary size"
    return Plot("size", title, "bytes per token", tuple(lines), wide=True, along="vocabulary size")


def _table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> Html:
    marked = [join(swatch(place), escape(name)) for place, name in enumerate(names)]
    return panel(table(("", *(marked if len(names) > 1 else names)), rows))


def _list(document: Document, key: str, title: str) -> Html:
    rows = [
        element("tr", element("th", name, scope="row"), element("td", ", ".join(entry[key])))
        for name, entry in document["tokenizers"].items()
    ]
    return join(element("h2", title.capitalize()), panel(element("table", *rows)))


def _sample(names: Sequence[str], sample: Mapping[str, Sequence[str]]) -> Html:
    rows = [
        element(
            "tr",
            element("th", name, element("div", f"{len(sample[name])} parts", class_="soft small")),
            element(
                "td",
                *(
                    element("span", part, class_=f"token t{place % len(_SHADES)}")
                    for place, part in enumerate(sample[name])
                ),
                class_="text",
            ),
        )
        for name in names
    ]
    return panel(element("table", *rows), style="margin-top:14px")


def _coloured(parts: Sequence[str]) -> Text:
    text = Text()
    for place, part in enumerate(parts):
        text.append("|" if place else "", style="dim")  # visible without colors
        text.append(part, style=f"black {_SHADES[place % len(_SHADES)]}")
    return text


def _wrapped(title: str, rows: Sequence[tuple[str, Text]]) -> Table:
    table = rows_table(title, ["", ""], [])
    table.show_header = False
    table.columns[1].justify = "left"
    for name, cell in rows:
        table.add_row(Text(name, no_wrap=True), cell)
    return table
