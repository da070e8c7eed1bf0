"""``plmctl report``: run folders in, one HTML page and image files of its plots out."""

from collections.abc import Sequence
from pathlib import Path

from plmctl.errors import ConfigError
from plmctl.formatting import printable
from plmctl.reporting.run_files import find_run
from plmctl.run.display import say, show_result


def run_terminal(runs: Sequence[str]) -> None:
    """Print the curves of runs as text: losses first, runs of one kind over each other.

    Raises:
        ConfigError: A folder is no run folder.
    """
    from rich.console import Console

    from plmctl.reporting.plots import plots_of
    from plmctl.reporting.run_files import each_run, read_runs
    from plmctl.reporting.tables import curves_text

    members = [run for each in read_runs([Path(run) for run in runs]) for run in each_run(each)]
    kinds = dict.fromkeys(run.kind for run in members)
    texts = [
        text
        for kind in kinds
        for plot in plots_of([run for run in members if run.kind == kind])
        if (text := curves_text(plot))
    ]
    if not texts:
        say("no curve has two points, so there is nothing to draw")
    console = Console(highlight=False, soft_wrap=True)
    for text in texts:
        console.print(text, "")


def run(
    runs: list[str],
    *,
    out: str | None,
    plots: str | None = None,
    formats: Sequence[str] | None = None,
    as_json: bool,
) -> None:
    """Write the page, and the plots if a folder is given; print where they are.

    Args:
        out: The page; None: report.html in the first of them.
        plots: The folder of the image files; None: only the page.
        formats: The formats of the image files, of ``reporting.drawing.FORMATS``; None: svg, png.

    Raises:
        ConfigError: A folder is no run folder, a format is not known, or no plots are wanted.
    """
    from plmctl.reporting.drawing import FORMATS, write_plots
    from plmctl.reporting.report import write_report
    from plmctl.reporting.run_files import outdated, read_runs

    folders = [find_run(Path(run)) for run in runs]
    if formats and plots is None:
        raise ConfigError("--format: no plots are written", "name a folder with --plots FOLDER")
    formats = formats or ("svg", "png")
    for name in formats:
        if name not in FORMATS:
            raise ConfigError(f"--format {name}: unknown format", f"use {', '.join(FORMATS)}")
    for line in (line for run in read_runs(folders) for line in outdated(run)):
        say(line)
    path = write_report(folders, Path(out) if out else folders[0] / "report.html")
    document: dict[str, object] = {"report": str(path)}
    files: list[Path] = []
    if plots is not None:
        files, missing = write_plots(folders, Path(plots), formats)
        document["plots"] = [str(file) for file in files]
        if not files:
            say("--plots: no curve has two points, so there is nothing to draw")
        if missing:
            say(
                f"no installed font has {missing}: PNG and PDF files show boxes\n"
                "  install a font that has them, such as Noto Sans CJK, or use the SVG files"
            )
    show_result(document, [], as_json=as_json)
    if not as_json:
        print(*(printable(str(file)) for file in (path, *files)), sep="\n")
