"""The server of the board: who may ask what."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from plmctl.errors import PlmError
from plmctl.reporting.board import Board
from plmctl.reporting.board_server import BoardServer
from tests.reporting import sample_runs


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "runs"
    run = sample_runs.pretrain(root / "bert", steps=100)
    (run / "report.html").write_text("<script>alert(1)</script>report")
    (tmp_path / "secret.html").write_text("secret")
    (run / "link.html").symlink_to(tmp_path / "secret.html")
    return root


@pytest.fixture
def server(root: Path) -> Iterator[BoardServer]:
    with BoardServer(Board(root), 0) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server
        server.shutdown()


def ask(
    server: BoardServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


def id_of(server: BoardServer) -> str:
    return str(json.loads(ask(server, "/api/runs")[2])["ids"][0])


def test_the_page_and_its_documents(server: BoardServer) -> None:
    for path in ("/", "/index.html", "/board.css", "/board.js", "/data.js", "/api/chart"):
        status, headers, body = ask(server, path)
        assert (status, bool(body)) == (200, True), path
        assert "script-src 'self'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "Set-Cookie" not in headers
    id = id_of(server)
    for name in ("run", "curves", "settings"):
        assert ask(server, f"/api/{name}?run={id}")[0] == 200
        assert ask(server, f"/api/{name}?run=0")[0] == 404


def test_head_has_no_body(server: BoardServer) -> None:
    status, headers, body = ask(server, "/", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 100


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "X<b>"])
def test_other_methods_are_refused(server: BoardServer, method: str) -> None:
    status, _, body = ask(server, "/api/runs", method)
    assert status == 405
    assert b"<b>" not in body


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "LOCALHOST:80", "127.0.0.1:9999", "[::1]:8000", "[::1]"],
)
def test_names_of_this_machine_are_served(server: BoardServer, host: str) -> None:
    assert ask(server, "/", Host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.com", "evil.com:8123", "127.0.0.1.evil.com", "localhost.evil.com:80", "", "127.0.0.2",
     "localhost:80x", "evil.com#localhost", "localhost:80@evil.com", "0.0.0.0"],
)  # fmt: skip
def test_other_names_are_refused(server: BoardServer, host: str) -> None:
    status, _, body = ask(server, "/api/runs", Host=host)
    assert status == 403
    assert b"bert" not in body


def test_no_host_and_two_hosts_are_refused(server: BoardServer) -> None:
    for hosts in (b"", b"Host: localhost\r\nHost: evil.com\r\n"):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as raw:
            raw.sendall(b"GET /api/runs HTTP/1.1\r\n" + hosts + b"\r\n")
            assert raw.recv(100).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    "path",
    ["/../secret.html", "/..%2fsecret.html", "//etc/passwd", "/etc/passwd", "/%2e%2e/secret.html",
     "/report.css", "/board.py", "/api/", "/api/details", "/api/../api/runs", "/x" * 3000],
)  # fmt: skip
def test_no_path_leads_anywhere_else(server: BoardServer, path: str) -> None:
    status, _, body = ask(server, path)
    assert status in (404, 414)
    assert b"secret" not in body


def test_a_page_of_a_run_can_do_nothing(server: BoardServer) -> None:
    id = id_of(server)
    status, headers, body = ask(server, f"/page?run={id}&name=report.html")
    assert (status, body) == (200, b"<script>alert(1)</script>report")
    assert headers["Content-Security-Policy"].startswith("sandbox; default-src 'none'")
    assert "script-src" not in headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "name",
    ["link.html", "config.yaml", "../secret.html", "..%2f..%2fsecret.html", "", ".", "%00.html",
     "/etc/passwd", "model/x.html"],
)  # fmt: skip
def test_only_pages_that_the_run_folder_has(server: BoardServer, name: str) -> None:
    status, _, body = ask(server, f"/page?run={id_of(server)}&name={name}")
    assert status == 404
    assert b"secret" not in body


def test_it_listens_on_this_machine_only(server: BoardServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"


def test_a_port_in_use_is_one_message(server: BoardServer, root: Path) -> None:
    with pytest.raises(PlmError, match=f"--port {server.server_port}"):
        BoardServer(Board(root), server.server_port)


def test_what_is_no_http_ends_the_connection(server: BoardServer) -> None:
    for text in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as raw:
            raw.sendall(text)
            assert b"200" not in raw.recv(1000)[:15]
    assert ask(server, "/")[0] == 200
