"""``plmctl compare-tokenizers``: how well tokenizers fit a held-out text, side by side."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from plmctl.corpus.document import read_lines
from plmctl.errors import ConfigError, DataError
from plmctl.files import model_of_run
from plmctl.reporting.html import save_page
from plmctl.reporting.tokenizer_report import tokenizer_page, tokenizer_tables
from plmctl.run.display import say, show_result
from plmctl.tokenization import quality
from plmctl.tokenization.check import check_tokenizer
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.parity import check_parallel

HELD_OUT = "held_out.txt"
"""The lines that training held out, in the folder's ``eval``."""

_LINES = 10_000  # measured, at most
_SHORT = 500  # lines for the curve by size, which encodes them once per size
_SAMPLES = 5
_LISTED = 10  # tokens
_WIDEST = 40  # characters of a listed token
_SAMPLE_LENGTH = range(40, 160)  # characters


def run(
    folders: Sequence[str],
    *,
    text: Sequence[str],
    parallel: Sequence[str],
    out: str | None,
    as_json: bool,
) -> None:
    """Measure, print, and write the page if ``out`` names one."""
    languages = _languages(parallel)
    paths = list(dict.fromkeys(model_of_run(folder) for folder in folders))
    for path in paths:
        if not Path(path).is_dir():
            raise ConfigError(f"{path}: not a tokenizer folder", "name only tokenizer folders")
        check_tokenizer(path)
        if (Path(path) / "config.json").is_file() and not text:
            raise ConfigError(
                f"{path} is a model folder",
                f"to measure its tokenizer: add --text FILE; to score the model: plmctl eval "
                f"CONFIG model={path}, or plmctl suite {path} glue",
            )
    lines, source = _lines(paths[0], text)
    if languages:
        check_parallel(languages, say)
    document = _measure(paths, lines, languages)
    document["text"] = f"{len(lines):,} lines of {source}"
    if not as_json:
        say(f"measured on {document['text']}")
    if out is not None:
        save_page(Path(out), tokenizer_page(document))
        say(f"wrote {out}")
    show_result(document, tokenizer_tables(document), as_json=as_json)


def _measure(
    paths: Sequence[str], lines: list[str], languages: dict[str, list[str]]
) -> dict[str, Any]:
    # The last part of each path, or the whole path where that is not unique.
    last = [Path(path).name for path in paths]
    names = [
        name if last.count(name) == 1 else path for name, path in zip(last, paths, strict=True)
    ]
    tokenizers, results, measured = {}, {}, []
    for name, path in zip(names, paths, strict=True):
        tokenizer = Encoder(path).open()
        tokenizers[name] = tokenizer
        result = quality.measure(tokenizer, lines)
        sizes = quality.sizes_of(tokenizer)
        results[name] = {
            "folder": path,
            "figures": result.metrics(),
            "scripts": {script: asdict(words) for script, words in result.scripts.items()},
            "longest": [_short(token) for token in result.longest],
            "unused": [_short(token) for token in result.unused[-_LISTED:]],
            "by_size": [sizes, quality.by_size(tokenizer, lines[:_SHORT], sizes)],
        }
        measured.append(result)
    picked = [line for line in lines if len(line) in _SAMPLE_LENGTH] or lines
    samples = picked[:: max(1, len(picked) // _SAMPLES)][:_SAMPLES]
    document: dict[str, Any] = {
        "tokenizers": results,
        "overlap": [[quality.overlap(one, other) for other in measured] for one in measured],
        "samples": [{n: quality.segments(tokenizers[n], text) for n in names} for text in samples],
    }
    if languages:
        document["languages"] = {
            name: quality.fairness(tokenizers[name], languages).metrics() for name in names
        }
    return document


def _languages(parallel: Sequence[str]) -> dict[str, list[str]]:
    """The parallel lines by language, from NAME=FILE."""
    named = [one.partition("=") for one in parallel]
    wrong = [one for one, parts in zip(parallel, named, strict=True) if not all(parts)]
    paths = {name: path for name, _, path in named}
    if wrong or len(paths) < len(named) or len(paths) == 1:
        raise ConfigError(
            f"--parallel {' --parallel '.join(wrong or parallel)}: expected two or more languages "
            "with different names",
            "write --parallel en=english.txt --parallel hi=hindi.txt",
        )
    return {
        name: parallel_lines(path) for name, _, path in (one.partition("=") for one in parallel)
    }


def parallel_lines(path: str) -> list[str]:
    """The lines of a file whose line i means the same as line i of another.

    Raises:
        DataError: There is no such file, or a line is blank.
    """
    if not Path(path).is_file():
        raise DataError(f"{path}: no such file", "name a file with a sentence in each line")
    lines = [line.text.rstrip("\r\n") for line in read_lines(Path(path))]
    blank = next((number for number, line in enumerate(lines, 1) if not line.strip()), None)
    if blank is not None:
        raise DataError(
            f"{path}:{blank}: a blank line", "parallel files have a sentence in each line"
        )
    return lines


def _short(token: str) -> str:
    return token if len(token) <= _WIDEST else f"{token[:_WIDEST]}…"


def _lines(folder: str, text: Sequence[str]) -> tuple[list[str], str]:
    """The lines to measure on, and the names of their files."""
    files = [Path(path) for path in text] or [Path(folder) / "eval" / HELD_OUT]
    for path in files:
        if not path.exists():
            hint = "name a text that the tokenizers did not learn from: --text FILE"
            raise DataError(f"{path}: no such file", hint)
    count = sum(1 for _ in _not_blank(files))  # read twice, so that no file must fit in memory
    if not count:
        raise DataError(
            f"no text in {', '.join(map(str, files))}", "name another text: --text FILE"
        )
    step = max(1, count // _LINES)
    lines = list(islice(_not_blank(files), 0, step * _LINES, step))
    return lines, ", ".join(map(str, files))


def _not_blank(files: list[Path]) -> Iterator[str]:
    lines = (line.text.rstrip("\r\n") for path in files for line in read_lines(path))
    return (line for line in lines if line.strip())
