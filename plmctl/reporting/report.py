"""``report.html``: one run, or several side by side, in one file that asks for nothing else."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from plmctl.reporting import comparison, sections
from plmctl.reporting.html import Html, element, join, page, save_page
from plmctl.reporting.intervals import Interval, draw
from plmctl.reporting.reader import Run, read_runs


def write(runs: Sequence[Path], out: Path, differences: Sequence[Interval] = ()) -> Path:
    """Write the report on runs, finished or not.

    Args:
        runs: Run folders; with several, runs of one kind are drawn together.
        out: The file to write.
        differences: Between several runs, to be drawn with their intervals.

    Returns:
        ``out``.

    Raises:
        ConfigError: A folder that is no run folder.
        PlmError: ``out`` cannot be written.
    """
    save_page(out, render(read_runs(runs), differences))
    return out


def render(runs: Sequence[Run], differences: Sequence[Interval] = ()) -> str:
    """The report as HTML; arguments as ``write``."""
    body = _one(runs[0]) if len(runs) == 1 else _several(runs, differences)
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs"
    footer = element("footer", "Made by plmctl from the run folder alone. Losses are in nats.")
    return page(f"{title} · plmctl report", element("main", body, footer))


def _one(run: Run) -> Html:
    if run.is_protocol:
        return _protocol(run)
    plots = sections.curves([run])
    return join(
        sections.heading(run),
        sections.tiles(run),
        join(element("h2", "Training"), plots) if plots else "",
        sections.classifications(run),
        sections.samples(run),
        element("h2", "How it was made"),
        sections.config(run),
        sections.environment(run),
        sections.events(run),
    )


def _protocol(run: Run) -> Html:
    """A folder of several runs of one config: its settings, and its runs as runs."""
    return join(
        sections.heading(run),
        sections.settings(run),
        _together(run.members) if run.members else "",
        element("h2", "Each run") if run.members else "",
        *(_folded(member) for member in run.members),
        element("h2", "How it was made"),
        sections.config(run),
    )


def _members(run: Run) -> Sequence[Run]:
    """The runs in a folder of several, named for it as well; else the run itself."""
    if not run.members:
        return [] if run.is_protocol else [run]
    return [replace(member, name=f"{run.name}/{member.name}") for member in run.members]


def _several(folders: Sequence[Run], differences: Sequence[Interval]) -> Html:
    runs = [run for folder in folders for run in _members(folder)]
    kinds = list(dict.fromkeys(run.kind for run in runs))
    return join(
        element(
            "header", element("p", "Report", class_="eyebrow"), element("h1", f"{len(runs)} runs")
        ),
        *(sections.settings(folder, of=folder.name) for folder in folders if folder.is_protocol),
        *(_together([run for run in runs if run.kind == kind]) for kind in kinds),
        *(
            (element("h2", "Differences, with their 95 % intervals"), draw(differences))
            if differences
            else ()
        ),
        element("h2", "Each run"),
        *(_folded(run) for run in runs),
    )


def _together(runs: Sequence[Run]) -> Html:
    """The runs of one kind."""
    plots = sections.curves(runs)
    return join(
        element("h2", sections.kind_name(runs[0].kind)),
        comparison.comparison(runs),
        comparison.differences(runs) if len(runs) > 1 else "",
        element("div", plots, style="margin-top:14px") if plots else "",
    )


def _folded(run: Run) -> Html:
    """A run's own results and settings, to be opened."""
    return element(
        "details",
        element("summary", run.name, sections.status(run)),
        element(
            "div",
            sections.notes(run),
            sections.classifications(run),
            sections.samples(run),
            sections.config(run),
            sections.environment(run),
            sections.events(run),
        ),
    )
