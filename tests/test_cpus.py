"""Quotas of control groups, as files of both versions give them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from plmctl import cpus
from plmctl.__main__ import main


def files(root: Path, content: dict[str, str]) -> Path:
    for name, text in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("own", "content", "expected"),
    [
        ("0::/", {"cpu.max": "200000 100000\n"}, 2.0),
        ("0::/", {"cpu.max": "max 100000\n"}, None),
        ("0::/", {}, None),
        # The smallest of a group and all those that it is in.
        ("0::/a/b", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "400000 100000"}, 1.5),
        ("0::/a/b", {"a/cpu.max": "max 100000", "a/b/cpu.max": "50000 100000"}, 0.5),
        (
            "5:memory:/x\n4:cpu,cpuacct:/x\n0::/",
            {"cpu/x/cpu.cfs_quota_us": "300000", "cpu/x/cpu.cfs_period_us": "100000"},
            3.0,
        ),
        (
            "4:cpu,cpuacct:/x",
            {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
            None,
        ),
    ],
)
def test_quota(tmp_path: Path, own: str, content: dict[str, str], expected: float | None) -> None:
    list_ = tmp_path / "own"
    list_.write_text(own + "\n", encoding="utf-8")
    assert cpus.quota(list_, files(tmp_path / "groups", content)) == expected


def test_no_control_groups_is_no_quota(tmp_path: Path) -> None:
    assert cpus.quota(tmp_path / "none", tmp_path) is None


@pytest.mark.parametrize(("granted", "expected"), [(None, 3), (1.5, 2), (0.2, 1), (64.0, 3)])
def test_usable_cpus(monkeypatch: pytest.MonkeyPatch, granted: float | None, expected: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    monkeypatch.setattr(cpus, "quota", lambda: granted)
    assert cpus.usable_cpus() == expected


def test_the_command_begins_as_many_threads(tmp_path: Path) -> None:
    program = (
        "import os, sys; import plmctl.cpus as c; c.quota = lambda: 1.0;"
        "import plmctl.__main__ as m; sys.argv = ['plmctl', '--version'];"
        "import atexit; atexit.register(lambda: print(os.environ['OMP_NUM_THREADS'])); m.main()"
    )
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.stdout.splitlines()[-1] == "1", done.stderr


# Threads spin for a moment only, unless somebody wants them to.


THREADS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MKL_CBWR")


QUIET = (
    "TRANSFORMERS_VERBOSITY",
    "HF_HUB_DISABLE_PROGRESS_BARS",
    "HF_DATASETS_DISABLE_PROGRESS_BARS",
)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, ("PASSIVE", "3000", "AUTO")),
        ({"OMP_WAIT_POLICY": "ACTIVE"}, ("ACTIVE", None, "AUTO")),
        ({"GOMP_SPINCOUNT": "7"}, ("PASSIVE", "7", "AUTO")),
        ({"MKL_CBWR": "AVX2"}, ("PASSIVE", "3000", "AVX2")),
    ],
)
def test_variables_of_the_user_win(
    variables: dict[str, str], expected: tuple[str | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*THREADS, *QUIET):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["plmctl", "--version"])
    with pytest.raises(SystemExit):
        main()
    assert tuple(map(os.environ.get, THREADS)) == expected
