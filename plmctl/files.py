"""Files and folders that are complete or absent, even after a kill, a power cut or a full disk.

Everything is written under a temporary name, flushed to the disk, and renamed.
"""

import errno
import glob
import itertools
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError

from plmctl.errors import DataError, PlmError, machine_limit, read_error
from plmctl.hashing import digest_of_json

CHECKSUM = "checksum"
"""The key of a JSON file's checksum of itself."""


@contextmanager
def new_file(
    path: Path, *, several_writers: bool = False, replaces: bool = True
) -> Iterator[BinaryIO]:
    """A file to write to; it gets its name when the block ends without an error.

    Args:
        several_writers: Other processes may write the same file at the same time, so the temporary
            name is of this process; what killed ones left is removed.
        replaces: An existing file is replaced; False: moved aside.

    Yields:
        The file under its temporary name; it is removed after an error.
    """
    beside = _own_name(path) if several_writers else path.with_name(f".{path.name}.writing")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            flush(file.fileno())
        if replaces:
            beside.replace(path)
        else:
            _name_new(beside, path)
    except OSError as error:
        _name(error, beside, path)
        raise
    finally:
        beside.unlink(missing_ok=True)


def write_atomically(
    path: Path, content: str | bytes | Iterable[bytes], *, several_writers: bool = False
) -> None:
    """Write a file that is never seen, or left, half written.

    Args:
        path: As for ``new_file``.
        content: Text, bytes, or parts of bytes, which need not be in memory together.
        several_writers: As for ``new_file``.
    """
    if isinstance(content, str):
        content = content.encode()
    with new_file(path, several_writers=several_writers) as file:
        for part in [content] if isinstance(content, bytes) else content:
            file.write(part)


def _name_new(beside: Path, path: Path) -> None:
    """Give a file its name, and move aside what has it, although others do so at the same time."""
    while True:
        try:
            os.link(beside, path)  # unlike a rename, refused if there is something
            return
        except FileExistsError:
            with suppress(FileNotFoundError):
                move_aside(path)
        except OSError:  # a file system without links
            if path.exists():
                move_aside(path)
            beside.replace(path)
            return


def _own_name(path: Path) -> Path:
    """A temporary name of this process; those of processes of this machine that ended are removed.

    The name has the machine too: on a shared disk, others cannot know which processes live.
    """
    machine = sha256(platform.node().encode()).hexdigest()[:6]
    for left in path.parent.glob(f".{glob.escape(path.name)}.*-{machine}.writing"):
        number = left.name.removeprefix(f".{path.name}.").partition("-")[0]
        if number.isdecimal() and not _is_alive(int(number)):
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
    return path.with_name(f".{path.name}.{os.getpid()}-{machine}.writing")


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # of another user
        return True
    return True


def move_aside(path: Path) -> Path:
    """Give a file or a folder a name that nothing has, ``NAME.old-TIME``; nothing is replaced.

    Raises:
        FileNotFoundError: It is not there, or another process moved it.
    """
    aside = reserved(f"{path}.old-{time.strftime('%Y%m%d-%H%M%S')}", folder=path.is_dir())
    try:
        return path.rename(aside)  # onto what was reserved, which is empty
    except OSError:
        aside.rmdir() if aside.is_dir() else aside.unlink()
        raise


