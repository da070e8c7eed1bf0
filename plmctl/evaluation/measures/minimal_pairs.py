"""Minimal pairs (Warstadt et al., 2020, BLiMP): is the good sentence the more probable one?

Whole sentences are compared by their summed log-probability, without a division by length. A tie is
wrong.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from plmctl.config.base import Text
from plmctl.config.members import MeasureConfig
from plmctl.corpus.tables import Row
from plmctl.errors import DataError
from plmctl.evaluation.measures import EACH, Each, Subject, digest


class Config(MeasureConfig):
    """Accuracy on minimal pairs of sentences (BLiMP), for every family."""

    name: Literal["minimal_pairs"] = "minimal_pairs"
    data: tuple[Text, ...] = Field(min_length=1)
    """Pairs: jsonl, csv, tsv or parquet; each file is a paradigm, as those of BLiMP are."""
    good: Text = "sentence_good"
    """Column of the sentence that is right."""
    bad: Text = "sentence_bad"
    """Column of the sentence that is wrong."""
    variant: Literal["original", "word_l2r"] = "original"
    """Masked models. original: one token is masked at once, as published; word_l2r: and the later
    tokens of its word."""
    span: int | None = Field(default=None, ge=1)
    """Encoder-decoders. Empty: the decoder is asked for the whole sentence; a number: so many
    tokens are hidden together and the rest is given."""


def measure(config: Config, subject: Subject) -> dict[str, Any]:
    """Accuracy with its standard error, of each file and of all pairs."""
    from plmctl.evaluation.likelihood import uncertainty
    from plmctl.evaluation.likelihood.reader import open_reader
    from plmctl.evaluation.likelihood.sentences import definition, sentences

    files = _read(config)
    reader = open_reader(subject)
    texts = [text for pairs in files.values() for pair in pairs for text in pair]
    found = sentences(reader, texts, config.variant, config.span)
    good, bad = found.log_probability.reshape(-1, 2).T
    right, ties = (good > bad).astype(np.float64), good == bad
    cuts = np.cumsum([len(pairs) for pairs in files.values()])[:-1]
    paradigms = [
        {
            "paradigm": name,
            "accuracy": float(part.mean()),
            "accuracy_se": uncertainty.of_mean(part),
            "pairs": len(part),
        }
        for name, part in zip(files, np.split(right, cuts), strict=True)
    ]
    return {
        "accuracy": float(right.mean()),
        "accuracy_se": uncertainty.of_mean(right),
        "pairs": len(right),
        "ties": int(ties.sum()),
        "cut": found.cut,
        "unknown": found.unknown,
        "paradigms": paradigms,
        EACH: {"": Each("accuracy", digest(texts), right.tolist())},
        "definition": (
            "share of pairs whose good sentence has the higher score, ties wrong; score: "
            + definition(reader, config.variant, config.span)
        ),
    }


def _read(config: Config) -> dict[str, list[tuple[str, str]]]:
    """The pairs of each file, by its name."""
    from plmctl.corpus.reading import resolve, rows

    try:
        sources = resolve(config.data)
    except DataError as error:
        raise DataError(
            f"{error.message}; nothing was scored",
            "BLiMP's files are in the folder data of github.com/alexwarstadt/blimp: copy them "
            "here, and name them by `data` of this measure",
        ) from error
    found: dict[str, list[tuple[str, str]]] = {}
    for source in sources:
        pairs = []
        for values, origin in rows(source):
            row = Row(values, origin)
            pairs.append((_sentence(row, config.good), _sentence(row, config.bad)))
        if not pairs:
            raise DataError(f"{source.name}: no pairs in it", "one JSON object a line")
        name = Path(source.name).name.split(".")[0]
        found[source.name if name in found else name] = pairs
    return found


def _sentence(row: Row, column: str) -> str:
    text = row.values.get(column)
    if not isinstance(text, str) or not text.strip():
        there = ", ".join(row.values) or "none"
        what = "no column" if column not in row.values else "no text in column"
        raise DataError(
            f"{row.origin}: {what} {column!r}; there are: {there}",
            "name the columns of the pairs: `good` and `bad` of this measure",
        )
    return text
