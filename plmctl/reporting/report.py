"""``report.html``: one run, or several side by side, in one file that loads no other.

The pages come first, then their sections: a function for each, from data to markup.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from plmctl.addresses import shown
from plmctl.characters import HAN, KANA
from plmctl.files import is_model
from plmctl.formatting import format_value, without_local_paths
from plmctl.reporting.drawing import draw_intervals, embedded_curves, embedded_svg
from plmctl.reporting.html import (
    Html,
    element,
    escape,
    join,
    page,
    panel,
    save_page,
    swatch,
    table,
)
from plmctl.reporting.plots import Interval, plots_of
from plmctl.reporting.run_files import (
    CLASS_COLUMNS,
    SETTING_COLUMNS,
    YARDSTICK_COLUMNS,
    Metric,
    Run,
    as_number,
    chosen_setting,
    class_rows,
    counted_around,
    each_run,
    flatten,
    loss_sentence,
    metrics_of,
    outdated,
    read_runs,
    result_metrics,
    setting_columns,
    setting_rows,
    spread,
    total_steps,
    yardstick_rows,
    yardstick_sentence,
)

# --- Pages ---


def write_report(runs: Sequence[Path], out: Path, differences: Sequence[Interval] = ()) -> Path:
    """Write the report on runs, finished or not.

    Args:
        runs: Run folders; several runs of one kind are drawn together.

    Returns:
        ``out``.

    Raises:
        ConfigError: A folder is no run folder.
        PlmError: ``out`` cannot be written.
    """
    save_page(out, render_report(read_runs(runs), differences))
    return out


def render_report(runs: Sequence[Run], differences: Sequence[Interval] = ()) -> str:
    """The report as HTML; arguments as ``write_report``."""
    body = _page_of_one_run(runs[0]) if len(runs) == 1 else _page_of_several_runs(runs, differences)
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    footer = element("footer", "Written by plmctl from the run folder. Losses are in nats.")
    return page(f"{title} · plmctl report", element("main", body, footer))


def _page_of_one_run(run: Run) -> Html:
    if run.is_protocol:
        return _page_of_protocol(run)
    plots = plots_section([run])
    return join(
        page_heading(run),
        metric_tiles(run),
        yardstick_section(run),
        join(element("h2", "Training"), plots) if plots else "",
        classes_section(run),
        samples_over_time(run),
        samples_section(run),
        element("h2", "Config and environment"),
        config_section(run),
        environment_section(run),
        events_section(run),
    )


def _page_of_protocol(run: Run) -> Html:
    """The page of a folder of several runs of one config."""
    return join(
        page_heading(run),
        settings_table(run),
        _runs_of_one_kind(run.members) if run.members else "",
        element("h2", "Each run") if run.members else "",
        *(_run_details(member) for member in run.members),
        element("h2", "Config and environment"),
        config_section(run),
    )


def _page_of_several_runs(folders: Sequence[Run], differences: Sequence[Interval]) -> Html:
    runs = [run for folder in folders for run in each_run(folder)]
    kinds = list(dict.fromkeys(run.kind for run in runs))
    return join(
        element(
            "header", element("p", "Report", class_="eyebrow"), element("h1", f"{len(runs)} runs")
        ),
        *(
            join(notes_list(folder), settings_table(folder, of=folder.name))
            for folder in folders
            if folder.is_protocol
        ),
        *(_runs_of_one_kind([run for run in runs if run.kind == kind]) for kind in kinds),
        *(
            (
                element("h2", "Differences, with their 95 % intervals"),
                panel(
                    embedded_svg(
                        draw_intervals(differences),
                        "differences with their 95 % intervals",
                        wide=True,
                    )
                ),
            )
            if differences
            else ()
        ),
        element("h2", "Each run"),
        *(_run_details(run) for run in runs),
    )


def _runs_of_one_kind(runs: Sequence[Run]) -> Html:
    """The runs of one kind: those that can be compared together, then what their configs differ in.

    A loss is per token of a tokenizer, for what an objective hides of the text: there is no better
    or worse between others.
    """
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.comparable, []).append(run)
    apart = _APART.get(runs[0].kind, "") if len(groups) > 1 else ""
    parts = []
    for members in groups.values():
        title = " · ".join(filter(None, map(str, _of_group(members[0])))) if apart else ""
        plots = plots_section(members)
        parts += [
            element("h3", title, style="margin-top:22px") if title else "",
            comparison_table(members),
            element("div", plots, style="margin-top:14px") if plots else "",
        ]
    return join(
        element("h2", kind_name(runs[0].kind)),
        element("p", apart, class_="soft") if apart else "",
        *parts,
        config_differences(runs, marked=len(groups) == 1) if len(runs) > 1 else "",
    )


_APART = {
    "pretrain": "Losses of different objectives or tokenizers cannot be compared: each group has "
    "its own table and curves.",
    "finetune": "Results of different tasks or validation rows cannot be compared: each group has "
    "its own table and curves.",
}


def _of_group(run: Run) -> tuple[object, ...]:
    """What the runs of a group share."""
    if run.kind == "finetune":
        valid = run.setting("data", "valid")
        return run.setting("task", "name"), ", ".join(valid) if isinstance(valid, list) else ""
    return run.setting("objective", "name"), run.setting("tokenizer")


def _run_details(run: Run) -> Html:
    """The results and settings of a run, folded."""
    return element(
        "details",
        element("summary", run.name, status_mark(run)),
        element(
            "div",
            notes_list(run),
            yardstick_section(run),
            classes_section(run),
            samples_over_time(run),
            samples_section(run),
            config_section(run),
            environment_section(run),
            events_section(run),
        ),
    )


# --- Sections of one run ---


_KIND_NAMES = {
    "pretrain": "Pretraining",
    "finetune": "Finetuning",
    "eval": "Evaluation",
    "tokenizer": "Tokenizer",
}

_MASK_TOKEN = re.compile(r"(\[MASK\]|<mask>)")


def kind_name(kind: str) -> str:
    """A kind of run in words."""
    return _KIND_NAMES.get(kind, "Run")


def page_heading(run: Run) -> Html:
    """The kind of run, its name and its status."""
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
        element("h1", run.name, status_mark(run)),
        element("p", element("code", without_local_paths(str(run.path))), class_="soft small"),
        trying(run),
        notes_list(run),
    )


def trying(run: Run) -> Html:
    """The command line that opens the model of a run in a browser, if it has one."""
    if run.kind not in ("pretrain", "finetune") or not is_model(run.path / "model"):
        return Html()
    command = shlex.join(["plmctl", "try", without_local_paths(str(run.path))])
    return element("p", "Try the model: ", element("code", command), class_="soft small")


def status_mark(run: Run) -> Html:
    """Finished, or how many of its steps or runs are."""
    if run.finished:
        return element("span", "finished", class_="pill")
    recorded = run.status.name if run.status is not None else ""
    state = recorded if recorded in ("stopped", "failed") else "not finished"
    if run.is_protocol:
        done = sum(member.finished for member in run.members)
        how_far = f"{done} of {len(run.members)} runs"
    elif run.kind in ("eval", "tokenizer"):
        return Html()
    else:
        total, step = total_steps(run), run.last.get("step", 0)
        how_far = f"step {step:,} of {total:,}" if total else f"step {step:,}"
    return element("span", f"{state}: {how_far}", class_="pill open")


def notes_list(run: Run) -> Html:
    """What to know of the results: warnings, and whether they are better than counting."""
    notes: list[str] = []
    good = ""
    if run.status is not None and run.status.name == "failed":
        notes.append(f"The run failed: {without_local_paths(run.status.message)}")
    bad = [
        r["step"] for r in run.records if "loss" in r and not math.isfinite(as_number(r["loss"]))
    ]
    if bad:
        many = f"{len(bad)} logged steps, first at " if len(bad) > 1 else ""
        notes.append(f"The loss is not a finite number at {many}step {bad[0]:,}.")
    if run.kind == "pretrain" and run.records and not run.keys("valid/"):
        notes.append("There is no validation so far: the metrics are those of the training data.")
    if run.kind in ("pretrain", "finetune") and not run.records and not run.is_protocol:
        notes.append("Nothing has been logged so far.")
    line = loss_sentence(run.results, run.environment) if run.kind == "pretrain" else ""
    if line := line or yardstick_sentence(run.protocol or run.results):
        notes.append(f"{line[0].upper()}{line[1:]}.")
        passed, ahead = counted_around(run.results, run.environment)
        good = notes[-1] if passed and not ahead else ""
    notes += outdated(run)
    if run.unreadable:
        listed = ", ".join(run.unreadable[:5]) + (" …" if len(run.unreadable) > 5 else "")
        notes.append(f"Left out because it cannot be read: {listed}")
    items = (element("li", note, class_="good" if note == good else None) for note in notes)
    return element("ul", *items, class_="notes") if notes else Html()


def metric_tiles(run: Run) -> Html:
    """The metrics; those of an evaluation under the names of its measures."""
    if run.kind != "eval":
        return _tile_list(metrics_of(run))
    return join(
        *(
            join(element("h2", name), _tile_list(result_metrics(document)))
            for name, document in run.evaluations.items()
        )
    )


def _tile_list(metrics: Sequence[Metric]) -> Html:
    # Text and the longest numbers are set smaller.
    parts = [
        element(
            "div",
            element("dt", metric.name),
            element(
                "dd",
                format_value(metric.value),
                class_="long"
                if isinstance(metric.value, str)
                and not metric.value[:1].isdigit()
                or len(format_value(metric.value)) > 10
                else None,
            ),
            class_="tile",
        )
        for metric in metrics
    ]
    return element("dl", *parts, class_="tiles") if parts else Html()


def settings_table(run: Run, of: str = "") -> Html:
    """A row per setting of a grid; the median of the best one is bold.

    Args:
        run: A folder of several runs.
        of: Its name, if the report has others.
    """
    rows = setting_rows(run.protocol)
    if not rows:
        return Html()
    for row in rows:
        row[-1] = "/".join(Path(str(row[-1])).parts[-2:])
    best, median = chosen_setting(run.protocol), SETTING_COLUMNS.index("median")
    if best is not None:
        rows[best][median] = element("b", format_value(rows[best][median]))
    metric = run.protocol.get("metric", "their results")
    title = f"Settings by {metric}" + (f": {of}" if of else "")
    return join(element("h2", title), panel(table(setting_columns(run.protocol), rows)))


def plots_section(runs: Sequence[Run]) -> Html:
    """The plots of a run, or of several runs together."""
    plots = plots_of(runs)
    if sum(not plot.wide for plot in plots) % 2:  # two in a row, so the last one takes a whole row
        plots[-1] = replace(plots[-1], wide=True)
    panels = [
        element(
            "figure",
            element("div", embedded_curves(plot), class_="scroll"),
            class_="panel wide" if plot.wide else "panel",
        )
        for plot in plots
    ]
    return element("div", *panels, class_="plots") if panels else Html()


def classes_section(run: Run) -> Html:
    """The classes and the confusion matrix of every evaluation that has them."""
    parts = []
    for name, document in run.evaluations.items():
        results = document.get("results")
        if not isinstance(results, Mapping) or "per_class" not in results:
            continue
        where = "validation rows" if name == "valid" else name
        panels = [
            element(
                "div",
                element("h3", f"By class, {where}"),
                table(CLASS_COLUMNS, class_rows(results)),
            )
        ]
        if isinstance(results.get("confusion"), Mapping):
            title = "Confusion: truth in rows, prediction in columns"
            panels.append(
                element("div", element("h3", title), _confusion_table(results["confusion"]))
            )
        parts.append(element("div", *map(panel, panels), class_="columns"))
    return join(element("h2", "Classes"), *parts) if parts else Html()


def yardstick_section(run: Run) -> Html:
    """What counting gives on the rows of each document of eval/ that has it."""
    results = ((n, d.get("results")) for n, d in run.evaluations.items())
    parts = [
        panel(
            join(
                element("h3", "validation rows" if name == "valid" else name),
                table(YARDSTICK_COLUMNS, rows),
            )
        )
        for name, of in results
        if isinstance(of, Mapping) and (rows := yardstick_rows(of))
    ]
    title = element("h2", "What counting gives, without a network")
    return join(title, *parts) if parts else Html()


_SAMPLE_TITLES = {
    "fill-mask": "Samples: a masked word of held-out text",
    "fill-span": "Samples: the words that a sentinel replaces",
    "deshuffle": "Samples: shuffled words put in order",
    "answers": "Samples: answers to validation rows",
}


def samples_section(run: Run) -> Html:
    """Predictions of the model: masked words, or continuations of texts."""
    items = run.samples.get("items")
    if not isinstance(items, list) or not items:
        return Html()
    filled = run.samples.get("kind") == "fill-mask"
    items = list(map(_unspaced_item, items))
    label = "Right: " if run.samples.get("kind") == "answers" else "Original: "
    parts = [_filled_sample(item) if filled else _generated_sample(item, label) for item in items]
    title = _SAMPLE_TITLES.get(str(run.samples.get("kind")), "Samples: continued texts")
    return join(element("h2", title), element("div", *parts, class_="panel"))


def samples_over_time(run: Run) -> Html:
    """What the network made of the same texts at some of its validations, one below the other."""
    lines = spread(run.samples_by_step)
    if len(lines) < 2 and run.samples or not lines:
        return Html()
    parts = []
    for number, item in enumerate(map(_unspaced_item, lines[-1]["items"])):
        rows = [
            (f"{as_number(line['step']):,.0f}", _answer_in_short(own))
            for line in lines
            for own in map(_unspaced_item, line["items"])
            if _prompt(own) == _prompt(item)
        ]
        name, title, original = "its guesses", _masked_text(item), ""
        if not _is_filled(item):
            name, title, original = "its text", [_prompt(item)], item.get("answer") or ""
        note = element("p", f"Original: {original}", class_="soft") if original else ""
        shown = join(note, table(("step", name), rows, numbers=False))
        summary = element("summary", *title)
        parts.append(element("details", summary, element("div", shown), open=number == 0))
    return join(element("h2", "Samples over the training"), *parts) if parts else Html()


def events_section(run: Run) -> Html:
    """The events of the run, with their times."""
    if not run.events:
        return Html()
    rows = [
        [
            element("td", str(event.get("time", "")).replace("T", " ")[:19], class_="number"),
            element("td", event.get("event", "")),
            element("td", _event_fields(event), class_="text"),
        ]
        for event in run.events
    ]
    table = element("table", element("tbody", *(element("tr", *row) for row in rows)))
    return _details(f"Events ({len(rows)})", table)


def config_section(run: Run) -> Html:
    """The resolved config of the run folder, without secrets and paths of this machine."""
    text = shown((run.path / "config.yaml").read_text(encoding="utf-8")).rstrip()
    text = without_local_paths(text)
    marked = re.sub(
        r"(?m)^([ -]*)([\w./+-]+)(?=:(?: |$))", r'\1<span class="name">\2</span>', escape(text)
    )
    return _details("Config", element("pre", Html(marked)))


def environment_section(run: Run) -> Html:
    """Versions, hardware, command, hashes."""
    rows = [
        (key, _environment_value(key, value))
        for key, value in flatten(run.environment, " ")
        if value is not None
    ]
    return _details("Environment", table((), rows, numbers=False)) if rows else Html()


def _environment_value(key: str, value: object) -> str:
    if not isinstance(value, list):
        return without_local_paths(str(value))
    words = [without_local_paths(str(word)) for word in value]
    return shlex.join(words) if key == "command" else " ".join(words)  # a command can be pasted


def _confusion_table(confusion: Mapping[str, Any]) -> Html:
    labels, matrix = confusion["labels"], np.array(confusion["matrix"], dtype=float)
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    head = element("tr", element("th"), *(element("th", label, scope="col") for label in labels))
    rows = [
        element(
            "tr",
            element("th", label, scope="row"),
            *(
                _confusion_cell(int(c), s, label, to)
                for c, s, to in zip(counts, row, labels, strict=True)
            ),
        )
        for label, counts, row in zip(labels, matrix, shares, strict=True)
    ]
    return element("table", element("thead", head), element("tbody", *rows), class_="confusion")


def _confusion_cell(count: int, share: float, truth: str, predicted: str) -> Html:
    # At most 0.6: the count stays readable on light and dark pages.
    return element(
        "td",
        f"{count:,}",
        class_="number",
        style=f"background:rgba(0,114,178,{0.6 * share:.3f})",
        title=f"{share:.1%} of {truth} predicted as {predicted}",
    )


_WIDE = f"[{HAN}{KANA}\u3000-\u303f\uff00-\uffef]"
_WIDE_GAP = re.compile(rf"(?<={_WIDE}) (?={_WIDE}|\[MASK\])|(?<=\[MASK\]) (?={_WIDE})")


def unspaced(text: str) -> str:
    """A text without the spaces that WordPiece's decoder puts between Chinese characters."""
    return _WIDE_GAP.sub("", text)


