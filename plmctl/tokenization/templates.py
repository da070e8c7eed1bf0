"""Tokenizers around a vocabulary: cleaning, special tokens, template, class.

``TokenizerTemplate`` is what a family says of its tokenizer, in its own file. The classes of
transformers set up the published rules themselves, also when they are loaded. If a class does not
support a setting, the tokenizer has the general class, which loads the saved rules.
"""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from plmctl.characters import JOINERS
from plmctl.config.tokenizer import Algorithm, TokenizerConfig
from plmctl.errors import ConfigError
from plmctl.tokenization.units import Kind, cut_by_marks

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Rules:
    """How text is cleaned before it is cut."""

    normalization: str
    lowercase: bool
    strip_accents: bool
    space_chinese: bool
    keep_joiners: bool = False


CLEANED = Rules("none", lowercase=True, strip_accents=True, space_chinese=True)
"""BERT's cleaning, uncased."""

AS_IS = Rules("none", lowercase=False, strip_accents=False, space_chinese=False)


class TokenizerTemplate:
    """A family's tokenizer, apart from its vocabulary, with the rules of a config.

    Attributes:
        CLASS: Its class in transformers.
        KIND: The kind of its units under the published rules.
        FIRST: Special tokens with the first ids.
        LAST: Special tokens with the last ids.
        MAX_LENGTH: Longest input of the published models, in tokens.
        MASK: The mask token, if it includes the space before it.
        OPTIONS: Options of ``TokenizerConfig`` that only this family has.
    """

    ALGORITHM: ClassVar[Algorithm]
    CLASS: ClassVar[str]
    KIND: ClassVar[Kind]
    FIRST: ClassVar[tuple[str, ...]] = ()
    LAST: ClassVar[tuple[str, ...]] = ()
    RULES: ClassVar[Rules]
    MAX_LENGTH: ClassVar[int] = 512
    MASK: ClassVar[str] = ""
    OPTIONS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: TokenizerConfig) -> None:
        self.config = config

    # --- What a family may define ---

    def class_options(self) -> tuple[dict[str, Any], bool]:
        """Arguments of the family's class, and whether the general class is needed."""
        return {}, self.rules != self.RULES or self.config.pattern == "marks"

    def sentinels(self) -> list[str]:
        """T5's sentinels, in the order of their ids."""
        return []

    def extra_tokens(self) -> dict[str, Any]:
        """The argument of the family's class for the special tokens of the config."""
        extra = list(self.config.special_tokens)
        return {"extra_special_tokens": extra} if extra else {}

    def normalizer(self) -> Normalizer:
        """The rules, as the tokenizers library takes them."""
        from tokenizers import Regex, normalizers

        rules = self.rules
        parts = unicode_form(rules)
        if self.KIND != "marks" or self.config.pretokenized:
            return normalizers.Sequence(parts + folding(rules))
        if rules.keep_joiners:  # BERT's cleaning, which cannot do this
            parts.append(normalizers.Replace(Regex(_CONTROLS), ""))
        parts.append(
            normalizers.BertNormalizer(
                not rules.keep_joiners, rules.space_chinese, rules.strip_accents, rules.lowercase
            )
        )
        return normalizers.Sequence(parts)

    def make(self, model: dict[str, Any]) -> PreTrainedTokenizerFast:
        """The tokenizer.

        Args:
            model: ``vocab``, and ``merges`` for BPE, as the family's class takes them; empty for
                only the rules.
        """
        import transformers
        from tokenizers import AddedToken

        options, general = self.class_options()
        if self.MASK:
            options["mask_token"] = AddedToken(self.MASK, lstrip=True, special=True)
        tokenizer: PreTrainedTokenizerFast = getattr(transformers, self.CLASS)(
            **model,
            **options,
            model_max_length=self.max_length,
            split_special_tokens=self.config.split_special_tokens,
            **self.extra_tokens(),
        )
        return self._generalised(tokenizer) if general else tokenizer

    # --- What callers use ---

    @property
    def max_length(self) -> int:
        """Longest input in tokens."""
        return self.config.max_length or self.MAX_LENGTH

    @property
    def special_tokens(self) -> tuple[list[str], list[str]]:
        """The special tokens before and after the tokens of the vocabulary.

        Raises:
            ConfigError: A special token of the config is repeated.
        """
        first = [*self.FIRST, *self.config.special_tokens]
        last = [*self.LAST, *self.sentinels()]
        seen: set[str] = set()
        for token in first + last:
            if token in seen:
                raise ConfigError(
                    f"special_tokens: {token!r} is there twice",
                    f"the family {self.config.family} has {', '.join(self.FIRST + self.LAST)}",
                )
            seen.add(token)
        return first, last

    @property
    def kind(self) -> Kind:
        """The kind of units to count in the text."""
        if self.config.pretokenized:
            return "spaces"
        # Chinese characters are units only where they are words, and joiners are marks for BERT.
        is_bert = self.rules.space_chinese and not self.rules.keep_joiners
        return "spaces" if self.KIND == "marks" and not is_bert else self.KIND

    @cached_property
    def rules(self) -> Rules:
        """The rules of the config; the family's where the config has none."""
        config, published = self.config, self.RULES
        lowercase = published.lowercase if config.lowercase is None else config.lowercase
        accents = config.strip_accents
        if accents is None:  # BERT drops accents if case is folded
            accents = lowercase if published == CLEANED else published.strip_accents
        chinese = config.space_chinese
        return Rules(
            config.normalization or published.normalization,
            lowercase,
            accents,
            published.space_chinese and not config.pretokenized if chinese is None else chinese,
            bool(config.keep_joiners) and self.KIND != "bytes",  # bytes keep them anyway
        )

    def _generalised(self, tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
        """The tokenizer with the config's rules, as the general class, which keeps them."""
        from tokenizers.models import WordPiece
        from transformers import PreTrainedTokenizerFast

        backend = tokenizer.backend_tokenizer
        backend.normalizer = self.normalizer()
        if self.config.pattern == "marks":
            backend.pre_tokenizer = cut_by_marks()
        if isinstance(backend.model, WordPiece) and self.config.max_word_length:
            backend.model.max_input_chars_per_word = self.config.max_word_length
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            model_input_names=tokenizer.model_input_names,
            model_max_length=tokenizer.model_max_length,
            split_special_tokens=self.config.split_special_tokens,
            extra_special_tokens=self.extra_tokens().get("extra_special_tokens", []),
            **tokenizer.special_tokens_map,
        )


