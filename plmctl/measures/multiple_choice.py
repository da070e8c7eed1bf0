"""Multiple choice without finetuning: the option that the model finds most probable.

As GPT-3 was measured: log p(option | prompt) of each option, with examples before the prompt if
requested (few-shot). The likelihood alone does not compare options of different length and
frequency, so the accuracy is given by four scores; see ``prompting.preferred_options``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from plmctl.corpus.labelled import Row
from plmctl.evaluation.completions import score_completions
from plmctl.evaluation.model import LoadedModel
from plmctl.evaluation.prompting import (
    FewShot,
    Question,
    QuestionColumns,
    Shot,
    Template,
    preferred_options,
    question_of,
)
from plmctl.measures.base import (
    Measurement,
    PerItemScores,
    PromptedConfig,
    PromptedMeasure,
    hash_of_rows,
)
from plmctl.metrics.statistics import mean_and_error
from plmctl.models.completions import CompletionScore


class Config(PromptedConfig):
    """Accuracy of choosing the most probable option, by four scores; zero- or few-shot."""

    name: Literal["multiple_choice"] = "multiple_choice"
    template: Template
    """The prompt, with {column} for a row's values; each option is written after it."""
    options: str | tuple[str, ...] = "options"
    """The column of a list of options, or several columns with one option each."""
    choices: dict[str, str] = {}
    """Instead of `options`: the labels in the column of the answer, each with its words."""
    answer: str = "answer"
    """The column of the right option: its text, its number or its letter."""
    first: Literal[0, 1] = 0
    """The number of the first option, if the answer is a number."""
    unconditional: str | None = Field(default="Answer:", min_length=1)
    """The neutral prompt of the score `unconditional`; empty: leave that score out."""


class MultipleChoice(PromptedMeasure[Config], config=Config):
    """See ``Config``."""

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """Accuracies with their standard errors, beside chance and the most frequent place."""
        from plmctl.metrics.classification import majority

        config, rows = self.config, self.item_rows()
        questions = self._questions(rows)
        model = self.prompted_model(model)
        pool = self._questions(self.shot_rows())
        examples = [Shot(question.prompt, question.options[question.answer]) for question in pool]
        few_shot = FewShot(config.shots, examples, model, seed)
        prompts = [few_shot(q.prompt, max(map(model.count, q.options))) for q in questions]
        pairs = [(p.text, o) for p, q in zip(prompts, questions, strict=True) for o in q.options]
        scores = score_completions(model, pairs, sentinel=config.sentinel)
        neutral: dict[str, CompletionScore] = {}
        if config.unconditional is not None:
            options = list(dict.fromkeys(option for _, option in pairs))
            after_neutral = [(config.unconditional, option) for option in options]
            neutral_scores = score_completions(model, after_neutral, sentinel=config.sentinel)
            neutral = dict(zip(options, neutral_scores, strict=True))
        hits: dict[str, list[float]] = {}
        remaining = iter(scores)
        for question in questions:
            conditional = [next(remaining) for _ in question.options]
            unconditional = [neutral[option] for option in question.options] if neutral else None
            preferred = preferred_options(question.options, conditional, unconditional)
            for name, option in preferred.items():
                hits.setdefault(name, []).append(float(option == question.answer))
        results: dict[str, Any] = {}
        for name, values in hits.items():
            results[f"accuracy/{name}"], results[f"stderr/{name}"] = mean_and_error(values)
        data_hash = hash_of_rows(rows)
        results |= {
            "chance": mean_and_error([1 / len(question.options) for question in questions])[0],
            "majority": majority([question.answer for question in questions]),
            "items": len(questions),
            "shots": mean_and_error([prompt.shots for prompt in prompts])[0],
            "cut": sum(score.cut for score in scores),
            "data_hash": data_hash,
            "definition": (
                "share of items whose right option has the highest score, the first of equal ones; "
                "sum: log p(option | prompt); token, byte: that over the option's tokens or UTF-8 "
                "bytes; unconditional: less log p(option | a prompt that says nothing)"
            ),
        }
        per_item = {
            name: PerItemScores(f"accuracy/{name}", data_hash, values)
            for name, values in hits.items()
        }
        return Measurement(results, per_item)

    def _questions(self, rows: Sequence[Row]) -> list[Question]:
        config = self.config
        columns = QuestionColumns(
            config.template,
            config.options,
            config.choices,
            config.answer,
            config.first,
            config.between,
        )
        return [question_of(columns, row) for row in rows]
