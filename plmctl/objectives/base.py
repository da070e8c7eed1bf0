"""The base class of all objectives.

One file per objective; what the masked ones share is in ``_masked``, T5's in ``_text_to_text``.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from plmctl import registry
from plmctl.arrays import Ints
from plmctl.config.base import ObjectiveConfig
from plmctl.models.base import StoreExamples

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from plmctl.corpus.store import TokenStore
    from plmctl.examples.inspection import Example, Tallies
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.tokenization.load import Vocab


class Objective(StoreExamples):
    """What a network is pretrained on: examples made from a token store, and their loss.

    A subclass names its config in its header, ``class CausalLM(Objective, config=Config)``, and
    defines ``__init__``, ``__len__``, ``collate`` and ``example``. The loss of a subclass that does
    not define one is the cross-entropy of its targets. No objective imports PyTorch at the top of
    its file, because reading a config imports all of them.

    Args:
        vocab: Ids of the tokenizer's special tokens.
        seq_len: Tokens per sequence, special tokens included.

    Attributes:
        Config: What a user may write.
        LOSS_TERMS: Names of the terms of the loss; the network needs a head for each.
        TOKENS: Fields of ``Vocab`` that it requires.
        ENCODER_DECODER: Whether it requires a network with an encoder and a decoder.
        PAIRS: Whether it learns from pairs of segments of a document.
    """

    Config: ClassVar[type[ObjectiveConfig]]
    LOSS_TERMS: ClassVar[tuple[str, ...]]
    TOKENS: ClassVar[tuple[str, ...]] = ()
    ENCODER_DECODER: ClassVar[bool] = False
    PAIRS: ClassVar[bool] = False

    def __init_subclass__(cls, config: type[ObjectiveConfig] | None = None) -> None:
        """Set ``Config``; base classes of several objectives have none."""
        super().__init_subclass__()
        if config is not None:
            cls.Config = config

    @abstractmethod
    def __init__(
        self, config: ObjectiveConfig, store: TokenStore, vocab: Vocab, seq_len: int, seed: int
    ) -> None: ...

    @classmethod
    def make(
        cls, config: ObjectiveConfig, store: TokenStore, vocab: Vocab, seq_len: int, seed: int
    ) -> Objective:
        """The objective over a store at one sequence length.

        Raises:
            ConfigError: The tokenizer lacks a token, or the config does not fit it.
            DataError: The corpus is too small.
        """
        return cls(config, store, vocab, seq_len, seed)

    @classmethod
    def check(
        cls,
        config: ObjectiveConfig,
        tokenizer: PreTrainedTokenizerBase,
        network: PreTrainedConfig,
        seq_len: int,
    ) -> None:
        """Refuse what does not fit, before any text is read; by default everything fits.

        Args:
            tokenizer: The run's, as it was saved.
            network: transformers' config of the network.
            seq_len: The longest sequence.

        Raises:
            ConfigError: With the key and what would fit.
        """

    @classmethod
    def targets_per_token(cls, config: ObjectiveConfig) -> float:
        """Targets per input token, for estimates of time and memory."""
        return 1.0

    @classmethod
    def num_outputs(cls, config: ObjectiveConfig, vocab_size: int) -> int:
        """How many ids the network predicts."""
        return vocab_size

    @classmethod
    def outputs_per_target(cls, config: ObjectiveConfig, outputs: int) -> int:
        """Of so many ids that the network predicts, those that a target is compared with."""
        return outputs

    @classmethod
    def teacher(cls, config: ObjectiveConfig) -> str | None:
        """The model that the network takes its first weights from, if any."""
        return None

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """``LOSS_TERMS``."""
        return self.LOSS_TERMS

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The cross-entropy of each loss term, summed over its targets, in nats."""
        sums: dict[str, Tensor] = network(loss_on=batch.targets, **batch.inputs)
        return sums

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """As ``loss``, with ``<term>/correct``: how many targets have the largest logit."""
        from plmctl.models.losses import score_sums

        return score_sums(network(**batch.inputs), batch.targets)

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Tokens and targets per example, of the examples [B]."""
        batch = self.collate(epochs, samples)
        targets = {f"mean_targets_{term}": count for term, count in batch.counts().items()}
        sums = {"mean_length": batch.tokens, **targets}
        return {name: (float(total), len(samples)) for name, total in sums.items()}

    def expected(self) -> dict[str, float]:
        """The expected values of the statistics that have one; by default none has."""
        return {}

    @abstractmethod
    def example(self, epoch: int, sample: int) -> Example:
        """One example for reading."""

    def one(self, epoch: int, sample: int) -> Batch:
        """The batch of one example."""
        return self.collate(np.array([epoch]), np.array([sample]))


def get_objective(name: str) -> type[Objective]:
    """The objective of that name.

    Raises:
        ConfigError: There is none; the message has the nearest.
    """
    return registry.member("objectives", name, Objective)