def reserved(name: str, *, folder: bool) -> Path:
    """An empty file or folder that is new, even if several processes ask: NAME, NAME-2 ..."""
    for number in itertools.count(1):
        path = Path(name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            path.mkdir(parents=True) if folder else path.touch(exist_ok=False)
            return path
    raise AssertionError


@contextmanager
def new_folder(target: Path, *, several_writers: bool = False) -> Iterator[Path]:
    """A folder to write files to; it gets its name when the block ends without an error.

    Args:
        target: The name, which must not exist when the block ends.
        several_writers: As for ``new_file``.

    Yields:
        The temporary name, which does not exist yet; it is removed after an error.

    Raises:
        PlmError: The name exists when the block ends.
    """
    beside = _own_name(target) if several_writers else target.with_name(f".{target.name}.writing")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        yield beside
        give_default_mode(beside)
        for path in beside.rglob("*"):
            sync(path)
        sync(beside)
        beside.rename(target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            raise PlmError(
                f"{target}: another command wrote it meanwhile", "name another folder"
            ) from error
        _name(error, beside, target)
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    sync(target.parent)


def _name(error: OSError, beside: Path, path: Path) -> None:
    """Give an error the name of the file: a full disk has none, other errors the temporary one."""
    if error.filename is None or str(error.filename).startswith(str(beside)):
        error.filename = str(path)


def give_default_mode(folder: Path) -> None:
    """Give the files of a folder the mode of a new file: safetensors lets only the owner read."""
    probe = folder / ".mode"
    probe.touch()
    mode = probe.stat().st_mode
    probe.unlink()
    for path in folder.iterdir():
        if path.is_file():
            path.chmod(mode & 0o777)


def flush(handle: int) -> None:
    """Wait until what was written to an open file or folder is on its disk.

    macOS' ``fsync`` does not wait for the disk's own memory; a network's disk knows nothing else.
    """
    if sys.platform == "darwin":
        import fcntl

        with suppress(OSError):
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
            return
    os.fsync(handle)


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk: a rename alone does not survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        flush(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Reports errors of writing in the block as one plain line.

    Raises:
        PlmError: The file or folder cannot be written.
    """
    try:
        yield path
    except (OSError, SafetensorError) as error:  # safetensors has errors of its own
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError | SafetensorError, further: str = "") -> PlmError:
    """The error for a file or a folder that cannot be written."""
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    reason, hint = machine_limit(error) or (
        reason,
        "check that the folder exists and the disk has free space, and run the same command again "
        "to continue",
    )
    if reason == os.strerror(errno.ENOSPC):
        there = next(one for one in path.absolute().parents if one.exists())
        reason += f" ({shutil.disk_usage(there).free / 1e6:,.1f} MB free)"
    return PlmError(f"{path}: cannot be written: {reason}", hint + further)


def read_json(path: Path, *keys: str) -> dict[str, Any]:
    """A JSON file of plmctl's own: an object with these keys.

    Raises:
        DataError: It is missing or damaged, or lacks a key.
        PlmError: The machine is the reason, such as too many open files.
    """
    again = "copy the folder again, or make it again"
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        missing = DataError(f"{path}: missing or damaged: {error.strerror or error}", again)
        raise read_error(error, missing) from None
    except (ValueError, RecursionError) as error:
        what = f"not JSON ({str(error).splitlines()[0]})"
    else:
        lacking = [key for key in keys if key not in document] if isinstance(document, dict) else []
        if isinstance(document, dict) and not lacking:
            return document
        what = f"it lacks {', '.join(lacking)}" if lacking else "not a JSON object"
    raise DataError(f"{path}: missing or damaged: {what}", again) from None


def write_checked(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file with a checksum of itself; several processes may write the same one."""
    write_atomically(path, with_checksum(values), several_writers=True)


def with_checksum(values: Mapping[str, Any]) -> str:
    """The text of a JSON file with a checksum of itself, by which ``read_checked`` knows it."""
    plain = json.loads(json.dumps(values))  # as it is read: keys are texts
    return json.dumps({**plain, CHECKSUM: _checksum(plain)}, ensure_ascii=False, indent=1)


def read_checked(path: Path) -> dict[str, Any] | None:
    """A JSON file with a checksum of itself; None if it does not exist or is damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or values.get(CHECKSUM) != _checksum(values):
        return None
    return values


def is_edited(values: Mapping[str, Any]) -> bool:
    """Whether a JSON file has another checksum of itself than it was written with."""
    return CHECKSUM in values and values[CHECKSUM] != _checksum(values)


def _checksum(values: Mapping[str, Any]) -> str:
    return digest_of_json({name: value for name, value in values.items() if name != CHECKSUM})


def is_model(folder: Path) -> bool:
    """Whether a folder contains a model: a config and weights."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def model_of_run(name: str) -> str:
    """The ``model/`` in a run folder; every other folder or Hub id unchanged."""
    inside = Path(name) / "model"
    is_run = (inside / "config.json").is_file() and not (Path(name) / "config.json").exists()
    return str(inside) if is_run else name
