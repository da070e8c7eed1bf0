"""The config of ``plmctl train-tokenizer``."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from plmctl.config.base import AnyFolder, Model, NewPath, Text
from plmctl.config.sections import TextConfig
from plmctl.config.units import Bytes, Count

Algorithm = Literal["wordpiece", "byte_bpe", "bpe", "unigram", "word"]


_KEPT_RULES = (
    "normalization", "lowercase", "strip_accents", "space_chinese", "keep_joiners",
    "max_word_length", "pattern", "special_tokens", "max_length",
)  # fmt: skip
"""Options that a tokenizer keeps when it is extended."""


class TokenizerDataConfig(TextConfig):
    """Text to learn a vocabulary from."""

    words: Literal["pretokenizer", "marked"] = "pretokenizer"
    """marked: the text is already segmented, by `word_mark` or by a column with a list of the words
    of each document. The vocabulary is learned from the text without the marks, as the model sees
    it."""
    max_bytes: Bytes = 1_000_000_000
    """Learn from at most about this much text: a seeded sample of it."""


class TokenizerConfig(Model):
    """Train a tokenizer on raw text. ``run.configs`` checks the family and its own options."""

    run: NewPath
    """The folder for the tokenizer."""
    seed: int = Field(default=42, ge=0)
    """Seed of the sample of a large corpus."""
    algorithm: Algorithm
    """bpe: GPT-1's, with an end-of-word mark. word: whole words, for ELMo."""
    family: str
    """The model family, which sets normalisation, special tokens and template."""
    extend: AnyFolder | None = None
    """A tokenizer folder or Hub id to extend with tokens learned from this text. It keeps all its
    ids and rules; the new ids come after its last one. `--from FOLDER` sets this."""
    vocab_size: Count = Field(ge=100)
    """Number of ids, 100 or more. It includes special tokens and, with `extend`, the old ids."""
    min_frequency: int = Field(default=2, ge=1)
    """Rarer pairs are not merged, and rarer words are unknown. unigram does not use this: it goes
    by probability."""
    limit_alphabet: int | None = Field(default=None, ge=1)
    """Keep this many of the most frequent characters; null: as many as make up 99.995% of the text.
    The rest are unknown. byte_bpe does not use this: it has no unknown characters."""
    normalization: Literal["nfc", "nfd", "nfkc", "nfkd", "nmt_nfkc", "none"] | None = None
    """Unicode form that text is converted to first; nmt_nfkc is T5's, without control characters.
    For this option and the next three, null means the family's own value. Another value makes a
    tokenizer of the general class with the family's template."""
    lowercase: bool | None = None
    """Fold case. bert: false makes a cased tokenizer of the family's own class."""
    strip_accents: bool | None = None
    """Drop accents. bert: null means if case is folded."""
    space_chinese: bool | None = None
    """Put spaces around Chinese characters, so that no token contains two."""
    keep_joiners: bool | None = None
    """Keep the zero-width joiners U+200C and U+200D, which are parts of words in Persian, Sinhala,
    Hindi and most scripts of India. null or false: all but byte_bpe drop them, or make spaces of
    them."""
    max_word_length: int | None = Field(default=None, ge=1)
    """wordpiece only: longer words are unknown; null: 100, as in transformers. BERT's own code uses
    200."""
    pattern: Literal["gpt2", "marks"] | None = None
    """byte_bpe only: where text is cut into pieces, across which nothing is merged. null, gpt2:
    GPT-2's pattern, which cuts the words of Hindi, Tamil, Thai, Burmese and other scripts at every
    vowel sign. marks: the same, but vowel signs, accents and joiners stay with the letter before
    them; such a tokenizer has the general class, which keeps the pattern."""
    pretokenized: bool = False
    """elmo only: words are what is between spaces, as in published corpora; false: each punctuation
    mark and each Chinese character is a separate word."""
    special_tokens: tuple[Text, ...] = ()
    """Additional special tokens; their ids come after the family's first special tokens."""
    sentinels: int = Field(default=100, ge=1)
    """t5 only: number of sentinels (`<extra_id_0>` ...), which have the last ids, descending."""
    split_special_tokens: bool = False
    """Treat text that looks like a special token as plain text, as BERT's own code does.
    Pretraining always does this."""
    max_length: int | None = Field(default=None, ge=8)
    """Longest input in tokens, written into the tokenizer's config; null: the family's."""
    max_memory: Bytes = 3_000_000_000
    """Learning uses at most about this much memory, whatever the size of the corpus."""
    data: TokenizerDataConfig

    @field_validator(*_KEPT_RULES)
    @classmethod
    def _is_new(cls, value: object, info: ValidationInfo) -> object:
        if value not in (None, ()) and info.data.get("extend") is not None:
            empty = "[]" if isinstance(value, tuple) else "null"
            raise ValueError(
                f"{info.field_name} cannot change in a tokenizer that is extended; leave it out "
                f"(on the command line: {info.field_name}={empty})"
            )
        return value

    @field_validator("pattern")
    @classmethod
    def _cuts_for_bytes(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("algorithm", "byte_bpe") != "byte_bpe":
            raise ValueError("pattern is only supported with algorithm byte_bpe; leave it out")
        return value

    @field_validator("max_word_length")
    @classmethod
    def _limits_words(cls, value: int | None, info: ValidationInfo) -> int | None:
        # An option that has an error is missing here.
        if value is not None and info.data.get("algorithm", "wordpiece") != "wordpiece":
            raise ValueError(
                "max_word_length is only supported with algorithm wordpiece; leave it out"
            )
        return value
