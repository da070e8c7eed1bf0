"""The families' tokenizers around a vocabulary: cleaning, special tokens, template, class.

The classes of transformers set up the published rules themselves, also when they are loaded. If a
class does not support a setting, the tokenizer has the general class, which loads the saved rules.
"""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from plmctl.characters import JOINERS
from plmctl.config.tokenizer import TokenizerConfig
from plmctl.errors import ConfigError
from plmctl.tokenization.units import Kind

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from transformers import PreTrainedTokenizerFast


# --- The families ---


_END_OF_TEXT = "<|endoftext|>"


@dataclass(frozen=True)
class Rules:
    """How text is cleaned before it is cut."""

    normalization: str
    lowercase: bool
    strip_accents: bool
    space_chinese: bool
    keep_joiners: bool = False


@dataclass(frozen=True)
class Template:
    """A family's tokenizer, apart from its vocabulary.

    Attributes:
        kind: The kind of its units under the published rules.
        first: Special tokens with the first ids.
        last: Special tokens with the last ids; the config sets the number of T5's.
        rules: The published rules.
        max_length: Longest input of the published models, in tokens.
        mask: The mask token, if it includes the space before it.
    """

    kind: Kind
    first: tuple[str, ...]
    last: tuple[str, ...]
    rules: Rules
    max_length: int = 512
    mask: str | None = None


_CLEANED = Rules("none", lowercase=True, strip_accents=True, space_chinese=True)

_AS_IS = Rules("none", lowercase=False, strip_accents=False, space_chinese=False)

TEMPLATES: dict[str, Template] = {
    "albert": Template(
        "spaces",
        ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"),
        (),
        Rules("nfkd", lowercase=True, strip_accents=True, space_chinese=False),
        mask="[MASK]",
    ),
    # A new vocabulary starts with these five; the published ones have them at 0 and 100 to 103.
    "bert": Template("bert", ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), (), _CLEANED),
    "elmo": Template(
        "bert",
        ("<S>", "</S>", "<UNK>"),
        (),
        Rules("none", lowercase=False, strip_accents=False, space_chinese=True),
        max_length=2**31 - 1,
    ),
    "gpt1": Template("bert", ("<unk>",), (), _CLEANED),
    "gpt2": Template("bytes", (), (_END_OF_TEXT,), _AS_IS, max_length=1024),
    "roberta": Template(
        "bytes",
        ("<s>", "<pad>", "</s>", "<unk>"),
        ("<mask>",),
        _AS_IS,
        mask="<mask>",
    ),
    "t5": Template(
        "spaces",
        ("<pad>", "</s>", "<unk>"),
        (),
        Rules("nmt_nfkc", lowercase=False, strip_accents=False, space_chinese=False),
    ),
}


def special_tokens(config: TokenizerConfig) -> tuple[list[str], list[str]]:
    """The special tokens before and after the tokens of the vocabulary.

    Raises:
        ConfigError: A special token of the config is repeated.
    """
    template = TEMPLATES[config.family]
    first = [*template.first, *config.special_tokens]
    last = [*template.last, *_sentinels(config)]
    seen: set[str] = set()
    for token in first + last:
        if token in seen:
            raise ConfigError(
                f"special_tokens: {token!r} is there twice",
                f"the family {config.family} has {', '.join(template.first + template.last)}",
            )
        seen.add(token)
    return first, last


def kind_of_units(config: TokenizerConfig) -> Kind:
    """The kind of units to count in the text."""
    kind = TEMPLATES[config.family].kind
    if config.pretokenized:
        return "spaces"
    # Chinese characters are units only where they are words, and joiners are marks for BERT.
    rules = rules_of(config)
    is_bert = rules.space_chinese and not rules.keep_joiners
    return "spaces" if kind == "bert" and not is_bert else kind


def rules_of(config: TokenizerConfig) -> Rules:
    """The rules of the config; the family's if the config has none."""
    published = TEMPLATES[config.family].rules
    lowercase = published.lowercase if config.lowercase is None else config.lowercase
    accents = config.strip_accents
    if accents is None:  # BERT drops accents if case is folded
        accents = lowercase if published == _CLEANED else published.strip_accents
    chinese = config.space_chinese
    return Rules(
        config.normalization or published.normalization,
        lowercase,
        accents,
        published.space_chinese and not config.pretokenized if chinese is None else chinese,
        bool(config.keep_joiners) and config.family not in ("gpt2", "roberta"),  # they do anyway
    )


# --- Making a tokenizer ---


