"""Reading comprehension as SQuAD publishes it: one JSON object whose ``data`` are articles.

An article has paragraphs, a paragraph a context and questions. A row is a question, in the flat
form that ``datasets`` has: id, title, context, question, answers (text, answer_start) and
is_impossible. ``data`` may also have the rows themselves.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from plmctl.corpus.lines import read_lines
from plmctl.corpus.source import Source
from plmctl.errors import DataError

Rows = Iterator[tuple[dict[str, Any], str]]


def is_nested(source: Source) -> bool:
    """Whether a ``.json`` file is one object over its whole length, not an object a line."""
    if ".json" not in source.path.suffixes:
        return False
    for line in read_lines(source.path):
        if line.text.strip():
            try:
                first = json.loads(line.text)
            except (ValueError, RecursionError):
                return line.text.strip() == "{" or _whole(source) is not None
            return isinstance(first, dict) and isinstance(first.get("data"), list)
    return False


def nested_rows(source: Source) -> Rows:
    """The questions of a file, each with ``file: article/paragraph/question`` as its origin.

    Args:
        source: One that ``is_nested``.

    Raises:
        DataError: It is no JSON, or a part of it is missing or of another kind.
    """
    document = _whole(source)
    if document is None:
        raise DataError(
            f"{source.name}: not JSON over its whole length",
            "one JSON object a line, or one object with a list `data` as SQuAD has it",
        )
    for number, entry in enumerate(_list(document, "data", source.name), 1):
        where = f"{source.name}: article {number}"
        if isinstance(entry, dict) and "paragraphs" in entry:
            yield from _questions(entry, number, source.name)
        elif isinstance(entry, dict):
            yield entry, f"{source.name}: {entry.get('id', f'row {number}')}"
        else:
            raise DataError(f"{where}: a {type(entry).__name__}, not an object")


def _whole(source: Source) -> Any:
    """The file as one JSON value; None if it is not."""
    text = "".join(line.text for line in read_lines(source.path))
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _questions(article: dict[str, Any], number: int, name: str) -> Rows:
    title = str(article.get("title") or f"article {number}")
    for place, paragraph in enumerate(_list(article, "paragraphs", f"{name}: {title}"), 1):
        where = f"{name}: {title}/{place}"
        context = _text(paragraph, "context", where)
        for question in _list(paragraph, "qas", where):
            label = question.get("id") if isinstance(question, dict) else None
            origin = f"{where}/{label}"
            yield (
                {
                    "id": str(label),
                    "title": title,
                    "context": context,
                    "question": _text(question, "question", origin),
                    "answers": _answers(question, origin),
                    "is_impossible": bool(question.get("is_impossible", False)),
                },
                origin,
            )


def _answers(question: dict[str, Any], origin: str) -> dict[str, list[Any]] | None:
    """None where the file does not tell them, as those of a test set."""
    if question.get("answers") is None:
        return None
    found: dict[str, list[Any]] = {"text": [], "answer_start": []}
    for answer in _list(question, "answers", origin):
        found["text"].append(_text(answer, "text", f"{origin}: an answer"))
        found["answer_start"].append(answer.get("answer_start"))
    return found


def _list(values: Any, key: str, where: str) -> list[Any]:
    found = values.get(key) if isinstance(values, dict) else None
    if not isinstance(found, list):
        raise DataError(f"{where}: no list {key!r}", "SQuAD's form: data, paragraphs, qas, answers")
    return found


def _text(values: Any, key: str, where: str) -> str:
    found = values.get(key) if isinstance(values, dict) else None
    if not isinstance(found, str):
        raise DataError(f"{where}: no text {key!r}", "SQuAD's form: data, paragraphs, qas, answers")
    return found
