"""Files and folders that are complete or absent."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from plmctl.errors import PlmError, machine_error
from plmctl.files import move_aside, new_file, new_folder, reserved, writing


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_weights_have_the_mode_of_other_files(tmp_path: Path, mask: int, mode: int) -> None:
    """safetensors writes files that only their owner can read."""
    before = os.umask(mask)
    try:
        with new_folder(tmp_path / "model") as folder:
            folder.mkdir()
            save_file({"a": np.zeros(2)}, folder / "model.safetensors")
            (folder / "config.json").write_text("{}")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()}
    assert modes == {"model.safetensors": mode, "config.json": mode}


@pytest.mark.parametrize(
    ("error", "what", "hint"),
    [
        (OSError(errno.ENOSPC, "x", "a.txt"), "a.txt: No space left on device", "free some space"),
        (OSError(errno.EDQUOT, "x"), "Disk quota exceeded", "your quota is used up"),
        (OSError(errno.EMFILE, "x"), "Too many open files", "ulimit -n"),
        (MemoryError(), "memory ran out", "ulimit -v"),
        (RuntimeError("can't start new thread"), "start new thread", "ulimit -u"),
        (ImportError("x.so: failed to map segment"), "memory ran out: x.so", "ulimit -v"),
        (RuntimeError("Caught\nOSError: [Errno 28] No space left on device"), "No space", "free"),
    ],
)
def test_a_limit_of_the_machine_is_one_message(error: Exception, what: str, hint: str) -> None:
    known = machine_error(error)
    assert known is not None
    assert what in known.message
    assert "\n" not in known.message
    assert hint in str(known.hint)


@pytest.mark.parametrize("error", [ValueError("x"), FileNotFoundError(2, "x"), PlmError("space")])
def test_a_defect_is_no_limit_of_the_machine(error: Exception) -> None:
    assert machine_error(error) is None


def test_a_full_disk_is_said_of_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    """The error of a write has no name; that of opening has the temporary one."""
    for error in (
        OSError(errno.ENOSPC, "full"),
        OSError(errno.EACCES, "x", tmp_path / ".a.writing"),
    ):
        with (
            pytest.raises(PlmError, match="a: cannot be written") as raised,
            writing(tmp_path / "a"),
            new_file(tmp_path / "a"),
        ):
            raise error
        assert raised.value.exit_code == 1
        assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="full") as bare, new_file(tmp_path / "b"):
        raise OSError(errno.ENOSPC, "full")
    assert bare.value.filename == str(tmp_path / "b")


def test_several_writers_of_one_file_lose_nothing(tmp_path: Path) -> None:
    """In one second, so that the names of those that are moved aside are the same."""
    path = tmp_path / "out"
    children = []
    for number in range(8):
        pid = os.fork()
        if pid == 0:
            for part in range(5):
                with new_file(path, several_writers=True, replaces=False) as file:
                    file.write(f"{number}.{part}".encode())
            os._exit(0)
        children.append(pid)
    assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
    there = sorted(one.read_text() for one in tmp_path.iterdir())
    assert there == sorted(f"{number}.{part}" for number in range(8) for part in range(5))


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        file, folder = (
            new_file(tmp_path / "a", several_writers=True),
            new_folder(tmp_path / "b", several_writers=True),
        )
        file.__enter__()
        folder.__enter__().mkdir()
        os._exit(0)  # as if it was killed: nothing is cleaned up
    os.waitpid(pid, 0)
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == 2
    living = tmp_path / f".a.1-{max(left).rpartition('-')[2]}"
    living.touch()  # of a process that lives
    with new_file(tmp_path / "a", several_writers=True) as file:
        file.write(b"x")
    with new_folder(tmp_path / "b", several_writers=True) as folder:
        folder.mkdir()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", living.name}


def test_a_folder_that_another_command_wrote_meanwhile_is_kept(tmp_path: Path) -> None:
    with pytest.raises(PlmError, match="another command wrote it"):  # noqa: PT012, SIM117
        with new_folder(tmp_path / "a", several_writers=True) as folder:
            folder.mkdir()
            (tmp_path / "a").mkdir()
            (tmp_path / "a" / "theirs").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "theirs"]


def test_a_name_is_reserved_once(tmp_path: Path) -> None:
    names = [reserved(str(tmp_path / "x"), folder=folder).name for folder in (True, False, True)]
    assert names == ["x", "x-2", "x-3"]
    for content in "ab":
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / content).touch()
        move_aside(tmp_path / "run")
    assert len(list(tmp_path.glob("run.old-*/?"))) == 2
