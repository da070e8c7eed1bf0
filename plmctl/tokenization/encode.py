"""Text to ids and word starts, for the token store.

``Encoder`` cuts text into units (``units.py``) and encodes each distinct one once, which is several
times as fast as giving whole texts to the tokenizers library; it falls back to the library where
that would not give the same ids.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plmctl.arrays import Ints
from plmctl.errors import ConfigError
from plmctl.hashing import sha256_of
from plmctl.hub import local, refuse_unreachable
from plmctl.tokenization.check import check_tokenizer, opening
from plmctl.tokenization.seams import Seams, seams_of
from plmctl.tokenization.units import (
    CUT,
    INNER,
    ONE_WORD,
    WHITE_SPACE,
    Kind,
    cuts_at_spaces_only,
    kind_of,
    pattern,
    plain,
    plain_tokenizer,
    unspaced,
)
from plmctl.tokenization.words import (
    SPACE_MARK,
    albert_starts,
    has_chinese,
    jieba_version,
    marked_starts,
    starts_within,
)

# --- The encoder ---


Encoded = list[tuple[NDArray[np.int64], NDArray[np.bool_]]]
"""Ids of each text, and whether a word starts at each."""

Placed = list[tuple[NDArray[np.int64], NDArray[np.bool_], Sequence[int]]]
"""The same, and the first token at or after each requested place of a text."""

_TABLE = 200_000  # units in the table: sixty megabytes; more do not fit the processor's caches

_SAMPLE = 5_000  # units of a batch that are looked up to see whether the table pays

_NEW = 0.7  # with a larger share of new units in the sample, whole texts are faster

_RARE = 0.05  # up to this share of texts with unspaced scripts, they are treated like all others

_BEFORE_SPACE = re.compile(f"[^{WHITE_SPACE}](?=[{WHITE_SPACE}])")

# Scripts that are mostly written without spaces: Thai to Georgian, Khmer, kana, Han and Hangul.
_UNSPACED = re.compile("[\u0e00-\u10ff\u1780-\u17ff\u3005-\ud7a3\uf900-\uffdc]")


class Encoder:
    """Encodes texts without special tokens; text that looks like a special token is text.

    Words repeat, so the tokenizer encodes each distinct unit once, and a table keeps the result:
    the ids are those of ``encode_batch``, several times as fast. Text without spaces has units of a
    few characters (``seams``). If the units of a tokenizer are unknown, it gets whole texts.

    An encoder can be sent to another process: the tokenizer is loaded where it is used.

    Args:
        source: A tokenizer folder, or a Hub id, whose ``tokenizer.json`` is downloaded.
        words: What decides where words start: the pre-tokenizer, jieba within Chinese text,
            ALBERT's rule for pieces, or the text itself (``with_words``).

    Attributes:
        fingerprint: Hash of everything that decides ids and word starts.

    Raises:
        ConfigError: There is no ``tokenizer.json``, it changed since it was trained, jieba is not
            installed, or ALBERT's rule is requested for a tokenizer that is not SentencePiece's.
    """

    def __init__(
        self,
        source: str,
        words: Literal["pretokenizer", "jieba", "albert", "marked"] = "pretokenizer",
    ):
        check_tokenizer(source)
        self._path, self._jieba = _tokenizer_file(source), words == "jieba"
        self.fingerprint = sha256_of(self._path)
        if self._jieba:
            self.fingerprint += f"+jieba-{jieba_version()}"
        self._starts = self._albert_starts(source) if words == "albert" else None
        if self._starts is not None:
            self.fingerprint += "+albert"
        if words == "marked":
            self.fingerprint += "+marked"

    def __getstate__(self) -> dict[str, object]:
        # The tokenizer and everything that is computed from it are left out.
        return {
            "_path": self._path,
            "_jieba": self._jieba,
            "_starts": self._starts,
            "fingerprint": self.fingerprint,
        }

    def _albert_starts(self, source: str) -> NDArray[np.bool_]:
        """Whether a word starts at each id."""
        pieces = [self._tokenizer.id_to_token(id_) or "" for id_ in range(self.vocab_size)]
        if not self._marks or SPACE_MARK not in "".join(pieces):
            raise ConfigError(
                f"data.words: albert, but {source} is not a SentencePiece tokenizer, whose pieces "
                "mark the spaces before words",
                "leave data.words out: the rules of this tokenizer decide where words start",
            )
        return albert_starts(pieces)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        with opening(self._path.parent):
            return plain_tokenizer(Tokenizer.from_file(str(self._path)))

    @cached_property
    def _placing(self) -> Tokenizer:
        """The same tokenizer, but the offsets of a token include its white space."""
        from tokenizers.processors import ByteLevel

        tokenizer = plain_tokenizer(Tokenizer.from_str(self._tokenizer.to_str()))
        tokenizer.post_processor = ByteLevel(trim_offsets=False)
        return tokenizer

    @cached_property
    def _kind(self) -> Kind | None:
        return kind_of(self._tokenizer)

    @cached_property
    def _marks(self) -> bool:
        """Whether its pre-tokenizer keeps marks and words together, as SentencePiece does."""
        return cuts_at_spaces_only(self._tokenizer)

    @cached_property
    def _seams(self) -> Seams | None:
        return seams_of(self._tokenizer)

    @cached_property
    def _table(self) -> _Table:
        if self._kind is None:
            raise TypeError("the units of this tokenizer are not known")
        return _Table(self._tokenizer, self._kind)

    @property
    def vocab_size(self) -> int:
        """Largest id + 1."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def keeps_white_space(self) -> bool:
        """Whether white space changes the ids, as in byte-level BPE; WordPiece drops it."""
        spaced, plainly = (
            self._tokenizer.encode(text, add_special_tokens=False).ids
            for text in (" a \n\n\t b\r\n", "a b")
        )
        return bool(spaced != plainly)

    def stretches(self, text: str, size: int) -> list[str]:
        """Consecutive parts of a text, of about ``size`` characters, that give the ids of the text.

        The text is cut before white space, where no word of GPT-2's expression crosses. Other
        tokenizers get the whole text.
        """
        if self._kind != "bytes" or len(text) <= size:
            return [text]
        cuts, at = [0], size
        while match := _BEFORE_SPACE.search(text, at):
            cuts.append(match.end())
            at = match.end() + size
        return [text[begin:end] for begin, end in itertools.pairwise([*cuts, len(text)])]

    def with_places(self, texts: list[str], places: Sequence[Sequence[int]]) -> Placed:
        """Ids and word starts, as a call gives them, and the tokens at some places of the texts.

        Args:
            texts: One or more.
            places: Positions of characters in each text, ascending.

        Returns:
            For each text its ids, its word starts, and for each place the first token that starts
            there or later. A token across a place is before it.
        """
        if not any(place for wanted in places for place in wanted):  # all at the beginning
            none = [[0] * len(wanted) for wanted in places]
            return [(*one, at) for one, at in zip(self(texts), none, strict=True)]
        if self._kind == "bytes" and not self._jieba:
            units = self._units(texts, self._kind)
            if self._table.pays_for(units):
                return self._place_by_units(units, places)
        encoded = self._with_starts(self._encode_whole(texts))
        encodings = self._placing.encode_batch(texts, add_special_tokens=False)
        at = [
            _first_tokens(encoding.offsets, wanted)
            for encoding, wanted in zip(encodings, places, strict=True)
        ]
        return [(*one, first) for one, first in zip(encoded, at, strict=True)]

    def with_words(
        self, texts: list[str], places: Sequence[Sequence[int]], words: Sequence[Ints]
    ) -> Placed:
        """As ``with_places``, with the words of segmented text.

        Args:
            texts: One or more, without marks.
            places: As for ``with_places``.
            words: Characters of each text where words start.
        """
        placed: Placed = []
        encodings = self._placing.encode_batch(texts, add_special_tokens=False)
        for text, encoding, wanted, own in zip(texts, encodings, places, words, strict=True):
            starts = marked_starts(text, encoding.offsets, own)
            at = _first_tokens(encoding.offsets, wanted) if any(wanted) else [0] * len(wanted)
            placed.append((np.array(encoding.ids, dtype=np.int64), starts, at))
        return placed

    def _place_by_units(self, units: list[list[str]], places: Sequence[Sequence[int]]) -> Placed:
        """Encode texts given as units; most places are at the beginning of a unit."""
        sizes, encoded = self._table.sizes_and_ids(units)
        counts = np.cumsum([0, *map(len, units)]).tolist()
        placed: Placed = []
        for number, (ids, starts) in enumerate(encoded):
            own = sizes[counts[number] : counts[number + 1]]
            tokens = np.append(0, np.cumsum(own)).tolist()
            # The characters of a unit, without a mark of ``seams``.
            lengths = [len(unit) - (unit[:1] == INNER) for unit in units[number]]
            begins = list(itertools.accumulate(lengths, initial=0))
            at = []
            for place in places[number]:
                unit = bisect_left(begins, place)
                token = tokens[unit] if unit < len(tokens) else tokens[-1]
                if begins[min(unit, len(begins) - 1)] != place:  # within the unit before
                    unit -= 1
                    within = self._placing.encode(
                        units[number][unit].removeprefix(INNER), add_special_tokens=False
                    )
                    token = tokens[unit] + _first_tokens(within.offsets, [place - begins[unit]])[0]
                at.append(token)
            placed.append((ids, starts, at))
        return placed

    def __call__(self, texts: list[str]) -> Encoded:
        """Ids of each text, and whether a word starts at each id.

        Words are those of the pre-tokenizer. If it cuts only at spaces, each mark is also a word,
        as in BERT. A Chinese character starts a word unless it is inside a token or, with jieba,
        inside a longer word. With ALBERT's rule, the token alone decides.
        """
        return self._with_starts(self._encode(texts))

    def _with_starts(self, encoded: Encoded) -> Encoded:
        """With the word starts of ALBERT's rule, if it is used."""
        if self._starts is None:
            return encoded
        encoded = [(ids, self._starts[ids]) for ids, _ in encoded]
        for _, starts in encoded:
            starts[:1] = True
        return encoded

    def _encode(self, texts: list[str]) -> Encoded:
        if self._kind is None or self._jieba:  # words depend on the context of a character
            return self._encode_whole(texts)
        if self._kind != "spaces":
            return self._encode_units(texts, self._kind)
        alike = list(map(plain, texts))
        by_units = iter(self._encode_units(list(itertools.compress(texts, alike)), self._kind))
        others = [text for text, fits in zip(texts, alike, strict=True) if not fits]
        whole = iter(self._encode_whole(others))
        return [next(by_units if fits else whole) for fits in alike]

    def _encode_units(self, texts: list[str], kind: Kind) -> Encoded:
        units = self._units(texts, kind)
        if self._table.pays_for(units):
            return self._table.sizes_and_ids(units)[1]
        return self._encode_whole(texts)

    def _units(self, texts: list[str], kind: Kind) -> list[list[str]]:
        find = pattern(kind).findall
        if kind != "bytes":
            return list(map(find, texts))
        at = [n for n, text in enumerate(texts) if not text.isascii() and _UNSPACED.search(text)]
        if len(at) <= _RARE * len(texts) or self._seams is None:
            return list(map(find, texts))
        marked = dict(zip(at, self._seams.mark([texts[n] for n in at]), strict=True))
        return [
            CUT.join(find(marked[n])).split(CUT) if n in marked else find(text)
            for n, text in enumerate(texts)
        ]

    def _encode_whole(self, texts: list[str]) -> Encoded:
        if not texts:
            return []
        encoded = encode_texts(self._tokenizer, texts, marks=self._marks, segmented=self._jieba)
        return _split(encoded.ids, encoded.starts, np.cumsum(encoded.sizes))


