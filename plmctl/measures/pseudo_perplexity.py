"""Pseudo-perplexity of a masked model (Salazar et al., 2020): exp(-sum PLL / sum tokens).

Two variants: one masked token, and with the later tokens of its word masked too (Kauf and Ivanova,
2023). The former is low for text whose words have many tokens, since these give each other away.
"""

from typing import Any, Literal

import numpy as np
from pydantic import Field

from plmctl.config.units import Bytes
from plmctl.evaluation.likelihood import MaskedLikelihood, ScoringOptions
from plmctl.evaluation.model import LoadedModel
from plmctl.hashing import digest_of_items
from plmctl.measures.base import (
    Measure,
    Measurement,
    PerItemScores,
    RawTextConfig,
    corpus_counts,
    ratio_metrics,
    read_corpus,
)


class Config(RawTextConfig):
    """Pseudo-perplexity of masked models, one masked copy of the text per token."""

    name: Literal["pseudo_perplexity"] = "pseudo_perplexity"
    max_bytes: Bytes | None = 50_000
    """UTF-8 bytes to score at most, a seeded sample of documents; empty: all. Each token costs a
    row."""
    variants: tuple[Literal["original", "word_l2r"], ...] = Field(
        default=("original", "word_l2r"), min_length=1
    )
    """original: one token is masked; word_l2r: the later tokens of its word too."""


class PseudoPerplexity(Measure[Config], config=Config):
    """See ``Config``."""

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """Metrics with their standard errors; sums over all tokens without the special ones."""
        config, likelihood = self.config, MaskedLikelihood.of(model)
        variants = {name: ScoringOptions(config.seq_len, variant=name) for name in config.variants}
        # Before text is read: this rejects a wrong length.
        definitions = "; ".join(
            f"{name}: {likelihood.definition(options)}" for name, options in variants.items()
        )
        corpus = read_corpus(config, likelihood, seed)
        tokens = model.tokens(corpus.texts)
        results: dict[str, Any] = {}
        per_item: dict[str, PerItemScores] = {}
        items = digest_of_items(
            [
                [document.text for document in corpus.documents],
                [text.ids.tolist() for text in tokens],
            ]
        )  # comparable only for one tokenizer
        for variant, options in variants.items():
            scores = likelihood.score(tokens, options)
            name = "pseudo_perplexity" if variant == "original" else f"pseudo_perplexity_{variant}"
            results |= ratio_metrics(name, scores.nll, scores.scored, seed, np.exp)
            results |= corpus_counts(corpus, tokens, scores)
            nll, sizes = scores.nll.tolist(), scores.scored.tolist()
            per_item[variant] = PerItemScores("nats per token", items, nll, sizes, "low")
        results["definition"] = f"exp(nll / tokens); {definitions}; special tokens are not scored"
        return Measurement(results, per_item)
