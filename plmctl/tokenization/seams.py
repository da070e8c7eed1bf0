"""Cutting words of scripts without spaces where no token can cross.

For the pre-tokenizers of GPT-2 and T5 a Chinese sentence is one word, which hardly ever repeats.
Its parts between such seams are a few characters each, and do repeat: a table has their ids.

**Byte-level BPE** (``ByteSeams``). Every merge gives a token of the vocabulary. So if no token
contains the boundary between two characters, no merge joins what is left and right of it, and both
sides have the same ids separately as together. A token is a string of bytes, and may hold a part
of a character. 中国 is ``E4 B8 AD | E5 9B BD``. These tokens cross the boundary |:

- ``E4 B8 AD E5 9B BD``: both characters, or more to either side.
- ``AD E5``: the last byte of one and the first of the other. It also crosses between all other
  characters that end with AD and begin with E5.

``tests/tokenization/test_seams.py`` says this rule in a few lines (``crosses``), token by token.
It is too slow for a corpus: 50,000 tokens, each at all its boundaries, for every pair of
characters. Here a table answers for a pair of characters, which takes two look-ups:

1. ``_inner_boundaries`` finds every boundary inside a token, and what the token has to both sides:
   one, two or three bytes of a character, which are 6, 12 or 16 bits of its code point (a
   ``_Parts``).
2. All tokens treat some characters alike. ``_sorts`` gives such characters one number. A sort is
   the answer to three questions: which of the parts with one, two and three bytes does a character
   have? Characters that are never cut (not of these scripts, or not of three bytes) are sort 0.
3. ``_joined`` has a row for each sort at the left and a column for each at the right: True where a
   token crosses. The 65,536 characters have a few thousand sorts.

**Unigram** (``PieceSeams``). Where no piece crosses, the most probable pieces of the whole are
those of both sides. Pieces are characters, so a table of pairs of characters is enough. The parts
are encoded here too (``_viterbi``), many at once, as a column of letters after the other: the
library has no call for a part of a word. Probabilities are added up from the beginning of a word,
so that rounding may decide between two ways that are nearly equal; such parts are found, and the
library gets their whole texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Bools, Ints
from plmctl.characters import chinese
from plmctl.tokenization.units import SPACE_MARK, alone_in_words, steps_of, unspaced

if TYPE_CHECKING:
    from tokenizers import Tokenizer


_CODES = 0x10000  # of at most three bytes
_LARGEST = 1 << 26  # pairs of sorts of characters, a byte each
_LENGTHS = (1, 2, 3)
_NONE = 0xFF  # a byte that no text has


class _Parts(NamedTuple):
    """The bytes that tokens have of characters of three bytes at a boundary.

    Attributes:
        length: The number of bytes, [N].
        bits: The bits of the code point in these bytes, [N].
    """

    length: Ints
    bits: Ints

    def codes(self, length: int, *, last: bool) -> Ints:
        """The characters that end or begin with each part of this length, [parts, characters]."""
        bits, unsaid = self.bits[self.length == length, None], 64 ** (3 - length)
        rest = np.arange(0, _CODES, 64**length) if last else np.arange(unsaid)
        codes: Ints = rest + bits * (1 if last else unsaid)
        return codes


class ByteSeams:
    """Finds the places at which texts can be cut for byte-level BPE."""

    def __init__(self, vocab: Iterable[str]) -> None:
        left, right = _inner_boundaries(vocab)
        # The table has a row for each sort: characters that all tokens treat alike.
        self._row, rows = _sorts(left, last=True)
        self._column, columns = _sorts(right, last=False)
        self._fits = rows * columns <= _LARGEST
        self._joined = np.ones((rows, columns) if self._fits else (1, 1), dtype=bool)
        if self._fits:
            self._joined[1:, 1:] = False
            whole = (left.length == 3) & (right.length == 3)
            self._joined[self._row[left.bits[whole]], self._column[right.bits[whole]]] = True
            others = (part[~whole].tolist() for part in (*left, *right))
            for length, bits, after, started in set(zip(*others, strict=True)):
                ending = _Parts(np.array([length]), np.array([bits])).codes(length, last=True)
                beginning = _Parts(np.array([after]), np.array([started])).codes(after, last=False)
                at = np.unique(self._row[ending]), np.unique(self._column[beginning])
                self._joined[np.ix_(*at)] = True

    def between(self, code: NDArray[np.uint32]) -> tuple[Bools, Bools]:
        """The places that no token can cross, and those of them at which no word starts.

        The latter are between letters, or digits, that are not Chinese.

        Args:
            code: [N] characters.

        Returns:
            [N - 1] Both, between each character and the next.
        """
        low = np.minimum(code, _CODES - 1)  # which is not assigned
        if not self._fits:
            none = np.zeros(max(0, len(code) - 1), dtype=np.bool_)
            return none, none
        cut: Bools = ~self._joined[self._row[low[:-1]], self._column[low[1:]]]
        sort, han = _sort_of_all()[low], chinese(code)
        return cut, cut & (sort[:-1] == sort[1:]) & ~han[:-1] & ~han[1:]


def merges_alone(tokenizer: Tokenizer) -> bool:
    """Whether the merges decide alone what becomes of a word's bytes, each of which is a token.

    Args:
        tokenizer: A tokenizer of kind "bytes".
    """
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    model = tokenizer.model
    if not isinstance(model, BPE) or model.dropout or model.ignore_merges:
        return False
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return False
    vocab = tokenizer.get_vocab(with_added_tokens=False)
    # A byte without a token would be dropped, and the bytes around it would be neighbours. The last
    # byte is in no UTF-8, so in no token with others.
    last = chr(0xFF)
    return vocab.keys() >= set(ByteLevel.alphabet()) and not any(
        last in token and token != last for token in vocab
    )


def byte_seams(tokenizer: Tokenizer) -> ByteSeams | None:
    """The seams of a tokenizer of kind "bytes"; None if its merges cannot be predicted."""
    if not merges_alone(tokenizer):
        return None
    return ByteSeams(tokenizer.get_vocab(with_added_tokens=False))


def _inner_boundaries(vocab: Iterable[str]) -> tuple[_Parts, _Parts]:
    """The characters of three bytes left and right of boundaries inside tokens."""
    gap = chr(_NONE) * 3
    text = gap + gap.join(vocab) + gap
    byte = np.frombuffer(text.translate(byte_table()).encode("latin-1", "replace"), dtype=np.uint8)
    first, later, none = byte >> 4 == 0xE, byte >> 6 == 0b10, byte == _NONE
    at = np.flatnonzero(first[1:] & later[:-1]) + 1
    # A token that begins within a character has one or two of its bytes before the boundary.
    one, two = none[at - 2], later[at - 2] & none[at - 3]
    at = at[one | two | (later[at - 2] & first[at - 3])]
    before = np.select([none[at - 2], none[at - 3]], [1, 2], 3)
    after = 1 + later[at + 1] + (later[at + 1] & later[at + 2])
    bits = np.where(first, byte & 0x0F, byte & 0x3F).astype(np.int64)
    left = (bits[at - 3] * (before == 3) << 6 | bits[at - 2] * (before > 1)) << 6 | bits[at - 1]
    right = (bits[at] << 6 | bits[at + 1]) << 6 | bits[at + 2]
    return _Parts(before, left), _Parts(after, right >> 6 * (3 - after))


def byte_table() -> dict[int, int]:
    """The byte for which each character of a token stands (GPT-2's table)."""
    alike = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in alike]
    return {byte: byte for byte in alike} | {0x100 + n: byte for n, byte in enumerate(others)}


