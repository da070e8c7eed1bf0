"""What the names of a config stand for: files, folders of ``datasets``, the Hub, samples."""

import glob
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from plmctl.corpus import sample
from plmctl.errors import ConfigError, DataError, did_you_mean, near_names
from plmctl.hashing import sha256_of

Kind = Literal["text", "conll", "jsonl", "csv", "tsv", "parquet", "datasets", "hf", "sample"]

_KINDS: dict[str, Kind] = {
    "": "text",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".raw": "text",
    **dict.fromkeys((".conll", ".bio", ".iob", ".iob2", ".bioes"), "conll"),
    **dict.fromkeys((".train", ".testa", ".testb"), "conll"),  # CoNLL-2002 and 2003: eng.testa
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_COMPRESSED = (".gz", ".zst")


@dataclass(frozen=True)
class Source:
    """One thing to read.

    Attributes:
        name: A path, or ``hf:...`` or ``sample:...``.
        kind: How it is read.
    """

    name: str
    kind: Kind

    @property
    def path(self) -> Path:
        """Where it lies, for a file or a folder."""
        return Path(self.name)

    @property
    def seekable(self) -> bool:
        """Whether a range of its bytes can be read on its own."""
        return self.kind in ("text", "jsonl") and not self.name.endswith(_COMPRESSED)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files on disk behind it; none for the Hub."""
        if self.kind == "sample":
            return sample.files(self.name.removeprefix("sample:"))
        if self.kind == "datasets":
            return tuple(sorted(path for path in self.path.rglob("*") if path.is_file()))
        return () if self.kind == "hf" else (self.path,)


def resolve(names: tuple[str, ...]) -> list[Source]:
    """The sources that paths, globs and names stand for; the files of a glob are sorted.

    Raises:
        DataError: Nothing is there.
        ConfigError: A file of a kind that is not read.
    """
    return [source for name in names for source in _resolve(name)]


def size_of(source: Source) -> int:
    """Bytes on disk; 0 for the Hub."""
    return sum(path.stat().st_size for path in source.files)


def content_hash(sources: Sequence[Source]) -> str | None:
    """SHA-256 of what the files of the sources hold, in their order; None where one has no file.

    Raises:
        DataError: A file cannot be read.
    """
    whole = hashlib.sha256()
    for source in sources:
        if not source.files:
            return None
        for path in source.files:
            try:
                whole.update(bytes.fromhex(sha256_of(path)))
            except OSError as error:
                raise DataError(f"{path}: {error.strerror}") from error
    return whole.hexdigest()


def _resolve(name: str) -> list[Source]:
    if name.startswith("hf:"):
        return [Source(name, "hf")]
    if name.startswith("sample:"):
        return [Source(name, "sample")]
    # A path that is there is meant, even if it has a bracket in it.
    if Path(name).exists() or not glob.has_magic(name):
        return [Source(name, _kind(Path(name)))]
    found = [Path(path) for path in sorted(glob.glob(name, recursive=True))]
    kept = [path for path in found if path.is_file() or _is_saved(path)]
    if not kept:
        raise DataError(f"{name}: no file matches{_near(_fixed_part(name))}", "is the path right?")
    return [Source(str(path), _kind(path)) for path in kept]


def _kind(path: Path) -> Kind:
    if path.is_dir():
        if _is_saved(path):
            return "datasets"
        raise DataError(
            f"{path}: a folder, and not one saved by `datasets`", f"name its files: {path}/*.txt"
        )
    if not path.exists():
        raise DataError(f"{path}: no such file{_near(path)}", "is the path right?")
    name = path.name
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    suffix = Path(name).suffix.lower()
    if suffix not in _KINDS or (suffix == ".parquet" and name != path.name):
        raise ConfigError(
            f"{path}: files of this kind are not read",
            "use txt, jsonl, csv, tsv or conll, also as .gz or .zst, or parquet",
        )
    return _KINDS[suffix]


def _is_saved(path: Path) -> bool:
    """Whether ``datasets`` saved this folder."""
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def _fixed_part(pattern: str) -> Path:
    """The path before the first component with a wildcard."""
    parts = Path(pattern).parts
    count = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    return Path(*parts[:count])


def _near(path: Path) -> str:
    """The nearest name that is there, for the first part of the path that is not."""
    while not path.parent.is_dir() and path.parent != path:
        path = path.parent
    if path.exists() or not os.access(path.parent, os.R_OK):
        return ""
    names = [entry.name for entry in path.parent.iterdir()]
    return did_you_mean(str(path.parent / name) for name in near_names(path.name, names))
