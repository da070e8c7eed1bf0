"""One file an algorithm: from counted words to a vocabulary."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from plmctl import registry
from plmctl.config.tokenizer import TokenizerConfig

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Task:
    """What is to be learnt.

    Attributes:
        words: How often each word of the pre-tokenizer was seen.
        size: Ids, special tokens included.
        first: Special tokens that have the first ids.
        last: Special tokens that have the last ids.
        config: The rest.
    """

    words: Mapping[str, int]
    size: int
    first: list[str]
    last: list[str]
    config: TokenizerConfig


@dataclass(frozen=True)
class Learned:
    """A vocabulary.

    Attributes:
        model: ``vocab``, and ``merges`` for BPE, as the family's class takes them.
        size: Ids.
    """

    model: dict[str, Any]
    size: int


class Algorithm(Protocol):
    """What a file of this folder defines; the module itself is the object."""

    def learn(self, task: Task, progress: Progress) -> Learned:
        """Learn a vocabulary; ``progress`` is told of what is done and of all."""


def get(name: str) -> Algorithm:
    """The algorithm of that name.

    Raises:
        ConfigError: There is none; the message has the nearest.
    """
    return cast(Algorithm, registry.load("tokenization.algorithms", name))
