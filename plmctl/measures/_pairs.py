"""Minimal pairs of sentences: what the measures of them share.

The accuracy compares the summed log-probabilities of whole sentences, not divided by length; two
more compare the means per token and per UTF-8 byte. A tie is wrong. By the sum, a model that gives
every token the same probability prefers the sentence of fewer tokens: ``shorter`` is the accuracy
of such a model.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Floats, Ints
from plmctl.config.base import Text
from plmctl.corpus.labelled import Row
from plmctl.errors import DataError
from plmctl.evaluation.likelihood import Likelihood, MaskingVariant, ScoringOptions
from plmctl.evaluation.model import LoadedModel
from plmctl.hashing import digest_of_items
from plmctl.measures._paradigms import (
    ParadigmConfig,
    Paradigms,
    error_name,
    file_names,
    refuse_no_items,
)
from plmctl.measures.base import Measurement, PerItemScores
from plmctl.metrics.statistics import mean_and_error

UnknownRule = Literal["never", "quoted", "anywhere"]

_RULES: Mapping[UnknownRule, str] = {
    "never": "",
    "quoted": "; wrong, too, if the tokenizer does not know what is between “ and ”",
    "anywhere": "; wrong, too, if a sentence has an unknown token",
}

_QUOTED = re.compile("“(.+?)”")

_ROUNDING = 1e-6  # relative, of a score that is summed over tokens in float32


class PairsConfig(ParadigmConfig):
    """A measure of minimal pairs."""

    good: Text = "sentence_good"
    """Column of the acceptable sentence."""
    bad: Text = "sentence_bad"
    """Column of the unacceptable sentence."""


def measure_pairs(
    config: PairsConfig,
    likelihood: Likelihood,
    variant: MaskingVariant = "original",
    span: int | None = None,
    unknown_is_wrong: UnknownRule = "never",
) -> Measurement:
    """Accuracies by sum, token and byte with their standard errors, per file and of all."""
    texts, paradigms = _read(config)
    unknown = _with_unknown(likelihood.model, texts, unknown_is_wrong)
    scores = likelihood.score_sentences(texts, variant, span)
    sizes = np.array([len(text.encode()) for text in texts])
    signs = {
        "accuracy": _compare(scores.log_probability),
        "accuracy/token": _compare(scores.log_probability / scores.tokens),
        "accuracy/byte": _compare(scores.log_probability / sizes),
    }
    hits = {name: (sign > 0) & ~unknown for name, sign in signs.items()}
    shorter = scores.tokens[::2] < scores.tokens[1::2]
    rows = []
    for name, mask in paradigms.masks().items():
        accuracy, error = mean_and_error(hits["accuracy"][mask].tolist())
        rows.append(
            {
                "paradigm": name,
                "accuracy": accuracy,
                "accuracy_se": error,
                "token": float(hits["accuracy/token"][mask].mean()),
                "byte": float(hits["accuracy/byte"][mask].mean()),
                "shorter": float(shorter[mask].mean()),
                "pairs": int(mask.sum()),
            }
        )
    results = paradigms.results("accuracy", hits["accuracy"])
    for name in ("accuracy/token", "accuracy/byte"):
        results[name], results[error_name(name)] = mean_and_error(hits[name].tolist())
    options = ScoringOptions(variant=variant, span=span)
    results |= {
        "shorter": float(shorter.mean()),
        "pairs": len(shorter),
        "ties": int((signs["accuracy"] == 0).sum()),
        "cut": scores.cut,
        "unknown": scores.unknown,
        **({} if unknown_is_wrong == "never" else {"unknown_pairs": int(unknown.sum())}),
        "paradigms": rows,
        **({"groups": paradigms.group_rows(hits["accuracy"])} if config.groups else {}),
        "definition": (
            "share of pairs whose good sentence has the higher score, ties (equal to 1e-6) "
            f"wrong{_RULES[unknown_is_wrong]}; macro: mean of the paradigms, unweighted; "
            "token, byte: the score over the sentence's tokens or UTF-8 bytes; shorter: "
            "pairs whose good sentence has fewer tokens; score: "
            + likelihood.sentence_definition(options)
        ),
    }
    values = hits["accuracy"].astype(np.float64).tolist()
    pairs = zip(hits["accuracy"], texts[::2], texts[1::2], strict=True)
    return Measurement(
        results,
        {"": PerItemScores("accuracy", digest_of_items(texts), values)},
        paradigms.chosen([good if hit else bad for hit, good, bad in pairs]),
    )


def _compare(scores: Floats) -> Ints:
    """[N] 1 if the good sentence has the higher score, -1 if the bad one has it, 0 for a tie.

    Args:
        scores: [2 N], the good one before the bad one of each pair. A difference below the rounding
            of float32 is a tie: two batches may give the same sentence different last digits.
    """
    good, bad = scores.reshape(-1, 2).T
    tie = np.abs(good - bad) <= _ROUNDING * np.maximum(np.abs(good), np.abs(bad))
    return np.where(tie, 0, np.sign(good - bad)).astype(np.int64)


def _with_unknown(model: LoadedModel, texts: Sequence[str], rule: UnknownRule) -> NDArray[np.bool_]:
    """[N] whether the rule makes a pair wrong, by what is unknown of one of its sentences.

    What is quoted is encoded by itself, so that nothing beside it matters.

    Args:
        texts: [2 N].

    Raises:
        DataError: A sentence quotes nothing.
    """
    if rule == "never":
        return np.zeros(len(texts) // 2, bool)
    parts = [_QUOTED.findall(text) if rule == "quoted" else [text] for text in texts]
    if not all(parts):
        raise DataError(
            f"{texts[parts.index([])]!r} has nothing between “ and ”",
            "set `unknown_is_wrong` of this measure to anywhere, or to never",
        )
    unknown = [
        text.unknown > 0 or bool((text.sentences == 0).any()) for text in model.tokens(parts)
    ]
    return np.logical_or(unknown[::2], unknown[1::2])


def _read(config: PairsConfig) -> tuple[list[str], Paradigms]:
    """The sentences, the good one before the bad one of each pair, and the pairs' paradigms."""
    from plmctl.corpus.source import resolve
    from plmctl.corpus.tabular import rows

    try:
        sources = resolve(config.data)
    except DataError as error:
        raise DataError(
            f"{error.message}; nothing was scored",
            "set `data` of this measure to files of pairs; BLiMP's are in the folder data of "
            "github.com/alexwarstadt/blimp",
        ) from error
    texts: list[str] = []
    paradigms = Paradigms.of(config)
    for source, file in zip(sources, file_names([one.name for one in sources]), strict=True):
        before = len(texts)
        for values, origin in rows(source):
            row = Row(values, origin)
            texts += [_sentence(row, config.good), _sentence(row, config.bad)]
            paradigms.add(row, file, config)
        refuse_no_items(source.name, len(texts) - before)
    return texts, paradigms


def _sentence(row: Row, column: str) -> str:
    text = row.values.get(column)
    if not isinstance(text, str) or not text.strip():
        columns = ", ".join(row.values) or "none"
        problem = "no column" if column not in row.values else "no text in column"
        raise DataError(
            f"{row.origin}: {problem} {column!r}; the columns are: {columns}",
            "set `good` and `bad` of this measure to the columns of the pairs",
        )
    return text
