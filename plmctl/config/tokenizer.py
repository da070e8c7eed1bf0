"""The config of ``plmctl train-tokenizer``."""

from typing import Literal

from pydantic import Field

from plmctl.config.base import Model, Text
from plmctl.config.data import TextConfig
from plmctl.config.units import Bytes, Count


class TokenizerDataConfig(TextConfig):
    """Text to learn a vocabulary from."""

    max_bytes: Bytes = 1_000_000_000
    """Learn from about this much text at most: a seeded sample of the documents."""


class TokenizerConfig(Model):
    """Train a tokenizer on raw text."""

    run: Text
    """The folder for the tokenizer."""
    seed: int = Field(default=42, ge=0)
    """Decides the sample of the documents."""
    algorithm: Literal["wordpiece", "byte_bpe"]
    """How the vocabulary is learnt."""
    family: Literal["bert", "gpt2"]
    """Whose normalisation, special tokens and template."""
    vocab_size: Count = Field(ge=100)
    """Ids, special tokens included."""
    lowercase: bool = True
    """wordpiece: fold case and strip accents, as the uncased models do."""
    min_frequency: int = Field(default=2, ge=1)
    """Pairs that are rarer are not merged."""
    limit_alphabet: int = Field(default=1000, ge=1)
    """wordpiece: keep this many of the most frequent characters; the rest are unknown. Chinese
    needs 4,000 to 8,000."""
    max_length: int = Field(default=512, ge=8)
    """Longest input, written into the tokenizer's config."""
    data: TokenizerDataConfig
