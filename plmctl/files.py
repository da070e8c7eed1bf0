"""Files and folders that are complete or absent, even after a kill, a power cut or a full disk.

Everything is written under a temporary name, flushed to the disk, and renamed.
"""

import errno
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError

from plmctl.errors import DataError, PlmError, machine_limit, read_error
from plmctl.hashing import digest_of_json

CHECKSUM = "checksum"
"""The key of a JSON file's checksum of itself."""


@contextmanager
def new_file(path: Path, *, several_writers: bool = False) -> Iterator[BinaryIO]:
    """A file to write to; it gets its name when the block ends without an error.

    Args:
        path: The name; an existing file is replaced.
        several_writers: Other processes may write the same file at the same time, so the temporary
            name contains the process id.

    Yields:
        The file under its temporary name; it is removed after an error.
    """
    process = f"{os.getpid()}." if several_writers else ""
    beside = path.with_name(f".{path.name}.{process}writing")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
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


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to write files to; it gets its name when the block ends without an error.

    Args:
        target: The name, which must not exist when the block ends.

    Yields:
        The temporary name, which does not exist yet; it is removed after an error.
    """
    beside = target.with_name(f".{target.name}.writing")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        yield beside
        give_default_mode(beside)
        for path in beside.iterdir():
            sync(path)
        sync(beside)
        beside.rename(target)
    except OSError as error:
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


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk: a rename alone does not survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
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
    """The error for a file or a folder that cannot be written.

    Args:
        path: Its final name.
        error: What the system said.
        further: Another way out, after the hint.
    """
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
    values = {**values, CHECKSUM: _checksum(values)}
    text = json.dumps(values, ensure_ascii=False, indent=1)
    write_atomically(path, text, several_writers=True)


def read_checked(path: Path) -> dict[str, Any] | None:
    """A JSON file with a checksum of itself; None if it does not exist or is damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or values.get(CHECKSUM) != _checksum(values):
        return None
    return values


def _checksum(values: dict[str, Any]) -> str:
    return digest_of_json({name: value for name, value in values.items() if name != CHECKSUM})


def is_model(folder: Path) -> bool:
    """Whether a folder contains a model: a config and weights."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def model_of_run(name: str) -> str:
    """The ``model/`` in a run folder; every other folder or Hub id unchanged."""
    inside = Path(name) / "model"
    is_run = (inside / "config.json").is_file() and not (Path(name) / "config.json").exists()
    return str(inside) if is_run else name
