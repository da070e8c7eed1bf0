"""``plmctl text``: the files of a folder as one jsonl file of documents, with a report.

The files are read in parts, by several processes. A part is complete or absent, so that the same
command continues; at the end the parts are joined in the order of the files' names.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plmctl.corpus.build import Workers, make_all
from plmctl.corpus.documents import (
    BROKEN,
    ENCODING,
    LARGE,
    LONGEST,
    NO_LIBRARY,
    SCANNED,
    UNKNOWN,
    LeftOut,
    format_of,
    libraries,
    read,
)
from plmctl.corpus.gather import counted, files_below
from plmctl.corpus.source import DOCUMENTS, conversion, ending
from plmctl.errors import ConfigError, DataError
from plmctl.files import (
    CHECKSUM,
    new_file,
    read_checked,
    with_checksum,
    write_atomically,
    write_checked,
    write_error,
    writing,
)
from plmctl.hashing import digest_of, digest_of_json
from plmctl.reporting.tables import rows_table, text_table
from plmctl.run.display import say, show_result, work_progress

_VERSION = 1  # increased when files are read in another way, so that older parts are not used

_PART = 16_000_000  # bytes of files, and

_FILES = 64  # files: a part, which one process reads

_NAMED = 1_000  # files of each reason in the report


def run(
    folder: str,
    out: str,
    *,
    encoding: str | None = None,
    workers: int | None = None,
    fresh: bool = False,
    as_json: bool,
) -> None:
    """Read the files of a folder, or one file, and write documents and report.

    Args:
        encoding: How plain text that is not UTF-8 is read.
        workers: How many processes read; None: one per core.
        fresh: Move an output that is there aside.

    Raises:
        ConfigError: The output is in the folder, or there already; or an unknown encoding.
        DataError: No such folder, or none of its files can be read.
    """
    source, target = Path(folder), Path(out)
    _check(source, target, encoding)
    names, unreadable = _files(source)
    parts = _parts(source, names, target.with_name(f".{target.name}.parts"), encoding)
    made_from = digest_of([part.name for part in parts])
    report_file = target.with_name(f"{target.name}.report.json")
    if target.exists() and not fresh:
        report = read_checked(report_file) or {}
        if report.get("made_from") != made_from:
            raise ConfigError(
                f"{target}: this is there already, and not made from these files as they are now",
                "name another file, or add --fresh to move it aside",
            )
        _show(report, target, as_json=as_json)
        say(f"{target}: made from these files before, and left alone; --fresh reads them again")
        return
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if fresh:
            shutil.rmtree(parts[0].folder, ignore_errors=True)
        parts[0].folder.mkdir(exist_ok=True)
    with work_progress(f"reading {folder}") as progress:
        missing = [part for part in parts if not part.is_done]
        make_all(missing, parts, None, parts[0].folder, Workers(workers), progress)
    report = {"folder": str(folder), "made_from": made_from, **_report(parts, unreadable)}
    if not report["documents"]:
        shutil.rmtree(parts[0].folder, ignore_errors=True)
        reasons = (f"{reason}: {_in_words(one)}" for reason, one in report["left_out"].items())
        raise DataError(f"{folder}: none of its files gives a document", "\n  ".join(reasons))
    with writing(target):
        write_atomically(report_file, with_checksum(report), several_writers=True)
        with new_file(target, several_writers=True, replaces=False) as file:
            for part in parts:
                with part.path.open("rb") as documents:
                    shutil.copyfileobj(documents, file, 1 << 20)
    shutil.rmtree(parts[0].folder, ignore_errors=True)
    _show(report, target, as_json=as_json)
    say(f"wrote {target} and {report_file.name}; next:\n  plmctl init {target}")


def _check(source: Path, target: Path, encoding: str | None) -> None:
    if not source.exists():
        raise DataError(f"{source}: no such folder", "check the path")
    if not (source.is_dir() or source.is_file()):
        raise DataError(f"{source}: a pipe or a device, not a folder", "check the path")
    if target.suffix != ".jsonl":
        raise ConfigError(f"--out {target}: the documents are JSON lines", "name a .jsonl file")
    if target.is_dir():
        raise ConfigError(f"--out {target}: a folder of this name exists", "name another file")
    if source.is_dir() and Path(os.path.realpath(target)).is_relative_to(os.path.realpath(source)):
        raise ConfigError(
            f"--out {target}: this is in the folder that is read",
            "name a file outside of it, or the next run would read it too",
        )
    try:
        "a".encode(encoding or "utf-8")
    except LookupError:
        raise ConfigError(
            f"--encoding {encoding}: unknown", "for example gb18030, big5, shift_jis, cp1252"
        ) from None


def _files(source: Path) -> tuple[list[str], list[str]]:
    """The files below a folder, and the folders that may not be read, by their relative names."""
    if source.is_file():
        return [source.name], []
    errors = list[OSError]()
    names = [os.path.relpath(name, source) for name in files_below(source, errors.append)]
    if not names:
        raise DataError(f"{source}: no files in this folder", "check the path")
    return names, [os.path.relpath(error.filename, source) for error in errors]


# --- Parts: what one process reads ---


@dataclass(frozen=True)
class _Part:
    """Some files, and what becomes of them.

    Attributes:
        folder: Holds the finished parts.
        files: Relative name, size and time of each.
    """

    folder: Path
    root: Path
    files: tuple[tuple[str, int, int], ...]
    encoding: str | None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        stamps = [[ascii(name), *stamp] for name, *stamp in self.files]
        known = [_VERSION, self.encoding, libraries(), stamps]
        object.__setattr__(self, "name", digest_of_json(known))

    @property
    def path(self) -> Path:
        """The documents."""
        return self.folder / f"{self.name}.jsonl"

    @property
    def facts_path(self) -> Path:
        """What became of each file; written last."""
        return self.folder / f"{self.name}.json"

    @property
    def is_there(self) -> bool:
        """Whether it looks done."""
        return self.facts_path.exists()

    @property
    def is_done(self) -> bool:
        """Whether it is done."""
        return read_checked(self.facts_path) is not None and self.path.exists()

    @property
    def size(self) -> int:
        """Bytes to read."""
        return sum(size for _, size, _ in self.files)

    def make(self, encoder: object, beside: Path) -> None:
        """Read the files.

        A file that ended the process twice, such as for want of memory, is left out.

        Raises:
            PlmError: The documents cannot be written.
        """
        attempts = self.folder / f"{self.name}.attempts"
        before = Counter(attempts.read_text().split() if attempts.exists() else ())
        facts = list[dict[str, Any]]()
        try:
            with (
                new_file(self.path, several_writers=True) as file,
                attempts.open("a", buffering=1) as attempted,
            ):
                for number, (name, _, _) in enumerate(self.files):
                    attempted.write(f"{number}\n")
                    ended = before[str(number)] - before[str(number + 1)]
                    fact = _fact(self.root, name)
                    facts.append(fact)
                    if ended > 1 and not fact["streamed"]:
                        fact |= {"reason": BROKEN, "detail": "reading it ended the process twice"}
                        continue
                    file.writelines(_lines(self.root, name, self.encoding, fact))
                attempted.write(f"{len(self.files)}\n")
            write_checked(self.facts_path, {"files": facts})
            attempts.unlink(missing_ok=True)
        except OSError as error:
            raise write_error(self.path, error) from error


def _parts(root: Path, names: Sequence[str], folder: Path, encoding: str | None) -> list[_Part]:
    """The files by name, in parts that depend on nothing but them."""
    base, parts, size = root if root.is_dir() else root.parent, list[_Part](), 0
    files = list[tuple[str, int, int]]()
    for name in sorted(names, key=os.fsencode):
        try:
            stat = (base / name).stat()
            stamp = stat.st_size, stat.st_mtime_ns
        except OSError:  # it is gone; reading it will say so
            stamp = 0, 0
        if files and (len(files) == _FILES or size + stamp[0] > _PART):
            parts.append(_Part(folder, base, tuple(files), encoding))
            files, size = [], 0
        files.append((name, *stamp))
        size += stamp[0]
    return [*parts, _Part(folder, base, tuple(files), encoding)]


def _fact(root: Path, name: str) -> dict[str, Any]:
    """What is known of a file before it is read."""
    fact = {"name": _shown(name), "format": "", "streamed": False, "documents": 0, "characters": 0}
    with suppress(LeftOut):
        form = format_of(root / name)
        fact |= {"format": form.name, "streamed": form.streamed}
    return fact


def _lines(root: Path, name: str, encoding: str | None, fact: dict[str, Any]) -> Iterator[bytes]:
    """The documents of a file as lines, which are counted in ``fact``."""
    try:
        for chapter, text in read(root / name, encoding):
            source = _shown(name) + (f"#{chapter}" if chapter else "")
            document = {"text": text, "source": _shown(source)}
            line = json.dumps(document, ensure_ascii=False).encode() + b"\n"
            if len(line) > LONGEST:
                raise LeftOut(LARGE, f"a document of more than {LONGEST / 1e6:,.0f} MB")
            yield line
            fact["documents"] += 1
            fact["characters"] += len(text)
    except LeftOut as error:
        fact |= {"reason": error.reason, "detail": error.detail}


def _shown(name: str) -> str:
    """A name as text, although a file's may be any bytes."""
    return os.fsencode(name).decode("utf-8", "replace") if not name.isascii() else name


