"""The last word of a passage (LAMBADA, Paperno et al., 2016, arXiv:1606.06031).

Accuracy: the passages of which every token of the last word is the most probable one given all
before it. Perplexity: exp of the mean of -log p(last word), a word's tokens summed: per word, not
per token. GPT-2's paper has other figures for the same models: it took the most probable word that
is no stop word, of a text detokenized in its own way.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from plmctl.corpus.labelled import Row
from plmctl.errors import DataError
from plmctl.evaluation.completions import score_completions
from plmctl.evaluation.model import EvaluatedModel
from plmctl.evaluation.prompting import (
    FewShot,
    Shot,
    Template,
    column_text,
    fill_template,
    prompt_rows,
)
from plmctl.measures.base import (
    PER_ITEM,
    PerItemScores,
    PromptedConfig,
    hash_of_rows,
    load_prompted_model,
    with_separator,
)
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


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """Accuracy, and perplexity of the word, with standard errors."""
    rows = prompt_rows(config.data)[: config.max_items]
    items = [_item(config, row) for row in rows]
    model = load_prompted_model(config, subject)
    pool = prompt_rows(config.shots.train) if config.shots.count and config.shots.train else []
    few_shot = FewShot(config.shots, [_item(config, row) for row in pool], model, subject.seed)
    prompts = [few_shot(item.prompt, model.count(item.completion)) for item in items]
    pairs = [(p.text, item.completion) for p, item in zip(prompts, items, strict=True)]
    found = score_completions(model, pairs, subject.batch_size, sentinel=config.sentinel)
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
        "data_hash": hash_of_rows(rows),
        "definition": (
            "accuracy: every token of the last word is the most probable one given all before it; "
            "perplexity: exp(mean of -log p(last word)), a word's tokens summed"
        ),
        PER_ITEM: {
            "accuracy": PerItemScores("accuracy", hash_of_rows(rows), hits),
            "nll": PerItemScores("nats per word", hash_of_rows(rows), losses, better="low"),
        },
    }


def _item(config: Config, row: Row) -> Shot:

    text = column_text(row.values, config.text, row.origin).rstrip()
    if config.word is None:
        context, _, word = text.rpartition(" ")
    else:
        context, word = text, column_text(row.values, config.word, row.origin).strip()
    if not context.strip() or not word:
        raise DataError(
            f"{row.origin}: no word after a context",
            "a passage has two words or more; name the column of the last word with `word`",
        )
    prompt = fill_template(
        config.template, {**row.values, "context": context, "word": word}, row.origin
    )
    return Shot(prompt, with_separator(config, word))
