"""Text to ids and word starts, for the token store.

``Encoder`` cuts text into parts, which are units (``units.py``) or a few of them, and encodes each
distinct one once, which is several times as fast as giving whole texts to the tokenizers library;
it falls back to the library where that would not give the same ids.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cached_property
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from plmctl.arrays import Bools, Ints
from plmctl.errors import ConfigError
from plmctl.hashing import sha256_of
from plmctl.hub import local, refuse_unreachable
from plmctl.tokenization.check import UNKNOWN, check_tokenizer, opening
from plmctl.tokenization.load import open_tokenizer
from plmctl.tokenization.seams import (
    ByteSeams,
    PieceSeams,
    byte_seams,
    byte_table,
    merges_alone,
    piece_seams,
)
from plmctl.tokenization.units import (
    ONE_WORD,
    SPACE_MARK,
    WHITE_SPACE,
    WITHIN,
    Kind,
    Parts,
    cut,
    cuts_at_spaces_only,
    kind_of,
    plain,
    plain_tokenizer,
    word_of_one_sort,
)
from plmctl.tokenization.unknown import Unknown, UnknownCounter, visible
from plmctl.tokenization.words import (
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

_TABLE = 200_000  # parts in a table: sixty megabytes; more do not fit the processor's caches

_SAMPLE = 2_000  # parts of a batch that are looked up to see whether the table pays

_NEW = 0.7  # with a larger share of new parts in the sample, whole texts are faster

_BEFORE_SPACE = re.compile(f"[^{WHITE_SPACE}](?=[{WHITE_SPACE}])")


class Encoder:
    """Encodes texts without special tokens; text that looks like a special token is text.

    Words repeat, so the tokenizer encodes each distinct part once, and a table keeps the result:
    the ids are those of ``encode_batch``, several times as fast. Text without spaces has parts of a
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
        check_tokenizer(local(source))
        self._jieba = words == "jieba"
        self._settings: Path | str = _tokenizer_file(source)
        self.fingerprint = (
            sha256_of(self._settings)
            if isinstance(self._settings, Path)
            else sha256(self._settings.encode()).hexdigest()
        )
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
            "_settings": self._settings,
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

    def open(self) -> Tokenizer:
        """A new copy of its tokenizer, which encodes plain text."""
        if isinstance(self._settings, str):
            return plain_tokenizer(Tokenizer.from_str(self._settings))
        with opening(self._settings.parent):
            tokenizer = plain_tokenizer(Tokenizer.from_file(str(self._settings)))
            tokenizer.encode(UNKNOWN)
            return tokenizer

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return self.open()

    @cached_property
    def _placing(self) -> Tokenizer:
        """The same tokenizer, but the offsets of a token include its white space."""
        from tokenizers.processors import ByteLevel

        tokenizer = self.open()
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
    def _seams(self) -> ByteSeams | PieceSeams | None:
        if self._kind == "bytes":
            return byte_seams(self._tokenizer)
        return piece_seams(self._tokenizer) if self._kind == "spaces" else None

    def _between(self, code: NDArray[np.uint32]) -> tuple[Bools, Bools]:
        if self._seams is not None:
            return self._seams.between(code)
        none = np.zeros(max(0, len(code) - 1), dtype=np.bool_)
        return none, none

    @cached_property
    def _table(self) -> _Table:
        if self._kind is None:
            raise TypeError("the units of this tokenizer are not known")
        return _Table(self._tokenizer, self._kind, lambda: self._seams)

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

    def stretches(self, text: str, size: int, lines: Sequence[int] = ()) -> list[str]:
        """Consecutive parts of a text, of about ``size`` characters, that give the ids of the text.

        The text is cut before white space, where no word of GPT-2's expression crosses. Other
        tokenizers get the whole text.

        Args:
            lines: Where lines begin, after their white space. A line after a space is a part of its
                own: its first word does not include the space, as if the line were encoded alone.
        """
        if self._kind != "bytes":
            return [text]
        cuts, at = [0], size
        for line in [*(line for line in lines if text[line - 1 : line] == " "), len(text)]:
            while (match := _BEFORE_SPACE.search(text, at, line)) and match.end() < line:
                cuts.append(match.end())
                at = match.end() + size
            cuts.append(line)
            at = line + size
        return [text[begin:end] for begin, end in itertools.pairwise(cuts)]

    @cached_property
    def unknown(self) -> UnknownCounter:
        """Counts what the tokenizer does not know."""
        return UnknownCounter(self._tokenizer)

    def unknown_of(self, texts: list[str], ids: NDArray[np.int64]) -> dict[str, Any]:
        """What is unknown of texts, about, as plain facts; see ``Unknown``.

        Args:
            texts: One or more.
            ids: Theirs, one text after the other: without an unknown one there is nothing to count.
        """
        counter = self.unknown
        if counter.id is None or not (ids == counter.id).any():
            return asdict(Unknown(sum(map(visible, texts))))
        return asdict(counter.estimate(texts))

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
        return self._place(texts, places)

    def with_words(
        self, texts: list[str], places: Sequence[Sequence[int]], words: Sequence[Ints]
    ) -> Placed:
        """``with_places`` for segmented text, whose words are known.

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

    def __call__(self, texts: list[str]) -> Encoded:
        """Ids of each text, and whether a word starts at each id.

        Words are those of the pre-tokenizer. If it cuts only at spaces, each mark is also a word,
        as in BERT. A Chinese character starts a word unless it is inside a token or, with jieba,
        inside a longer word. With ALBERT's rule, the token alone decides.
        """
        placed = self._place(texts, [()] * len(texts))
        return [(ids, starts) for ids, starts, _ in placed]

    def _place(self, texts: list[str], places: Sequence[Sequence[int]]) -> Placed:
        """Encode the texts, by parts where that gives the ids of the whole and is faster."""
        if self._kind is None or self._jieba:  # words depend on the context of a character
            return self._place_in_whole(texts, places)
        if self._kind != "bytes" and any(places):  # normalization may move characters
            return self._place_in_whole(texts, places)
        fits = [True] * len(texts)
        if self._kind == "spaces" and not plain("".join(texts)):
            fits = list(map(plain, texts))
        parts = cut(list(itertools.compress(texts, fits)), self._kind, self._between)
        if not self._table.is_faster_for(parts):
            return self._place_in_whole(texts, places)
        which = np.flatnonzero(fits)
        encoded, unsure = self._table.encode_parts(parts)
        in_parts = self._place_in_parts(parts, encoded, list(itertools.compress(places, fits)))
        placed = dict(zip(which.tolist(), in_parts, strict=True))
        for text in which[unsure].tolist():
            del placed[text]
        others = [number for number in range(len(texts)) if number not in placed]
        whole = self._place_in_whole([texts[n] for n in others], [places[n] for n in others])
        placed |= zip(others, whole, strict=True)
        return [placed[number] for number in range(len(texts))]

    def _place_in_parts(
        self, parts: Parts, encoded: Ids, places: Sequence[Sequence[int]]
    ) -> Placed:
        """The texts of parts that are encoded; most places are at the beginning of a part."""
        texts = self._split(encoded, parts.counts)
        if not any(places):
            return [(ids, starts, ()) for ids, starts in texts]
        begins = np.append(0, np.cumsum(parts.lengths))  # in the characters of all texts
        tokens = np.append(0, np.cumsum(encoded.sizes))
        first = np.append(0, np.cumsum(parts.counts))[:-1]
        counts = np.fromiter(map(len, places), np.int64, len(places))
        wanted = np.fromiter(chain.from_iterable(places), np.int64, counts.sum())
        wanted += np.repeat(begins[first], counts)
        part = np.searchsorted(begins, wanted)
        token = tokens[part]
        for number in np.flatnonzero(begins[part] != wanted).tolist():  # within the part before
            before = part[number] - 1
            text = parts.texts[parts.which[before]]
            within = self._placing.encode(text, add_special_tokens=False)
            place = int(wanted[number] - begins[before])
            token[number] = tokens[before] + _first_tokens(within.offsets, [place])[0]
        token -= np.repeat(tokens[first], counts)
        bounds = itertools.pairwise([0, *np.cumsum(counts).tolist()])
        return [
            (*text, token[begin:end].tolist())
            for text, (begin, end) in zip(texts, bounds, strict=True)
        ]

    def _place_in_whole(self, texts: list[str], places: Sequence[Sequence[int]]) -> Placed:
        """Encode the texts as they are."""
        if not texts:
            return []
        ids = encode_texts(self._tokenizer, texts, marks=self._marks, segmented=self._jieba)
        encoded = self._split(ids, np.ones(len(texts), dtype=np.int64))
        if not any(places):
            return [(ids, starts, ()) for ids, starts in encoded]
        encodings = self._placing.encode_batch(texts, add_special_tokens=False)
        return [
            (*one, _first_tokens(encoding.offsets, wanted))
            for one, encoding, wanted in zip(encoded, encodings, places, strict=True)
        ]

    def _split(self, encoded: Ids, counts: NDArray[np.int64]) -> Encoded:
        """The ids and word starts of texts, each of which has so many of the encoded parts."""
        ends = np.append(0, np.cumsum(encoded.sizes))[np.cumsum(counts)]
        bounds = itertools.pairwise([0, *ends.tolist()])
        split = [(encoded.ids[begin:end], encoded.starts[begin:end]) for begin, end in bounds]
        if self._starts is None:
            return split
        split = [(ids, self._starts[ids]) for ids, _ in split]  # by ALBERT's rule
        for _, starts in split:
            starts[:1] = True
        return split


class _Table:
    """The ids and word starts of the most frequent parts so far.

    Args:
        seams: Where the tokenizer's words were cut; English needs none.
    """

    def __init__(
        self, tokenizer: Tokenizer, kind: Kind, seams: Callable[[], ByteSeams | PieceSeams | None]
    ) -> None:
        self._tokenizer, self._kind, self._seams = tokenizer, kind, seams
        self._merges = (
            WordMerges(tokenizer) if kind == "bytes" and merges_alone(tokenizer) else None
        )
        # A new part gets the next number: one look-up per part, without Python code.
        self.numbers: defaultdict[str, int] = defaultdict(itertools.count().__next__)
        none = np.zeros(0, dtype=np.int64)
        self._ids, self._counts = Ids(none, none.astype(np.bool_), none), none
        # Whether a part of a word has the same ids within it: 1 yes, -1 perhaps not, 0 unknown.
        self._sure = none.astype(np.int8)

    def is_faster_for(self, parts: Parts) -> bool:
        """Whether the table is faster than whole texts: noise, for example, repeats no parts."""
        which = parts.which[:_SAMPLE]
        new = sum(parts.texts[number] not in self.numbers for number in np.unique(which).tolist())
        return len(which) < _SAMPLE or new <= _NEW * _SAMPLE

    def encode_parts(self, parts: Parts) -> tuple[Ids, Ints]:
        """The ids and word starts of each part, and the texts that may have others."""
        texts = parts.texts
        of_text = np.fromiter(map(self.numbers.__getitem__, texts), np.int64, len(texts))
        number = of_text[parts.which]
        if more := len(self.numbers) - len(self._counts):
            new = list(itertools.islice(reversed(self.numbers), more))[::-1]
            encoded, sure = self._encode(new)
            self._ids = concatenate_ids([self._ids, encoded])
            self._counts = np.append(self._counts, np.zeros(more, dtype=np.int64))
            self._sure = np.append(self._sure, sure)
        self._counts += np.bincount(number, minlength=len(self.numbers))
        selected = select_ids(self._ids, number)
        selected.starts[(np.cumsum(selected.sizes) - selected.sizes)[parts.inner]] = False
        unsure = self._unsure(parts, of_text)
        if len(self.numbers) > _TABLE:
            self._forget()
        return selected, unsure

    def _encode(self, new: list[str]) -> tuple[Ids, NDArray[np.int8]]:
        """The ids and word starts of new parts, and what ``_sure`` has of them."""
        cut_words = self._kind == "spaces"
        within = np.array([cut_words and text.startswith(WITHIN) for text in new])
        if not within.any():  # the library is as fast for English words
            encoded = encode_units(self._tokenizer, new, self._kind, self._merges)
            return encoded, np.zeros(len(new), dtype=np.int8)
        words = list(itertools.compress(new, ~within))
        rests = [text.removeprefix(WITHIN) for text in itertools.compress(new, within)]
        of_words, sure_words = self._encode_pieces(words, marked=True)
        of_rests, sure_rests = self._encode_pieces(rests, marked=False)
        sure = np.where(np.concatenate([sure_words, sure_rests]), 1, -1).astype(np.int8)
        # A word that is not cut has the ids that the library gives it.
        by_library = np.flatnonzero(~sure_words)
        others = encode_units(self._tokenizer, [words[n] for n in by_library.tolist()], self._kind)
        place = np.arange(len(new))
        place[by_library] = len(new) + np.arange(len(by_library))
        order = np.argsort(np.argsort(within, kind="stable"))
        encoded = concatenate_ids([of_words, of_rests, others])
        return select_ids(encoded, place[order]), sure[order]

    def _encode_pieces(self, parts: list[str], *, marked: bool) -> tuple[Ids, Bools]:
        seams = self._seams()
        assert isinstance(seams, PieceSeams)  # only these cut words that have marks
        encoded, sure = seams.encode(parts, marked=marked)
        return Ids(*encoded), sure

    def _unsure(self, parts: Parts, number: Ints) -> Ints:
        """The texts with a part of a word that may have other ids within the word.

        Args:
            number: [distinct parts] The number of each here.
        """
        if self._kind != "spaces" or not len(parts.within):
            return parts.within[:0]
        of_cut_word = np.zeros(len(parts.which), dtype=np.bool_)
        of_cut_word[parts.within] = of_cut_word[parts.within - 1] = True
        unknown = np.zeros(len(number), dtype=np.bool_)
        unknown[parts.which[of_cut_word]] = True
        unknown &= self._sure[number] == 0
        words = list(itertools.compress(parts.texts, unknown))
        _, sure = self._encode_pieces(words, marked=True)
        self._sure[number[unknown]] = np.where(sure, 1, -1)
        unsure = np.flatnonzero(of_cut_word & (self._sure[number] < 0)[parts.which])
        return np.unique(np.searchsorted(np.cumsum(parts.counts), unsure, side="right"))

    def _forget(self) -> None:
        """Keep only the most frequent parts."""
        frequent = np.sort(np.argsort(-self._counts, kind="stable")[: _TABLE // 2])
        parts = list(self.numbers)
        numbers = {parts[old]: new for new, old in enumerate(frequent.tolist())}
        self.numbers = defaultdict(itertools.count(len(frequent)).__next__, numbers)
        self._ids, self._counts = select_ids(self._ids, frequent), self._counts[frequent]
        self._sure = self._sure[frequent]


def _first_tokens(offsets: Sequence[tuple[int, int]], places: Sequence[int]) -> list[int]:
    """The first token that starts at or after each place, given the characters of the tokens."""
    begins = [begin for begin, _ in offsets]
    return [bisect_left(begins, place) for place in places]


def _tokenizer_file(source: str) -> Path | str:
    """The tokenizer.json of a folder or Hub id; its content, if the vocabulary is in other files.

    Raises:
        ConfigError: There is no tokenizer, or none for the tokenizers library.
    """
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
        whole: Any = open_tokenizer(source)
        if not whole.is_fast:
            raise ConfigError(
                f"{source}: {type(whole).__name__} has no tokenizer.json",
                "train one with `plmctl train-tokenizer`",
            )
        return str(whole.backend_tokenizer.to_str())
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

_WORDS_PER_CALL = 1000  # and its model in one call

_GAP = 0xFF  # a byte that no text has


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
        texts: One or more.
        marks: Whether punctuation marks are separate words, as Chinese characters are.
    """
    encoded, _ = _encode_batch(tokenizer, texts, marks, segmented)
    return encoded


