"""Hashes that show whether something has changed: files, JSON documents, items.

Token stores, run folders and results contain these values, and later versions compare them: what is
hashed, and how, must stay.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_BLOCK, _BLOCKS = 4096, 8  # bytes, and how many of them of a file `sample_of` reads


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes in hexadecimal, as ``sha256sum`` prints it.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_files(paths: Sequence[Path]) -> str:
    """The hash of the hashes of all bytes of files."""
    digests = []
    for path in paths:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
        digests.append(digest.hexdigest())
    return digest_of(digests)


def sample_of(paths: Sequence[Path]) -> str:
    """A hash of the sizes of files and of a few blocks of each: cheap, whatever their size."""
    digest = hashlib.blake2b(digest_size=8)
    for path in paths:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            digest.update(size.to_bytes(8, "little"))
            for at in np.linspace(0, max(0, size - _BLOCK), _BLOCKS).astype(np.int64):
                file.seek(at)
                digest.update(file.read(_BLOCK))
    return digest.hexdigest()


def digest_of(digests: Sequence[str]) -> str:
    """A hash of hashes, in their order."""
    return hashlib.blake2b("\n".join(digests).encode(), digest_size=8).hexdigest()


def digest_of_json(document: object, *, size: int = 8) -> str:
    """A hash of ``size`` bytes of what JSON can hold; the order of keys does not count."""
    text = json.dumps(document, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=size).hexdigest()


def digest_of_items(items: object) -> str:
    """A hash of the items of an evaluation; equal for models that were scored on the same items."""
    return hashlib.blake2b(_readable(items), digest_size=16).hexdigest()


def digest_of_rows(rows: object) -> str:
    """As ``digest_of_items``, by SHA-256: of the rows of the measures by prompting."""
    return hashlib.sha256(_readable(rows)).hexdigest()[:16]


def _readable(items: object) -> bytes:
    text = json.dumps(items, ensure_ascii=False, sort_keys=True, default=str)
    return text.encode("utf-8", "surrogatepass")
