"""What n-grams give on a text or on minimal pairs: the row beside a model's in every table.

They are interpolated Kneser-Ney n-grams (``counting.ngrams``) of the tokens that the model reads.
The model's network has no part in it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import Field

from plmctl.config.base import Text
from plmctl.config.document import read_document
from plmctl.config.sections import DataConfig
from plmctl.corpus.build import build_stores
from plmctl.corpus.remote import store_root
from plmctl.corpus.store import TokenStore
from plmctl.counting.ngrams import ORDER, NGrams, depths_of, ngrams_of
from plmctl.errors import ConfigError
from plmctl.evaluation.likelihood import Likelihood, ScoringOptions, TextScores
from plmctl.evaluation.model import LoadedModel, TokenizedText
from plmctl.hashing import digest_of_items
from plmctl.measures._pairs import PairsConfig, measure_pairs
from plmctl.measures.base import (
    BITS_DEFINITION,
    DocumentsConfig,
    Measure,
    Measurement,
    PerItemScores,
    bits_of,
    corpus_counts,
    ratio_metrics,
    read_corpus,
    tell,
)
from plmctl.objectives.base import get_objective


class Config(DocumentsConfig, PairsConfig):
    """What n-grams of the training text give: perplexity and bits per byte, or minimal pairs."""

    name: Literal["ngram"] = "ngram"
    items: Literal["text", "pairs"] = "text"
    """What `data` is. text: documents, as of `perplexity`; pairs: sentences, as of
    `minimal_pairs`."""
    train: tuple[Text, ...] = ()
    """Text whose n-grams are counted. Empty: the training text of the model's run."""
    order: int = Field(default=ORDER, ge=1, le=8)
    """Tokens of the longest n-gram."""
    store: str = "stores"
    """Folder of the token stores of `train`."""


class NGramLikelihood(Likelihood):
    """log p(token | the tokens before it), as the n-grams of a text have it."""

    KIND = "n-gram"
    LOSS_TERMS = ()
    MEASURES = "`ngram`"

    def __init__(self, model: LoadedModel, grams: NGrams, separator: int | None) -> None:
        super().__init__(model)
        self._grams, self._separator = grams, separator

    @property
    def sentence_length(self) -> int:
        """It is never too long."""
        return sys.maxsize

    def score(self, texts: Sequence[TokenizedText], options: ScoringOptions) -> TextScores:
        """Score every token of each text once; the separator stands before a text."""
        scores = TextScores.empty(len(texts))
        before = np.array([] if self._separator is None else [self._separator], np.int64)
        rows = [np.concatenate([before, text.ids]) for text in texts]
        sizes = np.array([len(row) for row in rows], np.int64)
        ids, text = np.concatenate(rows), np.repeat(np.arange(len(rows)), sizes)
        starts = np.concatenate([[True], text[1:] != text[:-1]])
        depths = depths_of(starts | np.isin(ids, before), self._grams.order)
        # Without a separator, the first token of a text has nothing before it.
        depths = np.where(starts, 1, depths)
        scored = ~starts if len(before) else np.ones(len(ids), bool)
        nll = -np.log(self._grams.probabilities(ids, depths))
        scores.add(text[scored], nll[scored])
        return scores

    def definition(self, options: ScoringOptions) -> str:
        """See ``Likelihood``."""
        begin = (
            "a separator before each document" if self._separator is not None else "no separator"
        )
        return (
            f"p(token | at most {self._grams.order - 1} tokens before it in its document), "
            f"interpolated Kneser-Ney of {self._grams.tokens:,} tokens, {begin}"
        )

    def sentence_definition(self, options: ScoringOptions) -> str:
        """See ``Likelihood``."""
        return f"sum of log {self.definition(options)}"


class NGram(Measure[Config], config=Config):
    """See ``Config``."""

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """The metrics of ``perplexity``, or of ``minimal_pairs``.

        Raises:
            ConfigError: The model is of no run that has one training text, and none is named.
        """
        config, of_model = self.config, Likelihood.of(model)
        vocab = model.vocab
        separator = vocab.sep if vocab.eos is None else vocab.eos
        grams = ngrams_of(self._store(of_model), separator, tell, order=config.order)
        likelihood = NGramLikelihood(model, grams, separator)
        if config.items == "pairs":
            pairs = measure_pairs(config, likelihood)
            return Measurement(pairs.results | _counts(grams), pairs.per_item, pairs.predictions)
        corpus = read_corpus(config, of_model, seed)
        tokens = model.tokens(corpus.texts)
        options = ScoringOptions()
        scores = likelihood.score(tokens, options)
        size, characters, words = corpus.sizes.astype(np.float64)
        bits, _ = bits_of(model, tokens, scores)
        results = {
            **ratio_metrics("perplexity", scores.nll, scores.scored, seed, np.exp),
            **ratio_metrics("word_perplexity", scores.nll, words, seed, np.exp),
            **ratio_metrics("bits_per_byte", bits, size, seed),
            **ratio_metrics("bits_per_character", bits, characters, seed),
            **corpus_counts(corpus, tokens, scores),
            **_counts(grams),
            "definition": f"-log2 {likelihood.definition(options)}; {BITS_DEFINITION}",
        }
        items = digest_of_items([document.text for document in corpus.documents])
        per_item = PerItemScores("bits per byte", items, bits.tolist(), size.tolist(), "low")
        return Measurement(results, {"": per_item})

    def _store(self, likelihood: Likelihood) -> TokenStore:
        config, model = self.config, likelihood.model
        data = (
            _text_of_run(model)
            if not config.train
            else DataConfig(
                train=config.train,
                valid=None,
                store=config.store,
                sentences="auto" if likelihood.READS_SENTENCES else "none",
                separator=config.text_separator,
            )
        )
        stores = build_stores(
            data,
            model.encoder,
            root=store_root(data.store),
            processes=1,
            progress=lambda done, total: None,
            notice=tell,
        )
        return TokenStore.open(stores.train)


def _text_of_run(model: LoadedModel) -> DataConfig:
    """The text of the pretraining that wrote a model, as it was read there."""
    for folder in (Path(model.name), Path(model.name).parent):
        if (folder / "config.yaml").is_file():
            run = read_document(folder / "config.yaml").data
            if "objective" in run and run["data"].get("train"):
                data = DataConfig.model_validate(run["data"])
                member = get_objective(run["objective"]["name"])
                if member.Config.model_validate(run["objective"]).reads_sentences:
                    return data
                return data.model_copy(update={"sentences": "none"})
    raise ConfigError(
        f"{model.name}: it is not in the folder of a pretraining that has one training text",
        "set `train` of this measure to the text whose n-grams are counted",
    )


def _counts(grams: NGrams) -> dict[str, int]:
    return {"order": grams.order, "training_tokens": grams.tokens}
