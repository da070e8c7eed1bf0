"""The entry point: expected errors become one plain message and their exit code."""

import os
import sys

from plmctl.errors import PlmError


def main() -> None:
    """Run the command line and exit with its code: 0, 1, 2, 3, 75, 130 (see the docs)."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1  # wherever in the line it stands
    # plmctl says itself what is going on; a library's own notes would bury it. `--debug` and the
    # libraries' variables bring them back.
    if not debug:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    # Threads that wait by spinning slow a step two to three times where another program has a part
    # of the cores; waiting passively costs nothing measurable on a quiet machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from plmctl.cli import app

    try:
        app(args=arguments)
    except PlmError as error:
        if debug:
            raise
        if os.environ.get("RANK", "0") == "0":  # the other processes of a run say the same
            print(f"plmctl: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
