"""Bits per byte of raw text, for every family: the figure that goes into one table.

The text's negative log-likelihood in bits over its UTF-8 bytes, whatever the tokens are. What the
likelihood is depends on the family (``likelihood``), and no model gains by text that it does not
know (``base.bits_of``).
"""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from plmctl.config.units import Bytes
from plmctl.evaluation.likelihood import ScoringOptions, score_texts, text_definition
from plmctl.evaluation.model import EvaluatedModel, load_model
from plmctl.hashing import digest_of_items
from plmctl.measures.base import (
    BITS_DEFINITION,
    PER_ITEM,
    PerItemScores,
    RawTextConfig,
    bits_of,
    corpus_counts,
    ratio_metrics,
    read_corpus,
)


class Config(RawTextConfig):
    """Bits per byte and per character of raw text, for every family."""

    name: Literal["bits_per_byte"] = "bits_per_byte"
    max_bytes: Bytes | None = 50_000
    """UTF-8 bytes to score at most, a seeded sample of documents; empty: all. Masked models and
    encoder-decoders read a row for every token."""
    stride: int | None = Field(default=None, ge=1)
    """Causal models: how far a window begins after the one before; empty: half of seq_len."""
    variant: Literal["original", "word_l2r"] = "word_l2r"
    """Masked models. word_l2r: the later tokens of a word are masked with it, so that a vocabulary
    of shorter tokens gains nothing; original: one token is masked."""
    span: int = Field(default=3, ge=1)
    """Encoder-decoders: tokens that are hidden together."""


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """Figures with their standard errors over documents."""
    reader = load_model(subject)
    way = ScoringOptions(config.seq_len, config.stride, variant=config.variant, span=config.span)
    line = text_definition(reader, way)  # refuses a wrong window before any text is read
    corpus = read_corpus(config, reader)
    tokens = reader.tokens(corpus.texts)
    scores = score_texts(reader, tokens, way)
    asked = digest_of_items([document.text for document in corpus.read])
    size, characters, _ = corpus.sizes.astype(np.float64)
    bits, spelt = bits_of(reader, tokens, scores)
    return {
        **ratio_metrics("bits_per_byte", bits, size, subject.seed),
        **ratio_metrics("bits_per_character", bits, characters, subject.seed),
        "unknown_share_of_bits": float(spelt.sum() / bits.sum()),
        **corpus_counts(corpus, tokens, scores),
        PER_ITEM: {"": PerItemScores("bits per byte", asked, bits.tolist(), size.tolist(), "low")},
        "kind": reader.kind,
        "definition": (
            f"bits / UTF-8 bytes of the raw text, bits = -log2 {line}; {BITS_DEFINITION}"
        ),
    }
