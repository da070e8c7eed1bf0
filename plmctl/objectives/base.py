"""An objective: how examples are made, and what is asked of the network.

One file per objective; what the masked ones share is in ``_masked``, T5's in ``_text_to_text``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, cast

from plmctl import registry

if TYPE_CHECKING:
    from plmctl.arrays import Ints
    from plmctl.corpus.store import TokenStore
    from plmctl.examples.inspection import Example, Tallies
    from plmctl.tokenization.load import Vocab


class Inspectable(Protocol):
    """What ``plmctl preview`` needs of an objective over a store."""

    def __len__(self) -> int:
        """Samples in an epoch."""

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the examples [B] named by epochs [B] and samples [B]."""

    def expected(self) -> dict[str, float]:
        """What those of the statistics should come to whose value is known."""

    def example(self, epoch: int, sample: int) -> Example:
        """One example for reading."""


class Objective(Protocol):
    """What a file of this folder defines; the module itself is the object."""

    Config: Any
    """Its config model, an ``ObjectiveConfig``."""
    LOSS_TERMS: tuple[str, ...]
    """Names of the terms of its loss: the heads that it needs.

    A module may also define ``check(config, tokenizer, outline, seq_len)``, called before any text
    is read, where ``outline`` is transformers' config of the network; it raises ConfigError.
    """

    TOKENS: tuple[str, ...]
    """Fields of ``Vocab`` that it cannot do without."""
    ENCODER_DECODER: bool
    """Whether it needs a network that reads one text and writes another; left out: no."""

    def make(self, config: Any, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> Any:
        """The objective over a store: a ``models.base.Examples`` and ``Inspectable``."""


def get_objective(name: str) -> Objective:
    """The objective of that name.

    Raises:
        ConfigError: There is none; the message has the nearest.
    """
    return cast(Objective, registry.load("objectives", name))
