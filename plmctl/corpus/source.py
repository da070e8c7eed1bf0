"""The sources that a config names: files, folders and samples, the Hub and ModelScope."""

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

Kind = Literal["text", "conll", "jsonl", "csv", "tsv", "parquet", "datasets", "hf", "ms", "sample"]

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
    """A file, folder, data set or sample to read.

    Attributes:
        name: A path, or ``hf:...``, ``ms:...`` or ``sample:...``.
        kind: How it is read.
    """

    name: str
    kind: Kind

    @property
    def path(self) -> Path:
        """The path of a file or a folder."""
        return Path(self.name)

    @property
    def seekable(self) -> bool:
        """Whether a range of its bytes can be read separately."""
        return self.kind in ("text", "jsonl") and not self.name.endswith(_COMPRESSED)

    @property
    def files(self) -> tuple[Path, ...]:
        """Its files on disk; none for a data set of the Hub or ModelScope."""
        if self.kind == "sample":
            return sample.files(self.name.removeprefix("sample:"))
        if self.kind == "datasets":
            return tuple(sorted(path for path in self.path.rglob("*") if path.is_file()))
        return () if self.kind in ("hf", "ms") else (self.path,)


def resolve(names: tuple[str, ...]) -> list[Source]:
    """The sources of paths, globs and names; the files of a glob are sorted.

    Raises:
        DataError: A file does not exist, or no file matches.
        ConfigError: Files of an unsupported kind.
    """
    return [source for name in names for source in _resolve(name)]


def size_of(source: Source) -> int:
    """Bytes on disk; 0 for a Hub data set."""
    return sum(path.stat().st_size for path in source.files)


def content_hash(sources: Sequence[Source]) -> str | None:
    """SHA-256 of the files of the sources, in their order; None if a source has no files.

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
    if name.startswith("ms:"):
        return [Source(name, "ms")]
    if name.startswith("sample:"):
        return [Source(name, "sample")]
    # An existing path is a path, even if it contains a bracket.
    if Path(name).exists() or not glob.has_magic(name):
        return [Source(name, _kind(Path(name)))]
    matches = [Path(path) for path in sorted(glob.glob(name, recursive=True))]
    readable = [path for path in matches if path.is_file() or _is_saved(path)]
    if not readable:
        raise DataError(f"{name}: no file matches{_near_pattern(name)}", "check the path")
    return [Source(str(path), _kind(path)) for path in readable]


def _kind(path: Path) -> Kind:
    if path.is_dir():
        if _is_saved(path):
            return "datasets"
        raise DataError(
            f"{path}: a folder, but not one saved by `datasets`", f"name its files: {path}/*.txt"
        )
    if not path.exists():
        raise DataError(f"{path}: no such file{_near(path)}", "check the path")
    name = path.name
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    suffix = Path(name).suffix.lower()
    if suffix not in _KINDS or (suffix == ".parquet" and name != path.name):
        raise ConfigError(
            f"{path}: files of this kind are not supported",
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


def _near_pattern(pattern: str) -> str:
    """A hint with the same pattern in the most similar folder, if files match it there."""
    fixed = _fixed_part(pattern)
    rest = Path(pattern).relative_to(fixed)
    missing = fixed
    while not missing.parent.is_dir() and missing.parent != missing:
        missing = missing.parent
    if missing.exists() or not os.access(missing.parent, os.R_OK):
        return ""
    within = fixed.relative_to(missing)
    folders = [entry.name for entry in missing.parent.iterdir() if entry.is_dir()]
    near = [missing.parent / name / within / rest for name in near_names(missing.name, folders)]
    return did_you_mean(str(path) for path in near if glob.glob(str(path), recursive=True))


def _near(path: Path) -> str:
    """A hint with the most similar existing name for the first missing part of the path."""
    while not path.parent.is_dir() and path.parent != path:
        path = path.parent
    if path.exists() or not os.access(path.parent, os.R_OK):
        return ""
    names = [entry.name for entry in path.parent.iterdir()]
    return did_you_mean(str(path.parent / name) for name in near_names(path.name, names))