def _unspaced_item(item: Mapping[str, Any]) -> dict[str, Any]:
    return {key: unspaced(of) if isinstance(of, str) else of for key, of in item.items()}


def _masked_text(item: Mapping[str, Any]) -> list[str]:
    """A text with the answer in place of its mask."""
    answer = str(item.get("answer", ""))
    pieces = _MASK_TOKEN.split(str(item.get("text", "")), maxsplit=1)
    return [
        element("span", answer or p, class_="mask") if _MASK_TOKEN.match(p) else p for p in pieces
    ]


_GUESSES_IN_SHORT = 3


def _is_filled(item: Mapping[str, Any]) -> bool:
    """Whether it is a text with a mask; else one that the network continued or answered."""
    return "predictions" in item


def _prompt(item: Mapping[str, Any]) -> str:
    return str(item.get("text" if _is_filled(item) else "prompt", ""))


def _answer_in_short(item: Mapping[str, Any]) -> Html:
    """What the network made of a text, in one line."""
    if not _is_filled(item):
        text = str(item.get("text", "")).strip()
        return element("span", text, class_="made") if text else element("span", "–", class_="soft")
    answer = str(item.get("answer", "")).strip().casefold()
    guesses = []
    for guess in item["predictions"][:_GUESSES_IN_SHORT]:
        token, share = str(guess.get("token", "")).strip(), as_number(guess.get("score"))
        right = token.casefold() == answer
        name = element("span", f"{token} ✓", class_="right") if right else token
        percent = f" {share:.1%}" if 0 <= share <= 1 else ""
        guesses.append(
            element("span", name, element("span", percent, class_="soft"), class_="guess")
        )
    return join(*guesses)


