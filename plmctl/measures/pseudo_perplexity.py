"""Pseudo-perplexity of a masked model (Salazar et al., 2020): exp(-sum PLL / sum tokens).

Plain, and with the later tokens of a word masked too (Kauf and Ivanova, 2023): the plain one is
low for text whose words are many tokens, since the others give each away.
"""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from plmctl.config.units import Bytes
from plmctl.evaluation.likelihood import ScoringOptions, score_texts, text_definition, window_of
from plmctl.evaluation.model import EvaluatedModel, load_model
from plmctl.hashing import digest_of_items
from plmctl.measures.base import (
    PER_ITEM,
    PerItemScores,
    RawTextConfig,
    corpus_counts,
    ratio_metrics,
    read_corpus,
)


class Config(RawTextConfig):
    """Pseudo-perplexity of masked models, one masked copy of the text a token."""

    name: Literal["pseudo_perplexity"] = "pseudo_perplexity"
    max_bytes: Bytes | None = 50_000
    """UTF-8 bytes to score at most, a seeded sample of documents; empty: all. Each token costs a
    row."""
    variants: tuple[Literal["original", "word_l2r"], ...] = Field(
        default=("original", "word_l2r"), min_length=1
    )
    """original: one token masked; word_l2r: and the later tokens of its word."""


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """Figures with their standard errors; sums over all tokens, special ones left out."""
    reader = load_model(subject, ("masked",))
    ways = {variant: ScoringOptions(config.seq_len, variant=variant) for variant in config.variants}
    for way in ways.values():
        window_of(reader, way)  # refuses a wrong length before any text is read
    corpus = read_corpus(config, reader)
    tokens = reader.tokens(corpus.texts)
    found: dict[str, Any] = {}
    each = {}
    asked = digest_of_items(
        [[document.text for document in corpus.read], [text.ids.tolist() for text in tokens]]
    )  # of one tokenizer alone
    for variant, way in ways.items():
        scores = score_texts(reader, tokens, way)
        name = "pseudo_perplexity" if variant == "original" else f"pseudo_perplexity_{variant}"
        found |= ratio_metrics(name, scores.nll, scores.scored, subject.seed, np.exp)
        found |= corpus_counts(corpus, tokens, scores)
        costs, sizes = scores.nll.tolist(), scores.scored.tolist()
        each[variant] = PerItemScores("nats per token", asked, costs, sizes, "low")
    lines = "; ".join(f"{variant}: {text_definition(reader, way)}" for variant, way in ways.items())
    found["definition"] = f"exp(nll / tokens); {lines}; special tokens are not scored"
    return {**found, PER_ITEM: each}
