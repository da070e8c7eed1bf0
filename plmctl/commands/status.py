"""``plmctl status``: how far a run is, and what to do next, on the terminal."""

import math
from pathlib import Path
from typing import Any

from plmctl.formatting import format_duration, format_value
from plmctl.reporting.board import newest_run, status_of
from plmctl.reporting.run_files import find_run
from plmctl.reporting.tables import text_table
from plmctl.run.display import show_result

_KILLED = "it ended without a word: it was killed, or the machine went down"


def run(folder: Path | None, *, as_json: bool) -> None:
    """Print the state, the progress and the last metrics of a run.

    Args:
        folder: The run folder; it may be damaged. None, or the folder of ``init``: the run below
            its runs/ that changed last.

    Raises:
        ConfigError: It is no run folder.
    """
    runs = Path("runs") if folder is None else folder / "runs"
    if folder is None or runs.is_dir():
        folder = newest_run(runs)
    if not any((folder / name).exists() for name in ("config.yaml", "status.json")):
        folder = find_run(folder)
    status = status_of(folder)
    hidden = ("id", "group", "settings", "curves", "comparable")
    document = {key: value for key, value in status.items() if key not in hidden}
    rows = list(_in_words(status).items())
    show_result(document, [text_table(str(folder), ["", ""], rows)], as_json=as_json)


def _in_words(status: dict[str, Any]) -> dict[str, object]:
    message = status["message"] or (_KILLED if status["state"] == "killed" else "")
    since = status["since"].replace("T", " ")[:19]
    when = "at" if status["state"] in ("finished", "failed") else "since"
    words: dict[str, object] = {
        "state": status["state"] + (f" {when} {since}" if since else ""),
        "message": message,
        "what": " ".join(filter(None, (status["kind"], status["family"], status["objective"]))),
        "step": _of(status["step"], status["total"]),
        "time left": _duration(status["eta"]),
        "training time": _duration(None if status["hours"] is None else status["hours"] * 3600),
        "tokens": None if status["tokens"] is None else int(status["tokens"]),
        "tokens/s": status["speed"],
        "waiting for data": None if status["wait"] is None else f"{status['wait']:.1%}",
        "peak memory (GB)": status["memory"],
        "learning rate": status["lr"],
        "training loss": status["loss"],
        **status["terms"],
        **status["validation"],
        "best valid/loss": None
        if status["best"] is None
        else f"{format_value(status['best'])} at step {status['best_step']:,}",
        **{k: v for k, v in status["scores"] if f"valid/{k}" not in status["validation"]},
        "last checkpoint": status["checkpoint"],
        "lines that cannot be read": status["unreadable"] or None,
        "next": status["next"],
        "command": status["command"],
    }
    return {name: value for name, value in words.items() if value not in (None, "")}


def _of(step: float | None, total: int | None) -> str:
    if step is None:
        return ""
    return f"{step:,.0f} of {total:,} ({step / total:.0%})" if total else f"{step:,.0f}"


def _duration(seconds: float | None) -> str:
    return "" if seconds is None or not math.isfinite(seconds) else format_duration(seconds)