class _Table:
    """The ids and word starts of the most frequent units so far."""

    def __init__(self, tokenizer: Tokenizer, kind: Kind) -> None:
        self._tokenizer, self._kind = tokenizer, kind
        # A new unit gets the next number: one look-up per unit, without Python code.
        self.numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        none = np.zeros(0, dtype=np.int64)
        self._ids, self._counts = Ids(none, none.astype(np.bool_), none), none

    def pays_for(self, texts: list[list[str]]) -> bool:
        """Whether the table is faster than whole texts: noise, for example, repeats no units."""
        units = list(itertools.islice(itertools.chain.from_iterable(texts), _SAMPLE))
        new = {unit for unit in units if unit not in self.numbers}
        return len(units) < _SAMPLE or len(new) <= _NEW * len(units)

    def sizes_and_ids(self, texts: list[list[str]]) -> tuple[NDArray[np.int64], Encoded]:
        """The number of ids of each unit of all texts, and the ids and word starts of each text."""
        if not texts:
            return np.zeros(0, dtype=np.int64), []
        counts = list(map(len, texts))
        all_units = itertools.chain.from_iterable(texts)
        number = np.fromiter(map(self.numbers.__getitem__, all_units), np.int64, sum(counts))
        if len(self.numbers) > len(self._counts):
            units = list(itertools.islice(self.numbers, len(self._counts), None))
            new = encode_units(self._tokenizer, units, self._kind)
            self._ids = concatenate_ids([self._ids, new])
            self._counts = np.append(self._counts, np.zeros(len(units), dtype=np.int64))
        self._counts += np.bincount(number, minlength=len(self.numbers))
        selected = select_ids(self._ids, number)
        if len(self.numbers) > _TABLE:
            self._forget()
        ends = np.append(0, np.cumsum(selected.sizes))[np.cumsum(counts)]
        return selected.sizes, _split(selected.ids, selected.starts, ends)

    def _forget(self) -> None:
        """Keep only the most frequent units."""
        frequent = np.sort(np.argsort(-self._counts, kind="stable")[: _TABLE // 2])
        units = list(self.numbers)
        numbers = {units[old]: new for new, old in enumerate(frequent.tolist())}
        self.numbers = defaultdict(itertools.count(len(frequent)).__next__, numbers)
        self._ids, self._counts = select_ids(self._ids, frequent), self._counts[frequent]


def _first_tokens(offsets: Sequence[tuple[int, int]], places: Sequence[int]) -> list[int]:
    """The first token that starts at or after each place, given the characters of the tokens."""
    begins = [begin for begin, _ in offsets]
    return [bisect_left(begins, place) for place in places]


def _split(ids: NDArray[np.int64], starts: NDArray[np.bool_], ends: NDArray[np.int64]) -> Encoded:
    bounds = itertools.pairwise([0, *ends.tolist()])
    return [(ids[begin:end], starts[begin:end]) for begin, end in bounds]


def _tokenizer_file(source: str) -> Path:
    source = local(source)
    path = Path(source) / "tokenizer.json"
    if path.is_file():
        return path
    if not Path(source).exists() and (source.startswith((".", "/")) or source.count("/") > 1):
        raise ConfigError(
            f"{source}: no such folder in {Path.cwd()}",
            "check the path and the folder that you are in, or train a tokenizer with `plmctl "
            "train-tokenizer`",
        )
    if Path(source).exists():
        raise ConfigError(
            f"{source}: no tokenizer.json here", "train one with `plmctl train-tokenizer`"
        )
    refuse_unreachable(source, "train a tokenizer with `plmctl train-tokenizer`")
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(source, "tokenizer.json"))
    except (OSError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        raise ConfigError(
            f"{source}: no such folder, and no such tokenizer on the Hub could be reached",
            "train one with `plmctl train-tokenizer`",
        ) from error


# --- Ids of the tokenizers library for a list of texts or units, as three flat arrays ---


_WORDS_PER_TEXT = 200  # words that the library gets as one text


class Ids(NamedTuple):
    """The ids of several texts, one after the other.

    Attributes:
        ids: The ids of all texts, [tokens].
        starts: Whether a word starts at each, [tokens].
        sizes: The number of ids of each text, [texts].
    """

    ids: NDArray[np.int64]
    starts: NDArray[np.bool_]
    sizes: NDArray[np.int64]


def encode_texts(tokenizer: Tokenizer, texts: list[str], *, marks: bool, segmented: bool) -> Ids:
    """The ids and word starts of texts.

    Args:
        tokenizer: Any tokenizer.
        texts: One or more.
        marks: Whether punctuation marks are separate words, as Chinese characters are.
        segmented: Whether jieba finds Chinese words.
    """
    encoded, _ = _encode_batch(tokenizer, texts, marks, segmented)
    return encoded


def encode_units(tokenizer: Tokenizer, units: list[str], kind: Kind) -> Ids:
    """The ids and word starts of units (``units.pattern``), or of parts of them (``seams``).

    For the library, a text costs about ten times as much as a word in it. So units that are
    certainly one word each are joined to one text, and its word numbers separate them again.

    Args:
        tokenizer: A tokenizer whose units are known.
        units: One or more.
        kind: The kind of its units.
    """
    inner = np.fromiter((unit[0] == INNER for unit in units), np.bool_, len(units))
    if inner.any():
        encoded = encode_units(tokenizer, [unit.removeprefix(INNER) for unit in units], kind)
        encoded.starts[(np.cumsum(encoded.sizes) - encoded.sizes)[inner]] = False
        return encoded
    marks = kind == "spaces"
    matches = map(_single_word(kind).fullmatch, units)
    sort = [(match.lastindex or 0) if match else 0 for match in matches]
    others, words, letters = (
        [unit for unit, number in zip(units, sort, strict=True) if number == wanted]
        for wanted in (0, 1, 2)
    )
    parts = [
        encode_texts(tokenizer, others, marks=marks, segmented=False),
        _encode_words(tokenizer, words, "" if kind == "bytes" else " ", marks),
        _encode_words(tokenizer, letters, "\n", marks),
    ]
    return select_ids(concatenate_ids(parts), np.argsort(np.argsort(sort, kind="stable")))


@cache
def _single_word(kind: Kind) -> re.Pattern[str]:
    """Units that stay one word of the pre-tokenizer beside other units of the same group.

    Group 1 is ``ONE_WORD``. Group 2, of kind "bytes", is other letters or digits without a space
    before them.
    """
    if kind != "bytes":
        return re.compile(f"({ONE_WORD[kind]})")
    return re.compile(f"({ONE_WORD[kind]})|([{unspaced('L')}]+|[{unspaced('N')}]+)")


def _encode_words(tokenizer: Tokenizer, words: list[str], gap: str, marks: bool) -> Ids:
    texts = [
        gap.join(words[at : at + _WORDS_PER_TEXT]) for at in range(0, len(words), _WORDS_PER_TEXT)
    ]
    encoded, word = _encode_batch(tokenizer, texts, marks, False)
    text = np.repeat(np.arange(len(texts)), encoded.sizes)
    if gap == "\n":  # GPT-2 treats the gap as a word
        is_word = word % 2 == 0
        word, text = word[is_word] // 2, text[is_word]
        encoded = Ids(encoded.ids[is_word], encoded.starts[is_word], encoded.sizes)
    sizes = np.bincount(word + _WORDS_PER_TEXT * text, minlength=len(words))
    return Ids(encoded.ids, encoded.starts, sizes)


def _encode_batch(
    tokenizer: Tokenizer, texts: list[str], marks: bool, segmented: bool
) -> tuple[Ids, NDArray[np.int64]]:
    """The ids of texts, and for each id the number of its word within its text."""
    encodings = tokenizer.encode_batch(texts, add_special_tokens=False)
    sizes = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
    total = int(sizes.sum())
    ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int64, total)
    words = np.fromiter(chain.from_iterable(e.word_ids for e in encodings), np.int64, total)
    text = np.repeat(np.arange(len(texts)), sizes)
    starts = (np.diff(words, prepend=-1) != 0) | (np.diff(text, prepend=-1) != 0)
    if marks or any(has_chinese(text) for text in texts):
        pairs = chain.from_iterable(e.offsets for e in encodings)
        offsets = np.fromiter(chain.from_iterable(pairs), np.int64, 2 * total).reshape(-1, 2)
        offsets += np.cumsum([0, *map(len, texts)])[text][:, None]
        starts = starts_within(starts, offsets, texts, marks=marks, segmented=segmented)
    return Ids(ids, starts, sizes), words


def concatenate_ids(parts: list[Ids]) -> Ids:
    """The texts of all parts, one after the other."""
    return Ids(*map(np.concatenate, zip(*parts, strict=True)))


def select_ids(all_ids: Ids, texts: NDArray[np.int64]) -> Ids:
    """The ids of some of the texts, in this order; a text may be there several times."""
    sizes = all_ids.sizes[texts]
    # From the first place of a text in the result to its first place in the source.
    shift = (np.cumsum(all_ids.sizes) - all_ids.sizes)[texts] - (np.cumsum(sizes) - sizes)
    at = np.arange(sizes.sum()) + np.repeat(shift, sizes)
    return Ids(all_ids.ids[at], all_ids.starts[at], sizes)
