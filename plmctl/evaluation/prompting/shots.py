"""Examples before an item: few-shot prompts, as many as fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from plmctl.config.base import Model
from plmctl.errors import ConfigError
from plmctl.evaluation.prompting.encoding import joined
from plmctl.shaping.keys import below, fold, stream

if TYPE_CHECKING:
    from plmctl.evaluation.prompting.model import Generative

_MARKS = 2  # T5's end token and sentinel


class ShotsConfig(Model):
    """Examples before each item."""

    count: int = Field(default=0, ge=0)
    """How many at most (0: zero-shot); fewer where no more fit, which is reported."""
    train: tuple[str, ...] = ()
    """Rows that they are drawn from, as `data`: a draw of its own for each item."""
    separator: str = "\n\n"
    """What stands between examples."""
    task: str = ""
    """What stands before them all: what is asked for, in words."""


@dataclass(frozen=True)
class Example:
    """A prompt and its right completion."""

    prompt: str
    completion: str

    def __str__(self) -> str:
        return "".join(joined(self.prompt, self.completion))


@dataclass(frozen=True)
class Prompt:
    """A prompt with its examples, and how many there are."""

    text: str
    shots: int


class FewShot:
    """Puts examples before prompts.

    Args:
        config: How many, and what stands between.
        pool: What they are drawn from.
        model: Decides what fits.
        seed: Decides the draws.

    Raises:
        ConfigError: Examples asked for, and nowhere to draw them from.
    """

    def __init__(
        self, config: ShotsConfig, pool: Sequence[Example], model: Generative, seed: int
    ) -> None:
        if config.count and not pool:
            raise ConfigError(
                f"shots: {config.count} examples asked for, and no rows to draw them from",
                "name them: shots.train",
            )
        self._config, self._pool, self._model, self._seed = config, pool, model, seed
        self._sizes: dict[int, int] = {}

    def __call__(self, prompt: str, room: int) -> Prompt:
        """The prompt after as many examples as fit.

        Args:
            prompt: The item's own.
            room: Tokens to leave for what comes after it.
        """
        drawn = [
            number
            for number in draw(self._seed, prompt, len(self._pool), self._config.count + 1)
            if self._pool[number].prompt != prompt  # the item itself, where it is of the rows too
        ][: self._config.count]
        limit = self._model.window - room - _MARKS
        left = limit - self._model.count(self._joined([], prompt))
        kept = 0
        while kept < len(drawn) and (left := left - self._size(drawn[kept])) >= 0:
            kept += 1
        # Tokens of the parts are nearly those of the whole: what is left to see is small.
        while kept and self._model.count(self._joined(drawn[:kept], prompt)) > limit:
            kept -= 1
        return Prompt(self._joined(drawn[:kept], prompt), kept)

    def _joined(self, numbers: Sequence[int], prompt: str) -> str:
        parts = [str(self._pool[number]) for number in numbers]
        before = [self._config.task] if self._config.task else []
        return self._config.separator.join([*before, *parts, prompt])

    def _size(self, number: int) -> int:
        if number not in self._sizes:
            self._sizes[number] = self._model.count(
                str(self._pool[number]) + self._config.separator
            )
        return self._sizes[number]


def draw(seed: int, item: str, population: int, count: int) -> list[int]:
    """Distinct numbers below ``population``, a function of the seed and the item alone.

    The item is its text, so that neither its place nor the other items matter.

    Args:
        seed: Any.
        item: Its prompt.
        population: How many there are to draw from.
        count: How many; all where there are no more.
    """
    key = fold(seed, stream("shots"), stream(item))
    order = list(range(population)) if population <= 4 * count else None
    chosen: dict[int, None] = {}
    tries = 0
    while len(chosen) < min(count, population):
        if order is None:  # few of many: draw until they are distinct
            chosen[int(below(fold(key, tries), population))] = None
        else:  # Fisher and Yates
            at = tries + int(below(fold(key, tries), population - tries))
            order[tries], order[at] = order[at], order[tries]
            chosen[order[tries]] = None
        tries += 1
    return list(chosen)
