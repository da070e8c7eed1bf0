"""The files of what a user names as a corpus: which are read, which are held out or left out.

A folder is searched for files of running text. What a user names, by a path or a pattern, is read
if plmctl reads files of its kind. Everything else is counted by its ending.
"""

from __future__ import annotations

import glob
import os
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from plmctl.config.sections import TextConfig
from plmctl.corpus.remote import is_url
from plmctl.corpus.source import (
    DOCUMENTS,
    FORMATS,
    conversion,
    ending,
    is_program,
    is_readable,
    is_saved,
    resolve,
)
from plmctl.corpus.tabular import text_column
from plmctl.errors import DataError, read_error

_IN_FOLDERS = (
    ".txt", ".text", ".md", ".raw", ".jsonl", ".ndjson", ".csv", ".tsv", ".parquet",
)  # fmt: skip
"""The kinds of files that a folder is searched for; others may be settings, programs or tags."""

_HELD_OUT = ("valid", "validation", "dev", "test", "eval", "heldout", "held_out")

_MANY = 20  # files that are still listed one by one

_WRITTEN = (
    {"tokenizer.yaml", "pretrain.yaml"},
    {"config.yaml", "environment.json"},
    {"config.json", "tokenizer_config.json"},
)
"""The files of a folder that `init` wrote, of a run, and of a model: their text is no corpus."""

_ODD_NAME = "with a name that is not UTF-8"  # in the place of the ending

_SHOWN = 20  # messages about files


@dataclass(frozen=True)
class Corpus:
    """The sources of a corpus, and how a config names them.

    Attributes:
        train: Paths and globs for ``data.train``.
        test: Files named after test text, which nothing reads.
        others: Number of files by ending that are not read.
    """

    name: str
    train: tuple[str, ...]
    valid: tuple[str, ...] = ()
    test: tuple[str, ...] = ()
    column: str = "text"
    documents: str = "auto"
    programs: bool = False
    others: Mapping[str, int] = field(default_factory=dict)
    folder: str = "FOLDER"

    @classmethod
    def of(cls, names: Sequence[str]) -> Corpus:
        """The sources of what the user gave.

        Raises:
            DataError: No such files, all of them in one message; or none that can be read.
            ConfigError: A single file of an unsupported kind.
        """
        train, valid, test = list[str](), list[str](), list[str]()
        others, missing = Counter[str](), list[DataError]()
        for name in names:
            folder = Path(name)
            if folder.is_dir() and not is_saved(folder):
                files = files_below(folder, _refuse)
                odd = [file for file in files if not file.isascii() and not _is_text(file)]
                others.update(_ODD_NAME for _ in odd)
                files = [file for file in files if file not in odd] if odd else files
                own = [file for file in files if ending(file) in _IN_FOLDERS and is_readable(file)]
                sides = {side: [f for f in own if _side(f) == side] for side in _SIDES}
                if own and not sides["train"]:
                    raise DataError(f"{name}: all of its files are named after held-out text")
                train += _patterns(folder, own) if own == sides["train"] else sides["train"]
                valid, test = valid + sides["valid"], test + sides["test"]
            else:
                files = _matches(name)
                own = [file for file in files if is_readable(file)]
                train += [name] if own == files else own
                if not files:  # a name of another kind, or a mistake
                    try:
                        resolve((name,))
                    except DataError as error:
                        missing.append(error)
            others.update(ending(file) for file in sorted(set(files) - set(own)))
        if missing:
            raise together(missing)
        if not train:
            raise _nothing(names, others)
        sources = resolve(tuple(train))
        first = Path(names[0].removeprefix("sample:"))
        several = len(names) > 1 and len({Path(name).parent for name in names}) == 1
        in_folder = first.stem in ("train", "*", "**") or several and first.parent.name
        short = (first.parent if in_folder else first).name
        short = "".join(c if c.isalnum() or c in "-_" else "-" for c in short.split(".")[0])
        tables = (c for source in sources if (c := text_column(source)))
        columns = Counter(islice(tables, 100)).most_common(1)
        programs = all(is_program(one.name) for one in sources)
        return cls(
            short.strip("-") or "corpus",
            tuple(train),
            tuple(valid),
            tuple(test),
            columns[0][0] if columns else "text",
            # A blank line is within a program; few files are too few documents.
            "file" if programs and len(sources) >= 50 else "auto",
            programs,
            dict(others.most_common()),
            _folder_of(names),
        )

    @property
    def config(self) -> TextConfig:
        """How it is read."""
        fields = {"train": self.train, "text": self.column, "documents": self.documents}
        return TextConfig.model_validate(fields)

    def without(self, names: Collection[str]) -> Corpus:
        """The same without some files, which then has its other files one by one."""
        if not names:
            return self
        kept = [one.name for one in resolve(self.train) if one.name not in names]
        valid = [one for one in self.valid if one not in names]
        return replace(self, train=tuple(kept), valid=tuple(valid))

    @property
    def left_out(self) -> str:
        """The files of other kinds, in words; empty: there are none."""
        return _in_words(self.others)

    @property
    def advice(self) -> list[str]:
        """What to do about the files of other kinds."""
        return _advice(self.others, self.folder)


