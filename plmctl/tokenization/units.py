"""Cutting text into units that a tokenizer treats one by one.

A unit is a word, a mark, or a run of white space, with everything that its tokenization depends on:
the ids of a text are those of its units, one after the other. Because units repeat, counting and
encoding each distinct unit once is several times as fast as going through the text. ``cut`` cuts
whole batches of texts into parts of one unit or a few; ``pattern`` finds the units of a part.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Bools, Ints
from plmctl.characters import HAN, JOINERS, chinese

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

Kind = Literal["marks", "bytes", "spaces"]
"""The rule: BERT's words and marks, GPT-2's expression, or only white space."""

ONE_WORD: dict[Kind, str] = {
    "marks": "[A-Za-z0-9]+",
    "bytes": " (?:[A-Za-z]+|[0-9]+)",
    "spaces": "[!-~]+",
}
"""An expression for units that are one word of the pre-tokenizer.

They are ASCII, where normalization and the version of Unicode make no difference to this.
"""

SPACE_BYTE = "\u0120"
"""In the tokens of byte-level BPE, this stands for a space."""

SPACE_MARK = "\u2581"
"""In SentencePiece's pieces, this stands for the space before a word."""

GPT2_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""Radford et al. 2019; openai/gpt-2, encoder.py: what is cut off before bytes are merged."""

MARKS_PATTERN = GPT2_PATTERN.replace(r"\p{L}+", r"\p{L}[\p{L}\p{M}\x{200C}\x{200D}]*", 1)
"""The same, but marks and joiners stay with the letter before them.

In the scripts of India and South-East Asia vowel signs are marks: of a Hindi sentence GPT-2's
pattern makes three times as many pieces, and a token is never longer than a piece. Marks after
anything else, as in emoji, are cut as GPT-2's pattern does."""

WITHIN = "\uffff"
"""Before the text of a part within a word, for tokenizers that mark the beginning of a word.

No text that these cut has this character (``plain``)."""

