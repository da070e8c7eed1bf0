"""Minimal pairs (Warstadt et al., 2020, BLiMP): is the good sentence the more probable one?

Whole sentences are compared by their summed log-probability, without a division by length; beside
it stand the accuracies by the mean per token and per UTF-8 byte. A tie is wrong. By the sum, a
model that gives every token the same probability prefers the sentence of fewer tokens:
``shorter`` is its accuracy.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from plmctl.config.base import MeasureConfig, Text
from plmctl.corpus.labelled import Row
from plmctl.errors import DataError
from plmctl.evaluation.likelihood import score_sentences, sentence_definition
from plmctl.evaluation.model import EvaluatedModel, load_model
from plmctl.hashing import digest_of_items
from plmctl.measures.base import PER_ITEM, PerItemScores
from plmctl.metrics.statistics import mean_and_error

if TYPE_CHECKING:
    from plmctl.arrays import Floats, Ints

_ROUNDING = 1e-6  # relative, of a score that is summed over tokens in float32


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


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """Accuracies by sum, token and byte with their standard errors, per file and of all pairs."""
    files = _read(config)
    reader = load_model(subject)
    texts = [text for pairs in files.values() for pair in pairs for text in pair]
    found = score_sentences(reader, texts, config.variant, config.span)
    sizes = np.array([len(text.encode()) for text in texts])
    compared = {
        "accuracy": _compared(found.log_probability),
        "accuracy/token": _compared(found.log_probability / found.tokens),
        "accuracy/byte": _compared(found.log_probability / sizes),
    }
    right = {name: sign > 0 for name, sign in compared.items()}
    shorter = found.tokens[::2] < found.tokens[1::2]
    cuts = np.cumsum([len(pairs) for pairs in files.values()])[:-1]
    parts = {name: np.split(hits, cuts) for name, hits in right.items()}
    of_files = [mean_and_error(hits.tolist()) for hits in parts["accuracy"]]
    paradigms = [
        {
            "paradigm": file,
            "accuracy": of_files[number][0],
            "accuracy_se": of_files[number][1],
            "token": float(parts["accuracy/token"][number].mean()),
            "byte": float(parts["accuracy/byte"][number].mean()),
            "shorter": float(shorter_here.mean()),
            "pairs": len(shorter_here),
        }
        for number, (file, shorter_here) in enumerate(
            zip(files, np.split(shorter, cuts), strict=True)
        )
    ]
    figures: dict[str, Any] = {}
    for name, hits in right.items():
        error = name.replace("accuracy", "accuracy_se", 1)
        figures[name], figures[error] = mean_and_error(hits.tolist())
    each = right["accuracy"].astype(np.float64).tolist()
    return {
        **figures,
        "shorter": float(shorter.mean()),
        "pairs": len(shorter),
        "ties": int((compared["accuracy"] == 0).sum()),
        "cut": found.cut,
        "unknown": found.unknown,
        "paradigms": paradigms,
        PER_ITEM: {"": PerItemScores("accuracy", digest_of_items(texts), each)},
        "definition": (
            "share of pairs whose good sentence has the higher score, ties (equal to 1e-6) wrong; "
            "token, byte: the score over the sentence's tokens or UTF-8 bytes; shorter: "
            "pairs whose good sentence has fewer tokens; score: "
            + sentence_definition(reader, config.variant, config.span)
        ),
    }


def _compared(scores: "Floats") -> "Ints":
    """[N] 1 where the good sentence has the higher score, -1 where the bad one, 0 for a tie.

    Args:
        scores: [2 N], the good one before the bad one of each pair. What differs by less than the
            rounding of float32 is a tie: the same sentence twice may stand in two batches.
    """
    good, bad = scores.reshape(-1, 2).T
    tie = np.abs(good - bad) <= _ROUNDING * np.maximum(np.abs(good), np.abs(bad))
    return np.where(tie, 0, np.sign(good - bad)).astype(np.int64)


def _read(config: Config) -> dict[str, list[tuple[str, str]]]:
    """The pairs of each file, by its name."""
    from plmctl.corpus.source import resolve
    from plmctl.corpus.tabular import rows

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