def _filled_sample(item: Mapping[str, Any]) -> Html:
    answer = str(item.get("answer", ""))
    text = _masked_text(item)
    guesses = [_guess_item(guess, answer) for guess in item.get("predictions", ())]
    return element(
        "div", element("p", *text), element("ol", *guesses, class_="guesses"), class_="sample"
    )


def _guess_item(guess: Mapping[str, Any], answer: str) -> Html:
    token, share = str(guess.get("token", "")).strip(), as_number(guess.get("score"))
    share = min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
    right = token.casefold() == answer.strip().casefold()
    return element(
        "li",
        element("span", f"{token} ✓" if right else token, class_="right" if right else None),
        element("span", element("i", style=f"width:{100 * share:.1f}%"), class_="bar"),
        element("span", f"{share:.1%}", class_="share"),
    )


def _generated_sample(item: Mapping[str, Any], label: str) -> Html:
    text = element("span", item.get("text", ""), class_="made")
    body = element("p", element("strong", item.get("prompt", "")), text, class_="going")
    original = item.get("answer")
    answer = element("p", label, original, class_="going") if original else Html()
    return element("div", body, answer, class_="sample")


def _event_fields(event: Mapping[str, Any]) -> str:
    fields = {key: value for key, value in event.items() if key not in ("time", "event")}
    text = ", ".join(f"{key} {format_value(value)}" for key, value in fields.items())
    return without_local_paths(text)


