"""The sources that a config names: files, folders and samples, the Hub and ModelScope."""

import glob
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from plmctl.addresses import shown
from plmctl.corpus import sample
from plmctl.corpus.document import LONGEST
from plmctl.corpus.remote import File, RemoteFile, glob_urls, is_url, open_source
from plmctl.errors import ConfigError, DataError, did_you_mean, near_names, read_error
from plmctl.hashing import known_sha256

Kind = Literal["text", "conll", "jsonl", "csv", "tsv", "parquet", "datasets", "hf", "ms", "sample"]

_KINDS: dict[str, Kind] = {
    "": "text",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".raw": "text",
    **dict.fromkeys((".conll", ".bio", ".iob", ".iob2", ".bioes"), "conll"),
    **dict.fromkeys((".conllu", ".conllup"), "conll"),
    **dict.fromkeys((".train", ".testa", ".testb"), "conll"),  # CoNLL-2002 and 2003: eng.testa
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
}
_PROGRAMS = (
    ".py", ".js", ".ts", ".java", ".c", ".h", ".cc", ".cpp", ".hpp", ".cs", ".go", ".rs", ".rb",
    ".php", ".pl", ".lua", ".r", ".jl", ".hs", ".scala", ".kt", ".swift", ".sql", ".sh", ".rst",
    ".log",
)  # fmt: skip
_KINDS |= dict.fromkeys(_PROGRAMS, "text")
"""Plain text, too, but hardly what a folder of text is for: read only if it is named."""

FORMATS = (
    "plmctl reads .txt, .md, .jsonl, .json, .csv, .tsv, .parquet, .conll and .conllu, and source "
    "code such as .py; all but .parquet also as .gz or .zst"
)
"""For messages: what is read, by the ending of the name."""

_COMPRESSED = (".gz", ".zst")

DOCUMENTS = (
    ".html", ".htm", ".xhtml", ".pdf", ".docx", ".epub", ".srt", ".vtt", ".ass", ".ssa", ".xml",
    ".markdown",
)  # fmt: skip
"""The endings of files that `plmctl text` reads, and no other command."""

_CONVERTED = {
    **dict.fromkeys(DOCUMENTS, "plmctl text FILE --out FILE.jsonl"),
    **dict.fromkeys(
        (".odt", ".rtf", ".tex", ".ipynb", ".org"), "pandoc FILE -t plain --wrap=none -o FILE.txt"
    ),
    **dict.fromkeys((".doc", ".ppt", ".pptx"), "soffice --headless --convert-to txt:Text FILE"),
    **dict.fromkeys((".xls", ".xlsx", ".ods"), "soffice --headless --convert-to csv FILE"),
    **dict.fromkeys((".zip", ".7z", ".rar"), "7z x FILE"),
    **dict.fromkeys((".tar", ".tgz"), "tar xf FILE"),
    ".po": "po2txt FILE FILE.txt",  # of translate-toolkit
    ".xz": "unxz FILE",
    ".bz2": "bunzip2 FILE",
}
"""A command that makes text, or files of text, of a file that is not read, by its ending."""


@dataclass(frozen=True)
class Source:
    """A file, folder, data set or sample to read.

    Attributes:
        name: A path, a URL, or ``hf:...``, ``ms:...`` or ``sample:...``.
        longest: Bytes of the longest line and document that are read.
    """

    name: str
    kind: Kind
    longest: int = field(default=LONGEST, compare=False)

    @cached_property
    def path(self) -> File:
        """The path of a file or a folder, or a file at a URL."""
        return open_source(self.name)

    @property
    def seekable(self) -> bool:
        """Whether a range of its bytes can be read separately."""
        return self.kind in ("text", "jsonl") and not self.name.endswith(_COMPRESSED)

    @property
    def is_file(self) -> bool:
        """Whether it is one file."""
        return self.kind not in ("datasets", "hf", "ms", "sample")

    @property
    def files(self) -> tuple[File, ...]:
        """Its files; none for a data set of the Hub or ModelScope."""
        if self.kind == "sample":
            return sample.files(self.name.removeprefix("sample:"))
        if self.kind == "datasets":
            return tuple(sorted(path for path in Path(self.name).rglob("*") if path.is_file()))
        return () if self.kind in ("hf", "ms") else (self.path,)


def resolve(names: tuple[str, ...], longest: int = LONGEST) -> list[Source]:
    """The sources of paths, globs and names; the files of a glob are sorted.

    Args:
        longest: Bytes of the longest line and document that are read.

    Raises:
        DataError: A file does not exist, or no file matches.
        ConfigError: Files of an unsupported kind.
    """
    sources = [source for name in names for source in _resolve(name)]
    return sources if longest == LONGEST else [replace(one, longest=longest) for one in sources]


def size_of(source: Source) -> int:
    """Bytes of its files; 0 for a Hub data set."""
    return sum(path.stat().st_size for path in source.files)


def content_hash(names: Sequence[str]) -> str | None:
    """SHA-256 of the files that names stand for, in their order; of a file at a URL, of its stamp.

    None if one is a data set of the Hub or of ModelScope, which has no files.

    Raises:
        DataError: A file cannot be read.
        PlmError: The machine is the reason, such as too many open files.
    """
    whole = hashlib.sha256()
    for source in resolve(tuple(names)):
        if not source.files:
            return None
        for path in source.files:
            if isinstance(path, RemoteFile):
                whole.update(f"{path.url} {path.stat().stamp}".encode())
            else:
                whole.update(bytes.fromhex(known_sha256(path)))
    return whole.hexdigest()


