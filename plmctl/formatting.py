"""Numbers, durations and text from outside in readable form."""

import json
import math
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters but tab and line end; and halves of surrogate pairs, which are no text."""


def printable(text: str) -> str:
    r"""Text from outside for a terminal: control characters but tab and line end become ``\x1b``.

    In a label, a file name or a generated text they could change the title of the terminal, clear
    it, or write to the clipboard.
    """
    return _CONTROL.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    number = ord(match[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def printable_json(document: object) -> str:
    """JSON in one line in which text stays readable, and no control character reaches a terminal.

    A number that is not finite, which JSON cannot express, becomes null.
    """
    text = json.dumps(_finite(document), ensure_ascii=False, allow_nan=False, default=str)
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_LONG = 10**18


def format_value(value: object) -> str:
    """A number with separated thousands and three or more digits; printable text; None: a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return printable(str(value))
    if abs(value) >= _LONG and (isinstance(value, int) or math.isfinite(value)):
        return f"{Decimal(value):.2e}"
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "-"
    if abs(value) >= 1000 or (value == int(value) and abs(value) >= 100):
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}" if abs(value) >= 100 else f"{value:.2f}"
    # Three decimals; but a learning rate or a weight decay is not zero.
    return f"{value:.3f}" if value == 0 or abs(value) >= 0.01 else f"{value:.2e}"


def format_duration(seconds: float) -> str:
    """``3:41``, ``2:03:41``, ``3d 04h``; a dash if it is unknown."""
    if not math.isfinite(seconds):
        return "-"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02d}h"
    return f"{hour}:{minute:02d}:{second:02d}" if hour else f"{minute}:{second:02d}"


def without_local_paths(text: str) -> str:
    """A text for others: paths below the working directory from there, shipped configs by name.

    Other absolute paths of this machine are their last part.
    """
    text = text.replace(f"{Path.cwd()}/", "")
    text = re.sub(r"(?<![\w.:/~])/(?:[^\s`'\"|,\]/]+/)+configs/([^\s`'\"|,\]]+)\.yaml", r"\1", text)
    return re.sub(r"(?<![\w.:/~])/(?:[^\s`'\"|,\]/]+/)+([^\s`'\"|,\]/]+)", r"\1", text)
