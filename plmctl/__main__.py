"""The entry point: expected errors become one plain message and their exit code."""

import os
import sys

from plmctl.cpus import set_up_threads
from plmctl.errors import PlmError


def main() -> None:
    """Run the command line and exit with its code: 0, 1, 2, 3, 75, 130 (see the docs)."""
    arguments, debug = _without_debug(sys.argv[1:])
    # plmctl says itself what is going on; a library's own notes would bury it. `--debug` and the
    # libraries' variables bring them back.
    if not debug:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    set_up_threads()
    from plmctl.cli import app

    try:
        app(args=arguments, prog_name="plmctl")
    except PlmError as error:
        if debug:
            raise
        if os.environ.get("RANK", "0") == "0":  # the other processes of a run say the same
            print(f"plmctl: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments less ``--debug``, wherever it stands before a ``--``; and was it there?"""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [argument for argument in arguments[:end] if argument != "--debug"]
    return options + arguments[end:], len(options) < end


def _worker() -> None:
    """As ``main``, for one of several processes: end without tearing the process group down.

    The processes of a run end at different times, and a group's threads can abort one that leaves
    while another still works (exit 134 after a finished run). Everything is written by then.
    """
    code = 0
    try:
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    if "RANK" in os.environ:
        _worker()
    else:
        main()