WHITE_SPACE = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""The white space of the tokenizers library, as the inside of a class."""

BERT_SPACE = "\t\n\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"""Of this, what is white space for BERT too; it drops control characters."""


@cache
def pattern(kind: Kind, longest: int | None = None, *, marks_stay: bool = False) -> re.Pattern[str]:
    """An expression whose matches in a text are its units, in order.

    Args:
        marks_stay: With "bytes", the tokenizer has ``MARKS_PATTERN``.
        longest: Cut longer units at this number of characters. They are then not exact, but text
            without spaces and machine noise do not fill a table with units that never repeat.
    """
    many = "+" if longest is None else f"{{1,{longest}}}"
    if kind == "spaces":
        return re.compile(f"[^{WHITE_SPACE}]{many}")
    if kind == "marks":
        # BERT puts spaces around marks and Chinese characters. Chinese characters of five digits
        # are left out for speed: leaving units together is no error.
        marks = _class_of(bert_marks().tobytes())
        return re.compile(f"[^{HAN}{marks}{BERT_SPACE}]{many}|[{HAN}{marks}]")
    # GPT-2's expression, but with letters and digits in one unit: the tokenizer then cuts between
    # them. Next to a character that this Python does not know, a unit extends to the next space.
    # (For speed, all characters above four digits count as unknown.)
    kinds = _categories()
    letter = np.array([known[0] in "LN" for known in kinds])
    new = np.array([known == "Cn" for known in kinds])
    letters, marks = (
        _class_of(flags.tobytes()) for flags in (letter, ~letter & ~new & ~_is_space("bytes"))
    )
    word = f"[{letters}]{many}+"
    if marks_stay:
        first = class_of(lambda code: kinds[code][0] == "L")
        digits = class_of(lambda code: kinds[code][0] == "N")
        later = class_of(lambda code: kinds[code][0] in "LM" or chr(code) in JOINERS)
        word = f"(?>[{first}](?:[{later}]{many})?|[{digits}]{many})"
    unknown = _class_of(new.tobytes()) + "\U00010000-\U0010ffff"
    return re.compile(
        rf"'(?:[stmd]|re|ve|ll)"
        rf"| ?(?:{word}(?![{unknown}])|[{marks}]{many}+(?![{unknown}])"
        rf"|[^{WHITE_SPACE}]{many})"
        rf"|[{WHITE_SPACE}]{many}(?![^{WHITE_SPACE}])|[{WHITE_SPACE}]{many}"
    )


_RARE = 0.05  # up to this share of characters from Thai on, they are not cut at seams


class Parts(NamedTuple):
    """Texts that are cut into parts.

    Attributes:
        texts: The distinct parts; where words have a mark, with ``WITHIN`` before those within one.
        which: [parts] The number of each part in ``texts``.
        within: Which parts begin within a unit.
        inner: Which of these begin within a word.
        lengths: [parts] The characters of each part.
        counts: [texts] The number of parts of each text.
    """

    texts: list[str]
    which: NDArray[np.int32]
    within: Ints
    inner: Ints
    lengths: Ints
    counts: Ints


def cut(
    texts: list[str],
    kind: Kind,
    seams: Callable[[NDArray[np.uint32]], tuple[Bools, Bools]] | None = None,
) -> Parts:
    """Cut texts where no token and no rule of the pre-tokenizer crosses.

    To cut with arrays and to find the distinct parts with Arrow takes half of the time of an
    expression for units and a look-up for each.

    Args:
        kind: The kind of their units, of which each part has one or a few.
        seams: ``between`` of the tokenizer's seams, for text of scripts without spaces.
    """
    import pyarrow

    whole = "".join(texts)
    data = whole.encode()
    byte = np.frombuffer(data, dtype=np.uint8)
    code: NDArray[Any] = byte
    if len(byte) > len(whole):
        code = np.frombuffer(whole.encode("utf-32-le"), dtype="<u4")
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    ends = np.cumsum(sizes)
    begins, filled = (ends - sizes)[sizes > 0], ends[sizes > 0]
    # Tables answer for the first 65,536 characters; later ones are treated as the last of these.
    low = np.minimum(code, 0xFFFF) if code is not byte else byte
    cuts = np.append(_cuts_at_spaces(_is_space(kind)[low], code, begins, filled), True)
    within, inner = np.zeros((2, len(code) + 1), dtype=np.bool_)
    if kind == "marks":
        alone = alone_in_words()[low]
        cuts[:-1] |= alone
        cuts[1:] |= alone
    elif kind == "bytes":
        sort = character_sorts()[low]
        cuts[1:-1] |= (sort[1:] != sort[:-1]) & (sort[1:] > 0) & (sort[:-1] > 0)
    # Seams take time for every character, and pay only where much of the text has no spaces.
    far = 0 if code is byte or kind == "marks" else np.count_nonzero(code >= 0x0E00)
    if seams is not None and far > _RARE * len(code):
        within[1:-1], inner[1:-1] = seams(code)
        cuts |= within
    cuts[begins] = True
    within[begins] = inner[begins] = False
    bounds = np.flatnonzero(cuts)
    counts = np.diff(np.searchsorted(bounds, np.append(0, ends)))
    lengths = np.diff(bounds)
    parts_within, parts_inner = (np.flatnonzero(at[bounds[:-1]]) for at in (within, inner))
    if code is not byte:  # from characters to bytes
        bounds = np.append(np.flatnonzero((byte & 0xC0) != 0x80), len(byte))[bounds]
    strings = pyarrow.LargeStringArray.from_buffers(
        len(lengths), pyarrow.py_buffer(bounds), pyarrow.py_buffer(data)
    )
    encoded = strings.dictionary_encode()
    which = np.frombuffer(encoded.indices.buffers()[1], dtype=np.int32)[: len(lengths)]
    distinct = encoded.dictionary.to_pylist()
    if kind == "spaces" and len(parts_within):
        distinct, which = _apart(distinct, which, parts_within)
    return Parts(distinct, which, parts_within, parts_inner, lengths, counts)


def _apart(
    texts: list[str], which: NDArray[np.int32], within: Ints
) -> tuple[list[str], NDArray[np.int32]]:
    """The same parts, but a text within a word is not the same as that text at its beginning."""
    number = which.astype(np.int64)
    number[within] += len(texts)
    used = np.zeros(2 * len(texts), dtype=np.bool_)
    used[number] = True
    first, inside = (np.flatnonzero(half).tolist() for half in np.split(used, 2))
    place = np.cumsum(used, dtype=np.int32) - 1
    return [texts[n] for n in first] + [WITHIN + texts[n] for n in inside], place[number]


def _cuts_at_spaces(
    space: Bools,
    code: NDArray[Any],
    begins: Ints,
    ends: Ints,
) -> Bools:
    """Whether to cut before each character because of white space.

    Of a run of white space GPT-2's expression takes the last character by itself, or with the word
    after it if it is a space; at the end of a text the run is one unit. The other kinds drop it.

    Args:
        space: [N] Whether each character is white space.
        code: [N] The characters.
    """
    after = np.append(False, space[:-1])  # white space
    after[begins] = False
    before = np.append(~space[1:], False)  # something else
    before[ends - 1] = False
    last = space & before
    cuts: Bools = (space & ~after) | last
    cuts[1:] |= (last & (code != ord(" ")))[:-1]
    return cuts


@cache
def _is_space(kind: Kind) -> Bools:
    """Whether each character of four digits is white space for a pre-tokenizer."""
    table = np.zeros(0x10000, dtype=np.bool_)
    inside = re.compile(f"[{WHITE_SPACE if kind == 'bytes' else BERT_SPACE}]")
    table[[ord(space) for space in inside.findall("".join(map(chr, range(len(table)))))]] = True
    return table


@cache
def alone_in_words() -> Bools:
    """Whether BERT makes each character of at most four digits a separate word."""
    alone: Bools = bert_marks() | chinese(np.arange(0x10000, dtype=np.uint32))
    return alone


def plain_tokenizer(tokenizer: "Tokenizer") -> "Tokenizer":
    """The tokenizer, set to encode plain text.

    Text that looks like a special token is text, and nothing is padded or truncated. SentencePiece
    never gives a control piece for text; the tokenizers library does, as it has the published ones
    (``</s>`` of T5) among the pieces, and a list of whole words has them among the words. So they
    get a name there that no text has. Do not open ``to_str`` of the result: by these names, the
    special tokens would get other ids.
    """
    tokenizer.encode_special_tokens = True
    tokenizer.no_padding()
    tokenizer.no_truncation()
    kind = type(tokenizer.model).__name__
    pieces: Any = tokenizer.model
    names = {
        token.content: f"\ufffe{token.content}"
        for token in tokenizer.get_added_tokens_decoder().values()
        if token.special and pieces.token_to_id(token.content) is not None
    }
    if names and kind in ("Unigram", "WordLevel"):
        from tokenizers.models import Unigram, WordLevel

        own = json.loads(pieces.__getstate__())
        if kind == "Unigram":
            scores = [(names.get(piece, piece), score) for piece, score in own["vocab"]]
            tokenizer.model = Unigram(scores, own["unk_id"], own["byte_fallback"])
        else:
            ids = {names.get(word, word): id_ for word, id_ in own["vocab"].items()}
            unknown = own["unk_token"]
            tokenizer.model = WordLevel(ids, names.get(unknown, unknown))
    return tokenizer


@lru_cache(maxsize=2)
def plain_copy(tokenizer: "PreTrainedTokenizerBase") -> "Tokenizer":
    """A copy of what is inside a tokenizer of transformers, as ``plain_tokenizer`` sets it."""
    from tokenizers import Tokenizer

    whole: Any = tokenizer
    return plain_tokenizer(Tokenizer.from_str(whole.backend_tokenizer.to_str()))


def kind_of(tokenizer: "Tokenizer") -> Kind | None:
    """The kind of a tokenizer's units; None: they are unknown, so it must get whole texts.

    With "spaces", texts that are not ``plain`` have no units either.
    """
    if any(not token.special for token in tokenizer.get_added_tokens_decoder().values()):
        return None  # these match anywhere in a text, across units
    normalizer, cutter = steps_of(tokenizer.normalizer), steps_of(tokenizer.pre_tokenizer)
    names = [part["type"] for part in normalizer], [part["type"] for part in cutter]
    if names == (["BertNormalizer"], ["BertPreTokenizer"]):
        return "marks" if normalizer[0]["handle_chinese_chars"] else None
    if not names[0] and marks_stay(tokenizer):
        return "bytes"
    if names == ([], ["ByteLevel"]):
        plain = cutter[0]["use_regex"] and not cutter[0]["add_prefix_space"]
        return "bytes" if plain else None
    if names[1] == ["WhitespaceSplit", "Metaspace"]:
        alike = cutter[1]["prepend_scheme"] == "always" and all(map(_keeps_spaces, normalizer))
        return "spaces" if alike else None
    return None


def marks_stay(tokenizer: "Tokenizer") -> bool:
    """Whether a tokenizer cuts text by ``MARKS_PATTERN``."""
    return steps_of(tokenizer.pre_tokenizer) == steps_of(cut_by_marks())


def cut_by_marks() -> Any:
    """The pre-tokenizer of ``MARKS_PATTERN``."""
    from tokenizers import Regex
    from tokenizers import pre_tokenizers as steps

    cutter = steps.Split(Regex(MARKS_PATTERN), "isolated")
    return steps.Sequence([cutter, steps.ByteLevel(add_prefix_space=False, use_regex=False)])


_MORE_PIECES = 1.1  # from this many times on, GPT-2's pattern costs tokens


def cut_words(texts: Sequence[str]) -> str | None:
    """What GPT-2's pattern does to words whose vowel signs are marks; None: nothing to speak of."""
    from tokenizers.pre_tokenizers import ByteLevel

    cutters = ByteLevel(add_prefix_space=False), cut_by_marks()
    by_gpt2, by_marks = (
        sum(len(cutter.pre_tokenize_str(text)) for text in texts) for cutter in cutters
    )
    if by_gpt2 < _MORE_PIECES * by_marks:
        return None
    return (
        f"GPT-2's pattern cuts words at vowel signs and accents: {by_gpt2:,} pieces of this text "
        f"instead of {by_marks:,}, and no token is longer than a piece"
    )


