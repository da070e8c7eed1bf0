"""Tags of words: a conditional random field, or each word's most frequent tag."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from plmctl.counting.rows import drawn, package

Sentence = Sequence[str]

Tag = Callable[[Sequence[Sentence]], list[list[str]]]

_STEPS = 60
_WINDOW = 2  # words to either side
_WORK = 60_000_000  # about a minute; for a word: tags times its features, and tags times tags
_FEATURES = 18


def learn_crf(sentences: Sequence[Sentence], tags: Sequence[Sentence]) -> tuple[Tag, int]:
    """A linear-chain CRF with the words around each word, its suffixes and its letters.

    Returns:
        What tags sentences, and the number of sentences that it has learned: fewer for many tags.

    Raises:
        ConfigError: python-crfsuite is not installed.
    """
    crf = package("pycrfsuite")
    rows = list(zip(sentences, tags, strict=True))
    kinds = len({tag for row in tags for tag in row})
    work = sum(map(len, sentences)) * kinds * (kinds + _FEATURES)
    rows = drawn(rows, max(1, len(rows) * _WORK // max(work, _WORK)))
    trainer = crf.Trainer(algorithm="lbfgs", verbose=False)
    trainer.set_params(
        {"c1": 0.0, "c2": 0.1, "max_iterations": _STEPS, "feature.possible_transitions": True}
    )
    for words, right in rows:
        trainer.append(list(map(_features, _windows(words))), list(right))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "crf"
        trainer.train(str(path))
        tagger = crf.Tagger()
        tagger.open(str(path))  # it keeps the model; of bytes in memory it keeps only the address

    def tag(sentences: Sequence[Sentence]) -> list[list[str]]:
        return [tagger.tag(list(map(_features, _windows(words)))) for words in sentences]

    return tag, len(rows)


def _windows(words: Sentence) -> Iterator[tuple[str, ...]]:
    """Each word with those around it; past the ends of the sentence there are empty ones."""
    edge = [""] * _WINDOW
    padded = [*edge, *words, *edge]
    return zip(*(padded[shift:] for shift in range(2 * _WINDOW + 1)), strict=False)


def _features(window: tuple[str, ...]) -> list[str]:
    before2, before, word, after, after2 = window
    kinds = (word.isupper(), word.istitle(), word.isdigit(), any(map(str.isdigit, word)))
    return [
        "bias",
        f"w={word.lower()}",
        *(f"s{n}={word[-n:].lower()}" for n in (1, 2, 3) if len(word) > n),
        *(f"p{n}={word[:n].lower()}" for n in (1, 2) if len(word) > n),
        f"kinds={kinds}",
        *(f"{n}={near.lower()}" for n, near in enumerate((before2, before, after, after2))),
        f"b={before.lower()}|{word.lower()}",
        f"a={word.lower()}|{after.lower()}",
        f"bb={before2.lower()}|{before.lower()}",
        f"aa={after.lower()}|{after2.lower()}",
        f"ba={before.lower()}|{after.lower()}",
    ]


def learn_most_frequent(sentences: Sequence[Sentence], tags: Sequence[Sentence]) -> Tag:
    """Each word's most frequent tag; of a new word that of its last three letters, else of all."""
    counts: dict[Hashable, Counter[str]] = defaultdict(Counter)
    for words, right in zip(sentences, tags, strict=True):
        for word, tag in zip(words, right, strict=True):
            for kind in ((word,), word[-3:], None):
                counts[kind][tag] += 1
    best = {  # of equally frequent ones the first by name
        kind: min((-count, tag) for tag, count in of.items())[1] for kind, of in counts.items()
    }

    def answer(sentences: Sequence[Sentence]) -> list[list[str]]:
        return [
            [best.get((word,)) or best.get(word[-3:]) or best[None] for word in words]
            for words in sentences
        ]

    return answer