def _details(title: str, body: Html) -> Html:
    return element("details", element("summary", title), element("div", body))


# --- Sections of several runs: side by side, and what differs in their configs ---


def comparison_table(runs: Sequence[Run]) -> Html:
    """The metrics, a row per run; the best of a column is bold."""
    metrics = [{metric.name: metric for metric in metrics_of(run)} for run in runs]
    names = list(dict.fromkeys(name for known in metrics for name in known))
    best = {name: _best_value([known.get(name) for known in metrics]) for name in names}
    if runs[0].kind == "eval":  # the tokenizers of the models are not known here
        best |= {name: math.nan for name in names if re.search("loss|perplexity", name)}
    rows = []
    for place, (run, known) in enumerate(zip(runs, metrics, strict=True)):
        row: list[object] = [
            join(
                swatch(place),
                escape(run.name),
                Html()
                if run.finished or run.kind in ("eval", "tokenizer")
                else element("div", "not finished", class_="soft small"),
            )
        ]
        for name in names:
            metric = known.get(name)
            if metric is not None and as_number(metric.value) == best[name]:
                row.append(element("b", format_value(metric.value)))
            else:
                row.append(metric.value if metric is not None else "")
        rows.append(row)
    return panel(table(("run", *names), rows))


def config_differences(runs: Sequence[Run], *, marked: bool = True) -> Html:
    """The keys whose values differ between the configs; ``marked``: with the colors of the runs."""
    settings = [
        {
            key: without_local_paths(
                leaf if isinstance(leaf, str) else json.dumps(leaf, ensure_ascii=False)
            )
            for key, leaf in flatten(run.config)
        }
        for run in runs
    ]
    keys = list(dict.fromkeys(key for known in settings for key in known))
    rows = [
        (key, *(known.get(key, "") for known in settings))
        for key in keys
        # A key that only one family has, with an empty value, is no difference.
        if key != "run" and len({known.get(key, "null") for known in settings}) > 1
    ]
    if not rows:
        return Html()
    names = [
        join(swatch(place) if marked else "", escape(run.name)) for place, run in enumerate(runs)
    ]
    return join(
        element("h3", "Differences between the configs", style="margin-top:22px"),
        panel(table(("config", *names), rows, numbers=False)),
    )


def _best_value(column: Sequence[Metric | None]) -> float:
    """The best value of a column; nan, which nothing equals, if there is none."""
    known = [metric for metric in column if metric is not None]
    values = [as_number(metric.value) for metric in known]
    if len(set(values)) < 2 or known[0].better is None:
        return math.nan
    return min(values) if known[0].better == "low" else max(values)
