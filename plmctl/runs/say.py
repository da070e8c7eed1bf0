"""Speaking to the user: what happens goes to stderr, a result to stdout."""

import json
import sys
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from plmctl.runs import launch

COMPILES = (
    "the first steps compile the network, which takes a minute or more; "
    "compute.compile=false does without"
)
"""Said before a compiled network trains."""


def say(message: str) -> None:
    """A note on stderr, once however many processes there are."""
    if launch.is_main():
        print(message, file=sys.stderr, flush=True)


def show(document: Mapping[str, object], tables: list[Table], *, as_json: bool) -> None:
    """A command's result: one JSON document, or tables for reading."""
    if not launch.is_main():
        return
    if as_json:
        print(json.dumps(document, ensure_ascii=False))
        return
    console = Console()
    for table in tables:
        console.print(table, "")  # and a blank line
