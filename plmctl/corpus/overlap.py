"""How much of a held-out text stands in the training text, and how much of a text repeats.

Runs of 8 words are compared, in scripts without spaces of 12 characters: a run is of what its first
word is, a stretch of letters and digits or a character. Case, white space and punctuation do not
count. Sentences are counted from this length on, because shorter ones ("Thank you very much.") are
alike by chance.

Time and memory are bounded: ``read`` reads at most so many bytes, from pieces that a seed draws,
and of more than ``_MOST`` runs those with even hashes are kept, then a quarter, and so on: the
shares are then those of a part of the runs that is drawn by their hashes.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Bools, Ints, mixed_bits
from plmctl.characters import HAN_RANGES
from plmctl.config.sections import DataConfig, TextConfig
from plmctl.corpus.document import Document, hash_of
from plmctl.corpus.languages import is_other
from plmctl.corpus.reading import Unit, cut_source, documents, unit_of
from plmctl.corpus.repeated_lines import without_lines
from plmctl.corpus.source import Source, resolve, size_of

_WORDS, _CHARACTERS = 8, 12  # of a run: Chinese words have one or two characters

_MOST = 1 << 22  # hashes of a side: 32 MB, and as much again while they are sorted

_BATCH = 1_000_000  # characters that are hashed together

_TRAIN, _VALID = 100_000_000, 20_000_000  # bytes to read at most

_PIECES, _PIECE = 200, 1_000_000  # of a larger text: how many pieces, and bytes of one at least

_SEED = 42

TOO_MUCH = 0.05
"""Of the runs or the sentences: from here on there is a warning."""

_REMEDY = (
    "remove documents that are nearly the same (`plmctl docs cleaning`), and see that no text is "
    "in two documents"
)

Hashes = NDArray[np.uint64]

_ODD = np.uint64(0x9E3779B97F4A7C15)


# --- The result ---


@dataclass(frozen=True)
class Overlap:
    """What is known of a text twice.

    Attributes:
        held_out: Share of the held-out text's runs that the training text has; None: it has none,
            or nothing is held out.
        repeated: Share of all sentences as long as a run that came before; None: there are none.
        size: Bytes of the text that was compared.
        whole: Whether that is all of it.
        characters: Whether most of the held-out runs are of characters.
    """

    held_out: float | None
    repeated: float | None
    size: int
    whole: bool = True
    characters: bool = False

    def line(self) -> str:
        """Both numbers, for the user."""
        parts = ["held-out text: none to compare"]
        if self.held_out is not None:
            share = f"{100 * self.held_out:.1f} %"
            runs = f"{_CHARACTERS}-grams of characters" if self.characters else f"{_WORDS}-grams"
            parts = [f"held-out text: {share} of its {runs} stand in the training text"]
        if self.repeated is not None:
            parts.append(f"{100 * self.repeated:.1f} % of sentences repeat")
        if not self.whole:
            parts[-1] += f" (in {self.size / 1e6:,.0f} MB that were drawn from the text)"
        return "; ".join(parts)

    def warning(self, data: DataConfig | None = None) -> str | None:
        """What to do about too much of it; None: there is not too much.

        Args:
            data: None: the text of a tokenizer, whose lines are held out.
        """
        if (self.held_out or 0) > TOO_MUCH:
            problem = "much of the held-out text was seen in training, so its loss is too low"
            if data is None:
                return f"the tokenizer is measured on text that it learned from: {_REMEDY}"
            if isinstance(data.valid, tuple):
                return (
                    f"{problem}: remove from data.train what data.valid has, or hold out a share "
                    "of the documents instead (data.valid=1%)"
                )
            near = "set data.near_copies=together; else " if data.near_copies == "apart" else ""
            return f"{problem}: {near}{_REMEDY}"
        if (self.repeated or 0) > TOO_MUCH:
            drop = data is not None and data.duplicates == "keep"
            exact = "set data.duplicates=drop, if whole documents are copies; else " if drop else ""
            return f"many sentences repeat, and are learned by heart: {exact}{_REMEDY}"
        return None

    def facts(self) -> dict[str, Any]:
        """The values, for a JSON file; ``Overlap(**facts)`` is the result again."""
        return asdict(self)


class OverlapCounter:
    """Takes texts, of which some are held out, and compares them."""

    def __init__(self) -> None:
        self._total = self._of_words = self._of_characters = 0
        self._waiting: dict[bool, list[str]] = {False: [], True: []}
        self._size = 0
        self._train, self._valid, self._sentences = _Kept(), _Kept(), _Kept()

    def add(self, text: str, *, held_out: bool = False) -> None:
        """Take a document, or a part of one."""
        self._waiting[held_out].append(text)
        self._total += len(text.encode("utf-8", "surrogatepass"))
        self._size += len(text)
        if self._size >= _BATCH:
            self._hash()

    def result(self, *, whole: bool = True) -> Overlap:
        """Compare what was taken; ``whole`` says whether that was all of the text."""
        self._hash()
        train, valid = self._train, self._valid
        for one, other in ((train, valid), (valid, train)):
            one.thin(other.step)
        known = np.isin(valid.hashes, train.hashes)
        sentences = self._sentences.hashes
        return Overlap(
            float(known.mean()) if len(known) else None,
            1 - len(np.unique(sentences)) / len(sentences) if len(sentences) else None,
            self._total,
            whole,
            self._of_characters > self._of_words,
        )

    def _hash(self) -> None:
        for held_out, texts in self._waiting.items():
            for words, alone, owners, sentences in map(_words, _batches(texts)):
                of_words = _runs(words, owners, ~alone, _WORDS)
                of_characters = _runs(words, owners, alone, _CHARACTERS)
                (self._valid if held_out else self._train).add(
                    np.concatenate([of_words, of_characters])
                )
                self._of_words += held_out * len(of_words)
                self._of_characters += held_out * len(of_characters)
                self._sentences.add(_sentence_hashes(words, alone, sentences))
        self._waiting, self._size = {False: [], True: []}, 0


class _Kept:
    """Hashes; of too many those that a power of two divides, which is ``step``."""

    def __init__(self) -> None:
        self.step, self._parts, self._size = 1, list[Hashes](), 0

    def add(self, hashes: Hashes) -> None:
        kept = hashes[hashes % np.uint64(self.step) == 0]
        self._parts.append(kept)
        self._size += len(kept)
        while self._size > _MOST:
            self.thin(2 * self.step)

    def thin(self, step: int) -> None:
        """Keep the part that a step, or a larger one of before, keeps."""
        self.step = max(step, self.step)
        self._parts = [part[part % np.uint64(self.step) == 0] for part in self._parts]
        self._size = sum(map(len, self._parts))

    @property
    def hashes(self) -> Hashes:
        return np.concatenate([np.zeros(0, np.uint64), *self._parts])


# --- Words, runs and sentences of texts, as hashes ---


def code_points(text: str) -> Hashes:
    """The code points of a text."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
    return points.astype(np.uint64)