def together(errors: Sequence[DataError]) -> DataError:
    """One error for several files."""
    if len(errors) == 1:
        return errors[0]
    more = f"\n  and {len(errors) - _SHOWN:,} more" if len(errors) > _SHOWN else ""
    return DataError(
        f"{len(errors):,} files cannot be used:"
        + "".join(f"\n  {one}" for one in one_line(errors)),
        more.strip() or None,
    )


def counted(number: int, thing: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number:,} {thing}" + "s" * (number != 1)


def one_line(errors: Sequence[DataError]) -> list[str]:
    """What is wrong with each file, and what to do, on a line each; not all of very many."""
    return [f"{one.message} ({one.hint})" if one.hint else one.message for one in errors[:_SHOWN]]


def _is_text(name: str) -> bool:
    """Whether a config can have a name, which may be any bytes."""
    return name == os.fsencode(name).decode("utf-8", "replace")


def _matches(name: str) -> list[str]:
    """The files of a path or a pattern; none for other names."""
    if os.path.exists(name) or not glob.has_magic(name) or is_url(name):
        return [name] if os.path.isfile(name) else []
    matches = sorted(glob.glob(name, recursive=True))
    return [str(Path(match)) for match in matches if os.path.isfile(match)]


def _refuse(error: OSError) -> None:
    raise read_error(error, DataError(f"{error.filename}: {error.strerror}")) from error


def files_below(folder: Path, onerror: Callable[[OSError], object]) -> list[str]:
    """The files of a folder, without hidden ones and without what plmctl wrote.

    Args:
        onerror: Called with the error of a folder in it that cannot be read.
    """
    files, seen = list[str](), set[str]()
    for place, folders, names in os.walk(folder, onerror=onerror, followlinks=True):
        again = (real := os.path.realpath(place)) in seen  # by a link
        seen.add(real)
        if again or any(written <= set(names) for written in _WRITTEN):
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(".")]
        paths = (Path(place, name) for name in names if not name.startswith("."))
        files += [str(path) for path in paths if path.is_file()]
    return sorted(files)


def _nothing(names: Sequence[str], others: Mapping[str, int]) -> DataError:
    """The error for a folder, or several names, without a file that is read."""
    what = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
    if not others:
        return DataError(f"{what}: no files in this folder", FORMATS)
    advice = _advice(others, _folder_of(names))
    return DataError(
        f"{what}: no file of running text, only {_in_words(others)}",
        "\n  ".join([*advice, FORMATS]),
    )


def _folder_of(names: Sequence[str]) -> str:
    """The folder that the user named, for commands to copy."""
    return shlex.quote(str(Path(names[0]))) if Path(names[0]).is_dir() else "FOLDER"


def _in_words(others: Mapping[str, int]) -> str:
    named = [f"{count:,} {suffix or 'without an ending'}" for suffix, count in others.items()]
    more = f", and {len(named) - 12} other kinds" if len(named) > 12 else ""
    return ", ".join(named[:12]) + more


def _advice(others: Mapping[str, int], folder: str) -> list[str]:
    """How to have the files of these endings read."""
    by_command: dict[str, list[str]] = {}
    for suffix in others:
        if suffix not in DOCUMENTS and (command := conversion(suffix)):
            by_command.setdefault(command, []).append(suffix)
    ours = ", ".join(suffix for suffix in others if suffix in DOCUMENTS)
    advice = [f"`plmctl text {folder} --out corpus.jsonl` reads {ours}"] if ours else []
    advice += [f"convert {', '.join(s)} files: `{way}`" for way, s in by_command.items()]
    if named := [one for one in others if one != _ODD_NAME and is_readable(f"x{one}")]:
        kinds = ", ".join(suffix or "those without an ending" for suffix in named)
        advice.append(f"to have {kinds} read, name them: `plmctl init '{folder}/**/*{named[0]}'`")
    return advice


_SIDES = ("train", "valid", "test")


def _side(path: str) -> str:
    """Whether a file's name says that its text is held out: train, valid or test."""
    words = os.path.basename(path).split(".")[0].lower().replace("-", "_").split("_")
    if "test" in words:
        return "test"
    return "valid" if any(word in _HELD_OUT for word in words) else "train"


def _patterns(folder: Path, files: Sequence[str]) -> list[str]:
    """Patterns for many files, one per ending; the files, if patterns would match others too."""
    if len(files) <= _MANY:
        return list(files)
    endings = {
        "".join(path.suffixes[-2:]) if path.suffix in (".gz", ".zst") else path.suffix
        for path in map(Path, files)
    }
    patterns = [f"{folder}/**/*{suffix}" for suffix in sorted(endings)]
    matches = [match for pattern in patterns for match in _matches(pattern)]
    return patterns if sorted(matches) == sorted(files) else list(files)