def encode_units(
    tokenizer: Tokenizer, units: list[str], kind: Kind, merges: WordMerges | None = None
) -> Ids:
    """The ids and word starts of parts, each of one unit or a few, or of a part of one (``seams``).

    For the library, a text costs about ten times as much as a word in it. So parts that are
    certainly one word each are joined to one text, and its word numbers separate them again.

    Args:
        tokenizer: A tokenizer whose units are known.
        units: One or more.
        merges: Those of a tokenizer of kind "bytes", which words are then given to.
    """
    marks = kind == "spaces"
    if kind != "bytes":
        one_word = re.compile(f" ?({ONE_WORD[kind]})")
    else:
        one_word = word_of_one_sort() if merges else re.compile("(?!)")
    matches = list(map(one_word.fullmatch, units))
    others = [unit for unit, match in zip(units, matches, strict=True) if not match]
    words = [match[1] for match in matches if match]
    parts = [
        encode_texts(tokenizer, others, marks=marks, segmented=False),
        merges.encode(words) if merges else _encode_words(tokenizer, words, marks),
    ]
    order = np.argsort([match is not None for match in matches], kind="stable")
    return select_ids(concatenate_ids(parts), np.argsort(order))


def _encode_words(tokenizer: Tokenizer, words: list[str], marks: bool) -> Ids:
    texts = [
        " ".join(words[at : at + _WORDS_PER_TEXT]) for at in range(0, len(words), _WORDS_PER_TEXT)
    ]
    encoded, word = _encode_batch(tokenizer, texts, marks, False)
    text = np.repeat(np.arange(len(texts)), encoded.sizes)
    sizes = np.bincount(word + _WORDS_PER_TEXT * text, minlength=len(words))
    return Ids(encoded.ids, encoded.starts, sizes)