def _keeps_spaces(normalizer: dict[str, Any]) -> bool:
    """Whether a normalizer keeps the white space between two words of a plain text."""
    if normalizer["type"] == "Replace":
        what = normalizer["pattern"].get("String", " ")
        return not re.search(r"\s", what + normalizer["content"]) and normalizer["content"] != ""
    forms = ("NFC", "NFD", "NFKC", "NFKD", "Precompiled", "StripAccents", "Lowercase")
    return normalizer["type"] in forms


def plain(text: str) -> bool:
    """Whether no character of a text attaches to a space before or after it.

    Separate accents, joiners and so on do; normalizers treat such a cluster as a whole.
    """
    return not (_CONTROL if text.isascii() else _attaching()).search(text)


_ENDS = (9, 10, 13)  # tabs and line ends: all normalizers keep them or make them spaces
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@cache
def _attaching() -> re.Pattern[str]:
    """Characters other than letters, numbers, marks, symbols and spaces of the basic plane."""
    exceptions = "\u0d4e\u0e33\u0eb3\uff9e\uff9f"  # letters that attach nevertheless
    others = class_of(
        lambda code: not (category(code)[0] in "LNPS" or category(code) == "Zs" or code in _ENDS)
    )
    above = "\U00010000-\U0010ffff"
    return re.compile(f"[{others}{exceptions}{above}]")


