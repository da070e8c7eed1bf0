"""The config of ``plmctl train-tokenizer``."""

from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from plmctl.config.base import AnyFolder, Model, NewPath, Text
from plmctl.config.sections import TextConfig
from plmctl.config.units import Bytes, Count

Algorithm = Literal["wordpiece", "byte_bpe", "bpe", "unigram", "word"]


_KEPT_RULES = (
    "normalization", "lowercase", "strip_accents", "space_chinese", "keep_joiners",
    "max_word_length", "pattern", "special_tokens", "max_length",
)  # fmt: skip
"""Options that a tokenizer keeps when it is extended."""


class ParallelSource(Model):
    """The text of one of several languages."""

    name: Text
    """The language, in messages."""
    train: tuple[Text, ...] = Field(min_length=1)
    """Its text, as `data.train`."""
    parallel: Text | None = None
    """With `parity`: a file with a sentence in each line, which means the same as this line of the
    other languages' files; it is not learned from."""


class TokenizerDataConfig(TextConfig):
    """Text to learn a vocabulary from."""

    train: tuple[Text, ...] = ()
    """Paths, globs and URLs such as `s3://bucket/*.jsonl` (txt, jsonl, csv, parquet, also .gz and
    .zst), folders saved by `datasets`, `hf:NAME`, `hf:NAME:CONFIG:SPLIT`, `sample:NAME`, `ms:` and
    a name on ModelScope."""
    mixture: tuple[ParallelSource, ...] = ()
    """Instead of `train`: the text of several languages. With `parity`, each has the same right to
    the vocabulary; otherwise it is one text."""

    words: Literal["pretokenizer", "marked"] = "pretokenizer"
    """marked: the text is already segmented, by `word_mark` or by a column with a list of the words
    of each document. The vocabulary is learned from the text without the marks, as the model sees
    it."""
    max_bytes: Bytes = 1_000_000_000
    """Learn from at most about this much text: a seeded sample of it."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        names = [source.name for source in self.mixture]
        if bool(self.train) == bool(names):
            raise ValueError("expected `train` or `mixture`, and not both")
        if len(set(names)) < len(names):
            raise ValueError("expected a different name for each source of the mixture")
        return self

    @property
    def sources(self) -> tuple[str, ...]:
        """``train``, or that of all languages."""
        return self.train + tuple(name for source in self.mixture for name in source.train)

    def of(self, train: tuple[str, ...]) -> Self:
        """The same for another text."""
        return self.model_copy(update={"train": train, "mixture": ()})


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
    parity: bool = False
    """byte_bpe only: each merge helps the language of `data.mixture` that has most tokens in the
    parallel sentences, so that all pay the same (parity-aware BPE, arXiv:2508.04796). The library
    tokenizers learns it (0.23.2 or newer); `data.max_bytes` limits its memory, not `max_memory`."""
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

    @field_validator("pattern", "parity")
    @classmethod
    def _is_for_bytes(cls, value: str | bool | None, info: ValidationInfo) -> str | bool | None:
        if value and info.data.get("algorithm", "byte_bpe") != "byte_bpe":
            raise ValueError(
                f"{info.field_name} is only supported with algorithm byte_bpe; leave it out"
            )
        if value is True and info.data.get("extend") is not None:
            raise ValueError("parity is only supported for a new tokenizer; leave it out")
        return value

    @model_validator(mode="after")
    def _languages_to_balance(self) -> Self:
        if self.parity and (
            len(self.data.mixture) < 2 or not all(one.parallel for one in self.data.mixture)
        ):
            raise ValueError(
                "parity: expected two or more languages in `data.mixture`, each with its "
                "`parallel` file: without parallel sentences the small languages get nearly nothing"
            )
        return self

    @field_validator("max_word_length")
    @classmethod
    def _limits_words(cls, value: int | None, info: ValidationInfo) -> int | None:
        # An option that has an error is missing here.
        if value is not None and info.data.get("algorithm", "wordpiece") != "wordpiece":
            raise ValueError(
                "max_word_length is only supported with algorithm wordpiece; leave it out"
            )
        return value