# --- Rules as parts of a normalizer ---


def folding(rules: Rules) -> list[Any]:
    """Chinese characters apart, accents dropped, case folded: what the rules have of these."""
    from tokenizers import normalizers

    parts: list[Any] = []
    if rules.space_chinese:
        parts.append(normalizers.BertNormalizer(False, True, False, False))
    if rules.strip_accents:
        parts += [normalizers.NFD(), normalizers.StripAccents()]
    if rules.lowercase:
        parts.append(normalizers.Lowercase())
    return parts


def unicode_form(rules: Rules) -> list[Any]:
    """The Unicode form that text gets first."""
    from tokenizers import normalizers

    if rules.normalization == "none":
        return []
    if rules.normalization == "nmt_nfkc":
        return [normalizers.Precompiled(nmt_nfkc(keep_joiners=rules.keep_joiners))]
    forms = {
        "nfc": normalizers.NFC,
        "nfd": normalizers.NFD,
        "nfkc": normalizers.NFKC,
        "nfkd": normalizers.NFKD,
    }
    return [forms[rules.normalization]()]


_CONTROLS = r"[\p{Cc}\p{Cf}\p{Co}\x{FFFD}&&[^\t\n\r\x{200C}\x{200D}]]"


# --- T5's text normalisation, in the form that its class in transformers takes ---
#
# SentencePiece's rule ``nmt_nfkc``: control characters are removed, all kinds of space become one,
# and the rest has Unicode's form NFKC. A tokenizer has it as a table from characters to
# replacements: a trie in a double array (Aoe 1989; the layout is that of the darts-clone library),
# then the replacements, each with a zero byte at the end.


