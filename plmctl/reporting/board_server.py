"""The server of the board: it answers GET and HEAD on this machine only, and writes nothing.

Requests name runs by their ids and pages by names that a folder has, so no path comes from outside.
The name in the Host header must be that of this machine: a page from elsewhere, whose name somebody
lets resolve to 127.0.0.1, is refused. Answers allow scripts and styles of the board only.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Mapping
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from plmctl.errors import PlmError
from plmctl.files import write_atomically
from plmctl.formatting import without_local_paths
from plmctl.reporting.board import Board, Document
from plmctl.reporting.run_state import read_bytes
from plmctl.reporting.vega import curves_chart, javascript

HOST = "127.0.0.1"

_NAMES = ("127.0.0.1", "localhost", "[::1]")

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A page from a run folder: it may look as it likes, and do nothing.
_FOREIGN_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_SECURITY = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_LONGEST = 4096  # of a request's path
_SMALL = 2_000  # bytes that are not worth compressing


@cache
def _asset(name: str) -> bytes:
    """A file of the page, which comes with plmctl."""
    folder = files("plmctl.reporting")
    content = folder.joinpath(name).read_bytes()
    return folder.joinpath("report.css").read_bytes() + content if name == "board.css" else content


class BoardServer(ThreadingHTTPServer):
    """The server of a board.

    Args:
        port: 0: any that is free.

    Raises:
        PlmError: The port is in use, or may not be used.
    """

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, board: Board, port: int) -> None:
        self.board = board
        self._script: bytes | None = None
        self._script_lock = threading.Lock()
        self._ended = threading.Event()
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise PlmError(
                f"--port {port}: {error.strerror or error}", "use another port, or none"
            ) from error

    def server_bind(self) -> None:
        """Bind like the base class, without asking a name server for this machine's name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_port}/"

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


class _Handler(BaseHTTPRequestHandler):
    server: BoardServer
    server_version, sys_version = "plmctl", ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if not self._is_for_us():
            self._refuse(HTTPStatus.FORBIDDEN, "it answers to 127.0.0.1 and localhost only")
            return
        if len(self.path) > _LONGEST:
            self._refuse(HTTPStatus.REQUEST_URI_TOO_LONG, "too long")
            return
        try:
            parts = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "not a URL")
            return
        name = parts.path.removeprefix("/")
        if name in ("", "index.html"):
            self._send(_asset("board.html"), _TYPES[".html"])
        elif name in ("board.css", "board.js"):
            self._send(_asset(name), _TYPES[Path(name).suffix])
        elif name == "data.js":  # the page of files has its documents here
            self._send(b"// from the server\n", _TYPES[".js"])
        elif name == "vega.js":
            script = self.server.script()
            if script is None:
                self._refuse(HTTPStatus.NOT_FOUND, "vl-convert-python is missing or failed")
            else:
                self._send(script, _TYPES[".js"])
        elif name == "page":
            self._send_page(query)
        elif name.removeprefix("api/") in _DOCUMENTS and name.startswith("api/"):
            try:
                document = _DOCUMENTS[name.removeprefix("api/")](self.server.board, query)
            except OSError as error:  # such as too many open files: the page tries again
                self._refuse(HTTPStatus.SERVICE_UNAVAILABLE, error.strerror or "no answer")
                return
            if document is None:
                self._refuse(HTTPStatus.NOT_FOUND, "no such run")
            else:
                self._send(_encoded(document), "application/json; charset=utf-8")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "no such page")

    def _is_for_us(self) -> bool:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1:
            return False
        name, colon, port = hosts[0].strip().lower().rpartition(":")
        if not colon or port.endswith("]"):
            name, port = hosts[0].strip().lower(), "80"
        # Through an ssh tunnel the port is the tunnel's, so any number will do.
        return name in _NAMES and port.isascii() and port.isdigit()

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
            self._refuse(HTTPStatus.NOT_FOUND, "no such page")
        else:
            self._send(content, _TYPES[".html"], policy=_FOREIGN_POLICY)

    def _send(self, content: bytes, type: str, policy: str = _PAGE_POLICY) -> None:
        zipped = len(content) > _SMALL and "gzip" in self.headers.get("Accept-Encoding", "")
        if zipped:
            content = gzip.compress(content, 1)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", type)
        self.send_header("Content-Length", str(len(content)))
        if zipped:
            self.send_header("Content-Encoding", "gzip")
        self._send_security(policy)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _send_security(self, policy: str) -> None:
        self.send_header("Content-Security-Policy", policy)
        for name, value in _SECURITY.items():
            self.send_header(name, value)

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        content = f"{message}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self._send_security(_FOREIGN_POLICY)
        self.end_headers()
        self.close_connection = True
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Any other method, and what is no HTTP: refused without a word of the request in it."""
        status = HTTPStatus(code)
        if status is HTTPStatus.NOT_IMPLEMENTED:
            status = HTTPStatus.METHOD_NOT_ALLOWED
        self.command = getattr(self, "command", None) or "GET"
        self._refuse(status, status.phrase)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is the user's."""

    def handle(self) -> None:
        """Handle like the base class; a browser that goes away is no error."""
        try:
            super().handle()
        except (TimeoutError, ConnectionError):
            self.close_connection = True


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


def _encoded(document: Any) -> bytes:
    return json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


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
    data = _encoded(documents).replace("\u2028".encode(), b"\\u2028")
    data = data.replace("\u2029".encode(), b"\\u2029")
    contents = {
        "index.html": _asset("board.html"),
        "board.css": _asset("board.css"),
        "board.js": _asset("board.js"),
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
