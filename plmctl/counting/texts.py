"""Labels, numbers and choices from texts: TF-IDF with logistic or ridge regression.

From top to bottom: what is learned, how a setting is chosen, and the features of texts and pairs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from plmctl.arrays import Floats, Ints
from plmctl.counting.rows import held_out, package
from plmctl.errors import DataError
from plmctl.metrics.text import Words, without_spaces

Texts = tuple[str, ...]
"""The text of a row, or the two of a pair."""

Predict = Callable[[Sequence[Texts]], Floats]

MOST_LABELS = 100

_MANY_LABELS = 20  # above which characters are left out: the work grows with labels times n-grams

_STRENGTHS = (1.0, 10.0)  # C of the logistic regression; one over alpha of the ridge regression

_CHARACTERS = 4_000_000  # that n-grams are taken of: longer texts are cut at their ends
_LEAST_CHARACTERS = 200  # of each text

_WEIGHTS = 20_000_000  # features times labels: 160 MB
_MOST_FEATURES = 200_000

_WORK = 1_200_000_000  # products of all fits together: about half a minute
_MUCH_WORK = 30_000_000  # of one step; above it one setting alone is learned
_STEPS = (15, 60)  # at least and at most

_THREADS = 2


# --- What is learned: one label, several, a number, a choice ---


def learn_label(texts: Sequence[Texts], targets: Ints, labels: int) -> Predict:
    """Logistic regression on one label per row.

    Args:
        targets: [N] label ids below ``labels``.

    Returns:
        The probabilities of texts, [N, labels]; 0 for a label that no row has.

    Raises:
        DataError: One label alone, or too many.
    """
    if len(np.unique(targets)) < 2:
        raise DataError("the training rows have one label")
    _check_labels(labels)
    return _learned(texts, targets, _Label(labels))


def learn_labels(texts: Sequence[Texts], targets: Ints) -> Predict:
    """Logistic regression on each of several labels of a row, one against the rest.

    Args:
        targets: [N, C] 0 or 1.

    Returns:
        The probabilities of texts, [N, C].

    Raises:
        DataError: Too many labels, or every row has the same ones.
    """
    _check_labels(targets.shape[1])
    if (targets == targets[0]).all():
        raise DataError("all training rows have the same labels")
    return _learned(texts, targets, _Labels(targets.shape[1]))


def learn_number(texts: Sequence[Texts], targets: Floats) -> Predict:
    """Ridge regression on a number per row; predicts [N, 1]."""
    return _learned(texts, targets, _Number())


def learn_choice(
    options: Sequence[Sequence[Texts]], right: Ints
) -> Callable[[Sequence[Sequence[Texts]]], list[Floats]]:
    """Logistic regression on whether an option is the right one, from question and option.

    Args:
        options: [N] the pairs of question and option of each row.
        right: [N] the place of the right one.

    Returns:
        The probabilities of each row's options.
    """
    pairs = [pair for row in options for pair in row]
    places = [place == there for row, there in zip(options, right, strict=True)
              for place in range(len(row))]  # fmt: skip
    predict = learn_label(pairs, np.array(places, dtype=np.int64), 2)

    def choose(rows: Sequence[Sequence[Texts]]) -> list[Floats]:
        ends = np.cumsum([len(row) for row in rows])[:-1]
        chances = predict([pair for row in rows for pair in row])[:, 1]
        return [chance / max(chance.sum(), 1e-9) for chance in np.split(chances, ends)]

    return choose


def _check_labels(labels: int) -> None:
    if labels > MOST_LABELS:
        raise DataError(f"{labels:,} labels, and at most {MOST_LABELS:,} are counted")


# --- Settings: the better one on a held-out fifth ---


@dataclass(frozen=True)
class _Label:
    labels: int

    def fit(self, x: Any, y: Any, strength: float, steps: int) -> Callable[[Any], Floats]:
        model = package("sklearn.linear_model").LogisticRegression(C=strength, max_iter=steps)
        model.fit(x, y)

        def predict(x: Any) -> Floats:
            chances = np.zeros((x.shape[0], self.labels))
            chances[:, model.classes_] = model.predict_proba(x)
            return chances

        return predict

    def score(self, predicted: Floats, y: Any) -> float:
        return float((predicted.argmax(1) == y).mean())

    def can_learn(self, y: Any) -> bool:
        return len(np.unique(y)) > 1


@dataclass(frozen=True)
class _Labels:
    labels: int

    def fit(self, x: Any, y: Any, strength: float, steps: int) -> Callable[[Any], Floats]:
        single = _Label(2)
        fits = [
            single.fit(x, of, strength, steps) if single.can_learn(of) else float(of[0])
            for of in y.T.astype(np.int64)
        ]

        def predict(x: Any) -> Floats:
            return np.stack(
                [
                    np.full(x.shape[0], fit) if isinstance(fit, float) else fit(x)[:, 1]
                    for fit in fits
                ],
                axis=1,
            )

        return predict

    def score(self, predicted: Floats, y: Any) -> float:
        return float(((predicted >= 0.5) == (y > 0.5)).mean())

    def can_learn(self, y: Any) -> bool:
        return len(y) > 0


@dataclass(frozen=True)
class _Number:
    labels = 1

    def fit(self, x: Any, y: Any, strength: float, steps: int) -> Callable[[Any], Floats]:
        ridge = package("sklearn.linear_model").Ridge
        model = ridge(alpha=1 / strength, solver="sparse_cg", max_iter=steps).fit(x, y)
        return lambda x: np.asarray(model.predict(x), dtype=np.float64)[:, None]

    def score(self, predicted: Floats, y: Any) -> float:
        return -float(((predicted[:, 0] - y) ** 2).mean())

    def can_learn(self, y: Any) -> bool:
        return len(y) > 0


def _learned(texts: Sequence[Texts], targets: Any, kind: Any) -> Predict:
    """The fit on all rows of the setting that is best on a fifth, learned from the others."""
    with _bounded():
        features = Features(texts, kind.labels)
        designs = features.designs(texts)
        out = held_out(len(texts))
        work = max(design.nnz + 3 * design.shape[1] for design in designs) * kind.labels
        steps = int(np.clip(_WORK / work / (len(designs) + 2), *_STEPS))
        choose = out.any() and kind.can_learn(targets[~out]) and work < _MUCH_WORK

        def score(setting: tuple[int, float]) -> float:
            number, strength = setting
            x, y = designs[number], targets
            predicted = kind.fit(x[~out], y[~out], strength, steps)(x[out])
            return float(kind.score(predicted, y[out]))

        number, strength = len(designs) - 1, _STRENGTHS[-1]
        if choose:  # first the features, then the strength
            weak, strong = _STRENGTHS
            first = [score((n, weak)) for n in range(len(designs))]
            number = int(np.argmax(first))
            strength = strong if score((number, strong)) > first[number] else weak
        fitted = kind.fit(designs[number], targets, strength, steps)

    def predict(rows: Sequence[Texts]) -> Floats:
        with _bounded():
            return np.asarray(fitted(features.designs(rows)[number]))

    return predict


@contextmanager
def _bounded() -> Iterator[None]:
    """Few threads, and no warnings: a fit that is stopped early is a yardstick too."""
    limits = package("threadpoolctl").threadpool_limits(_THREADS, user_api="blas")
    with limits, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# --- Features ---


class Features:
    """TF-IDF of words and characters; of a pair also how its texts overlap.

    Words alone and in pairs, beside characters in groups of 2 to 5; where texts have no spaces,
    characters in groups of 1 to 3.

    Args:
        texts: The training texts, which decide about words and weights.
        labels: That weights are learned for: memory bounds the features.

    Raises:
        DataError: No words.
    """

    def __init__(self, texts: Sequence[Texts], labels: int = 1) -> None:
        parts = [text for row in texts for text in row]
        self._longest = max(_LEAST_CHARACTERS, _CHARACTERS // max(1, len(parts)))
        unspaced = 2 * sum(map(without_spaces, parts)) > len(parts)
        most = min(_MOST_FEATURES, _WEIGHTS // max(1, labels))
        vectorizer = package("sklearn.feature_extraction.text").TfidfVectorizer
        shared: dict[str, Any] = {"sublinear_tf": True, "dtype": np.float64}
        words: dict[str, Any] = {"tokenizer": words_of, "token_pattern": None, "lowercase": False}
        share = 1 if unspaced or labels > _MANY_LABELS else 2
        shared["max_features"] = most // share
        kinds: list[dict[str, Any]] = [
            {**words, "ngram_range": (1, 2)},
            {"analyzer": "char_wb", "ngram_range": (2, 5)},
        ][:share]
        if unspaced:
            kinds = [{"analyzer": "char", "ngram_range": (1, 3)}]
        self._vectorizers = [vectorizer(**shared, **kind) for kind in kinds]
        cut = self._cut(parts)
        for one in self._vectorizers:
            try:
                one.fit(cut)
            except ValueError as error:  # an empty vocabulary
                raise DataError("the training rows have no words") from error

    def tfidf(self, texts: Sequence[str]) -> Any:
        """[N, F] sparse, rows of length one or less."""
        stack = package("scipy.sparse").hstack
        both = [one.transform(self._cut(texts)) for one in self._vectorizers]
        return (stack(both) / np.sqrt(len(both))).tocsr()

    def designs(self, texts: Sequence[Texts]) -> list[Any]:
        """The sets of features to choose from, each [N, F] sparse: one, or for pairs three."""
        if len(texts[0]) == 1:
            return [self.tfidf([text for (text,) in texts])]
        sparse = package("scipy.sparse")
        first, second = (self.tfidf(part) for part in zip(*texts, strict=True))
        alike = np.asarray(first.multiply(second).sum(1))
        numbers = np.hstack([np.array([overlap(*pair) for pair in texts]), alike])
        overlaps = sparse.csr_matrix(numbers)
        return [
            overlaps,
            sparse.hstack([overlaps, second]).tocsr(),
            sparse.hstack([overlaps, second, first]).tocsr(),
        ]

    def _cut(self, texts: Sequence[str]) -> list[str]:
        return [text[: self._longest] for text in texts]


words_of = Words(each_letter=False).tokenize
"""The words of a text in lower case; of scripts without spaces each character."""


def overlap(first: str, second: str) -> list[float]:
    """Logarithms of the lengths; shared words, and pairs of words, as shares of both and of all."""
    words = words_of(first), words_of(second)
    numbers = [float(np.log1p(len(of))) / 4 for of in words]
    pairs = [list(zip(of, of[1:], strict=False)) for of in words]
    for a, b in (map(set, words), map(set, pairs)):
        shared = len(a & b)
        numbers += [shared / max(1, size) for size in (len(a), len(b), len(a | b))]
    return numbers
