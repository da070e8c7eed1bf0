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

from plmctl.errors import ConfigError
from plmctl.hashing import sha256_of
from plmctl.hub import refuse_unreachable
from plmctl.tokenization.check import check_tokenizer
from plmctl.tokenization.seams import Seams, seams_of
from plmctl.tokenization.units import (
    CUT,
    INNER,
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
    starts_within,
)

# --- The encoder ---


Encoded = list[tuple[NDArray[np.int64], NDArray[np.bool_]]]
"""Ids of each text, and whether a word starts at each."""

Placed = list[tuple[NDArray[np.int64], NDArray[np.bool_], Sequence[int]]]
"""The same, and the first token at or after each place asked for in a text."""

_TABLE = 200_000  # units kept: sixty megabytes; with more the processor's caches do worse

_LOOKED_AT = 5_000  # units of a batch

_NEW = 0.7  # share of them that are not in the table; more, and it does not pay

_RARE = 0.05  # share of texts with unspaced scripts, up to which these are no different from others


# Thai to Georgian, Khmer, and kana, Han and Hangul, as a rule without spaces.
_BEFORE_SPACE = re.compile(f"[^{WHITE_SPACE}](?=[{WHITE_SPACE}])")


_UNSPACED = re.compile("[\u0e00-\u10ff\u1780-\u17ff\u3005-\ud7a3\uf900-\uffdc]")


class Encoder:
    """Encodes texts without special tokens; text that looks like one is only text.

    Words repeat, so each distinct unit is given to the tokenizer once and then looked up: the ids
    are those of ``encode_batch``, several times as fast. Text without spaces has units of a few
    characters (``seams``). A tokenizer whose units are not known is given whole texts.

    It can be sent to another process: the tokenizer itself is loaded where it is used.

    Args:
        source: A tokenizer folder, or a Hub id, whose ``tokenizer.json`` is then fetched.
        words: Who says where words start: the pre-tokenizer, within Chinese text jieba, or the
            pieces themselves by ALBERT's rule.

    Attributes:
        fingerprint: Hash of all that decides ids and word starts.

    Raises:
        ConfigError: There is no ``tokenizer.json``, it changed since it was trained, jieba is not
            installed, or ALBERT's rule is requested of a tokenizer that is not SentencePiece's.
    """

    def __init__(
        self, source: str, words: Literal["pretokenizer", "jieba", "albert"] = "pretokenizer"
    ):
        check_tokenizer(source)
        self._path, self._jieba = _tokenizer_file(source), words == "jieba"
        self.fingerprint = sha256_of(self._path)
        if self._jieba:
            self.fingerprint += f"+jieba-{jieba_version()}"
        self._starts = self._albert_starts(source) if words == "albert" else None
        if self._starts is not None:
            self.fingerprint += "+albert"

    def __getstate__(self) -> dict[str, object]:
        # Without the tokenizer and what is computed from it.
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
                "leave data.words out: this tokenizer's own rules say where words start",
            )
        return albert_starts(pieces)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return plain_tokenizer(Tokenizer.from_file(str(self._path)))

    @cached_property
    def _placing(self) -> Tokenizer:
        """The same, whose offsets have the white space of a token too."""
        from tokenizers.processors import ByteLevel

        tokenizer = plain_tokenizer(Tokenizer.from_str(self._tokenizer.to_str()))
        tokenizer.post_processor = ByteLevel(trim_offsets=False)
        return tokenizer

    @cached_property
    def _kind(self) -> Kind | None:
        return kind_of(self._tokenizer)

    @cached_property
    def _marks(self) -> bool:
        """Its pre-tokenizer leaves marks with the words beside them, as SentencePiece does."""
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
        """A text in consecutive parts of about ``size`` characters whose ids are those of the text.

        It is cut before white space, where GPT-2's expression never finds a word across; other
        tokenizers get it whole.
        """
        if self._kind != "bytes" or len(text) <= size:
            return [text]
        cuts, at = [0], size
        while found := _BEFORE_SPACE.search(text, at):
            cuts.append(found.end())
            at = found.end() + size
        return [text[begin:end] for begin, end in itertools.pairwise([*cuts, len(text)])]

    def with_places(self, texts: list[str], places: Sequence[Sequence[int]]) -> Placed:
        """Ids and word starts as of a call, and where in them some places of the texts are.

        Args:
            texts: One or more.
            places: Characters of each text, ascending.

        Returns:
            For each text its ids, its word starts, and for each place the first token that starts
            there or later. A token that reaches across a place is before it.
        """
        if not any(place for wanted in places for place in wanted):  # all at the beginning
            none = [[0] * len(wanted) for wanted in places]
            return [(*made, at) for made, at in zip(self(texts), none, strict=True)]
        if self._kind == "bytes" and not self._jieba:
            units = self._units(texts, self._kind)
            if not self._table.hardly_knows(units):
                return self._place_by_units(units, places)
        encoded = self._restarted(self._encode_whole(texts))
        encodings = self._placing.encode_batch(texts, add_special_tokens=False)
        found = [
            _first_tokens(encoding.offsets, wanted)
            for encoding, wanted in zip(encodings, places, strict=True)
        ]
        return [(*made, at) for made, at in zip(encoded, found, strict=True)]

    def _place_by_units(self, units: list[list[str]], places: Sequence[Sequence[int]]) -> Placed:
        """Encode texts that are given as units; most places are where a unit begins."""
        sizes, encoded = self._table.sizes_and_ids(units)
        counts = np.cumsum([0, *map(len, units)]).tolist()
        placed: Placed = []
        for number, (ids, starts) in enumerate(encoded):
            own = sizes[counts[number] : counts[number + 1]]
            tokens = np.append(0, np.cumsum(own)).tolist()
            begins = list(itertools.accumulate(map(_length, units[number]), initial=0))
            found = []
            for place in places[number]:
                unit = bisect_left(begins, place)
                token = tokens[unit] if unit < len(tokens) else tokens[-1]
                if begins[min(unit, len(begins) - 1)] != place:  # within the unit before
                    unit -= 1
                    within = self._placing.encode(
                        units[number][unit].removeprefix(INNER), add_special_tokens=False
                    )
                    token = tokens[unit] + _first_tokens(within.offsets, [place - begins[unit]])[0]
                found.append(token)
            placed.append((ids, starts, found))
        return placed

    def __call__(self, texts: list[str]) -> Encoded:
        """Ids of each text, and whether a word starts at each id.

        Words are those of the pre-tokenizer, but of one that cuts at spaces only, a mark is a word
        of its own, as it is to BERT. A Chinese character begins a word unless it stands within a
        token or, with jieba, within a word of several. By ALBERT's rule a token alone decides.
        """
        return self._restarted(self._encode(texts))

    def _restarted(self, encoded: Encoded) -> Encoded:
        """With the word starts of ALBERT's rule, if that is the one."""
        if self._starts is None:
            return encoded
        encoded = [(ids, self._starts[ids]) for ids, _ in encoded]
        for _, starts in encoded:
            starts[:1] = True
        return encoded

    def _encode(self, texts: list[str]) -> Encoded:
        if self._kind is None or self._jieba:  # words depend on what is around a character
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
        if self._table.hardly_knows(units):
            return self._encode_whole(texts)
        return self._table.look_up(units)

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
        made = encode_texts(self._tokenizer, texts, marks=self._marks, segmented=self._jieba)
        return _split(made.ids, made.starts, np.cumsum(made.sizes))