def _resolve(name: str) -> list[Source]:
    if is_url(name):
        return _resolve_url(name)
    if name.startswith("hf:"):
        return [Source(name, "hf")]
    if name.startswith("ms:"):
        return [Source(name, "ms")]
    if name.startswith("sample:"):
        return [Source(name, "sample")]
    # An existing path is a path, even if it contains a bracket.
    if os.path.exists(name) or not glob.has_magic(name):
        return [Source(name, _kind(Path(name)))]
    sources = []
    for match in sorted(glob.glob(name, recursive=True)):
        # The names are as `Path` writes them, which takes time: there may be a million files.
        path = str(Path(match)) if "//" in match or "./" in match or match[-1] == "/" else match
        if os.path.isfile(path):
            sources.append(Source(path, _kind_of_name(path)))
        elif is_saved(Path(path)):
            sources.append(Source(path, "datasets"))
    if not sources:
        raise DataError(f"{name}: no file matches{_near_pattern(name)}", "check the path")
    return sources


def _resolve_url(url: str) -> list[Source]:
    """The files of a URL, or of a pattern; a question mark of the web is no pattern."""
    web = url.startswith(("http://", "https://"))
    if "*" not in url and (web or not glob.has_magic(url)):
        RemoteFile(url).stat()  # that it exists
        return [Source(url, _kind_of_name(RemoteFile(url).name))]
    sources = [Source(match, _kind_of_name(RemoteFile(match).name)) for match in glob_urls(url)]
    if not sources:
        raise DataError(f"{shown(url)}: no file matches", "check the address")
    return sources


def _kind(path: Path) -> Kind:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: no such file{_near(path)}", "check the path") from None
    except (OSError, ValueError) as error:  # its name is too long, or it may not be read
        why = error.strerror if isinstance(error, OSError) else error
        name = str(path)
        shown_name = name if len(name) <= 200 else f"{name[:100]}...{name[-50:]}"
        refused = DataError(f"{shown_name}: {why}", "check the path")
        raise read_error(error, refused) from error
    if path.is_dir():
        if is_saved(path):
            return "datasets"
        raise DataError(
            f"{path}: a folder, but not one saved by `datasets`", f"name its files: {path}/*.txt"
        )
    if not path.is_file():  # reading it could wait, or never end
        raise DataError(f"{path}: a pipe or a device, not a regular file", "save the text first")
    return _kind_of_name(str(path))


def _kind_of_name(path: str) -> Kind:
    suffix = ending(path)
    if not is_readable(path):
        way = f"convert it: `{command}`" if (command := conversion(suffix)) else ""
        raise ConfigError(
            f"{path}: files of this kind are not supported",
            f"{way or 'if it is plain text, rename it to .txt'}; {FORMATS}",
        )
    return _KINDS[suffix]


def ending(path: str) -> str:
    """The ending of a file's name in lower case, such as ``.txt``, without that of compression."""
    name = os.path.basename(path)
    for suffix in _COMPRESSED:
        name = name.removesuffix(suffix)
    return os.path.splitext(name)[1].lower()


def is_readable(path: str) -> bool:
    """Whether files of this name are read."""
    suffix = ending(path)
    return suffix in _KINDS and (suffix != ".parquet" or path.lower().endswith(suffix))


def is_program(path: str) -> bool:
    """Whether a name is that of source code, which is read as plain text."""
    return ending(path) in _PROGRAMS


def conversion(suffix: str) -> str:
    """A command that makes text of files with this ending; empty: it is not known."""
    return _CONVERTED.get(suffix, "")


def is_saved(path: Path) -> bool:
    """Whether ``datasets`` saved this folder."""
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def _near_pattern(pattern: str) -> str:
    """A hint with the same pattern in the most similar folder, if files match it there."""
    # The path before the first component with a wildcard.
    parts = Path(pattern).parts
    count = next(number for number, part in enumerate(parts) if glob.has_magic(part))
    fixed = Path(*parts[:count])
    rest = Path(pattern).relative_to(fixed)
    missing = fixed
    while not os.path.isdir(missing.parent) and missing.parent != missing:
        missing = missing.parent
    if os.path.exists(missing) or not os.access(missing.parent, os.R_OK):
        return ""
    within = fixed.relative_to(missing)
    folders = [entry.name for entry in missing.parent.iterdir() if entry.is_dir()]
    near = [missing.parent / name / within / rest for name in near_names(missing.name, folders)]
    return did_you_mean(str(path) for path in near if glob.glob(str(path), recursive=True))


def _near(path: Path) -> str:
    """A hint with the most similar existing name for the first missing part of the path."""
    while not os.path.isdir(path.parent) and path.parent != path:
        path = path.parent
    if os.path.exists(path) or not os.access(path.parent, os.R_OK):
        return ""
    names = [entry.name for entry in path.parent.iterdir()]
    return did_you_mean(str(path.parent / name) for name in near_names(path.name, names))
