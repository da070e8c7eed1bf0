"""``plmctl board``: all runs below a folder as a page, served here or written as files."""

import os
import sys
import threading
import time
import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Any

from plmctl.errors import ConfigError
from plmctl.formatting import printable
from plmctl.reporting.board import Board
from plmctl.reporting.board_server import BoardServer, write_board
from plmctl.reporting.page_server import HOST, PageServer
from plmctl.run.display import say, show_result


def run(folder: Path, *, port: int, out: str | None, browser: bool, as_json: bool) -> None:
    """Serve the page until Ctrl-C, or write it.

    Args:
        port: Of the server; 0: a free one.
        out: A folder for the page; None: serve it.
        browser: Whether to open it in a browser.

    Raises:
        ConfigError: No such folder.
        PlmError: The port is in use, or the folder cannot be written.
    """
    if not folder.is_dir():
        raise ConfigError(
            f"{folder}: no such folder in {Path.cwd()}", "name a folder with runs: plmctl board DIR"
        )
    board = Board(folder)
    if out is not None:
        began = time.monotonic()
        files = write_board(board, Path(out))
        document = {"page": str(files[0]), "runs": len(board.rows()["ids"])}
        show_result(document, [], as_json=as_json)
        if not as_json:
            say(f"{document['runs']} runs, in {time.monotonic() - began:.1f} s")
            print(printable(str(files[0])))
        return
    with BoardServer(board, port) as server:
        threading.Thread(target=server.work, daemon=True).start()
        document = {"url": server.url, "folder": str(folder)}
        serve(server, f"the runs below {folder}", document, browser=browser, as_json=as_json)


def serve(
    server: PageServer, what: str, document: dict[str, Any], *, browser: bool, as_json: bool
) -> None:
    """Print the address of a page, open it where there is a desktop, and answer until Ctrl-C."""
    show_result(document, [], as_json=as_json)
    if not as_json:
        print(server.url, flush=True)
    say(
        f"{what}; Ctrl-C ends it\n"
        f"  from another machine: ssh -L {server.server_port}:{HOST}:{server.server_port} "
        f"THIS-MACHINE, and open the same address there"
    )
    sys.stdout.flush()
    desktop = sys.platform == "darwin" or os.environ.keys() & {"DISPLAY", "WAYLAND_DISPLAY"}
    if browser and desktop and sys.stdout.isatty():  # else a browser of the terminal would open
        webbrowser.open(server.url)
    with suppress(KeyboardInterrupt):  # the usual end
        server.serve_forever(poll_interval=0.2)
