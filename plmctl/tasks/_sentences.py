"""The words and the tags of a row, checked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from plmctl.errors import DataError
from plmctl.metrics.spans import Scheme, is_entity_tag

if TYPE_CHECKING:
    from plmctl.corpus.tables import Row
    from plmctl.tasks.tagging import Config

_SHOWN = 12


def sentence(config: Config, row: Row) -> list[str]:
    """The words of a row.

    Raises:
        DataError: Neither a list of texts nor a text.
    """
    value = row.cell(config.tokens)
    if isinstance(value, str) and config.split == "characters":
        return [character for character in value if not character.isspace()]
    return _items(value, row, config.tokens)


def tags_of(
    config: Config, row: Row, words: Sequence[str], labels: Sequence[str] | None = None
) -> list[str]:
    """The tags of a row, one a word.

    Args:
        config: The task's.
        row: With a column of tags.
        words: Its words.
        labels: What a tag may be; None: anything.

    Raises:
        DataError: Not as many tags as words, or a tag that is not known.
    """
    tags = _items(row.cell(config.tags), row, config.tags)
    if len(tags) != len(words):
        raise DataError(
            f"{row.origin}: {len(words)} words in {config.tokens!r}, but {len(tags)} tags in "
            f"{config.tags!r}",
            "give one tag a word",
        )
    known = set(tags if labels is None else labels)
    for number, (word, tag) in enumerate(zip(words, tags, strict=True), 1):
        if tag not in known:
            there = ", ".join([*(labels or ())[:_SHOWN], *["..."][: len(labels or ()) > _SHOWN]])
            raise DataError(
                f"{row.origin}: tag {tag!r} of word {number}, {word!r}, is not among the training "
                f"tags: {there}",
                "mend it; or, if no training row has it, count it as wrong (task.unseen=wrong), or "
                "name all tags under `task.labels`",
            )
    return tags


def check_scheme(scheme: Scheme, origin: str, tags: Iterable[str]) -> None:
    """Refuse tags that a scheme does not have.

    Raises:
        DataError: There is one.
    """
    for tag in sorted(tags):
        if not is_entity_tag(tag, scheme):
            letters = "B- or I-" if scheme == "bio" else "B-, I-, E- or S-"
            raise DataError(
                f"{origin}: tag {tag!r} is not O, nor {letters} and a type",
                "name the scheme of the tags: `task.scheme: bio`, `bioes` or `pos`",
            )


def _items(value: Any, row: Row, column: str) -> list[str]:
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, list | tuple):
        raise DataError(
            f"{row.origin}: column {column!r} holds a {type(value).__name__}",
            "expected a list with one text a word, or one text with spaces between the words",
        )
    for number, item in enumerate(value, 1):
        if not isinstance(item, str | int):
            raise DataError(
                f"{row.origin}: item {number} of column {column!r} is a {type(item).__name__}",
                "expected a text for each word",
            )
    return [str(item) for item in value]