class _Table:
    """Ids and word starts of the units seen so far."""

    def __init__(self, tokenizer: Tokenizer, kind: Kind) -> None:
        self._tokenizer, self._kind = tokenizer, kind
        # A unit that is not there gets the next number: one look-up a unit, none of it in Python.
        self.numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        none = np.zeros(0, dtype=np.int64)
        self._made, self._seen = Ids(none, none.astype(np.bool_), none), none

    def hardly_knows(self, texts: list[list[str]]) -> bool:
        """Whether it would not pay for these: noise, say, hardly repeats its units."""
        units = list(itertools.islice(itertools.chain.from_iterable(texts), _LOOKED_AT))
        new = {unit for unit in units if unit not in self.numbers}
        return len(units) == _LOOKED_AT and len(new) > _NEW * len(units)

    def look_up(self, texts: list[list[str]]) -> Encoded:
        """The ids and word starts of texts that are given as units."""
        return self.sizes_and_ids(texts)[1]

    def sizes_and_ids(self, texts: list[list[str]]) -> tuple[NDArray[np.int64], Encoded]:
        """The number of ids of each unit of all texts, and the ids and word starts of each text."""
        if not texts:
            return np.zeros(0, dtype=np.int64), []
        counts = list(map(len, texts))
        units = itertools.chain.from_iterable(texts)
        number = np.fromiter(map(self.numbers.__getitem__, units), np.int64, sum(counts))
        if len(self.numbers) > len(self._seen):
            self._add(list(itertools.islice(self.numbers, len(self._seen), None)))
        self._seen += np.bincount(number, minlength=len(self.numbers))
        found = select_ids(self._made, number)
        if len(self.numbers) > _TABLE:
            self._forget()
        ends = np.append(0, np.cumsum(found.sizes))[np.cumsum(counts)]
        return found.sizes, _split(found.ids, found.starts, ends)

    def _add(self, units: list[str]) -> None:
        made = encode_units(self._tokenizer, units, self._kind)
        self._made = concatenate_ids([self._made, made])
        self._seen = np.append(self._seen, np.zeros(len(units), dtype=np.int64))

    def _forget(self) -> None:
        """Keep the units that were seen most often."""
        kept = np.sort(np.argsort(-self._seen, kind="stable")[: _TABLE // 2])
        units = list(self.numbers)
        numbers = {units[old]: new for new, old in enumerate(kept.tolist())}
        self.numbers = defaultdict(itertools.count(len(kept)).__next__, numbers)
        self._made, self._seen = select_ids(self._made, kept), self._seen[kept]


def _length(unit: str) -> int:
    """Characters of a unit, a mark of ``seams`` left out."""
    return len(unit) - (unit[:1] == INNER)


def _first_tokens(offsets: Sequence[tuple[int, int]], places: Sequence[int]) -> list[int]:
    """The first token that starts at or after each place, given the characters of the tokens."""
    begins = [begin for begin, _ in offsets]
    return [bisect_left(begins, place) for place in places]


def _split(ids: NDArray[np.int64], starts: NDArray[np.bool_], ends: NDArray[np.int64]) -> Encoded:
    bounds = itertools.pairwise([0, *ends.tolist()])
    return [(ids[begin:end], starts[begin:end]) for begin, end in bounds]


def _tokenizer_file(source: str) -> Path:
    path = Path(source) / "tokenizer.json"
    if path.is_file():
        return path
    if Path(source).exists() or source.startswith((".", "/")) or source.count("/") > 1:
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


# --- What the tokenizers library gives for a list of texts or units, as three arrays in a row ---


_WORDS_PER_TEXT = 200  # words given to the library as one text


class Ids(NamedTuple):
    """The ids of several texts, one after the other.

    Attributes:
        ids: Of all texts, [tokens].
        starts: Whether a word starts at each, [tokens].
        sizes: Ids of each text, [texts].
    """

    ids: NDArray[np.int64]
    starts: NDArray[np.bool_]
    sizes: NDArray[np.int64]


def encode_texts(tokenizer: Tokenizer, texts: list[str], *, marks: bool, segmented: bool) -> Ids:
    """The ids and word starts of all texts in a row, and the number of ids of each.

    Args:
        tokenizer: Any.
        texts: One or more.
        marks: Whether punctuation marks are words of their own, as Chinese characters are.
        segmented: Whether Chinese words are jieba's.
    """
    made, _ = _encode_batch(tokenizer, texts, marks, segmented)
    return made


def encode_units(tokenizer: Tokenizer, units: list[str], kind: Kind) -> Ids:
    """The same of the units of a text (``units.pattern``), or of parts of them (``seams``).

    To the library a text costs about ten times what a word in it does, so those units that are
    surely one word each go to it by the thousand as one text; its numbers of words part them again.

    Args:
        tokenizer: One whose units are known.
        units: One or more.
        kind: Whose.
    """
    inner = np.fromiter((unit[0] == INNER for unit in units), np.bool_, len(units))
    if inner.any():
        made = encode_units(tokenizer, [unit.removeprefix(INNER) for unit in units], kind)
        made.starts[(np.cumsum(made.sizes) - made.sizes)[inner]] = False
        return made
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
    """Units that are a word of the pre-tokenizer wherever they stand among others of their group.

    Group 1 is ASCII alone, where no normalization or version of Unicode makes a difference. Group 2
    of kind "bytes" has other letters or digits, without a space before them.
    """
    if kind != "bytes":
        return re.compile({"bert": "([A-Za-z0-9]+)", "spaces": "([!-~]+)"}[kind])
    return re.compile(f"( (?:[A-Za-z]+|[0-9]+))|([{unspaced('L')}]+|[{unspaced('N')}]+)")


def _encode_words(tokenizer: Tokenizer, words: list[str], gap: str, marks: bool) -> Ids:
    texts = [
        gap.join(words[at : at + _WORDS_PER_TEXT]) for at in range(0, len(words), _WORDS_PER_TEXT)
    ]
    made, word = _encode_batch(tokenizer, texts, marks, False)
    text = np.repeat(np.arange(len(texts)), made.sizes)
    if gap == "\n":  # to GPT-2 a word as well
        kept = word % 2 == 0
        word, text = word[kept] // 2, text[kept]
        made = Ids(made.ids[kept], made.starts[kept], made.sizes)
    sizes = np.bincount(word + _WORDS_PER_TEXT * text, minlength=len(words))
    return Ids(made.ids, made.starts, sizes)


def _encode_batch(
    tokenizer: Tokenizer, texts: list[str], marks: bool, segmented: bool
) -> tuple[Ids, NDArray[np.int64]]:
    """The ids of texts, and the number of its word within its text, of each."""
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
    """The texts of several, one after the other."""
    return Ids(*map(np.concatenate, zip(*parts, strict=True)))


def select_ids(made: Ids, texts: NDArray[np.int64]) -> Ids:
    """Those of some of the texts, in this order; a text may be named again."""
    sizes = made.sizes[texts]
    # Where each id lies: as far from its text's first there as here.
    shift = (np.cumsum(made.sizes) - made.sizes)[texts] - (np.cumsum(sizes) - sizes)
    at = np.arange(sizes.sum()) + np.repeat(shift, sizes)
    return Ids(made.ids[at], made.starts[at], sizes)
