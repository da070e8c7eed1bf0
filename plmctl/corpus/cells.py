"""What a cell of labelled rows means: the name of a label, a list written as text, a number.

Files have the same label in many forms: ``1``, ``1.0`` and ``"1"``; with white space around it;
with an accent as a separate character. Here each has one name. Names that differ and look alike
stay separate labels, and are reported (``look_alikes``).
"""

from __future__ import annotations

import ast
import json
import math
import re
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

# --- The name of a label ---


_INVISIBLE = "\u200b\u2060\ufeff\xad\u200e\u200f"
_AROUND = _INVISIBLE + "\u200c\u200d\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_NO_INVISIBLE = dict.fromkeys(map(ord, _INVISIBLE))

_WHOLE = re.compile(r"(-?)(0|[1-9][0-9]*)\.0+")

_BYTES = re.compile(r"b'[^']*'|b\"[^\"]*\"")

MISSING = frozenset(
    {"nan", "NaN", "-nan", "-NaN", "NaT", "None", "null", "NULL", "Null", "NA", "N/A", "n/a"}
    | {"<NA>", "#N/A", "#NA", "undefined"}
)
"""What pandas, R, SQL, Excel and JavaScript write where there is no value."""


def label_name(value: Any) -> str:
    """The name of a label, from any type that a cell may have; empty: no label.

    White space and invisible characters around a text do not count, nor do control characters;
    white space within it is one space; accents are composed (NFC). Whole numbers have no decimals.

    Raises:
        ValueError: Another type, or infinity; with what it is.
    """
    if isinstance(value, str):
        if _BYTES.fullmatch(value):
            raise ValueError(f"{value:.60}, bytes that were written as text")
        return text_name(value)
    if value is None or (isinstance(value, float | Decimal) and value != value):
        return ""
    if isinstance(value, float | Decimal) and math.isfinite(value):
        if value == int(value):
            return str(int(value))
        return str(value) if isinstance(value, float) else f"{value.normalize():f}"
    if isinstance(value, int):
        return str(value)
    raise ValueError(f"{value!r:.60}, a {type(value).__name__}")


@lru_cache(1 << 16)
def text_name(text: str) -> str:
    """``label_name`` of a text."""
    if text.isascii() and text.isalpha():
        return text
    name = unicodedata.normalize("NFC", text).translate(_NO_INVISIBLE)
    name = "".join(c for c in name if c.isspace() or unicodedata.category(c) != "Cc")
    name = " ".join(name.split()).strip(_AROUND + " ")
    whole = _WHOLE.fullmatch(name)
    return f"{whole[1] if whole[2] != '0' else ''}{whole[2]}" if whole else name


def is_blank(text: str) -> bool:
    """Whether a text has nothing that can be seen."""
    return not text or text.isspace() or not text_name(text)


_LIKE_LATIN = str.maketrans(
    "аеорсухіјѕԁɡһΑΒΕΖΗΙΚΜΝΟΡΤΥΧАВЕКМНОРСТУХІЈЅ‐‑‒–—−’‘ʼ",
    "aeopcyxijsdghABEZHIKMNOPTYXABEKMHOPCTYXIJS------'''",
)


_UNSEEN = re.compile("[\u200c\u200d\ufe00-\ufe0f]")  # joiners, variants of a character


def look_alikes(names: Iterable[str]) -> list[list[str]]:
    """Groups of names that look alike.

    They differ only in case, in the form or width of characters, or in letters of Greek and
    Cyrillic that look like Latin ones.
    """
    groups: dict[str, list[str]] = {}
    for name in names:
        same = unicodedata.normalize("NFKC", name).translate(_LIKE_LATIN).casefold()
        groups.setdefault(_UNSEEN.sub("", same), []).append(name)
    return [sorted(group) for group in groups.values() if len(group) > 1]


def look_alikes_of(name: str, names: Iterable[str]) -> list[str]:
    """The names that look like another one."""
    groups = look_alikes({name, *names})
    return [one for group in groups if name in group for one in group if one != name]


# --- Lists that a table has as text ---


_ARRAY = re.compile(r"\b(?:array|tensor)\(([^()]*?)(?:,\s*dtype=[\w.<>']+)?\)")
_ITEM = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d*)?|True|False"""
_NUMPY = re.compile(rf"\[\s*(?:{_ITEM})(?:\s+(?:{_ITEM}))*\s*\]")
_BRACKETS = (("[", "]"), ("(", ")"), ("{", "}"))


def in_brackets(text: str) -> bool:
    """Whether a text begins and ends as a list or a mapping does."""
    bare = text.strip()
    return (bare[:1], bare[-1:]) in _BRACKETS or bare.startswith(("array(", "tensor("))


def written_value(text: str) -> list[Any] | dict[Any, Any] | None:
    """The list or mapping that a text is: as JSON, Python or NumPy write it; None: another text.

    ``str`` of a NumPy array has spaces between its items: ``[0 1]``, ``['a' 'b']``.
    """
    if not in_brackets(text):
        return None
    bare = _ARRAY.sub(r"\1", text.strip())
    value: Any = None
    try:
        value = json.loads(bare)
    except (ValueError, RecursionError):
        try:
            with warnings.catch_warnings(action="ignore"):
                value = (
                    [ast.literal_eval(item) for item in re.findall(_ITEM, bare)]
                    if _NUMPY.fullmatch(bare)
                    else ast.literal_eval(bare)
                )
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None
    if isinstance(value, tuple | set):
        value = list(value) if isinstance(value, tuple) else sorted(value, key=repr)
    return value if isinstance(value, list | dict) else None


# --- Vectors of 0 and 1 ---


_BITS = {"0": 0, "1": 1, "false": 0, "true": 1}


def as_bit(value: Any) -> int | None:
    """0 or 1, from a number, true or false, or their texts; None: something else."""
    try:
        return _BITS.get(label_name(value).lower())
    except ValueError:
        return None


def are_vectors(lists: Sequence[Sequence[Any]]) -> bool:
    """Whether lists are vectors of 0 and 1: two places or more, as many in each.

    Lists of the numbers 0 and 1 as labels have one or two items, not the same number in each.
    """
    sizes = {len(one) for one in lists if one}
    return (
        len(sizes) == 1
        and sizes != {1}
        and all(as_bit(value) is not None for one in lists for value in one)
    )


# --- Numbers ---


_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def number_of(value: Any) -> float | None:
    """A finite number, or a text with one in the digits 0 to 9; None: something else."""
    if isinstance(value, str):
        name = text_name(value)
        value = float(name) if _NUMBER.fullmatch(name) else None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        number = float(value)
    except OverflowError:  # a whole number of 400 digits is no float
        return None
    return number if math.isfinite(number) else None
