"""The entry point: expected errors become one plain message and their exit code."""

import os
import sys

from plmctl.cpus import set_up_threads
from plmctl.errors import PlmError


def main() -> None:
    """Run the command line and exit with its code: 0, 1, 2, 3, 75, 130 (see the docs)."""
    if sys.platform == "win32":
        print(
            "plmctl: Windows is not supported\n  run it on Linux or macOS, or in the Windows "
            "Subsystem for Linux",
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
    set_up_threads()
    from plmctl.cli import app

    try:
        app(args=arguments, prog_name="plmctl")
    except PlmError as error:
        if debug:
            raise
        if os.environ.get("RANK", "0") == "0":  # the other processes of a run have the same error
            print(f"plmctl: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _without_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """The arguments without ``--debug`` (before any ``--``), and whether it was there."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options = [argument for argument in arguments[:end] if argument != "--debug"]
    return options + arguments[end:], len(options) < end


def _worker() -> None:
    """As ``main``, for one of several processes: exit without tearing down the process group.

    The processes of a run end at different times, and the threads of the group can abort one that
    exits while another still works (exit 134 after a finished run). Everything is written by then.
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
