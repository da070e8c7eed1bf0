"""The last word of a passage (LAMBADA, Paperno et al., 2016, arXiv:1606.06031).

Accuracy: the share of passages in which every token of the last word is the most probable one given
all before it. Perplexity: exp of the mean of -log p(last word), summed over the tokens of a word:
per word, not per token. GPT-2's paper reports other results for the same models: it took the most
probable word that is not a stop word, of a text that it detokenized differently.
"""

from __future__ import annotations

import math
from typing import Literal

from plmctl.corpus.labelled import Row
from plmctl.errors import DataError
from plmctl.evaluation.completions import score_completions
from plmctl.evaluation.model import LoadedModel
from plmctl.evaluation.prompting import (
    FewShot,
    Shot,
    Template,
    column_text,
    fill_template,
    prompt_rows,
)
from plmctl.measures.base import (
    Measurement,
    PerItemScores,
    PromptedConfig,
    PromptedMeasure,
    hash_of_rows,
)
from plmctl.metrics.statistics import mean_and_error


class Config(PromptedConfig):
    """Accuracy and perplexity of the last word of passages; zero- or few-shot."""

    name: Literal["lambada"] = "lambada"
    text: str = "text"
    """Column of the passages; a txt file has one per line."""
    word: str | None = None
    """Column of the last word, if `text` is only what precedes it; empty: the last word is what
    follows the last space of `text`. Required for Chinese."""
    template: Template = "{context}"
    """The prompt: {context} is the passage without its last word. The few-shot form of GPT-3:
    "{context} ____. ->"."""


class Lambada(PromptedMeasure[Config], config=Config):
    """See ``Config``."""

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """Accuracy, and perplexity of the word, with standard errors."""
        shots = self.config.shots
        rows = self.item_rows()
        items = [self._item(row) for row in rows]
        model = self.prompted_model(model)
        few_shot = FewShot(shots, [self._item(row) for row in self.shot_rows()], model, seed)
        prompts = [few_shot(item.prompt, model.count(item.completion)) for item in items]
        pairs = [(p.text, item.completion) for p, item in zip(prompts, items, strict=True)]
        scores = score_completions(model, pairs, sentinel=self.config.sentinel)
        hits, losses = [float(s.greedy) for s in scores], [-s.log_prob for s in scores]
        accuracy, error = mean_and_error(hits)
        loss, loss_error = mean_and_error(losses)
        perplexity = math.exp(min(loss, 700.0))
        data_hash = hash_of_rows(rows)
        results = {
            "accuracy": accuracy,
            "stderr/accuracy": error,
            "perplexity": perplexity,
            "stderr/perplexity": loss_error and perplexity * loss_error,  # to first order
            "tokens_per_word": mean_and_error([float(s.tokens) for s in scores])[0],
            "items": len(items),
            "shots": mean_and_error([prompt.shots for prompt in prompts])[0],
            "cut": sum(s.cut for s in scores),
            "data_hash": data_hash,
            "definition": (
                "accuracy: every token of the last word is the most probable one given all before "
                "it; perplexity: exp(mean of -log p(last word)), a word's tokens summed"
            ),
        }
        per_item = {
            "accuracy": PerItemScores("accuracy", data_hash, hits),
            "nll": PerItemScores("nats per word", data_hash, losses, better="low"),
        }
        return Measurement(results, per_item)

    def item_rows(self) -> list[Row]:
        """The rows to score; a txt file has one per line."""
        return prompt_rows(self.config.data)[: self.config.max_items]

    def shot_rows(self) -> list[Row]:
        """The rows from which examples are drawn; a txt file has one per line."""
        shots = self.config.shots
        return prompt_rows(shots.train) if shots.count and shots.train else []

    def _item(self, row: Row) -> Shot:
        config = self.config
        text = column_text(row.values, config.text, row.origin).rstrip()
        if config.word is None:
            context, _, word = text.rpartition(" ")
        else:
            context, word = text, column_text(row.values, config.word, row.origin).strip()
        if not context.strip() or not word:
            raise DataError(
                f"{row.origin}: the passage has no word after a context",
                "a passage needs two words or more; `word` names the column of the last word",
            )
        values = {**row.values, "context": context, "word": word}
        prompt = fill_template(config.template, values, row.origin)
        return Shot(prompt, config.with_separator(word))
