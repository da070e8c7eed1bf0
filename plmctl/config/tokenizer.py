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
    """Learn from at most about this much text: a seeded sample."""


class TokenizerConfig(Model):
    """Train a tokenizer on raw text."""

    run: Text
    """The folder for the tokenizer."""
    seed: int = Field(default=42, ge=0)
    """Seed of the sample that is taken of a large corpus."""
    algorithm: Algorithm
    """bpe: GPT-1's, with an end-of-word mark. word: whole words, for ELMo."""
    family: Family
    """The family whose normalisation, special tokens and template are used."""
    extend: Text | None = None
    """A tokenizer folder or Hub id to extend with tokens learned from this text. Its ids and rules
    stay; the new ids follow its last one. `--from FOLDER` sets this."""
    vocab_size: Count = Field(ge=100)
    """Number of ids, including special tokens; with `extend`, also including existing ids."""
    min_frequency: int = Field(default=2, ge=1)
    """Rarer pairs are not merged, and rarer words are unknown. unigram uses probabilities and
    ignores this."""
    limit_alphabet: int | None = Field(default=None, ge=1)
    """Keep this many of the most frequent characters; null: as many as cover 99.995% of the text.
    The rest are unknown. byte_bpe has no unknown characters and ignores this."""
    normalization: Literal["nfc", "nfd", "nfkc", "nfkd", "nmt_nfkc", "none"] | None = None
    """Unicode normalisation of the text; nmt_nfkc is T5's, without control characters. For this
    key and the next three, null means the family's rule; any other value gives a tokenizer of a
    general class with the family's template."""
    lowercase: bool | None = None
    """Lowercase the text. bert: false gives a cased tokenizer, of the family's own class."""
    strip_accents: bool | None = None
    """Remove accents; null for bert: if the text is lowercased."""
    space_chinese: bool | None = None
    """Put spaces around Chinese characters, so that no token contains two."""
    max_word_length: int | None = Field(default=None, ge=1)
    """wordpiece: longer words are unknown; null: 100, as in transformers. BERT's own code has
    200."""
    pretokenized: bool = False
    """elmo: true: words are separated by spaces only, as in published corpora; false: punctuation
    marks and Chinese characters are separate words."""
    special_tokens: tuple[Text, ...] = ()
    """Additional special tokens; they come after the first ones of the family."""
    sentinels: int = Field(default=100, ge=1)
    """t5: number of sentinels `<extra_id_0>`, `<extra_id_1>` ...; they have the last ids, in
    descending order."""
    split_special_tokens: bool = False
    """Treat text that looks like a special token as plain text, as BERT's own code does.
    Pretraining always does."""
    max_length: int | None = Field(default=None, ge=8)
    """Maximum input length in the tokenizer's config; null: the family's."""
    max_memory: Bytes = 3_000_000_000
    """Training uses at most about this much memory, whatever the size of the corpus."""
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
                        f"{key} is taken from the tokenizer that is extended; leave it out"
                    )
        return self