def make_tokenizer(config: TokenizerConfig, model: dict[str, Any]) -> PreTrainedTokenizerFast:
    """A family's tokenizer.

    Args:
        config: Family and rules.
        model: ``vocab``, and ``merges`` for BPE, as the family's class takes them; empty for only
            the rules.
    """
    from tokenizers import AddedToken
    from transformers import (
        AlbertTokenizer,
        BertTokenizer,
        GPT2Tokenizer,
        OpenAIGPTTokenizer,
        RobertaTokenizer,
        T5Tokenizer,
    )

    template = TEMPLATES[config.family]
    if config.family == "elmo":
        return _make_word_tokenizer(config, model)
    classes: dict[str, type[PreTrainedTokenizerFast]] = {
        "albert": AlbertTokenizer,
        "bert": BertTokenizer,
        "gpt1": OpenAIGPTTokenizer,
        "gpt2": GPT2Tokenizer,
        "roberta": RobertaTokenizer,
        "t5": T5Tokenizer,
    }
    options, general = _class_options(config)
    if config.family == "albert":  # the class of transformers leaves the segments out
        options["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    if template.mask:
        options["mask_token"] = AddedToken(template.mask, lstrip=True, special=True)
    tokenizer = classes[config.family](
        **model,
        **options,
        model_max_length=config.max_length or template.max_length,
        split_special_tokens=config.split_special_tokens,
        **_extra_tokens(config),
    )
    return _generalised(config, tokenizer) if general else tokenizer


def _make_word_tokenizer(config: TokenizerConfig, model: dict[str, Any]) -> PreTrainedTokenizerFast:
    """ELMo's tokenizer: transformers has no class for whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    begin, end, unknown = TEMPLATES["elmo"].first
    backend = Tokenizer(models.WordLevel(model.get("vocab", {}), unk_token=unknown))
    backend.normalizer = _normalizer(config)
    backend.pre_tokenizer = (
        pre_tokenizers.WhitespaceSplit()
        if config.pretokenized
        else pre_tokenizers.BertPreTokenizer()
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=begin,
        eos_token=end,
        unk_token=unknown,
        model_max_length=config.max_length or TEMPLATES["elmo"].max_length,
        split_special_tokens=config.split_special_tokens,
        **_extra_tokens(config),
    )


def _extra_tokens(config: TokenizerConfig) -> dict[str, Any]:
    sentinels = [f"<extra_id_{number}>" for number in range(len(_sentinels(config)))]
    extra = [*config.special_tokens, *sentinels]
    if config.family == "t5":
        return {"extra_ids": len(sentinels), "additional_special_tokens": extra}
    return {"extra_special_tokens": extra} if extra else {}


def _sentinels(config: TokenizerConfig) -> list[str]:
    """T5's sentinels in the order of their ids."""
    count = config.sentinels if config.family == "t5" else 0
    return [f"<extra_id_{number}>" for number in reversed(range(count))]


def _class_options(config: TokenizerConfig) -> tuple[dict[str, Any], bool]:
    """Arguments of the family's class, and whether the general class is needed."""
    rules, published = rules_of(config), TEMPLATES[config.family].rules
    general = rules.normalization != published.normalization or rules.keep_joiners
    if config.family == "bert":
        long_words = config.max_word_length not in (None, 100)
        accents = None if rules.strip_accents == rules.lowercase else rules.strip_accents
        return {
            "do_lower_case": rules.lowercase,
            "strip_accents": accents,
            "tokenize_chinese_chars": rules.space_chinese,
        }, general or long_words
    if config.family == "albert":
        return {
            "do_lower_case": rules.lowercase,
            "keep_accents": not rules.strip_accents,
            "_spm_precompiled_charsmap": nmt_nfkc(),
        }, general or rules.space_chinese
    table = {"_spm_precompiled_charsmap": nmt_nfkc()} if config.family == "t5" else {}
    return table, rules != published


def _generalised(
    config: TokenizerConfig, tokenizer: PreTrainedTokenizerFast
) -> PreTrainedTokenizerFast:
    """The tokenizer with the config's rules, as the general class, which keeps them."""
    from tokenizers.models import WordPiece
    from transformers import PreTrainedTokenizerFast

    backend = tokenizer.backend_tokenizer
    backend.normalizer = _normalizer(config)
    if isinstance(backend.model, WordPiece) and config.max_word_length:
        backend.model.max_input_chars_per_word = config.max_word_length
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_input_names=tokenizer.model_input_names,
        model_max_length=tokenizer.model_max_length,
        split_special_tokens=config.split_special_tokens,
        extra_special_tokens=_extra_tokens(config).get("extra_special_tokens", []),
        **tokenizer.special_tokens_map,
    )


def _normalizer(config: TokenizerConfig) -> Normalizer:
    from tokenizers import Regex, normalizers

    rules, family = rules_of(config), config.family
    parts = _unicode_form(rules.normalization, keep_joiners=rules.keep_joiners)
    if family in ("bert", "gpt1") or (family == "elmo" and not config.pretokenized):
        if rules.keep_joiners:  # BERT's cleaning, which cannot do this
            parts.append(normalizers.Replace(Regex(_CONTROLS), ""))
        parts.append(
            normalizers.BertNormalizer(
                not rules.keep_joiners, rules.space_chinese, rules.strip_accents, rules.lowercase
            )
        )
        return normalizers.Sequence(parts)
    if family == "albert":
        parts += [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if rules.space_chinese:
        parts.append(normalizers.BertNormalizer(False, True, False, False))
    if rules.strip_accents:
        parts += [normalizers.NFD(), normalizers.StripAccents()]
    if rules.lowercase:
        parts.append(normalizers.Lowercase())
    if family == "albert":
        parts.append(normalizers.Precompiled(nmt_nfkc(keep_joiners=rules.keep_joiners)))
    return normalizers.Sequence(parts)


_CONTROLS = r"[\p{Cc}\p{Cf}\p{Co}\x{FFFD}&&[^\t\n\r\x{200C}\x{200D}]]"


def _unicode_form(name: str, *, keep_joiners: bool) -> list[Any]:
    """The normalizer of a Unicode form."""
    from tokenizers import normalizers

    if name == "none":
        return []
    if name == "nmt_nfkc":
        return [normalizers.Precompiled(nmt_nfkc(keep_joiners=keep_joiners))]
    forms = {
        "nfc": normalizers.NFC,
        "nfd": normalizers.NFD,
        "nfkc": normalizers.NFKC,
        "nfkd": normalizers.NFKD,
    }
    return [forms[name]()]


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