def cuts_at_spaces_only(tokenizer: "Tokenizer") -> bool:
    """Whether its pre-tokenizer cuts text only at white space, as SentencePiece does."""
    names = {part["type"] for part in steps_of(tokenizer.pre_tokenizer)}
    return bool(names) and names <= {"WhitespaceSplit", "Metaspace"}


def steps_of(component: Any) -> list[dict[str, Any]]:
    """The settings of a normalizer or pre-tokenizer, or of each in a sequence."""
    import json

    if component is None:
        return []
    settings: dict[str, Any] = json.loads(component.__getstate__())
    parts = settings.get("normalizers", settings.get("pretokenizers", [settings]))
    return list(parts)


def is_bert_mark(code: int) -> bool:
    """Whether BERT splits a character off: ASCII marks, and P* in old and new Unicode."""
    if 32 < code < 127:
        return not chr(code).isalnum()
    old = unicodedata.ucd_3_2_0.category(chr(code))
    return category(code)[0] == old[0] == "P"


@cache
def bert_marks() -> Bools:
    """Whether each character of at most four digits is a mark for BERT; the last one is not."""
    return np.array([is_bert_mark(code) for code in range(0xFFFF)] + [False])


@cache
def character_sorts() -> NDArray[np.uint8]:
    """1 for a letter, 2 for a number, 3 for a mark, 0 for anything else, [0x10000].

    GPT-2's expression cuts between two of 1 to 3. So 0 is not only white space, but also the
    apostrophe, which some letters after it belong to, and what is new in Unicode.
    """
    known, old = _categories(), unicodedata.ucd_3_2_0.category
    number = {"L": 1, "N": 2, "P": 3, "S": 3}
    sorts = np.array([number.get(category[0], 0) for category in known], dtype=np.uint8)
    before = [number.get(old(chr(code))[0], 0) for code in range(len(known))]
    sorts[sorts != before] = 0
    sorts[ord("'")] = 0
    return sorts