def _sorts(parts: _Parts, *, last: bool) -> tuple[Ints, int]:
    """The sort of each character by its parts, and the number of sorts.

    Characters of sort 0 are never cut from their neighbours.
    """
    key = np.zeros(_CODES, dtype=np.int64)
    parts = _Parts(*np.unique(np.stack(parts), axis=1))
    for length in _LENGTHS:
        codes = parts.codes(length, last=last)
        number = np.zeros(_CODES, dtype=np.int64)
        number[codes] = np.arange(1, len(codes) + 1)[:, None]
        key = key * (len(codes) + 1) + number
    sorts, sort = np.unique(np.where(_sort_of_all() > 0, key, -1), return_inverse=True)
    return sort, len(sorts)


@cache
def _sort_of_all() -> NDArray[np.uint8]:
    """1 where a character is a letter of ``unspaced``, 2 where a number, or 0."""
    sorts = np.zeros(_CODES, dtype=np.uint8)
    for number, inside in enumerate((unspaced("L"), unspaced("N")), start=1):
        for run in re.finditer(f"[{inside}]+", "".join(map(chr, range(_CODES)))):
            sorts[run.start() : run.end()] = number
    return sorts


# --- Unigram ---


_LONGEST = 64  # characters of parts that are encoded here

_CELLS = 1 << 18  # letters of the parts that are encoded at once: 10 MB of memory

