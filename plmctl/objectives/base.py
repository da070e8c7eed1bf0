"""The base class of all objectives.

One file per objective; what the masked ones share is in ``_masked``, T5's in ``_text_to_text``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

import numpy as np

from plmctl import registry
from plmctl.arrays import Bools, Ints
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


SampleKind = Literal["fill-mask", "generation", "fill-span", "deshuffle"]

C = TypeVar("C", bound=ObjectiveConfig, covariant=True)


class Objective(ABC, Generic[C]):
    """What a network is pretrained on, known before any text; ``over`` a store it has examples.

    A subclass names its config as a type and as an object, ``class CausalLM(Objective[Config],
    config=Config)``. No objective imports PyTorch at the top of its file, because reading a config
    imports all of them.

    Attributes:
        Config: What a user may write.
        LOSS_TERMS: Names of the terms of the loss; the network needs a head for each.
        TOKENS: Fields of ``Vocab`` that it requires.
        ENCODER_DECODER: Whether it requires a network with an encoder and a decoder.
        BOTH_SIDES: Whether a causal network sees both sides of each position meanwhile.
        PAIRS: Whether it learns from pairs of segments of a document.
        SAMPLES: What the samples of a run show, which ``sample`` makes; None: a run has none.
        COUNTED: What is counted, besides frequencies, to say which loss a network must beat in
            the first term: see ``run.yardsticks``.
        TARGETS_AFTER: How far behind the ``positions`` of a batch its targets are.
    """

    Config: ClassVar[type[ObjectiveConfig]]
    LOSS_TERMS: tuple[str, ...]
    TOKENS: tuple[str, ...] = ()
    ENCODER_DECODER: bool = False
    BOTH_SIDES: bool = False
    PAIRS: ClassVar[bool] = False
    SAMPLES: SampleKind | None = None
    COUNTED: ClassVar[Literal["ngrams", "neighbours"] | None] = None
    TARGETS_AFTER: ClassVar[int] = 0

    def __init_subclass__(cls, config: type[ObjectiveConfig] | None = None) -> None:
        """Set ``Config``; base classes of several objectives have none."""
        super().__init_subclass__()
        if config is not None:
            cls.Config = config

    def __init__(self, config: C) -> None:
        self.config = config

    @property
    def first_term(self) -> str:
        """The loss term that says most of a network: of the tokens."""
        return self.LOSS_TERMS[0]

    def alone(self) -> Mapping[str, Objective[ObjectiveConfig]]:
        """Each objective of a mixture by its name; else this one, without a name."""
        return {"": self}

    @abstractmethod
    def over(self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> StoreExamples:
        """The examples that it makes of a store at one sequence length.

        Args:
            seq_len: Tokens per sequence, special tokens included.
            seed: Decides every random choice.

        Raises:
            ConfigError: The tokenizer lacks a token, or the config does not fit it.
            DataError: The corpus is too small.
        """

    @property
    def keeps_texts_apart(self) -> bool:
        """Whether the texts of a row must not see each other."""
        return False

    def check(
        self, tokenizer: PreTrainedTokenizerBase, network: PreTrainedConfig, seq_len: int
    ) -> None:
        """Refuse what does not fit, before any text is read; by default everything fits.

        Args:
            tokenizer: The run's, as it was saved.
            seq_len: The longest sequence.

        Raises:
            ConfigError: With the key and what would fit.
        """

    def check_text(self, store: TokenStore, seq_len: int) -> None:
        """Refuse training text with which it would not do what the config says.

        Raises:
            ConfigError: Words are masked, and the text has none or too long ones.
        """

    def separator(self, vocab: Vocab) -> int | None:
        """The id of the token between the documents of a row; None: there is none."""
        return None

    def targets_per_token(self) -> float:
        """Targets per input token, for estimates of time and memory."""
        return 1.0

    def num_outputs(self, vocab_size: int) -> int:
        """How many ids the network predicts."""
        return vocab_size

    def outputs_per_target(self, outputs: int) -> int:
        """Classes that a target is compared with, if the network predicts ``outputs`` ids."""
        return outputs

    def teacher(self) -> str | None:
        """The model that the network takes its first weights from, if any."""
        return None

    def sample(self, ids: Ints, starts: Bools, key: int, vocab: Vocab) -> tuple[Ints, Ints] | None:
        """A held-out sentence as the model gets it, and the part of it that is hidden.

        Args:
            ids: [N] tokens of the sentence.
            starts: [N] whether a word starts at each.

        Returns:
            Token ids of both, without those that stand around every text; None: nothing of this
            sentence can be hidden.
        """
        return None


class ObjectiveExamples(StoreExamples, Generic[C]):
    """The examples of an objective over a store, and their loss.

    A subclass defines ``__len__``, ``collate`` and ``example``. The loss of one that does not
    define it is the cross-entropy of the targets.
    """

    def __init__(self, objective: Objective[C], store: TokenStore) -> None:
        self.objective, self.config, self.store = objective, objective.config, store

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """The loss terms of its objective."""
        return self.objective.LOSS_TERMS

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The cross-entropy of each loss term, summed over its targets, in nats."""
        sums: dict[str, Tensor] = network(loss_on=batch.targets, **batch.inputs)
        return sums

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, with ``<term>/correct``: how many targets have the largest logit."""
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


def get_objective(name: str) -> type[Objective[ObjectiveConfig]]:
    """The objective of that name.

    Raises:
        ConfigError: There is none; the message has the nearest.
    """
    return registry.member("objectives", name, Objective)


def make_objective(config: ObjectiveConfig) -> Objective[ObjectiveConfig]:
    """The objective of a config."""
    return get_objective(config.name)(config)
