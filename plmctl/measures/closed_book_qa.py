"""Questions answered from what the weights know: exact match with any of the right answers.

As GPT-3 and T5 were measured on Natural Questions, WebQuestions (`normalisation: squad`) and
TriviaQA (`trivia_qa`). GPT-3's own decoding is `beams: 4`, `length_penalty: 0.6`. A score of the
literature is 100 times this one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from plmctl.corpus.labelled import Row, read_rows
from plmctl.errors import DataError
from plmctl.evaluation.generation import Decoding, encode_prompt, generate_texts
from plmctl.evaluation.model import EvaluatedModel
from plmctl.evaluation.prompting import FewShot, Shot, Template, column_value, render_row
from plmctl.measures.base import (
    PER_ITEM,
    PerItemScores,
    PromptedConfig,
    hash_of_rows,
    item_rows,
    load_prompted_model,
    with_separator,
)
from plmctl.metrics.statistics import mean_and_error
from plmctl.metrics.text import Rules, is_match

if TYPE_CHECKING:
    from plmctl.evaluation.generation import GeneratedText
    from plmctl.evaluation.model import LoadedGenerator


class Config(PromptedConfig):
    """Exact match of answers without any text to read; zero- or few-shot."""

    name: Literal["closed_book_qa"] = "closed_book_qa"
    template: Template = "Q: {question}\nA:"
    """The prompt, with {column} for a row's values."""
    answers: str = "answers"
    """The column of the right answers: a list of aliases, or one."""
    normalisation: Rules = "squad"
    """What is left out before answers are compared."""
    stop: str = "\n"
    """The answer of a causal model ends before this; empty: it goes on to the limit."""
    beams: int = Field(default=1, ge=1)
    """Hypotheses of beam search; 1: greedy."""
    length_penalty: float = 0.6
    """Of beam search: log-probabilities are divided by the length to this power."""
    max_new_tokens: int = Field(default=32, ge=1)
    """Tokens of an answer at most."""

    @field_validator("normalisation", mode="before")
    @classmethod
    def _earlier_spelling(cls, rules: object) -> object:
        return "trivia_qa" if rules == "triviaqa" else rules


def measure(config: Config, subject: EvaluatedModel) -> dict[str, Any]:
    """Exact match with its standard error."""
    rows = item_rows(config)
    aliases = [_aliases(config, row) for row in rows]
    items = [_item(config, row, names[0]) for row, names in zip(rows, aliases, strict=True)]
    pool = read_rows(config.shots.train) if config.shots.count and config.shots.train else []
    examples = [_item(config, row, _aliases(config, row)[0]) for row in pool]
    model = load_prompted_model(config, subject)
    few_shot = FewShot(config.shots, examples, model, subject.seed)
    room = 0 if model.text_to_text else config.max_new_tokens
    prompts = [few_shot(item.prompt, room) for item in items]
    encoded = model.plain.encode_batch(
        [p.text.rstrip(" ") for p in prompts], add_special_tokens=False
    )
    inputs = [
        encode_prompt(model, found.ids, config.max_new_tokens, sentinel=config.sentinel)
        for found in encoded
    ]
    written = generate_texts(model, inputs, _decoding(config, model), subject.batch_size)
    said = [_answer(config, found) for found in written]
    hits = [
        float(is_match(answer, names, config.normalisation))
        for answer, names in zip(said, aliases, strict=True)
    ]
    score, error = mean_and_error(hits)
    return {
        "exact_match": score,
        "stderr/exact_match": error,
        "empty": sum(not answer for answer in said) / len(said),
        "items": len(items),
        "shots": mean_and_error([prompt.shots for prompt in prompts])[0],
        "cut": sum(one.cut for one in inputs),
        "data_hash": hash_of_rows(rows),
        "definition": (
            "share of answers that equal one of the right ones, both normalised as "
            f"{config.normalisation} does"
        ),
        PER_ITEM: {"": PerItemScores("exact match", hash_of_rows(rows), hits)},
    }


def _decoding(config: Config, model: LoadedGenerator) -> Any:
    ends = () if model.text_to_text or not config.stop else model.ids_with(config.stop)
    return Decoding(
        max_new_tokens=config.max_new_tokens,
        beams=config.beams,
        length_penalty=config.length_penalty,
        ends=ends,
        sentinel=config.sentinel,
    )


def _answer(config: Config, found: GeneratedText) -> str:
    text = found.text.strip()
    return text.split(config.stop)[0].strip() if config.stop else text


def _aliases(config: Config, row: Row) -> Sequence[str]:

    found = column_value(row.values, config.answers, row.origin)
    if isinstance(found, dict):
        found = found.get("aliases") or found.get("text") or []
    names = [str(name) for name in found] if isinstance(found, list) else [str(found)]
    if not any(name.strip() for name in names):
        raise DataError(f"{row.origin}: no answer in column {config.answers!r}", "leave it out")
    return names


def _item(config: Config, row: Row, answer: str) -> Shot:
    return Shot(render_row(config.template, row), with_separator(config, answer))
