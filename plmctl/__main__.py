"""The entry point: expected errors become one plain message and their exit code."""

import os
import sys
from typing import NoReturn

from plmctl.addresses import shown
from plmctl.cpus import set_up_threads
from plmctl.errors import ConfigError, PlmError, machine_error, name_error
from plmctl.formatting import printable
from plmctl.hub import check_port
from plmctl.startup import search_garbage_rarely
from plmctl.streams import result_on_stdout, set_up_streams


def main() -> None:
    """Run the command line and exit with its code: 0, 1, 2, 3, 75, 130 (see the docs)."""
    if sys.platform == "win32":
        print(
            "plmctl: Windows is not supported; its Linux (WSL2) is\n"
            "  in PowerShell: `wsl --install`; then start Ubuntu, and install plmctl in it",
            file=sys.stderr,
        )
        raise SystemExit(2)
    arguments, debug = _without_debug(sys.argv[1:])
    # plmctl reports progress itself; the libraries' own messages would bury it. `--debug` and the
    # libraries' variables bring them back.
    if not debug:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of a machine without a DNS name
    set_up_threads()
    search_garbage_rarely()
    set_up_streams()
    try:
        with result_on_stdout():
            from plmctl.cli import app

            check_port()
            _check_text(arguments)
            app(args=arguments, prog_name="plmctl")
    except PlmError as error:
        if debug:
            raise
        _fail(error)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BrokenPipeError:  # the reader of the result has seen enough, as in `| head`
        if debug:
            raise
        raise SystemExit(1) from None
    except Exception as error:  # a full disk and the like have no class; others are raised
        known = machine_error(error) or name_error(error)
        if debug or known is None:
            raise
        _fail(known)


def _check_text(arguments: list[str]) -> None:
    """Refuse an argument that Python could not decode: neither a text nor a name can be used."""
    for argument in arguments:
        if any(0xD800 <= ord(letter) < 0xE000 for letter in argument):
            raise ConfigError(
                f"{argument!r}: not text in the encoding of this locale, "
                f"{sys.getfilesystemencoding()}",
                "set the locale, as in `export LC_ALL=C.UTF-8`, or write the argument in UTF-8",
            )


def _fail(error: PlmError) -> NoReturn:
    # The processes of a run have the same error: one of each machine prints it.
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(printable(shown(f"plmctl: {error}")), file=sys.stderr)
    raise SystemExit(error.exit_code) from None


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments without ``--debug`` (before any ``--``), and whether it was there."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [argument for argument in arguments[:end] if argument != "--debug"]
    return options + arguments[end:], len(options) < end


def _worker() -> None:
    """Run one of several processes: as ``main``, but exit without tearing down the process group.

    The processes of a run end at different times, and the threads of the group can abort one that
    exits while another still works (exit 134 after a finished run). Everything is written by then.
    """
    from plmctl.run.launch import end_with_launcher

    code = 0
    try:
        end_with_launcher()
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    if "RANK" in os.environ and "LOCAL_RANK" in os.environ:
        _worker()
    else:
        main()
