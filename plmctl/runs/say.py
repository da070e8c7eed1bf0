"""Speaking to the user: what happens goes to stderr, a result to stdout."""

import json
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from plmctl.runs import launch

COMPILES = (
    "the first steps compile the network, which takes a minute or more; "
    "compute.compile=false does without"
)
"""Said before a compiled network trains."""

_UNLIMITED = 100_000  # characters of a line


def say(message: str) -> None:
    """A note on stderr, once however many processes there are."""
    if launch.is_main():
        print(message, file=sys.stderr, flush=True)


def show(
    document: Mapping[str, object], tables: list[Table], *, as_json: bool, whole: bool = False
) -> None:
    """A command's result: one JSON document, or tables for reading.

    Args:
        document: The result.
        tables: The same for reading.
        as_json: Which of the two.
        whole: In a pipe or a file, lines are as long as they need to be.
    """
    if not launch.is_main():
        return
    if as_json:
        print(json.dumps(document, ensure_ascii=False))
        return
    console = Console()
    if whole and not console.is_terminal:
        unlimited = console.options.update(max_width=_UNLIMITED)
        widths = [Measurement.get(console, unlimited, table).maximum for table in tables]
        console = Console(width=max(console.width, *widths))
    for table in tables:
        console.print(table, "")  # and a blank line
