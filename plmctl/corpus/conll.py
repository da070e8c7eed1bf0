"""Columns of CoNLL and CoNLL-U: a word and its tags per line, a blank line between sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from plmctl.corpus.cells import is_blank
from plmctl.corpus.document import read_lines
from plmctl.corpus.source import Source
from plmctl.errors import DataError

_DOCSTART = "-DOCSTART-"  # starts a document in CoNLL-2003; it is not a word

_COMMENT = re.compile(  # as `# text = ...`, `#text = ...`, `# newpar`
    r"# +[\w.:\[\]-]+ *=|#[\w.:\[\]-]+ +=( |$)|# *(newdoc|newpar|text|sent_id)( |$)"
)

_CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")

# Features that CoNLL 2018 scores (conll18_ud_eval.py); those of one language are left out.
_FEATURES = re.compile(
    "PronType|NumType|Poss|Reflex|Foreign|Abbr|Gender|Animacy|Number|Case|Definite|Degree|VerbForm|"
    "Mood|Tense|Aspect|Voice|Evident|Polarity|Person|Polite"
)

_BETWEEN_WORDS = re.compile(r"[0-9]+[-.][0-9]+")  # a range of words, or an empty word

_COLUMNS = re.compile(r"#\s*global\.columns\s*=(.*)")


def tagged_rows(source: Source) -> Iterator[tuple[dict[str, Any], str]]:
    """The sentences of a file, each with the line where it begins.

    Columns are separated by tabs if a line has one, else by spaces. A row has lists of strings:
    ``tokens`` (the first column), ``tags`` (the last one), and each column under its number, from
    "0".

    If the words of a sentence have the numbers 1, 2, ... before them, ``tokens`` is the second
    column, and comments, ranges of words (1-2) and empty words (1.1) are left out. The columns of
    CoNLL-U (ten of them, or those of ``# global.columns``) have names too, such as form and upos;
    its ``tags`` are the universal parts of speech. ``alltags`` joins upos, xpos and the universal
    features: all that a word's tag is in CoNLL 2018.

    Raises:
        DataError: A line with one column, or with another number of columns than the lines before.
    """
    columns = _Columns(source)
    lines: list[list[str]] = []
    origin = ""
    for line in read_lines(source.path, 0, source.longest):
        cells = _conll_cells(line.text)
        if not cells or cells[0] == _DOCSTART:
            if lines and (row := columns.row(lines, origin)):
                yield row, origin
            lines = []
            continue
        where = f"{source.name}:{line.number}"
        if not lines and columns.is_comment(line.text, cells):
            continue
        columns.check(cells, where)
        origin = origin if lines else where
        lines.append(cells)
    if lines and (row := columns.row(lines, origin)):
        yield row, origin


class _Columns:
    """The columns of a file: how many, and their names if it is CoNLL-U."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._width = 0
        self._named: tuple[str, ...] = ()
        self._numbered: bool | None = None

    def is_comment(self, line: str, cells: list[str]) -> bool:
        """Whether the first line of a sentence is a comment: a word may begin with # too."""
        if not line.startswith("#"):
            return False
        if named := _COLUMNS.match(line):
            self._named = tuple(named[1].lower().split())
        other = len(cells) != self._width
        # The words of CoNLL-U have numbers before them.
        if self._numbered or self._is_conllu:
            return True
        spaced = self._width > 0 and line[1:2] in (" ", "\t") and len(cells) > 1
        return bool(_COMMENT.match(line)) or (other and spaced)

    def check(self, cells: list[str], where: str) -> None:
        """Refuse a line that has no tag, or other columns than the lines before."""
        self._width = self._width or len(cells)
        if self._width < 2:
            text = self._source.kind == "text"
            raise DataError(
                f"{where}: {'a text file has no columns' if text else 'one column, and no tags'}",
                "use csv, tsv or jsonl; or, for tagging, a word and its tag on each line",
            )
        if len(cells) != self._width:
            raise DataError(
                f"{where}: {len(cells)} columns where the lines before have {self._width}: "
                f"{ascii(' '.join(cells))[1:-1]:.60}",
                "put a word and its tags on each line, and a blank line between sentences",
            )

    def row(self, lines: list[list[str]], origin: str) -> dict[str, Any]:
        """A sentence; empty if it has only ranges and empty words.

        Raises:
            DataError: Its words are not numbered, as those of the sentences before are.
        """
        words = [cells for cells in lines if not _BETWEEN_WORDS.fullmatch(cells[0])]
        numbered = [cells[0] for cells in words] == [str(n) for n in range(1, len(words) + 1)]
        if self._numbered is None:  # one word "1" may be a word
            sure = len(words) > 1 or bool(self._names) or self._width == len(_CONLLU)
            self._numbered = self._is_conllu or (numbered and sure and self._width > 2)
        if not self._numbered:
            words = lines
        elif not numbered:
            raise DataError(
                f"{origin}: the first column has no numbers from 1 on, as CoNLL-U has them",
                "number the words of each sentence, or of none",
            )
        if not words:
            return {}
        columns = [list(column) for column in zip(*words, strict=True)]
        row = {str(number): column for number, column in enumerate(columns)}
        first = columns[1 if self._numbered else 0]
        if self._numbered:
            named = dict(zip(self._names, columns, strict=False))
            row |= named
            if {"upos", "xpos", "feats"} <= named.keys():
                tags = zip(named["upos"], named["xpos"], named["feats"], strict=True)
                row["alltags"] = [
                    f"{upos}|{xpos}|{_universal(feats)}" for upos, xpos, feats in tags
                ]
        return {"tokens": row.get("form", first), "tags": row.get("upos", columns[-1]), **row}

    @property
    def _names(self) -> tuple[str, ...]:
        return self._named or (_CONLLU if self._width == len(_CONLLU) else ())

    @property
    def _is_conllu(self) -> bool:
        return ".conllu" in self._source.path.name


def _universal(features: str) -> str:
    """The features that every language may have, in order; without one ``_``."""
    known = (one for one in features.split("|") if _FEATURES.fullmatch(one.partition("=")[0]))
    return "|".join(sorted(known)) or "_"


def _conll_cells(line: str) -> list[str]:
    """The columns of a line; none of a line in which nothing can be seen."""
    # Only at ASCII spaces: some other spaces of Unicode are words in Chinese data.
    bare = line.strip("\r\n")
    if is_blank(bare):
        return []
    if "\t" in bare.strip("\t "):
        return [cell.strip(" ") or cell for cell in bare.split("\t")]
    return [cell for cell in bare.strip("\t").split(" ") if cell]