_DELETED = {*range(0x01, 0x09), 0x0B, *range(0x0E, 0x20), 0x7F, 0x8F, 0x9F}

_SPACES = {
    0x09, 0x0A, 0x0C, 0x0D, 0x1680, *range(0x200B, 0x2010), 0x2028, 0x2029, 0x2581, 0xFEFF, 0xFFFD,
}  # fmt: skip

_UNCHANGED = {0xFF5E}  # the wide tilde, which is not a tilde in Japanese

_LEAF = 1 << 31


@cache
def nmt_nfkc(*, keep_joiners: bool = False) -> bytes:
    """The table for ``_spm_precompiled_charsmap``."""
    changes = nmt_nfkc_replacements()
    if keep_joiners:
        changes = {key: value for key, value in changes.items() if key not in JOINERS}
    table = {key.encode(): value.encode() for key, value in changes.items()}
    values = bytearray()
    places: dict[bytes, int] = {}
    for value in sorted(set(table.values())):
        places[value] = len(values)
        values += value + b"\0"
    units = _double_array({key: places[value] for key, value in table.items()})
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + bytes(values)


@cache
def nmt_nfkc_replacements() -> dict[str, str]:
    """The replacement of each character, or letter with accents, that changes."""
    table: dict[str, str] = {}
    for code in _candidates():
        character = chr(code)
        if code in _UNCHANGED or unicodedata.category(character) == "Cs":
            continue
        if code in _DELETED or code in _SPACES:
            table[character] = "" if code in _DELETED else " "
            continue
        normal = unicodedata.normalize("NFKC", character)
        if normal != character:
            table[character] = normal
        apart = unicodedata.normalize("NFD", character)
        if len(apart) > 1 and len(apart.encode()) < 6:  # longer keys are never looked up
            table[apart] = normal
    return table


def _candidates() -> Iterator[int]:
    """The code points of all blocks of 256 in which some character changes.

    A block in Unicode's decomposed form has no character with a decomposition, so most blocks are
    skipped.
    """
    special = {code >> 8 for code in _DELETED | _SPACES}
    for block in range(0x1100):
        codes = range(max(1, block << 8), (block + 1) << 8)
        text = "" if 0xD8 <= block <= 0xDF else "".join(map(chr, codes))  # surrogates
        if block in special or not unicodedata.is_normalized("NFKD", text):
            yield from codes


def _double_array(table: dict[bytes, int]) -> list[int]:
    """The units of a trie: the children of a node are at its base, exclusive-or their byte."""
    units, free = [0] * 256, [True] * 256
    free[0] = False
    waiting: list[tuple[int, list[bytes], int]] = [(0, sorted(table), 0)]
    last, bases = 0, set[int]()
    while waiting:
        node, keys, depth = waiting.pop()
        groups: dict[int, list[bytes]] = {}
        for key in keys:
            groups.setdefault(key[depth] if len(key) > depth else 0, []).append(key)
        base = last = _free_base(free, list(groups), last, bases, node)
        bases.add(base)
        while len(free) < (base | 255) + 1:
            units += [0] * 256
            free += [True] * 256
        units[node] |= (base ^ node) << 10 | (0 in groups) << 8
        for label, group in groups.items():
            child = base ^ label
            free[child] = False
            if label:
                units[child] = label
                waiting.append((child, group, depth + 1))
            else:
                units[child] = _LEAF | table[group[0]]
    return units


def _free_base(free: list[bool], labels: list[int], last: int, taken: set[int], node: int) -> int:
    """A place where the children of a node fit, in the last block of 256 or a later one.

    Two nodes must not have the same place, or they would share their children; nor may it be the
    place of the node itself.
    """
    base = last & ~255
    while (
        base == node
        or base in taken
        or not all((base ^ label) >= len(free) or free[base ^ label] for label in labels)
    ):
        base += 1
    return base
