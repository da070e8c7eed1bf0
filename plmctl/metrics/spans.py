"""Tagging: entities as spans of words, and tags word by word.

Entities are scored as wholes (CoNLL-2002 and 2003): one counts when its type, its first and its
last word are all right. There are two rules for reading entities from tags. The lenient one is that
of the official script, conlleval, and of seqeval's default: a tag that continues no entity
begins one, so every tag but O is part of an entity. The strict one is seqeval's ``mode="strict"``:
what does not begin and end as its scheme says is not an entity.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from plmctl.errors import DataError

Scheme = Literal["bio", "bioes"]
Tags = Sequence[Sequence[str]]
"""Tags of each sentence."""

OUTSIDE = "O"
_SAME = {"M": "I", "L": "E", "U": "S"}  # BMES and BILOU spell BIOES so


class Span(NamedTuple):
    """An entity: words [start, stop) of a sentence."""

    type: str
    start: int
    stop: int


def split(tag: str) -> tuple[str, str]:
    """The letter and the type of a tag: ``B-PER`` is B and PER; O has no type."""
    letter, _, kind = tag.partition("-")
    return _SAME.get(letter, letter), kind


def is_entity_tag(tag: str, scheme: Scheme) -> bool:
    """Whether it is O, or one of the scheme's letters, a hyphen and a type."""
    letter, kind = split(tag)
    return tag == OUTSIDE or (bool(kind) and letter in ("BI" if scheme == "bio" else "BIES"))


def spans(tags: Sequence[str], scheme: Scheme = "bio", *, strict: bool = False) -> list[Span]:
    """The entities of a sentence, in order.

    Args:
        tags: One per word: O, or a letter and a type as in ``B-PER``. IOB1 is read right too unless
            ``strict``.
        scheme: Which letters begin and end an entity; read where ``strict``.
        strict: Only what the scheme allows is an entity: B I* in bio, S or B I* E in bioes.
    """
    return [span for span, ends in _spans(tags) if not strict or _allowed(tags, span, ends, scheme)]


def entities(
    predictions: Tags, references: Tags, scheme: Scheme = "bio", *, strict: bool = False
) -> dict[str, Any]:
    """Entity-level metrics over all sentences together.

    Returns:
        f1, precision, recall (micro: over all entities), accuracy (of the tags, word by word),
        entities (true ones), and per_class: label, precision, recall, f1, support of each type.
        A share of nothing is 0.

    Raises:
        DataError: Not as many tags in both, or none.
    """
    check(predictions, references)
    predicted = _counted(predictions, scheme, strict=strict)
    true = _counted(references, scheme, strict=strict)
    right = predicted & true
    types = sorted({span.type for _, span in predicted | true})
    whole = [_shares(*(counter.total() for counter in (right, predicted, true)))]
    whole += [
        _shares(*(_of(kind, counter) for counter in (right, predicted, true))) for kind in types
    ]
    return {
        "f1": whole[0]["f1"],
        "precision": whole[0]["precision"],
        "recall": whole[0]["recall"],
        "accuracy": accuracy(predictions, references),
        "entities": true.total(),
        "per_class": [{"label": kind, **row} for kind, row in zip(types, whole[1:], strict=True)],
    }


def f1(predictions: Tags, references: Tags, scheme: Scheme = "bio", strict: bool = False) -> float:
    """F1 of whole entities, over all types together; see ``entities``."""
    return float(entities(predictions, references, scheme, strict=strict)["f1"])


def accuracy(predictions: Tags, references: Tags) -> float:
    """Share of the words whose tag is right.

    Raises:
        DataError: Not as many tags in both, or none.
    """
    check(predictions, references)
    pairs = [
        pair
        for both in zip(predictions, references, strict=True)
        for pair in zip(*both, strict=True)
    ]
    return sum(a == b for a, b in pairs) / len(pairs)


def tag_metrics(predictions: Tags, references: Tags) -> dict[str, Any]:
    """Metrics of tags word by word: ``accuracy``, ``majority``, and ``words``, their number."""
    return {
        "accuracy": accuracy(predictions, references),
        "majority": majority(references),
        "words": sum(map(len, references)),
    }


def majority(references: Tags) -> float:
    """Accuracy of always giving the most frequent tag: what any model has to beat."""
    check(references, references)
    counted = Counter(tag for tags in references for tag in tags)
    return max(counted.values()) / counted.total()


def check(predictions: Tags, references: Tags) -> None:
    """Refuse sentences that do not match.

    Raises:
        DataError: Not as many sentences, or words of one, in both; or no word at all.
    """
    if len(predictions) != len(references):
        raise DataError(
            f"tags of {len(predictions)} sentences for {len(references)} sentences",
            "give the tags of each sentence, in the same order",
        )
    for number, (predicted, expected) in enumerate(zip(predictions, references, strict=True), 1):
        if len(predicted) != len(expected):
            raise DataError(
                f"sentence {number}: {len(predicted)} predicted tags for {len(expected)} words",
                "give one tag per word",
            )
    if not any(references):
        raise DataError("nothing to score: there are no words")


def _spans(tags: Sequence[str]) -> Iterator[tuple[Span, bool]]:
    """Lenient entities, and of each whether its last tag says that it ends there (E, S).

    An entity ends before a tag of another type, before B and S, and after E and S.
    """
    start, before, kind = 0, OUTSIDE, ""
    for place, tag in enumerate([*tags, OUTSIDE]):
        letter, type_ = split(tag)
        continues = letter in ("I", "E") and before in ("B", "I") and type_ == kind
        if not continues:
            if before != OUTSIDE:
                yield Span(kind, start, place), before in ("E", "S")
            start, kind = place, type_
        before = letter


def _allowed(tags: Sequence[str], span: Span, ends: bool, scheme: Scheme) -> bool:
    letters = "".join(split(tag)[0] for tag in tags[span.start : span.stop])
    if scheme == "bio":
        return letters[0] == "B"
    return letters == "S" or (ends and letters[0] == "B")


def _counted(sentences: Tags, scheme: Scheme, *, strict: bool) -> Counter[tuple[int, Span]]:
    return Counter(
        (number, span)
        for number, tags in enumerate(sentences)
        for span in spans(tags, scheme, strict=strict)
    )


def _of(kind: str, counted: Counter[tuple[int, Span]]) -> int:
    return sum(span.type == kind for _, span in counted)


def _shares(right: int, predicted: int, true: int) -> dict[str, Any]:
    return {
        "precision": right / predicted if predicted else 0.0,
        "recall": right / true if true else 0.0,
        "f1": 2 * right / (predicted + true) if predicted + true else 0.0,
        "support": true,
    }
