"""Bits per byte of raw text, for every family: one metric that compares all of them.

The negative log-likelihood of the text in bits over its UTF-8 bytes, for any tokenizer. The family
decides the kind of likelihood (``evaluation.likelihood``), and no model gains by text that it does
not know (``base.bits_of``).
"""

from typing import Literal

import numpy as np
from pydantic import Field

from plmctl.config.units import Bytes
from plmctl.evaluation.likelihood import Likelihood, ScoringOptions
from plmctl.evaluation.model import LoadedModel
from plmctl.hashing import digest_of_items
from plmctl.measures.base import (
    BITS_DEFINITION,
    Measure,
    Measurement,
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
    """Causal models: distance between the beginnings of two windows; empty: half of seq_len."""
    variant: Literal["original", "word_l2r"] = "word_l2r"
    """Masked models. word_l2r: the later tokens of a word are masked with it, so that a vocabulary
    of shorter tokens gains nothing; original: one token is masked."""
    span: int = Field(default=3, ge=1)
    """Encoder-decoders: tokens that are hidden together."""


class BitsPerByte(Measure[Config], config=Config):
    """See ``Config``."""

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """Metrics with their standard errors over documents."""
        config, likelihood = self.config, Likelihood.of(model)
        options = ScoringOptions(
            config.seq_len, config.stride, variant=config.variant, span=config.span
        )
        definition = likelihood.definition(options)  # rejects a wrong window before text is read
        corpus = read_corpus(config, likelihood, seed)
        tokens = model.tokens(corpus.texts)
        scores = likelihood.score(tokens, options)
        items = digest_of_items([document.text for document in corpus.documents])
        size, characters, _ = corpus.sizes.astype(np.float64)
        bits, unknown = bits_of(model, tokens, scores)
        results = {
            **ratio_metrics("bits_per_byte", bits, size, seed),
            **ratio_metrics("bits_per_character", bits, characters, seed),
            "unknown_share_of_bits": float(unknown.sum() / bits.sum()),
            **corpus_counts(corpus, tokens, scores),
            "kind": likelihood.KIND,
            "definition": (
                f"bits / UTF-8 bytes of the raw text, bits = -log2 {definition}; {BITS_DEFINITION}"
            ),
        }
        per_item = PerItemScores("bits per byte", items, bits.tolist(), size.tolist(), "low")
        return Measurement(results, {"": per_item})
