"""The server of the board: it answers GET and HEAD on this machine only, and writes nothing.

Requests name runs by their ids and pages by names that a folder has, so no path comes from outside.
``page_server`` has what it refuses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

from plmctl.errors import PlmError
from plmctl.files import write_atomically
from plmctl.formatting import without_local_paths
from plmctl.reporting.board import Board, Document
from plmctl.reporting.page_server import (
    FOREIGN_POLICY,
    TYPES,
    PageHandler,
    PageServer,
    asset,
    encoded,
)
from plmctl.reporting.run_state import read_bytes
from plmctl.reporting.vega import curves_chart, javascript


class BoardServer(PageServer):
    """The server of a board; see ``PageServer``."""

    def __init__(self, board: Board, port: int) -> None:
        self.board = board
        self._script: bytes | None = None
        self._script_lock = threading.Lock()
        self._ended = threading.Event()
        super().__init__(_Handler, port)

    def work(self) -> None:
        """Read the older validations, and make the charts' script; in a thread of its own."""
        threading.Thread(target=self.script, daemon=True).start()
        pause = 1.0  # the first answer comes first
        while not self._ended.wait(pause):
            pause = 0.003 if self.board.search() else 1.0  # requests come in between

    def script(self) -> bytes | None:
        """The charts' script; None: there is none."""
        with self._script_lock:
            if self._script is None:
                self._script = javascript()
            return self._script

    def server_close(self) -> None:
        """Close like the base class, and end the work."""
        self._ended.set()
        super().server_close()


class _Handler(PageHandler):
    server: BoardServer

    def answer(self, name: str, query: Mapping[str, str]) -> None:
        if name in ("", "index.html"):
            self.send_asset("board.html")
        elif name in ("board.css", "board.js"):
            self.send_asset(name)
        elif name == "data.js":  # the page of files has its documents here
            self.send(b"// from the server\n", TYPES[".js"])
        elif name == "vega.js":
            script = self.server.script()
            if script is None:
                self.refuse(HTTPStatus.NOT_FOUND, "vl-convert-python is missing or failed")
            else:
                self.send(script, TYPES[".js"])
        elif name == "page":
            self._send_page(query)
        elif name.removeprefix("api/") in _DOCUMENTS and name.startswith("api/"):
            try:
                document = _DOCUMENTS[name.removeprefix("api/")](self.server.board, query)
            except OSError as error:  # such as too many open files: the page tries again
                self.refuse(HTTPStatus.SERVICE_UNAVAILABLE, error.strerror or "no answer")
                return
            if document is None:
                self.refuse(HTTPStatus.NOT_FOUND, "no such run")
            else:
                self.send(encoded(document), TYPES[".json"])
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "no such page")

    def _send_page(self, query: Mapping[str, str]) -> None:
        """A page of a run folder, such as report.html; only a name that the folder lists."""
        folder = self.server.board.folder(query.get("run", ""))
        name = query.get("name", "")
        content = None
        if folder is not None and name.endswith(".html"):
            try:
                listed = {path.name for path in folder.iterdir()}
            except OSError:
                listed = set()
            content = read_bytes(folder / name) if name in listed else None
        if content is None:
            self.refuse(HTTPStatus.NOT_FOUND, "no such page")
        else:
            self.send(content, TYPES[".html"], policy=FOREIGN_POLICY)


def _since(query: Mapping[str, str]) -> int:
    text = query.get("since", "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


_DOCUMENTS: Mapping[str, Callable[[Board, Mapping[str, str]], Document | None]] = {
    "runs": lambda board, query: board.rows(_since(query)),
    "curves": lambda board, query: board.curves(query.get("run", "")),
    "settings": lambda board, query: board.settings(query.get("run", "")),
    "run": lambda board, query: board.details(query.get("run", "")),
    "chart": lambda board, query: curves_chart(),
}


def _without_local_paths(value: Any) -> Any:
    """A document for others: all of its texts without paths of this machine."""
    if isinstance(value, str):
        return without_local_paths(value)
    if isinstance(value, list | tuple):
        return [_without_local_paths(one) for one in value]
    if isinstance(value, dict):
        return {key: _without_local_paths(one) for key, one in value.items()}
    return value


# --- The board as files ---


def write_board(board: Board, folder: Path) -> list[Path]:
    """Write the page with the documents of all runs: it opens from a folder or any web server.

    Returns:
        The files; the first one is the page.

    Raises:
        PlmError: The folder cannot be written.
    """
    board.rows()  # so that it knows the runs, and their logs can be searched
    while board.search():
        pass
    rows = board.rows()
    documents: Document = {"runs": rows, "chart": curves_chart()}
    for name in ("curves", "settings", "details"):
        documents[name] = {id: getattr(board, name)(id) for id in rows["ids"]}
    documents = _without_local_paths(documents)
    # U+2028 and U+2029 end a line in the JavaScript of older browsers.
    data = encoded(documents).replace("\u2028".encode(), b"\\u2028")
    data = data.replace("\u2029".encode(), b"\\u2029")
    contents = {
        "index.html": asset("board.html"),
        "board.css": asset("board.css"),
        "board.js": asset("board.js"),
        "data.js": b"window.BOARD = " + data + b";\n",
        "vega.js": javascript() or b"",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            write_atomically(folder / name, content)
    except OSError as error:
        raise PlmError(f"{folder}: cannot be written: {error.strerror}") from error
    return [folder / name for name in contents]
