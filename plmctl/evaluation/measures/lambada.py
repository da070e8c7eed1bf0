"""The last word of a passage (LAMBADA, Paperno et al., 2016, arXiv:1606.06031).

Accuracy: the passages of which every token of the last word is the most probable one given all
before it. Perplexity: exp of the mean of -log p(last word), a word's tokens summed: per word, not
per token. GPT-2's paper has other figures for the same models: it took the most probable word that
is no stop word, of a text detokenized in its own way.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from plmctl.corpus.tables import Row
from plmctl.errors import DataError
from plmctl.evaluation.measures import EACH, Each, Subject
from plmctl.evaluation.prompting.continuations import score
from plmctl.evaluation.prompting.measuring import (
    PromptedConfig,
    hash_of,
    line_rows,
    open_model,
    spaced,
)
from plmctl.evaluation.prompting.shots import Example, FewShot
from plmctl.evaluation.prompting.templates import Template, filled, text_in
from plmctl.metrics.statistics import mean_and_error


class Config(PromptedConfig):
    """Accuracy and perplexity of the last word of passages; zero- or few-shot."""

    name: Literal["lambada"] = "lambada"
    text: str = "text"
    """Column of the passages; a txt file has one a line."""
    word: str | None = None
    """Column of the last word, where `text` is what stands before it; empty: what follows the last
    space of the text. Chinese needs it."""
    template: Template = "{context}"
    """The prompt: {context} is the passage without its last word. The few-shot form of GPT-3:
    "{context} ____. ->"."""


def measure(config: Config, subject: Subject) -> dict[str, Any]:
    """Accuracy, and perplexity of the word, with standard errors."""
    rows = line_rows(config.data)[: config.max_items]
    items = [_item(config, row) for row in rows]
    model = open_model(config, subject)
    pool = line_rows(config.shots.train) if config.shots.count and config.shots.train else []
    few_shot = FewShot(config.shots, [_item(config, row) for row in pool], model, subject.seed)
    prompts = [few_shot(item.prompt, model.count(item.completion)) for item in items]
    pairs = [(p.text, item.completion) for p, item in zip(prompts, items, strict=True)]
    found = score(model, pairs, subject.batch_size, sentinel=config.sentinel)
    hits, losses = [float(one.greedy) for one in found], [-one.log_prob for one in found]
    accuracy, error = mean_and_error(hits)
    loss, loss_error = mean_and_error(losses)
    perplexity = math.exp(min(loss, 700.0))
    return {
        "accuracy": accuracy,
        "stderr/accuracy": error,
        "perplexity": perplexity,
        "stderr/perplexity": loss_error and perplexity * loss_error,  # to first order
        "tokens_per_word": mean_and_error([float(one.tokens) for one in found])[0],
        "items": len(items),
        "shots": mean_and_error([prompt.shots for prompt in prompts])[0],
        "cut": sum(one.cut for one in found),
        "data_hash": hash_of(rows),
        "definition": (
            "accuracy: every token of the last word is the most probable one given all before it; "
            "perplexity: exp(mean of -log p(last word)), a word's tokens summed"
        ),
        EACH: {
            "accuracy": Each("accuracy", hash_of(rows), hits),
            "nll": Each("nats per word", hash_of(rows), losses, better="low"),
        },
    }


def _item(config: Config, row: Row) -> Example:

    text = text_in(row.values, config.text, row.origin).rstrip()
    if config.word is None:
        context, _, word = text.rpartition(" ")
    else:
        context, word = text, text_in(row.values, config.word, row.origin).strip()
    if not context.strip() or not word:
        raise DataError(
            f"{row.origin}: no word after a context",
            "a passage has two words or more; name the column of the last word with `word`",
        )
    prompt = filled(config.template, {**row.values, "context": context, "word": word}, row.origin)
    return Example(prompt, spaced(config, word))
