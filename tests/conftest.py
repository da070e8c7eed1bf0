import fcntl
import os
import signal
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from plmctl.__main__ import main
from plmctl.cpus import set_up_threads

# Everything works without a network: a test that reaches for the Hub must fail, not wait.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# As on the command line. transformers reads it when it is first imported, and which test does that
# in a process is chance.
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
# A forked child of some tests cannot use the threads that its parent began.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Nor can it use the threads that PyTorch compiles with: it would wait for them for ever.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
# As on the command line, before PyTorch: threads that wait leave the cores to the other tests.
set_up_threads()

# A background job of a shell ignores Ctrl-C, and nohup a closed terminal; the processes that tests
# start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# These machines are shared: how long an example takes says nothing about the code.
settings.register_profile("plmctl", deadline=None)
settings.load_profile("plmctl")


Cli = Callable[..., tuple[int, str, str]]


def run_main(*arguments: str) -> int:
    """The exit code of a command line, run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["plmctl", *arguments])
        try:
            main()
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """``cli(*arguments)`` gives the exit code, stdout and stderr of a command line."""

    def run(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run_main(*arguments)
        out, err = capfd.readouterr()
        return code, out, err

    return run


_PARTS = 6  # of the exhaustive tests: a gate runs one of them


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")
    parser.addoption(
        "--sweep",
        choices=("all", *map(str, range(_PARTS))),
        help="also run the tests marked sweep: all, or the part with this number",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part = config.getoption("--sweep")
    for item in items:
        if "sweep" in item.keywords:
            if part != "all" and part != str(zlib.crc32(item.nodeid.encode()) % _PARTS):
                item.add_marker(pytest.mark.skip(reason="exhaustive: run with --sweep all"))
        elif "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="a longer proof: run with --slow"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data beside the checkout, which a user's checkout does not have."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("needs the maintainers' folder of real data beside the checkout")
    return folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that the processes of one test session share: the first that wants it makes it.

    The others wait at a lock. ``make`` is given the folder, and may be one step of several that
    fill it: ``world/texts`` and ``world/runs`` are steps of the folder ``world``.
    """
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = base / name.partition("/")[0]
    folder.mkdir(exist_ok=True)
    done = base / f"{name.replace('/', '-')}.done"
    with done.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            make(folder)
            done.touch()
    return folder