# --- The report ---


def _report(parts: Sequence[_Part], unreadable: Sequence[str]) -> dict[str, Any]:
    """Numbers by format, and the files that were left out by reason."""
    formats, left_out = dict[str, Counter[str]](), dict[str, dict[str, Any]]()

    def leave_out(name: str, suffix: str, reason: str, detail: str) -> None:
        group = left_out.setdefault(reason, {"files": 0, "endings": Counter(), "names": {}})
        group["files"] += 1
        group["endings"][suffix] += 1
        if len(group["names"]) < _NAMED:
            group["names"][name] = detail

    for part in parts:
        for fact in (read_checked(part.facts_path) or {"files": ()})["files"]:
            if fact["documents"]:
                counts = {key: fact[key] for key in ("documents", "characters")}
                formats.setdefault(fact["format"], Counter()).update(files=1, **counts)
            if "reason" in fact:
                suffix = ending(fact["name"]) or "without an ending"
                leave_out(fact["name"], suffix, fact["reason"], fact["detail"])
    for name in unreadable:
        leave_out(name, "folder", "may not be read", "")
    return {
        "documents": sum(one["documents"] for one in formats.values()),
        "characters": sum(one["characters"] for one in formats.values()),
        "formats": {name: dict(one) for name, one in sorted(formats.items())},
        "left_out": {
            reason: {**one, "endings": dict(one["endings"].most_common())}
            for reason, one in sorted(left_out.items(), key=lambda pair: -pair[1]["files"])
        },
    }


