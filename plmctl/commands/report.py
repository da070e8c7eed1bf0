"""``plmctl report``: run folders in, one HTML page out."""

from pathlib import Path

from plmctl.errors import ConfigError
from plmctl.run.display import show_result


def run(runs: list[str], *, out: str | None, as_json: bool) -> None:
    """Write the page and say where it is."""
    from plmctl.reporting.report import write_report

    folders = [Path(run) for run in runs]
    for folder in folders:
        if not (folder / "config.yaml").is_file():
            raise ConfigError(f"{folder}: no run here (no config.yaml)", "name a run folder")
    path = write_report(folders, Path(out) if out else folders[0] / "report.html")
    show_result({"report": str(path)}, [], as_json=as_json)
    if not as_json:
        print(path)
