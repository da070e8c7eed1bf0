"""The config of ``plmctl train-tokenizer``."""

from typing import Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from plmctl.config.base import Model, Text
from plmctl.config.sections import TextConfig
from plmctl.config.units import Bytes, Count

Algorithm = Literal["wordpiece", "byte_bpe", "bpe", "unigram", "word"]
Family = Literal["albert", "bert", "elmo", "gpt1", "gpt2", "roberta", "t5"]

ALGORITHM_OF: dict[Family, Algorithm] = {
    "albert": "unigram",
    "bert": "wordpiece",
    "elmo": "word",
    "gpt1": "bpe",
    "gpt2": "byte_bpe",
    "roberta": "byte_bpe",
    "t5": "unigram",
}


class TokenizerDataConfig(TextConfig):
    """Text to learn a vocabulary from."""

    max_bytes: Bytes = 1_000_000_000
    """Learn from about this much text at most: a seeded sample of it."""


class TokenizerConfig(Model):
    """Train a tokenizer on raw text."""

    run: Text
    """The folder for the tokenizer."""
    seed: int = Field(default=42, ge=0)
    """Decides which part of a large corpus is learnt from."""
    algorithm: Algorithm
    """bpe: GPT-1's, with a mark at the end of words. word: whole words, for ELMo."""
    family: Family
    """Whose normalisation, special tokens and template."""
    extend: Text | None = None
    """A tokenizer folder to extend by tokens learnt from this text, or Hub id. All its ids and its
    rules are kept; the new ids come after its last. `--from FOLDER` sets this."""
    vocab_size: Count = Field(ge=100)
    """Ids, special tokens included; with `extend` those that it has already too."""
    min_frequency: int = Field(default=2, ge=1)
    """Pairs that are rarer are not merged, words that are rarer are unknown. unigram goes by
    probability and needs none of this."""
    limit_alphabet: int | None = Field(default=None, ge=1)
    """Keep this many of the most frequent characters; null: as many as make up 99.995% of the text.
    The rest are unknown. byte_bpe has no unknown characters and needs none of this."""
    normalization: Literal["nfc", "nfd", "nfkc", "nfkd", "nmt_nfkc", "none"] | None = None
    """Unicode form that text is brought to first; nmt_nfkc is T5's, without control characters.
    Here and in the next three, null is as the family has it, and another value makes a tokenizer of
    a general class with the family's template."""
    lowercase: bool | None = None
    """Fold case. bert: false makes a cased tokenizer, of the family's own class."""
    strip_accents: bool | None = None
    """Drop accents; null for bert: if case is folded."""
    space_chinese: bool | None = None
    """Put spaces around Chinese characters, so that no token has two."""
    max_word_length: int | None = Field(default=None, ge=1)
    """wordpiece: longer words are unknown; null: 100, as transformers has it. BERT's own code has
    200."""
    pretokenized: bool = False
    """elmo: words are what stands between spaces, as in published corpora; false: marks are words
    of their own, and so is each Chinese character."""
    special_tokens: tuple[Text, ...] = ()
    """More special tokens than the family has; they come after its first ones."""
    sentinels: int = Field(default=100, ge=1)
    """t5: `<extra_id_0>` and so on, the last ids, descending."""
    split_special_tokens: bool = False
    """Take text that looks like a special token for plain text, as BERT's own code does.
    Pretraining does so always."""
    max_length: int | None = Field(default=None, ge=8)
    """Longest input, written into the tokenizer's config; null: the family's."""
    max_memory: Bytes = 3_000_000_000
    """Learning keeps to about this much memory, whatever the corpus."""
    data: TokenizerDataConfig

    @field_validator("family")
    @classmethod
    def _fits(cls, family: Family, info: ValidationInfo) -> Family:
        algorithm = info.data.get("algorithm")
        if algorithm is not None and ALGORITHM_OF[family] != algorithm:
            fitting = [name for name, wanted in ALGORITHM_OF.items() if wanted == algorithm]
            raise ValueError(f"expected {' or '.join(fitting)} with algorithm {algorithm}")
        return family

    @model_validator(mode="after")
    def _has_rules_already(self) -> Self:
        if self.extend is not None:
            own = ("normalization", "lowercase", "strip_accents", "space_chinese")
            for key in (*own, "max_word_length", "max_length", "special_tokens"):
                if getattr(self, key) not in (None, ()):
                    raise ValueError(
                        f"{key} is that of the tokenizer that is extended; leave it out"
                    )
        return self
