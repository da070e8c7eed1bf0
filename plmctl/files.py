"""Files and folders that are whole or absent, whatever a kill, a power cut or a full disk leaves.

Everything is written beside its place, flushed to the disk, and renamed.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError

from plmctl.errors import PlmError
from plmctl.hashing import digest_of_json

CHECKSUM = "checksum"
"""The key of a JSON file's checksum of itself."""


@contextmanager
def new_file(path: Path, *, several_writers: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which gets its name when the block ends without an error.

    Args:
        path: Its name; a file that has it already is replaced.
        several_writers: Other processes may write the same file at the same time; the temporary
            name then has the process id in it.

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
    finally:
        beside.unlink(missing_ok=True)


def write_atomically(
    path: Path, content: str | bytes | Iterable[bytes], *, several_writers: bool = False
) -> None:
    """Write a file: a reader, or a power cut, never finds half of it.

    Args:
        path: As of ``new_file``.
        content: Text, bytes, or bytes in parts that need not be in memory together.
        several_writers: As of ``new_file``.
    """
    if isinstance(content, str):
        content = content.encode()
    with new_file(path, several_writers=several_writers) as file:
        for part in [content] if isinstance(content, bytes) else content:
            file.write(part)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to write files to, which gets its name when the block ends without an error.

    Args:
        target: Its name, which must be free when the block ends.

    Yields:
        Its temporary name, at which nothing is; it is removed after an error.
    """
    beside = target.with_name(f".{target.name}.writing")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        yield beside
        for path in beside.iterdir():
            sync(path)
        sync(beside)
        beside.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    sync(target.parent)


def sync(path: Path) -> None:
    """Flush a file's or a folder's bytes to the disk: a rename alone survives no power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """While it is open, a disk that cannot be written is one plain line.

    Raises:
        PlmError: With the file or folder that could not be written, and what to do.
    """
    try:
        yield path
    except (OSError, SafetensorError) as error:  # safetensors has errors of its own
        reason = error.strerror if isinstance(error, OSError) else None
        raise PlmError(
            f"{path}: cannot be written: {reason or error}",
            "check that the folder exists and the disk has room; the same command continues",
        ) from error


def write_checked(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON file with a checksum of itself; several processes may write the same one."""
    values = {**values, CHECKSUM: _checksum(values)}
    text = json.dumps(values, ensure_ascii=False, indent=1)
    write_atomically(path, text, several_writers=True)


def read_checked(path: Path) -> dict[str, Any] | None:
    """A JSON file with a checksum of itself; None if there is none, or it is damaged."""
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
    """Whether a folder holds a network: its config and weights. An empty one is none."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