def window_hashes(values: Hashes, length: int) -> Hashes:
    """A hash of each run of ``length`` values."""
    total = np.zeros(max(0, len(values) - length + 1), dtype=np.uint64)
    for offset in range(length):
        total = total * _ODD + values[offset : offset + len(total)]
    return mixed_bits(total)


_LETTER, _ALONE, _END, _END_BEFORE_SPACE = 1, 2, 4, 8

_NO_SPACES = (*HAN_RANGES, (0x0E00, 0x109F), (0x1780, 0x17FF), (0x3040, 0x30FF))


@cache
def _kinds() -> NDArray[np.uint8]:
    """What each code point is, in bits: accents and vowel signs belong to their letter."""
    kinds = np.zeros(0x110000, dtype=np.uint8)
    for code in range(0x32000):  # beyond are no letters
        kinds[code] = _LETTER if unicodedata.category(chr(code))[0] in "LNM" else 0
    for first, last in _NO_SPACES:
        kinds[first : last + 1] |= (kinds[first : last + 1] & _LETTER) * np.uint8(_ALONE)
    kinds[[ord(mark) for mark in "\n\r\u2028\u2029。！？；।॥။።؟۔"]] |= _END
    kinds[[ord(mark) for mark in ".!?…"]] |= _END_BEFORE_SPACE
    return kinds


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Texts together, and long ones in parts: what is hashed at once takes 30 times its size."""
    batch, size = list[str](), 0
    for text in texts:
        for start in range(0, max(1, len(text)), _BATCH):
            batch.append(text[start : start + _BATCH])
            size += len(batch[-1])
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


def _words(texts: Sequence[str]) -> tuple[Hashes, Bools, Ints, Ints]:
    """The hash of each word, whether it is a single character, its text and its sentence."""
    folded = [text.casefold() for text in texts]
    points = code_points("\n".join(folded))
    kinds = _kinds()[points]
    letter = (kinds & _LETTER) > 0
    alone = (kinds & _ALONE) > 0
    before, after = np.roll(letter & ~alone, 1), np.roll(letter, -1)
    before[:1], after[-1:] = False, False
    places = np.flatnonzero(letter)
    begins = np.flatnonzero((alone | ~before)[places])  # among the letters
    lengths = np.diff(np.append(begins, len(places)))
    within = np.arange(len(places)) - np.repeat(begins, lengths)
    parts = mixed_bits(points[places] * _ODD + within.astype(np.uint64))
    words: Hashes = np.add.reduceat(parts, begins) if len(begins) else parts
    at = places[begins]
    ends: Bools = ((kinds & _END) > 0) | (((kinds & _END_BEFORE_SPACE) > 0) & ~after)
    first = np.cumsum([0, *(len(text) + 1 for text in folded)])
    owners = np.searchsorted(first, at, side="right")
    return words, alone[at], owners, np.cumsum(ends, dtype=np.int64)[at]


def _runs(words: Hashes, owners: Ints, first: Bools, length: int) -> Hashes:
    """The hashes of the runs of words of one text that begin with certain words."""
    hashes = window_hashes(words, length)
    within: Bools = owners[: len(hashes)] == owners[len(owners) - len(hashes) :]
    started: Hashes = hashes[within & first[: len(hashes)]]
    return started


def _sentence_hashes(words: Hashes, alone: Bools, sentences: Ints) -> Hashes:
    """The hashes of the sentences that have enough words.

    Args:
        sentences: The number of the sentence of each word, ascending.
    """
    begins = np.flatnonzero(np.diff(sentences, prepend=-1))
    lengths = np.diff(np.append(begins, len(words)))
    if not len(begins):
        return np.zeros(0, np.uint64)
    within = np.arange(len(words)) - np.repeat(begins, lengths)
    parts = mixed_bits(words + within.astype(np.uint64) * _ODD)
    long = lengths >= np.where(alone[begins], _CHARACTERS, _WORDS)
    hashes: Hashes = mixed_bits(np.add.reduceat(parts, begins)[long])
    return hashes


# --- The text that is looked at ---


def measure(
    texts: Sequence[DataConfig],
    moved: Set[int] = frozenset(),
    near: Set[int] = frozenset(),
    lines: Hashes | None = None,
) -> Overlap:
    """Compare the held-out text of a corpus, or of each part of a mixture, with its training text.

    Args:
        moved: The hashes of documents that are not held out (``near_copies: together``).
        near: The hashes of documents that are left out as near copies (``duplicates: near``).
        lines: The hashes of lines that are left out (``repeated_lines``), ascending.

    Raises:
        DataError: Bad input, with file and line.
    """
    counter, whole = OverlapCounter(), True
    for data in texts:
        share = data.valid if isinstance(data.valid, float) else 0.0
        sides: list[tuple[TextConfig, bool, int]] = [(data, False, _TRAIN // len(texts))]
        if isinstance(data.valid, tuple):
            sides.append((data.model_copy(update={"train": data.valid}), True, _VALID))
        for text, held_out, most in sides:
            reading, seen = _Reading(text, most), set[int]()
            for document in reading.documents():
                number = hash_of(document.text)
                if data.duplicates != "keep":
                    if number in seen or number in near:
                        continue
                    seen.add(number)
                if data.languages and is_other(document.text, data.languages):
                    continue
                drawn = number / 2**64 < share and number not in moved
                if lines is not None:
                    document, _ = without_lines(document, lines)
                counter.add(document.text, held_out=held_out or drawn)
            whole = whole and reading.whole
    return counter.result(whole=whole)


class _Reading:
    """Documents of a text, at most so many bytes.

    Of a larger text, pieces that a seed draws are read from their beginning.

    Attributes:
        whole: Whether all were read; known at the end.
    """

    def __init__(self, config: TextConfig, most: int) -> None:
        sources = resolve(config.train, config.max_document)
        self._config, self._most, total = config, most, sum(map(size_of, sources))
        self.whole = total <= most
        self._pieces: list[tuple[Source, int, int | None]] = [(one, 0, None) for one in sources]
        if not self.whole:
            draws = random.Random(_SEED)
            drawn = draws.sample(sources, min(len(sources), _PIECES))
            size = max(_PIECE, total // _PIECES)
            pieces = [
                (source, piece.start, piece.end)
                for source in drawn
                for piece in cut_source(source, self._unit(source), size, config.separator)
            ]
            self._pieces = draws.sample(pieces, min(len(pieces), _PIECES))

    def _unit(self, source: Source) -> Unit:
        """What a document is, by the beginning of a file."""
        return unit_of(source, self._config, _PIECE) if source.kind == "text" else "line"

    def documents(self) -> Iterator[Document]:
        """The documents; of each piece as many bytes as leave the same for each that follows."""
        left = self._most
        for number, (source, start, end) in enumerate(self._pieces):
            config = self._config.model_copy(update={"documents": self._unit(source)})
            share = left if self.whole else left // (len(self._pieces) - number)
            for document in documents(source, config, start, end):
                size = len(document.text.encode())
                share, left = share - size, left - size
                if share < 0:
                    self.whole = False
                    break
                yield document
