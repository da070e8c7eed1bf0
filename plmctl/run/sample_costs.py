"""What a sample costs in tokens, FLOPs and words; words seen, and the steps with a checkpoint.

Words are the sequences' share of the words in an epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from plmctl.config.sections import TrainConfig
from plmctl.config.units import Mark
from plmctl.errors import ConfigError
from plmctl.training.schedule import Course, nearest_step

if TYPE_CHECKING:
    from plmctl.models.base import StoreExamples

# --- The costs of a sample of each phase ---


@dataclass(frozen=True)
class SampleCosts:
    """What a sample of each phase costs.

    Attributes:
        tokens: Its length.
        words: Words of the corpus per sample of an epoch; None: the corpus has no count.
    """

    tokens: tuple[int, ...]
    flops: tuple[float, ...]
    words: tuple[float, ...] | None = None
    no_words: str = ""


def words_per_sample(words: Sequence[int | None], examples: StoreExamples) -> float | None:
    """Words per sample; None: the words of a store are unknown.

    Over an epoch the samples have all words of the corpus, whatever their padding.

    Args:
        examples: The samples of a corpus, or of a mixture.
    """
    from plmctl.training.data import Mixture

    known = [count for count in words if count is not None]
    if len(known) < len(words):
        return None
    if not isinstance(examples, Mixture):
        return known[0] / len(examples)
    parts = zip(known, examples.parts, examples.counts.tolist(), strict=True)
    seen = sum(float(count) * total / len(part) for total, part, count in parts)
    return seen / len(examples)


def words_of(costs: SampleCosts, key: str) -> tuple[float, ...]:
    """Words per sample of each phase; ``key``: the setting that needs them.

    Raises:
        ConfigError: They are unknown.
    """
    if costs.words is None:
        raise ConfigError(
            f"{key}: the words of the corpus are not counted ({costs.no_words})",
            "run `plmctl prepare` with this config, which counts them; or give tokens",
        )
    return costs.words


# --- Words seen ---


def check_words(train: TrainConfig, path: Course, costs: SampleCosts) -> None:
    """Refuse a run that sees more words than ``train.max_words``.

    Raises:
        ConfigError: It does, or the words are unknown.
    """
    if train.max_words is None:
        return
    words = path.spent(path.steps, words_of(costs, "train.max_words"))
    if round(words) > train.max_words:
        raise ConfigError(
            f"train.max_words: the run would see {round(words):,} words in its {path.steps:,} "
            f"steps, more than {train.max_words:,}",
            f"train fewer steps, or set `train.budget: {train.max_words} words` instead of steps",
        )


def words_seen(path: Course, words: Sequence[float] | None) -> Callable[[int], int] | None:
    """Words seen after a number of steps; None: unknown."""
    if words is None:
        return None
    return lambda step: round(path.spent(step, words))


BABYLM_WORDS = [
    *range(10**6, 10**7, 10**6),
    *range(10**7, 10**8, 10**7),
    *range(10**8, 10**9 + 1, 10**8),
]
"""Words at which the BabyLM shared tasks want a checkpoint."""


# --- Checkpoints at steps, tokens and words ---


def save_steps(
    at: tuple[Mark, ...] | Literal["log", "babylm"],
    path: Course,
    words: Sequence[float] | None,
    no_words: str = "",
) -> tuple[frozenset[int], list[str]]:
    """The steps at which a checkpoint is saved and kept, and the marks after the end.

    Args:
        at: ``checkpoint.at``.
        words: Words per sample of each phase; None: unknown.

    Raises:
        ConfigError: A mark is in words, and they are unknown.
    """
    if at == "log":
        return log_steps(path.steps), []
    marks = [Mark(f"{count} words") for count in BABYLM_WORDS] if at == "babylm" else list(at)
    steps, late = set(), []
    for mark in marks:
        if mark.unit == "words" and words is None:
            words_of(SampleCosts((), (), None, no_words), "checkpoint.at")
        seen: dict[str, Callable[[int], float]] = {
            "steps": float,
            "tokens": path.seen,
            "words": lambda step: path.spent(step, words or ()),
        }
        step = nearest_step(seen[mark.unit], mark.number, path.steps)
        if step is None:
            late.append(str(mark))
        else:
            steps.add(step)
    return frozenset(steps), [] if at == "babylm" else late


def save_at_steps(at: tuple[Mark, ...] | Literal["log", "babylm"], steps: int) -> frozenset[int]:
    """``save_steps`` of a run without a count of tokens and words.

    Args:
        at: Marks in steps only, or log.
    """
    if isinstance(at, str):
        return log_steps(steps)
    return frozenset(int(mark.number) for mark in at if mark.number <= steps)


def log_steps(steps: int) -> frozenset[int]:
    """Steps 1, 2, 4, 8 and so on."""
    return frozenset(2**power for power in range(steps.bit_length()))
