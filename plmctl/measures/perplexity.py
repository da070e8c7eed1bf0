"""Perplexity of a causal model with a sliding window, every token scored once.

Unlike ``clm``, which scores disjoint windows as in training, the context of a token is only its own
document, and as much of it as the stride leaves.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from plmctl.evaluation.likelihood import CausalLikelihood, ScoringOptions
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
    """Perplexity of causal models per token and per word, and bits per byte and character."""

    name: Literal["perplexity"] = "perplexity"
    stride: int | None = Field(default=None, ge=1)
    """Distance between the beginnings of two windows. 1: every token has all the context that fits,
    and costs a window; seq_len: disjoint windows, an upper bound. Empty: half of seq_len."""
    begin: Literal["auto", "none"] = "auto"
    """auto: if the tokenizer has a begin or end-of-text token, it is put before a document, so that
    the first token is scored too; none: it is not."""


class Perplexity(Measure[Config], config=Config):
    """See ``Config``."""

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """Metrics with their standard errors; sums over all tokens, never means of windows."""
        config, likelihood = self.config, CausalLikelihood.of(model)
        options = ScoringOptions(config.seq_len, config.stride, config.begin == "auto")
        definition = likelihood.definition(options)  # rejects a wrong window before text is read
        corpus = read_corpus(config, likelihood, seed)
        tokens = model.tokens(corpus.texts)
        scores = likelihood.score(tokens, options)
        items = digest_of_items([document.text for document in corpus.documents])
        size, characters, words = corpus.sizes.astype(np.float64)
        bits, _ = bits_of(model, tokens, scores)
        results = {
            **ratio_metrics("perplexity", scores.nll, scores.scored, seed, np.exp),
            **ratio_metrics("word_perplexity", scores.nll, words, seed, np.exp),
            **ratio_metrics("bits_per_byte", bits, size, seed),
            **ratio_metrics("bits_per_character", bits, characters, seed),
            **corpus_counts(corpus, tokens, scores),
            "definition": (
                f"{definition}; perplexity: exp(nll / scored tokens); word_perplexity: exp(nll / "
                "words), words between white space and one per line end; bits: -log2 p over the "
                f"UTF-8 bytes or characters of the raw text, {BITS_DEFINITION}"
            ),
        }
        per_item = PerItemScores("bits per byte", items, bits.tolist(), size.tolist(), "low")
        return Measurement(results, {"": per_item})
