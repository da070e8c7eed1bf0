"""Questions answered from what the weights know: exact match with any of the right answers.

As GPT-3 and T5 were measured on Natural Questions, WebQuestions (`normalisation: squad`) and
TriviaQA (`trivia_qa`). GPT-3's own decoding is `beams: 4`, `length_penalty: 0.6`. Papers report 100
times this score.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator

from plmctl.corpus.labelled import Row
from plmctl.errors import DataError
from plmctl.evaluation.generation import Decoding, encode_prompt, generate_texts
from plmctl.evaluation.model import LoadedModel
from plmctl.evaluation.prompting import FewShot, Shot, Template, column_value, render_row
from plmctl.measures.base import (
    Measurement,
    PerItemScores,
    PromptedConfig,
    PromptedMeasure,
    hash_of_rows,
)
from plmctl.metrics.statistics import mean_and_error
from plmctl.metrics.text import Rules, is_match


class Config(PromptedConfig):
    """Exact match of answers without any text to read; zero- or few-shot."""

    name: Literal["closed_book_qa"] = "closed_book_qa"
    template: Template = "Q: {question}\nA:"
    """The prompt, with {column} for a row's values."""
    answers: str = "answers"
    """The column of the right answers: a list of aliases, or one."""
    normalisation: Rules = "squad"
    """The rules by which answers are normalised before they are compared."""
    stop: str = "\n"
    """The answer of a causal model ends before this text; empty: it ends at the limit."""
    beams: int = Field(default=1, ge=1)
    """Hypotheses of beam search; 1: greedy."""
    length_penalty: float = 0.6
    """Beam search: log-probabilities are divided by the length to this power."""
    max_new_tokens: int = Field(default=32, ge=1)
    """Tokens per answer at most."""

    @field_validator("normalisation", mode="before")
    @classmethod
    def _earlier_spelling(cls, rules: object) -> object:
        return "trivia_qa" if rules == "triviaqa" else rules


class ClosedBookQA(PromptedMeasure[Config], config=Config):
    """See ``Config``."""

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """Exact match with its standard error."""
        config, rows = self.config, self.item_rows()
        aliases = [self._aliases(row) for row in rows]
        items = [self._item(row, names[0]) for row, names in zip(rows, aliases, strict=True)]
        examples = [self._item(row, self._aliases(row)[0]) for row in self.shot_rows()]
        model = self.prompted_model(model)
        few_shot = FewShot(config.shots, examples, model, seed)
        new_tokens = 0 if model.text_to_text else config.max_new_tokens
        prompts = [few_shot(item.prompt, new_tokens) for item in items]
        model.note_unknown([prompt.text for prompt in prompts])
        encodings = model.plain.encode_batch(
            [prompt.text.rstrip(" ") for prompt in prompts], add_special_tokens=False
        )
        inputs = [
            encode_prompt(model, encoding.ids, config.max_new_tokens, sentinel=config.sentinel)
            for encoding in encodings
        ]
        decoding = Decoding(
            max_new_tokens=config.max_new_tokens,
            beams=config.beams,
            length_penalty=config.length_penalty,
            ends=() if model.text_to_text or not config.stop else model.ids_with(config.stop),
            sentinel=config.sentinel,
        )
        texts = [generated.text.strip() for generated in generate_texts(model, inputs, decoding)]
        answers = [text.split(config.stop)[0].strip() if config.stop else text for text in texts]
        hits = [
            float(is_match(answer, names, config.normalisation))
            for answer, names in zip(answers, aliases, strict=True)
        ]
        score, error = mean_and_error(hits)
        data_hash = hash_of_rows(rows)
        results = {
            "exact_match": score,
            "stderr/exact_match": error,
            "empty": sum(not answer for answer in answers) / len(answers),
            "items": len(items),
            "shots": mean_and_error([prompt.shots for prompt in prompts])[0],
            "cut": sum(prompt.cut for prompt in inputs),
            "data_hash": data_hash,
            "definition": (
                "share of answers that equal one of the right ones, both normalised as "
                f"{config.normalisation} does"
            ),
        }
        return Measurement(results, {"": PerItemScores("exact match", data_hash, hits)})

    def _aliases(self, row: Row) -> Sequence[str]:
        """The right answers of a row."""
        value = column_value(row.values, self.config.answers, row.origin)
        if isinstance(value, dict):
            value = value.get("aliases") or value.get("text") or []
        names = [str(name) for name in value] if isinstance(value, list) else [str(value)]
        if not any(name.strip() for name in names):
            raise DataError(
                f"{row.origin}: no answer in column {self.config.answers!r}", "remove the row"
            )
        return names

    def _item(self, row: Row, answer: str) -> Shot:
        prompt = render_row(self.config.template, row)
        return Shot(prompt, self.config.with_separator(answer))
