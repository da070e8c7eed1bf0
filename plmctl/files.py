"""Files and folders that are whole or absent, whatever a kill, a power cut or a full disk leaves.

Everything is written beside its place, flushed to the disk, and renamed.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from plmctl.errors import PlmError


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside, flush and rename: a reader, or a power cut, never finds half a file."""
    beside = path.with_name(f".{path.name}.writing")
    data = content.encode() if isinstance(content, str) else content
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def is_model(folder: Path) -> bool:
    """Whether a folder holds a network: its config and weights. An empty one is none."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))


def put_in_place(beside: Path, target: Path) -> None:
    """Give a folder that is complete its name.

    Args:
        beside: The folder; its files are flushed first.
        target: Its place, which is free.
    """
    for path in beside.iterdir():
        sync(path)
    sync(beside)
    beside.rename(target)
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
