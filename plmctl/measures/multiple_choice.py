"""Multiple choice without finetuning: the option that the model finds most probable.

As GPT-3 was measured: log p(option | prompt) of each option, the prompt after examples if asked for
(few-shot). The likelihood is not enough to compare options of different length and frequency, so
that the accuracy is given by four scores; see ``prompting.preferred_options``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plmctl.corpus.labelled import Row, read_rows
from plmctl.evaluation.completions import score_completions
from plmctl.evaluation.model import EvaluatedModel
from plmctl.evaluation.prompting import (
    FewShot,
    QuestionColumns,
    Shot,
    Template,
    preferred_options,
    question_of,
)
from plmctl.measures.base import (
    PER_ITEM,
    PerItemScores,
    PromptedConfig,
    hash_of_rows,
    item_rows,
    load_prompted_model,
)
from plmctl.metrics.statistics import mean_and_error

if TYPE_CHECKING:
    from plmctl.evaluation.completions import CompletionScore
    from plmctl.evaluation.model import LoadedGenerator
    from plmctl.evaluation.prompting import Prompt, Question


class Config(PromptedConfig):
    """Accuracy of choosing the most probable option, by four scores; zero- or few-shot."""

    name: Literal["multiple_choice"] = "multiple_choice"
    template: Template
    """The prompt, with {column} for a row's values; each option is written after it."""
    options: str | tuple[str, ...] = "options"
    """The column of a list of options; several columns: an option each."""
    choices: dict[str, str] = {}
    """Instead of `options`: the labels of a column, each with the words for it."""
    answer: str = "answer"
    """The column of the right option: its text, its number or its letter."""
    first: Literal[0, 1] = 0
    """The number of the first option, where the answer is a number."""
    unconditional: str | None = Field(default="Answer:", min_length=1)
    """The prompt that says nothing, of the score `unconditional`; empty: leave that score out."""


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """Accuracies with their standard errors, beside chance and always naming one place."""
    from plmctl.metrics.classification import majority

    rows = item_rows(config)
    questions = _questions(config, rows)
    model = load_prompted_model(config, subject)
    prompts = _prompts(config, questions, model, subject.seed)
    pairs = [(p.text, o) for p, q in zip(prompts, questions, strict=True) for o in q.options]
    found = score_completions(model, pairs, subject.batch_size, sentinel=config.sentinel)
    bare: dict[str, CompletionScore] = {}
    if config.unconditional is not None:
        options = list(dict.fromkeys(option for _, option in pairs))
        alone = [(config.unconditional, option) for option in options]
        scored = score_completions(model, alone, subject.batch_size, sentinel=config.sentinel)
        bare = dict(zip(options, scored, strict=True))
    right: dict[str, list[float]] = {}
    at = 0
    for question in questions:
        conditional = found[at : at + len(question.options)]
        at += len(question.options)
        alone_scores = [bare[option] for option in question.options] if bare else None
        for name, taken in preferred_options(question.options, conditional, alone_scores).items():
            right.setdefault(name, []).append(float(taken == question.answer))
    figures: dict[str, Any] = {}
    for name, hits in right.items():
        figures[f"accuracy/{name}"], figures[f"stderr/{name}"] = mean_and_error(hits)
    return {
        **figures,
        "chance": mean_and_error([1 / len(question.options) for question in questions])[0],
        "majority": majority([question.answer for question in questions]),
        "items": len(questions),
        "shots": mean_and_error([prompt.shots for prompt in prompts])[0],
        "cut": sum(continuation.cut for continuation in found),
        "data_hash": hash_of_rows(rows),
        "definition": (
            "share of items whose right option has the highest score, the first of equal ones; "
            "sum: log p(option | prompt); token, byte: that over the option's tokens or UTF-8 "
            "bytes; unconditional: less log p(option | a prompt that says nothing)"
        ),
        PER_ITEM: {
            name: PerItemScores(f"accuracy/{name}", hash_of_rows(rows), hits)
            for name, hits in right.items()
        },
    }


def _questions(config: Config, rows: Sequence[Row]) -> list[Question]:
    columns = QuestionColumns(
        config.template,
        config.options,
        config.choices,
        config.answer,
        config.first,
        config.between,
    )
    return [question_of(columns, row) for row in rows]


def _prompts(
    config: Config, questions: Sequence[Question], model: LoadedGenerator, seed: int
) -> list[Prompt]:
    shots = config.shots
    pool = _questions(config, read_rows(shots.train)) if shots.count and shots.train else []
    examples = [Shot(question.prompt, question.options[question.answer]) for question in pool]
    few_shot = FewShot(shots, examples, model, seed)
    return [few_shot(q.prompt, max(map(model.count, q.options))) for q in questions]
