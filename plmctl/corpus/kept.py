"""Arrays that follow from a store, kept in files beside it and mapped: found once, for everyone.

Which sentences are in which row takes seconds and memory in proportion to the corpus. It depends on
the store and a few numbers only, so the first process that asks writes it; others, workers and
later starts map the same file, whose pages the system may take back at any time.
"""

import hashlib
import json
import os
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from plmctl.corpus.shard import write_whole
from plmctl.corpus.store import TokenStore

_FORMAT = 1  # to be raised where a rule gives other rows than before
_END = struct.Struct("<8sQ")
_MARK = b"plm rows"
_MOST = 8  # files a store: what two lengths need of passes 0, this and the next one, and biLM
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
    text = json.dumps([_FORMAT, store.digest, dtype.descr, *rule])
    path = store.path / "rows" / hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    found = _open(path, dtype)
    if found is None:
        try:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, _written(make(), dtype))
        except OSError:  # a full disk, or another's folder
            return _joined(make(), dtype)
        found = _open(path, dtype)
        _tidy(path.parent)
    return _joined(make(), dtype) if found is None else found


def _joined(parts: Parts, dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate([np.empty(0, dtype), *(p.astype(dtype, copy=False) for p in parts)])


def _written(parts: Parts, dtype: np.dtype[Any]) -> Iterator[bytes]:
    """The bytes of a file: the elements, then what says that they are all there."""
    size = 0
    for part in parts:
        data = part.astype(dtype, copy=False).tobytes()
        size += len(data)
        yield data
    yield _END.pack(_MARK, size)


def _open(path: Path, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """The array of a file; None if there is none, or not the whole of it."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END) - _END.size
            file.seek(max(size, 0))
            if size < 0 or size % dtype.itemsize or file.read() != _END.pack(_MARK, size):
                return None
            if not size:
                return np.empty(0, dtype)
            found = np.memmap(file, dtype, "r", shape=(size // dtype.itemsize,))
    except OSError:
        return None
    with suppress(OSError):
        os.utime(path)  # the files used last are kept
    # A plain array over the map: indexing the memmap class itself is several times slower.
    return found.view(np.ndarray)


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
