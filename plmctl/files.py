"""Files and folders that are complete or absent, even after a kill, a power cut or a full disk.

Everything is written under a temporary name, flushed to the disk, and renamed.
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
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    sync(target.parent)


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
        reason = error.strerror if isinstance(error, OSError) else None
        raise PlmError(
            f"{path}: cannot be written: {reason or error}",
            "check that the folder exists and the disk has free space, and run the same command "
            "again to continue",
        ) from error


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