_PAIRS = 1 << 22  # a table of pairs of letters: a few share a place, and are then both not cut

_JAMO = re.compile("[\u1100-\u11ff\ua960-\ua97f\ud7b0-\ud7ff]")  # parts of Korean syllables

_UNKNOWN = 10.0
"""By so much a character that is no piece is less probable than the least probable piece."""

_NEAR = 1e-6
"""Two ways to cut a part may be equal within its word if they differ by less than this.

Both are logarithms of probabilities. Those of a word are added from its first piece on, so that
there may be a number of millions before a part, which rounds the sums of the part by 1e-9."""


class PieceSeams:
    """Finds the places at which texts can be cut for a Unigram model, and the pieces of the parts.

    A seam is beside a mark or a Chinese character: there a word starts (``words.starts_within``),
    and no rule joins left and right before the model sees them. Pieces side by side are added up
    there, and an unknown character is not beside another one, with which it would be one token.

    Args:
        pieces: The text and the logarithm of the probability of each id.
        normalize: What the tokenizer makes of a text before it is cut into words; of each character
            by itself, but for those in ``together`` and for parts of Korean syllables.
        together: Characters that it replaces together with those beside them.
    """

    def __init__(
        self,
        pieces: Sequence[tuple[str, float]],
        unknown: int,
        normalize: Callable[[str], str],
        together: frozenset[str],
    ) -> None:
        self._tree, self._unknown = _Tree(pieces), unknown
        self._unlikely = min(score for _, score in pieces) - _UNKNOWN
        self._normalize, self._together = normalize, together
        self._joined = np.zeros(_PAIRS, dtype=np.bool_)
        self._joined[_place_of(*self._tree.pairs)] = True
        # What the model gets for each character that was met: a stretch of ``_read``.
        self._met = np.zeros(_CODES, dtype=np.bool_)
        self._begin, self._count = np.zeros((2, _CODES), dtype=np.int64)
        self._read = np.zeros(1, dtype=np.int64)
        self._met[-1] = True  # stands for all that are larger

    def between(self, code: NDArray[np.uint32]) -> tuple[Bools, Bools]:
        """The places that no piece can cross; a word starts at each of them.

        Args:
            code: [N] characters.
        """
        low = np.minimum(code, _CODES - 1)
        self._meet(low)
        alone, count, begin = alone_in_words()[low], self._count[low], self._begin[low]
        first = self._read[np.where(count > 0, begin, 0)]
        last = self._read[np.where(count > 0, begin + count - 1, 0)]
        known = self._tree.is_piece
        cut: Bools = (alone[:-1] | alone[1:]) & known[last[:-1]] & known[first[1:]]
        cut &= ~self._joined[_place_of(last[:-1], first[1:])]
        return cut, np.zeros(len(cut), dtype=np.bool_)

    def _meet(self, code: NDArray[np.uint32]) -> None:
        """Find out what the model gets for new characters; nothing for those that are not alone."""
        new = np.zeros(_CODES, dtype=np.bool_)
        new[code] = True
        read, size = [self._read], len(self._read)
        for number in np.flatnonzero(new & ~self._met).tolist():
            text = self._normalize(chr(number))
            spaced = SPACE_MARK in text or any(map(str.isspace, text))
            if spaced or chr(number) in self._together or _JAMO.match(chr(number)):
                continue
            self._begin[number], self._count[number] = size, len(text)
            read.append(self._tree.numbers_of(text))
            size += len(text)
        self._read = np.concatenate(read)
        self._met |= new

    def encode(
        self, parts: Sequence[str], *, marked: bool
    ) -> tuple[tuple[Ints, Bools, Ints], Bools]:
        """The pieces of parts of words.

        Args:
            marked: Whether they begin their words, and so have the mark of a space.

        Returns:
            The ids of all parts, whether a word starts at each, and the number of ids of each part;
            and whether a part certainly has the same ids in its word.
        """
        texts = [part.strip(" ")[:_LONGEST] for part in parts]
        code = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
        low = np.minimum(code, _CODES - 1)
        self._meet(low)
        sizes = np.fromiter(map(len, texts), np.int64, len(texts))
        count = self._count[low]
        part = np.repeat(np.arange(len(texts)), sizes)
        lengths = np.bincount(part, count, len(texts)).astype(np.int64)
        sure = (np.bincount(part, count == 0, len(texts)) == 0) & (sizes < _LONGEST) & (sizes > 0)
        # From the characters of the texts to those that the model gets.
        of_character = np.repeat(np.arange(len(code)), count)
        within = np.arange(len(of_character)) - np.repeat(np.cumsum(count) - count, count)
        letters = self._read[self._begin[low][of_character] + within]
        begins = np.cumsum(lengths) - lengths
        of_word = letters
        if marked:
            of_word = np.insert(letters, begins, self._tree.numbers_of(SPACE_MARK)[0])
        row, begin, ids, near = self._best(of_word, lengths + marked)
        sure[near] = False
        # Unknown characters side by side are one token.
        kept = (ids != self._unknown) | (np.append(-1, ids[:-1]) != self._unknown)
        kept |= np.append(-1, row[:-1]) != row
        row, begin, ids = row[kept], begin[kept], ids[kept]
        # A word starts at the first token, and before and after a character that is alone. But the
        # mark of a space belongs to what follows.
        alone = np.append(alone_in_words()[low], False)
        at = np.maximum(begins[row] + begin - marked, 0)
        character = np.append(of_character, len(low))[at]
        starts = alone[character] | alone[character - 1]
        starts &= (np.append(within, 0)[at] == 0) & (begin > marked)
        starts |= begin == 0
        counts = np.bincount(row, minlength=len(texts)).astype(np.int64)
        return (ids, starts, counts), sure

    def _best(self, letters: Ints, lengths: Ints) -> tuple[Ints, Ints, Ints, Ints]:
        """The most probable pieces of texts, many at once.

        Args:
            lengths: [texts]

        Returns:
            The text, first letter and id of each piece, in order; and the texts in which another
            way is nearly as probable.
        """
        begins, order = np.cumsum(lengths) - lengths, np.argsort(-lengths, kind="stable")
        columns = [np.zeros((4, 0), dtype=np.int64)]
        at = 0
        while at < len(order):
            longest = int(lengths[order[at]])
            rows = order[at : at + max(1, _CELLS // max(1, longest))]
            place = begins[rows, None] + np.arange(longest)
            inside = np.arange(longest) < lengths[rows, None]
            table = np.where(inside, letters[np.where(inside, place, 0)], 0)
            text, *of_piece = self._viterbi(table, lengths[rows])
            columns.append(np.stack([rows[text], *of_piece]))
            at += len(rows)
        text, first, ids, near = np.concatenate(columns, axis=1)
        in_order = np.lexsort((first, text))
        return text[in_order], first[in_order], ids[in_order], np.unique(text[near > 0])

    def _viterbi(self, letters: Ints, sizes: Ints) -> tuple[Ints, Ints, Ints, Bools]:
        """``_best`` of a table [texts, longest], the longest text first; in any order.

        Returns:
            The text, first letter and id of each piece, and whether another one was nearly as good.
        """
        count, longest = letters.shape
        reach = [int((sizes >= size).sum()) for size in range(longest + 2)]
        best = np.full((longest + 1, count), -np.inf)
        second = best.copy()  # of another way: where it is nearly as good, the library decides
        begin, piece = np.zeros((2, longest + 1, count), dtype=np.int64)
        best[0] = 0

        def offer(rows: Ints, start: int, end: int, score: Any, ids: Any) -> None:
            total, before = best[start, rows] + score, best[end, rows]
            better = total > before
            second[end, rows] = np.maximum(second[end, rows], np.minimum(total, before))
            best[end, rows] = np.maximum(total, before)
            begin[end, rows] = np.where(better, start, begin[end, rows])
            piece[end, rows] = np.where(better, ids, piece[end, rows])

        for start in range(longest):
            rows = np.arange(reach[start + 1])
            node = np.zeros(len(rows), dtype=np.int64)
            unknown = np.ones(len(rows), dtype=np.bool_)
            for end in range(start + 1, longest + 1):
                inside = rows < reach[end]
                rows, node = self._tree.below(node[inside], letters[:, end - 1], rows[inside])
                if not len(rows):
                    break
                score = self._tree.score[node]
                is_piece = score > -np.inf
                ids = self._tree.id[node[is_piece]]
                offer(rows[is_piece], start, end, score[is_piece], ids)
                if end == start + 1:
                    unknown[rows[is_piece]] = False
            # A character that is no piece by itself can always be the unknown token.
            offer(np.flatnonzero(unknown), start, start + 1, self._unlikely, self._unknown)
        rows, at = np.arange(count), sizes
        columns = [(rows[:0], rows[:0], rows[:0], np.zeros(0, dtype=np.bool_))]
        while len(rows := rows[at > 0]):
            at = at[at > 0]
            near = best[at, rows] - second[at, rows] < _NEAR
            columns.append((rows, begin[at, rows], piece[at, rows], near))
            at = begin[at, rows]
        text, first, ids, is_near = (np.concatenate(each) for each in zip(*columns, strict=True))
        return text, first, ids, is_near


def _place_of(left: Ints, right: Ints) -> Ints:
    """The place of each pair of letters in a table."""
    return (left * 0x9E3779B1 + right) & (_PAIRS - 1)


class _Tree:
    """All pieces by their letters, and the beginnings of pieces.

    Attributes:
        is_piece: Whether each letter is a piece; 0 stands for all letters that no piece has.
        pairs: All letters that a piece has side by side, the left and the right ones.
        score: Of the piece that ends at each node; -inf if none does.
    """

    def __init__(self, pieces: Sequence[tuple[str, float]]) -> None:
        sizes = np.array([len(text) for text, _ in pieces])
        code = np.frombuffer("".join(text for text, _ in pieces).encode("utf-32-le"), dtype="<u4")
        self._letters, letter = np.unique(code, return_inverse=True)
        letter += 1
        begins = np.cumsum(sizes) - sizes
        self.is_piece = np.zeros(len(self._letters) + 1, dtype=np.bool_)
        self.is_piece[letter[begins[sizes == 1]]] = True
        left, right = np.ones((2, len(code)), dtype=np.bool_)
        left[begins[sizes > 0] + sizes[sizes > 0] - 1] = right[begins[sizes > 0]] = False
        self.pairs = letter[left], letter[right]
        # Nodes have their numbers by depth, and at a depth by the node above and the letter: they
        # are in the order of their keys.
        node, keys, count = np.zeros(len(pieces), dtype=np.int64), [], 1
        for depth in range(sizes.max()):
            longer = np.flatnonzero(sizes > depth)
            key = self._key_of(node[longer], letter[begins[longer] + depth])
            distinct, place = np.unique(key, return_inverse=True)
            node[longer] = count + place
            keys.append(distinct)
            count += len(distinct)
        self._keys = np.concatenate(keys)
        self.score, self.id = np.full(count, -np.inf), np.zeros(count, dtype=np.int64)
        self.score[node] = [score for _, score in pieces]
        self.id[node] = np.arange(len(pieces))
        self.score[0] = -np.inf

    def numbers_of(self, text: str) -> Ints:
        """The numbers of letters, from 1 on."""
        code = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
        at = np.minimum(np.searchsorted(self._letters, code), len(self._letters) - 1)
        return np.where(self._letters[at] == code, at + 1, 0)

    def below(self, node: Ints, letters: Ints, rows: Ints) -> tuple[Ints, Ints]:
        """The rows whose letter continues from their node, and the nodes there."""
        key = self._key_of(node, letters[rows])
        at = np.minimum(np.searchsorted(self._keys, key), len(self._keys) - 1)
        is_below = self._keys[at] == key
        return rows[is_below], at[is_below] + 1

    def _key_of(self, node: Ints, letter: Ints) -> Ints:
        return node * (len(self._letters) + 1) + letter


def piece_seams(tokenizer: Tokenizer) -> PieceSeams | None:
    """The seams of a tokenizer of kind "spaces"; None if they cannot be predicted."""
    import json

    model = json.loads(tokenizer.to_str())["model"]
    if model["type"] != "Unigram" or model.get("byte_fallback") or model["unk_id"] is None:
        return None
    normalizer = tokenizer.normalizer
    patterns = [step["pattern"] for step in steps_of(normalizer) if step["type"] == "Replace"]
    if not all("String" in pattern for pattern in patterns):
        return None
    together = (pattern["String"] for pattern in patterns if len(pattern["String"]) > 1)
    normalize = normalizer.normalize_str if normalizer else str
    pieces = [(piece, score) for piece, score in model["vocab"]]
    return PieceSeams(pieces, model["unk_id"], normalize, frozenset("".join(together)))