class WordMerges:
    """Byte-level BPE of words by the library's model alone, without its steps before and after.

    Words are given to it together, with a byte between them that no text has and no merge joins.
    That takes a third of the time of a text with the same words.

    Args:
        tokenizer: A tokenizer for which ``merges_alone`` is true.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._model = tokenizer.model
        self._letter = {byte: letter for letter, byte in byte_table().items()}
        vocab = tokenizer.get_vocab(with_added_tokens=False)
        self._gap = vocab[chr(self._letter[_GAP])]
        self._bytes = np.zeros(max(vocab.values()) + 1, dtype=np.int64)
        self._bytes[list(vocab.values())] = list(map(len, vocab))

    def encode(self, words: list[str]) -> Ids:
        """The ids and word starts of words without line ends."""
        all_ids: list[int] = []
        for at in range(0, len(words), _WORDS_PER_CALL):
            text = "\n".join([*words[at : at + _WORDS_PER_CALL], ""]).encode()
            letters = text.replace(b"\n", bytes([_GAP])).decode("latin-1").translate(self._letter)
            all_ids += [token.id for token in self._model.tokenize(letters)]
        ids = np.array(all_ids, dtype=np.int64)
        gaps = ids == self._gap
        word, ids = np.cumsum(gaps)[~gaps], ids[~gaps]
        starts = np.diff(word, prepend=-1) != 0
        whole = "".join(words)
        if has_chinese(whole):
            starts = starts_within(starts, self._offsets(ids, whole), [whole], marks=False)
        return Ids(ids, starts, np.bincount(word, minlength=len(words)))

    def _offsets(self, ids: Ints, text: str) -> Ints:
        """The characters of which each token has a byte, from the first to after the last."""
        byte = np.frombuffer(text.encode(), dtype=np.uint8)
        character = np.cumsum((byte & 0xC0) != 0x80) - 1
        ends = np.cumsum(self._bytes[ids])
        return np.stack([character[ends - self._bytes[ids]], character[ends - 1] + 1], axis=1)


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