@cache
def word_of_one_sort() -> re.Pattern[str]:
    """One word for GPT-2's expression: characters of one sort, after at most one space."""
    sorts = [_class_of((character_sorts() == sort).tobytes()) for sort in (1, 2, 3)]
    return re.compile(f"( ?(?:{'|'.join(f'[{inside}]+' for inside in sorts)}))")


@cache
def unspaced(sort: Literal["L", "N"]) -> str:
    """Letters or numbers of scripts without capitals and mostly without spaces, for a class.

    They start with Thai, where characters have three bytes, and are so old that all versions of
    Unicode in use agree on them.
    """
    kinds = ("Lo", "Lm") if sort == "L" else ("Nd", "Nl", "No")
    known, old = _categories(), unicodedata.ucd_3_2_0.category
    far = range(0xE00, 0x10000)
    fits = [known[code] in kinds and old(chr(code))[0] == sort for code in far]
    return _class_of(bytes(0xE00) + bytes(fits))


def category(code: int) -> str:
    """The general category in Unicode of a code point of at most four digits."""
    return _categories()[code]


@cache
def _categories() -> list[str]:
    return [unicodedata.category(chr(code)) for code in range(0x10000)]


def class_of(of: Callable[[int], bool]) -> str:
    """The characters of at most four digits for which ``of`` is true, as the inside of a class."""
    return _class_of(bytes(map(of, range(0x10000))))


def _class_of(flags: bytes) -> str:
    runs = (run.span() for run in re.finditer(rb"\x01+", flags))
    return "".join(f"\\u{first:04x}-\\u{end - 1:04x}" for first, end in runs)
