"""Ranked completions: is the right completion of a context more probable than the others?

The candidates of an item are contexts with completions, and the score of one is log p(completion |
context). So EWoK compares two targets after one context, or one target after two contexts (Ivanova
et al., 2024, arXiv:2405.09605), COMPS one property of two concepts (Misra et al., 2023,
arXiv:2210.01963), entity tracking several boxes' contents (Kim and Schuster, 2023,
arXiv:2305.02363), and GlobalPIQA several solutions, by their mean over the tokens. A tie is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from plmctl.config.base import Text
from plmctl.corpus.labelled import Row
from plmctl.errors import DataError
from plmctl.evaluation.completions import Pair, completion_scorer
from plmctl.evaluation.likelihood import FROM_BEFORE, MaskingVariant
from plmctl.evaluation.model import LoadedModel
from plmctl.evaluation.prompting import Template, column_text, column_value, fill_template
from plmctl.hashing import digest_of_items
from plmctl.measures._paradigms import ParadigmConfig, Paradigms, file_names, refuse_no_items
from plmctl.measures.base import Measure, Measurement, PerItemScores, tell
from plmctl.metrics.statistics import mean_and_error
from plmctl.models.completions import CompletionScore

_ROUNDING = 1e-6  # relative, of a score that is summed over tokens in float32

Candidates = Annotated[tuple[tuple[Template, Template], ...], Field(min_length=2)]
"""Contexts and completions; the first is the right one."""


class Config(ParadigmConfig):
    """Accuracy of finding the right completion (EWoK, COMPS, entity tracking, GlobalPIQA)."""

    name: Literal["ranked_completions"] = "ranked_completions"
    rankings: dict[str, Candidates] = {}
    """Candidates that are compared, by name: each a context and a completion, with {column} for a
    row's values. The first candidate is the right one. The first ranking gives `accuracy`, the
    others `accuracy/NAME`."""
    context: Template | None = None
    """Instead of `rankings`: the context of all candidates ..."""
    options: Text | tuple[Text, ...] | None = None
    """... and the column of a list of completions, or several columns with one each."""
    answer: Text | None = None
    """With `options`: the column of the right one's number, from 0. Empty: the first is right."""
    without: Text | None = None
    """With `options`: leave out the items that have this word in a completion."""
    per: Literal["text", "token", "character"] = "text"
    """What the log-likelihood of a completion is divided by: nothing (the text is one), its tokens,
    or its characters, without `between`."""
    between: str = " "
    """Text between a context and a completion that does not begin with a space. Empty: none."""
    variant: MaskingVariant = "original"
    """Masked models. original: one token of the completion is masked, as published; word_l2r: the
    later tokens of its word too."""
    seq_len: int | None = Field(default=None, ge=8)
    """Tokens that the model reads at most; contexts are cut from the left. Empty: its positions
    (T5: 512)."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.rankings) == (self.options is not None):
            raise ValueError("expected `rankings`, or `context` and `options`")
        if (self.context is None) != (self.options is None):
            raise ValueError("expected `context` and `options` together")
        if self.options is None and (self.answer or self.without):
            raise ValueError("`answer` and `without` are of `options`")
        return self


class RankedCompletions(Measure[Config], config=Config):
    """See ``Config``."""

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """Accuracies of each ranking with their standard errors, per paradigm and of all items.

        Raises:
            ConfigError: The model's family has no likelihood of a completion (ELMo).
            DataError: A column is missing, or a completion is longer than the model reads.
        """
        config = self.config
        scorer = completion_scorer(model, config.name, config.seq_len, config.variant)
        rankings, paradigms, left_out = self._read()
        unique = list(
            dict.fromkeys(pair for items in rankings.values() for i in items for pair in i)
        )
        scores = dict(zip(unique, scorer(unique), strict=True))
        log_probs = {
            pair: score.log_prob / self._size(pair, score) for pair, score in scores.items()
        }
        results: dict[str, Any] = {}
        per_item: dict[str, PerItemScores] = {}
        hits: dict[str, NDArray[np.bool_]] = {}
        ties = 0
        for number, (name, items) in enumerate(rankings.items()):
            signs = np.array([_sign([log_probs[pair] for pair in item]) for item in items])
            key = f"accuracy/{name}" if number else "accuracy"
            hits[name] = signs > 0
            ties += 0 if number else int((signs == 0).sum())
            results |= paradigms.results(key, hits[name])
            items_hash = digest_of_items([text for item in items for pair in item for text in pair])
            per_item[name if number else ""] = PerItemScores(
                key, items_hash, hits[name].astype(np.float64).tolist()
            )
        first = next(iter(rankings))
        results |= {
            "chance": float(np.mean([1 / len(item) for item in rankings[first]])),
            "items": len(rankings[first]),
            "ties": ties,
            **({"left_out": left_out} if self.config.without else {}),
            "cut": sum(score.cut for score in scores.values()),
            "paradigms": self._rows(paradigms, hits),
            **({"groups": paradigms.group_rows(hits[first])} if self.config.groups else {}),
            "definition": (
                "share of items whose right candidate has the highest log p(completion | context), "
                "ties (equal to 1e-6) wrong; macro: mean of the paradigms, unweighted; "
                f"{self._likelihood(model)}"
                + ("" if self.config.per == "text" else f"; over its {self.config.per}s")
            ),
        }
        right = hits[first]
        preferred = [
            self._preferred(item, [log_probs[pair] for pair in item], bool(hit))
            for item, hit in zip(rankings[first], right, strict=True)
        ]
        return Measurement(results, per_item, paradigms.chosen(preferred))

    def _rows(
        self, paradigms: Paradigms, hits: dict[str, NDArray[np.bool_]]
    ) -> list[dict[str, Any]]:
        first, *others = hits
        rows = []
        for name, mask in paradigms.masks().items():
            accuracy, error = mean_and_error(hits[first][mask].tolist())
            row = {"paradigm": name, "accuracy": accuracy, "accuracy_se": error}
            row |= {other: float(hits[other][mask].mean()) for other in others}
            rows.append({**row, "items": int(mask.sum())})
        return rows

    def _likelihood(self, model: LoadedModel) -> str:
        if model.is_masked:
            words = self.config.variant == "word_l2r"
            masked = "its word's later tokens masked too" if words else "one masked at once"
            place = FROM_BEFORE if model.sees_both_sides else ""
            return f"of the completion's tokens, {masked}, all else seen{place}"
        if model.text_to_text:
            return "in the decoder, after a sentinel at the end of the context in the encoder"
        return "each token given all before it, without a begin token"

    def _read(self) -> tuple[dict[str, list[list[Pair]]], Paradigms, int]:
        """The items of each ranking as candidates, their paradigms, and the number left out.

        Raises:
            DataError: A file has no item, or every item is left out.
        """
        from plmctl.corpus.source import resolve
        from plmctl.corpus.tabular import rows

        config, left_out = self.config, 0
        sources = resolve(config.data)
        paradigms = Paradigms.of(config)
        rankings: dict[str, list[list[Pair]]] = {
            name: [] for name in config.rankings or ("options",)
        }
        for source, file in zip(sources, file_names([one.name for one in sources]), strict=True):
            before = len(paradigms.names) + left_out
            for values, origin in rows(source):
                row = Row(values, origin)
                candidates = {name: self._candidates(row, name) for name in rankings}
                if config.without and _has_word(config.without, candidates["options"]):
                    left_out += 1
                    continue
                for name, items in rankings.items():
                    items.append(candidates[name])
                paradigms.add(row, file, config)
            refuse_no_items(source.name, len(paradigms.names) + left_out - before)
        if not paradigms.names:
            raise DataError(
                f"{', '.join(config.data)}: every item has the word {config.without!r}",
                "leave out `without`",
            )
        if left_out:
            tell(f"{left_out:,} items are left out, which have {config.without!r} in a completion")
        return rankings, paradigms, left_out

    def _candidates(self, row: Row, ranking: str) -> list[Pair]:
        """The candidates of a row, the right one first.

        Raises:
            DataError: A column is missing, or holds no list of two completions or more.
        """
        config = self.config
        if config.options is None:
            return [
                self._pair(
                    fill_template(context, row.values, row.origin),
                    fill_template(completion, row.values, row.origin),
                )
                for context, completion in config.rankings[ranking]
            ]
        if isinstance(config.options, str):
            options = column_value(row.values, config.options, row.origin)
        else:
            options = [column_text(row.values, name, row.origin) for name in config.options]
        if not isinstance(options, list) or len(options) < 2:  # noqa: PLR2004  # two to compare
            raise DataError(
                f"{row.origin}: column {config.options!r} has no list of two completions or more",
                "set `options` of this measure to the column of the completions",
            )
        right = 0
        if config.answer is not None:
            number = column_text(row.values, config.answer, row.origin)
            if not number.isdecimal() or int(number) >= len(options):
                raise DataError(
                    f"{row.origin}: column {config.answer!r} is {number!r}, which is no number of "
                    f"an option, 0 to {len(options) - 1}",
                    "set `answer` of this measure to the column of the right option's number",
                )
            right = int(number)
        context = fill_template(str(config.context), row.values, row.origin)
        options = [options[right], *options[:right], *options[right + 1 :]]
        return [self._pair(context, str(option)) for option in options]

    def _size(self, pair: Pair, score: CompletionScore) -> int:
        """What the log-likelihood of a completion is divided by."""
        if self.config.per == "character":
            return len(pair[1].removeprefix(self.config.between))
        return score.tokens if self.config.per == "token" else 1

    def _preferred(self, item: Sequence[Pair], scores: Sequence[float], hit: bool) -> str:
        """The completion of the preferred candidate; its context too if all have the same one.

        If the right one is not preferred, this is the best of the others. An option is as the data
        have it.
        """
        number = 0 if hit else 1 + int(np.argmax(scores[1:]))
        context, completion = item[number]
        if self.config.options is not None:
            return completion.removeprefix(self.config.between)
        return context + completion if len({text for _, text in item}) == 1 else completion

    def _pair(self, context: str, completion: str) -> Pair:
        spaced = completion[:1].isspace() or context[-1:].isspace()
        return context, completion if spaced else self.config.between + completion


def _sign(scores: Sequence[float]) -> int:
    """1 if the first score is the highest, -1 if another is higher, 0 for a tie with the best."""
    right, best = scores[0], max(scores[1:])
    if abs(right - best) <= _ROUNDING * max(abs(right), abs(best)):
        return 0
    return 1 if right > best else -1


def _has_word(word: str, item: Sequence[Pair]) -> bool:
    pattern = re.compile(rf"\b{re.escape(word)}\b")
    return any(pattern.search(completion) for _, completion in item)
