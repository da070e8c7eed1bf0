"""Perplexity of a causal model with a sliding window, every token scored once.

Unlike ``clm``, which scores disjoint windows as training sees them, each token has context of its
own document alone, and as much as the stride leaves it.
"""

from typing import Any, Literal

import numpy as np
from pydantic import Field

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
    """Perplexity of causal models, a token and a word, and bits per byte and character."""

    name: Literal["perplexity"] = "perplexity"
    stride: int | None = Field(default=None, ge=1)
    """How far a window begins after the one before. 1: every token has all the context that fits,
    and costs a window; seq_len: disjoint windows, an upper bound. Empty: half of seq_len."""
    begin: Literal["auto", "none"] = "auto"
    """auto: the begin or end-of-text token stands before a document where the tokenizer has one, so
    that the first token is scored too; none: it is not."""


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """Figures with their standard errors; sums over all tokens, never means of windows."""
    reader = load_model(subject, ("causal",))
    way = ScoringOptions(config.seq_len, config.stride, config.begin == "auto")
    line = text_definition(reader, way)  # refuses a wrong window before any text is read
    corpus = read_corpus(config, reader)
    tokens = reader.tokens(corpus.texts)
    scores = score_texts(reader, tokens, way)
    asked = digest_of_items([document.text for document in corpus.read])
    size, characters, words = corpus.sizes.astype(np.float64)
    bits, _ = bits_of(reader, tokens, scores)
    seed = subject.seed
    return {
        **ratio_metrics("perplexity", scores.nll, scores.scored, seed, np.exp),
        **ratio_metrics("word_perplexity", scores.nll, words, seed, np.exp),
        **ratio_metrics("bits_per_byte", bits, size, seed),
        **ratio_metrics("bits_per_character", bits, characters, seed),
        **corpus_counts(corpus, tokens, scores),
        PER_ITEM: {"": PerItemScores("bits per byte", asked, bits.tolist(), size.tolist(), "low")},
        "definition": (
            f"{line}; perplexity: exp(nll / scored tokens); word_perplexity: exp(nll / words), "
            "words between white space and one a line end; bits: -log2 p over the UTF-8 bytes or "
            f"characters of the raw text, {BITS_DEFINITION}"
        ),
    }
