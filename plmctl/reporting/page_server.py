"""What serves a page on this machine only: the board's, and that of ``plmctl try``.

The name in the Host header must be that of this machine: a page from elsewhere, whose name somebody
lets resolve to 127.0.0.1, is refused. Answers allow scripts and styles of plmctl only.
"""

from __future__ import annotations

import gzip
import json
from abc import abstractmethod
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from socketserver import TCPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from plmctl.errors import PlmError

HOST = "127.0.0.1"

_NAMES = ("127.0.0.1", "localhost", "[::1]")

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A page from a run folder: it may look as it likes, and do nothing.
FOREIGN_POLICY = (
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

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json; charset=utf-8",
}
_LONGEST = 4096  # of a request's path
_SMALL = 2_000  # bytes that are not worth compressing

# Files that stand before a file of a page.
_BEFORE = {
    "board.css": ("report.css",),
    "board.js": ("page.js",),
    "try.css": ("report.css", "board.css"),
    "try.js": ("page.js",),
}


@cache
def asset(name: str) -> bytes:
    """A file of a page, which comes with plmctl, with what the pages share before it."""
    folder = files("plmctl.reporting")
    return b"".join(folder.joinpath(one).read_bytes() for one in (*_BEFORE.get(name, ()), name))


def encoded(document: Any) -> bytes:
    """A document as JSON, in UTF-8."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode(errors="replace")  # files from elsewhere may have halves of surrogate pairs


class PageServer(ThreadingHTTPServer):
    """A server on this machine.

    Args:
        port: 0: any that is free.

    Raises:
        PlmError: The port is in use, or may not be used.
    """

    daemon_threads = True
    request_queue_size = 32

    def __init__(self, handler: type[PageHandler], port: int) -> None:
        try:
            super().__init__((HOST, port), handler)
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


class PageHandler(BaseHTTPRequestHandler):
    """Answers GET and HEAD: the checks, and the headers of every answer."""

    server_version, sys_version = "plmctl", ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    @abstractmethod
    def answer(self, name: str, query: Mapping[str, str]) -> None:
        """Answer a request by ``send`` or ``refuse``.

        Args:
            name: The path, without its slash.
        """

    def do_GET(self) -> None:
        """Check the request, and answer it; HEAD without the content."""
        if not self.is_for_us():
            self.refuse(HTTPStatus.FORBIDDEN, "it answers to 127.0.0.1 and localhost only")
            return
        if len(self.path) > _LONGEST:
            self.refuse(HTTPStatus.REQUEST_URI_TOO_LONG, "too long")
            return
        try:
            parts = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        except ValueError:
            self.refuse(HTTPStatus.BAD_REQUEST, "not a URL")
            return
        self.answer(parts.path.removeprefix("/"), query)

    do_HEAD = do_GET

    def is_for_us(self) -> bool:
        """Whether the request names this machine."""
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1:
            return False
        name, colon, port = hosts[0].strip().lower().rpartition(":")
        if not colon or port.endswith("]"):
            name, port = hosts[0].strip().lower(), "80"
        # Through an ssh tunnel the port is the tunnel's, so any number will do.
        return name in _NAMES and port.isascii() and port.isdigit()

    def send_asset(self, name: str) -> None:
        """A file that comes with plmctl."""
        self.send(asset(name), TYPES[Path(name).suffix])

    def send(self, content: bytes, type: str, policy: str = _PAGE_POLICY) -> None:
        """A whole answer."""
        zipped = len(content) > _SMALL and "gzip" in self.headers.get("Accept-Encoding", "")
        if zipped:
            content = gzip.compress(content, 1)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", type)
        self.send_header("Content-Length", str(len(content)))
        if zipped:
            self.send_header("Content-Encoding", "gzip")
        self.send_security(policy)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_security(self, policy: str = _PAGE_POLICY) -> None:
        """The headers that keep a browser from doing anything else with the answer."""
        self.send_header("Content-Security-Policy", policy)
        for name, value in _SECURITY.items():
            self.send_header(name, value)

    def refuse(self, status: HTTPStatus, message: str) -> None:
        """A line of text, and the end of the connection."""
        content = f"{message}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Connection", "close")
        self.send_security(FOREIGN_POLICY)
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
        self.refuse(status, status.phrase)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal is the user's."""

    def handle(self) -> None:
        """Handle like the base class; a browser that goes away is no error."""
        try:
            super().handle()
        except (TimeoutError, ConnectionError):
            self.close_connection = True
