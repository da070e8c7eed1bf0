"""What written answers are worth, by the metrics that a config names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from plmctl.errors import ConfigError, DataError
from plmctl.metrics import squad, text
from plmctl.tasks._t5_casts import CASTS, label_figures, label_uncertainty
from plmctl.tokenization.words import has_chinese

Metric = Literal["sequence_accuracy", "squad", "trivia_qa", "bleu", "chrf", "rouge"]


def check(
    references: Sequence[Sequence[str]], metrics: Sequence[Metric], tokens: text.Tokens
) -> None:
    """Refuse before training what could not be scored after it.

    Raises:
        ConfigError: A package is missing, or words of Latin letters are asked of Chinese texts.
    """
    text.require(metrics)
    if tokens == "13a" and {"bleu", "rouge"} & set(metrics):
        chinese = sum(has_chinese(texts[0]) for texts in references)
        if chinese > len(references) / 2:
            raise ConfigError(
                "task.tokens: 13a takes a Chinese sentence for one word in BLEU, and for none in "
                "ROUGE",
                "set `task.tokens: zh`",
            )


def figures(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    cast: str | None,
    metrics: Sequence[Metric],
    tokens: text.Tokens,
) -> dict[str, Any]:
    """The figures of a cast with labels, then those of ``metrics``.

    BLEU, chrF, ROUGE and the figures of squad and trivia_qa go from 0 to 100, others from 0 to 1.

    Args:
        predictions: [N] what was written.
        references: [N] the right texts of each row.
        cast: Name of T5's cast, if there is one.
        metrics: None: what is usual.
        tokens: How BLEU and ROUGE cut texts into words.
    """
    found: dict[str, Any] = {}
    labelled = cast is not None and bool(CASTS[cast].labels)
    if cast is not None and labelled:
        found = dict(label_figures(cast, predictions, [texts[0] for texts in references]))
    elif not metrics:
        metrics = ("squad",) if cast else ("sequence_accuracy",)
    for metric in metrics:
        found |= _figures(metric, predictions, references, tokens)
    return found


def _figures(
    metric: Metric,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    tokens: text.Tokens,
) -> dict[str, float]:
    if metric == "rouge":
        return text.rouge(predictions, references, tokens)
    if metric == "squad":
        counted = squad.summary(squad.scores(predictions, references, "squad"))
        return {name: counted[name] for name in ("exact_match", "f1")}
    if metric == "trivia_qa":
        return {
            "trivia_qa_exact_match": 100 * text.exact_match(predictions, references, "trivia_qa"),
            "trivia_qa_f1": 100 * text.f1(predictions, references, "trivia_qa"),
        }
    if metric == "bleu":
        return {"bleu": text.bleu(predictions, references, tokens)}
    if metric == "chrf":
        return {"chrf": text.chrf(predictions, references)}
    return {"sequence_accuracy": text.sequence_accuracy(predictions, references)}


def uncertainty(
    answers: Sequence[Mapping[str, Any]],
    references: Sequence[Sequence[str]],
    cast: str | None,
    metrics: Sequence[Metric],
) -> dict[str, dict[str, float]]:
    """How sure the figures of a cast are, and those of squad; arguments as ``figures``."""
    predictions = [answer["prediction"] for answer in answers]
    if cast is not None and CASTS[cast].labels:
        return label_uncertainty(cast, predictions, [texts[0] for texts in references])
    if "squad" in (metrics or (("squad",) if cast else ())):
        return squad.uncertainty(squad.scores(predictions, references, "squad"))
    return {}


def credits(
    predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[str, list[float]]:
    """SQuAD's F1 of each text against the nearest of its references, from 0 to 1."""
    return "f1", list(squad.scores(predictions, references, "squad").f1)


def refuse_others(
    origins: Sequence[str], references: Sequence[Sequence[str]], labels: Sequence[str]
) -> None:
    """Refuse a target that the training rows do not have, where labels are ranked.

    Raises:
        DataError: With its row.
    """
    for origin, found in zip(origins, references, strict=True):
        if found[0] not in labels:
            message = f"{origin}: target {found[0]!r} is not among the training targets"
            raise DataError(message, ", ".join(labels[:20]))
