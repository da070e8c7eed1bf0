"""Hashes that show whether something has changed: files, JSON documents, items.

Token stores, run folders and results contain these values, and later versions compare them: what is
hashed, and how, must stay.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np

from plmctl import hub
from plmctl.errors import DataError, read_error

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
    """SHA-256 of the rows of the measures by prompting, in the form of ``digest_of_items``."""
    return hashlib.sha256(_readable(rows)).hexdigest()[:16]


def _readable(items: object) -> bytes:
    text = json.dumps(items, ensure_ascii=False, sort_keys=True, default=str)
    return text.encode("utf-8", "surrogatepass")


# --- What a result was made from ---


_PARTS = {
    "weights": ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin"),
    "config": ("config.json", "generation_config.json", "task.json"),
    "tokenizer": (
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
        *("added_tokens.json", "vocab.*", "merges.txt", "*.model"),
    ),
}


def model_hashes(source: str, name: str = "model") -> dict[str, str]:
    """The hashes of a model folder: a result of the same ones is a result of the same model.

    A gigabyte of weights takes about a second, once per process; cards and other files do not
    count.

    Args:
        source: A model folder or Hub id.
        name: What it is in a run, such as ``teacher``.

    Returns:
        ``<name> weights``, ``<name> config`` (with a finetuned model's task) and ``<name>
        tokenizer``. Of a Hub id the commit, ``<name>``, which decides all three. Empty if there is
        no such folder, and no such id in the cache or on the Hub.

    Raises:
        DataError: A file cannot be read.
    """
    folder = Path(hub.local(source))
    if not folder.is_dir():
        from transformers.utils.hub import cached_file

        with suppress(OSError):
            return {name: Path(str(cached_file(source, "config.json"))).parent.name}
        return {}
    hashes = {}
    for part, patterns in _PARTS.items():
        files = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
        known = [[path.name, known_sha256(path)] for path in sorted(files)]
        hashes[f"{name} {part}"] = digest_of_json(known, size=16)
    return hashes


def digest_of_present(names: Iterable[str]) -> str | None:
    """A hash of the files among these names; None: none of them is one."""
    digests = [known_sha256(path) for path in map(Path, names) if path.is_file()]
    return digest_of_json(digests, size=16) if digests else None


def known_sha256(path: Path) -> str:
    """SHA-256 of a file, read once per process while the file's place, size and times stay.

    Raises:
        DataError: It cannot be read.
    """
    try:
        there = path.stat()
        # Nobody can set the time of the last change of a file's facts, as ``touch`` does the other.
        state = there.st_ino, there.st_size, there.st_mtime_ns, there.st_ctime_ns
        return _sha256_of(path.resolve(), state)
    except OSError as error:
        raise read_error(error, DataError(f"{path}: {error.strerror or error}")) from error


@cache
def _sha256_of(path: Path, state: object) -> str:
    return sha256_of(path)


def changed(before: object, now: Mapping[str, str | None]) -> tuple[list[str], list[str]]:
    """What has changed since something was made, and what cannot be compared.

    Args:
        before: The hashes that were kept with it; None, or anything else, of older versions.
        now: The same of now; None: a source that has no hash, such as a data set of the Hub.

    Returns:
        The names whose hashes differ, and those that have none in ``before``.
    """
    kept = before if isinstance(before, Mapping) else {}
    known = {name: value for name, value in now.items() if value is not None}
    differ = [name for name, value in known.items() if kept.get(name, value) != value]
    return differ, [name for name in known if name not in kept]
