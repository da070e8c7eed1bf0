"""Arrays that follow from a store, kept in files beside it and mapped: found once, for everyone.

Which sentences are in which row takes seconds and memory in proportion to the corpus. It depends on
the store and a few numbers only, so the first process that asks writes it; others, workers and
later starts map the same file, whose pages the system may take back at any time.
"""

import os
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from plmctl.corpus.store import TokenStore
from plmctl.files import write_atomically
from plmctl.hashing import digest_of_json

_FORMAT = 1  # to be raised where a rule gives other rows than before
_END = struct.Struct("<8sQ16sI")  # mark, bytes, hash of what they follow from, CRC-32 of the bytes
_MARK = b"plm rows"
_MOST = 8  # files a store: what two lengths need of passes 0, this and the next one, and biLM
_STRETCH = 1 << 24  # bytes
_LEFT_BEHIND = 3600  # seconds after which an unfinished file is nobody's

Parts = Iterable[NDArray[Any]]


def kept(
    store: TokenStore, rule: Sequence[object], dtype: DTypeLike, make: Callable[[], Parts]
) -> NDArray[Any]:
    """What ``make`` gives, read from a file if it has been made before.

    Of a store in memory, or in a folder that cannot be written, it is held in memory.

    Args:
        store: What it follows from.
        rule: Everything else that it follows from: names and numbers.
        dtype: Of its elements.
        make: Makes it, in parts [n] to be put one after the other.

    Returns:
        [N], not to be written to.
    """
    dtype = np.dtype(dtype)
    if store.path is None:
        return _joined(make(), dtype)
    inputs = [_FORMAT, store.digest, dtype.descr, *rule]
    origin = bytes.fromhex(digest_of_json(inputs, size=16))
    path = store.path / "rows" / origin[:8].hex()
    found = _open(path, dtype, origin)
    if found is None:
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, _written(make(), dtype, origin), several_writers=True)
        except OSError:  # a full disk, or another's folder
            return _joined(make(), dtype)
        found = _open(path, dtype, origin)
        _tidy(path.parent)
    return _joined(make(), dtype) if found is None else found


def _joined(parts: Parts, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *(p.astype(dtype, copy=False) for p in parts)])


def _written(parts: Parts, dtype: np.dtype[Any], origin: bytes) -> Iterator[bytes]:
    """The bytes of a file: the elements, then what shows that they are all there and right."""
    size = check = 0
    for part in parts:
        data = part.astype(dtype, copy=False).tobytes()
        size += len(data)
        check = zlib.crc32(data, check)
        yield data
    yield _END.pack(_MARK, size, origin, check)


def _open(path: Path, dtype: np.dtype[Any], origin: bytes) -> NDArray[Any] | None:
    """The array of a file; None if there is none, or it is not what was written for ``origin``."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END) - _END.size
            if size < 0 or size % dtype.itemsize:
                return None
            file.seek(size)
            mark, wanted, made_from, check = _END.unpack(file.read())
            if (mark, wanted, made_from) != (_MARK, size, origin):
                return None
            if not size:
                return np.empty(0, dtype)
            found = np.memmap(file, dtype, "r", shape=(size // dtype.itemsize,))
    except OSError:
        return None
    if _crc(found) != check:
        return None
    with suppress(OSError):
        os.utime(path)  # the files used last are kept
    # A plain array over the map: indexing the memmap class itself is several times slower.
    return found.view(np.ndarray)


def _crc(array: NDArray[Any]) -> int:
    """The CRC-32 of an array's bytes: a second per gigabytes, once per process that opens it."""
    data, check = array.view(np.uint8), 0
    for at in range(0, len(data), _STRETCH):
        check = zlib.crc32(data[at : at + _STRETCH].data, check)
    return check


def _tidy(folder: Path) -> None:
    """Remove all but the files used last. Who has one mapped still reads it."""
    with suppress(OSError):
        ages = {path: path.stat().st_mtime for path in folder.iterdir()}
        whole = [path for path in ages if not path.name.startswith(".")]
        old = sorted(whole, key=lambda path: ages[path], reverse=True)[_MOST:]
        unfinished = ages.keys() - set(whole)
        old += [path for path in unfinished if ages[path] < time.time() - _LEFT_BEHIND]
        for path in old:
            path.unlink(missing_ok=True)