def _show(report: Mapping[str, Any], target: Path, *, as_json: bool) -> None:
    columns = ("files", "documents", "characters")
    rows = [(name, *map(one.get, columns)) for name, one in report["formats"].items()]
    if len(rows) > 1:
        total = [sum(row[number] for row in rows) for number in (1, 2, 3)]
        rows.append(("together", *total))
    tables = [rows_table(str(target), ("format", *columns), rows)]
    if report["left_out"]:
        lines = [(reason, _in_words(one)) for reason, one in report["left_out"].items()]
        tables.append(text_table("left out", ("why", "files"), lines))
    shown = {key: value for key, value in report.items() if key != CHECKSUM}
    show_result(shown, tables, as_json=as_json)
    for reason, one in report["left_out"].items() if not as_json else ():
        for advice in _advice(reason, one):
            say(advice)


def _in_words(group: Mapping[str, Any]) -> str:
    """The files of a reason by ending, and one of them."""
    endings = ", ".join(f"{count:,} {suffix}" for suffix, count in group["endings"].items())
    name, detail = next(iter(group["names"].items()))
    if group["files"] == 1:
        return f"{endings}: {name}" + (f" ({detail})" if detail else "")
    return f"{endings}; such as {name}" + (f" ({detail})" if detail else "")


def _advice(reason: str, group: Mapping[str, Any]) -> Iterator[str]:
    """What to do about the files that a reason left out."""
    if reason == NO_LIBRARY:
        missing = "; ".join(dict.fromkeys(group["names"].values()))
        yield f"{counted(group['files'], 'file')} need libraries: {missing}, then --fresh"
    elif reason == SCANNED:
        yield "scanned pages need OCR first, such as `ocrmypdf IN.pdf OUT.pdf`"
    elif reason == ENCODING:
        yield "text in another encoding is read with --encoding, such as gb18030 or cp1252"
    elif reason == UNKNOWN:
        ways = dict[str, list[str]]()
        for suffix in group["endings"]:
            if suffix not in DOCUMENTS and (way := conversion(suffix)):
                ways.setdefault(way, []).append(suffix)
        for way, suffixes in ways.items():
            yield f"convert {', '.join(suffixes)} files yourself: `{way}`"
