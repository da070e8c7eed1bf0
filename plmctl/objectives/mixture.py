"""A mixture of objectives: each step of a run has one of them.

GPT-BERT (arXiv:2410.24159) mixes ``mntp`` and ``clm``, UL2 (arXiv:2205.05131) several rates of span
corruption with a prefix language model. In GPT-BERT's code every step has both, since a share of
its GPUs has each, and the loss is the mean of their means by these shares. That is what the loss of
a step is here on average; a step by itself has one objective, all of its micro-batches the same.

Which one is a random order of the run's steps: of n steps an objective with the share s has n * s,
to within one. It follows from the seed, the number of the step and the number of steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, Field, create_model, field_validator

from plmctl import registry
from plmctl.arrays import Bools, Ints, exact_shares
from plmctl.config.base import MembersOf, ObjectiveConfig
from plmctl.errors import ConfigError
from plmctl.examples.inspection import Example, Tallies
from plmctl.examples.keys import fold, permute, stream
from plmctl.models.base import StoreExamples
from plmctl.objectives.base import Objective, get_objective, make_objective

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from plmctl.corpus.store import TokenStore
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.tokenization.load import Vocab


def _weighted() -> dict[str, type[BaseModel]]:
    """The configs of all objectives without a teacher, each with a weight."""
    weight: Any = (float, Field(default=1.0, gt=0, description="Its share, relative to others."))
    configs = {
        name: registry.load("objectives", name).Config
        for name in registry.names("objectives")
        if name != __name__.rpartition(".")[2] and not _has_teacher(name)
    }
    return {
        name: create_model(
            "Config", __base__=one, __module__=__name__, __doc__=one.__doc__, weight=weight
        )
        for name, one in configs.items()
    }


def _has_teacher(name: str) -> bool:
    return "teacher" in registry.load("objectives", name).Config.model_fields


class Config(ObjectiveConfig):
    """Several objectives, of which each step has one."""

    name: Literal["mixture"] = "mixture"
    of: tuple[Annotated[ObjectiveConfig, MembersOf(_weighted, "name")], ...] = Field(min_length=1)
    """The objectives with their options, and each with its `weight` (1): its share of the steps,
    relative to the other weights. All have the same heads."""

    @field_validator("of")
    @classmethod
    def _one_network(cls, of: tuple[ObjectiveConfig, ...]) -> tuple[ObjectiveConfig, ...]:
        first = get_objective(of[0].name)
        for one in of:
            if not _same_network(first, get_objective(one.name)):
                others = ", ".join(
                    name
                    for name in _weighted()
                    if name != of[0].name and _same_network(first, get_objective(name))
                )
                raise ValueError(
                    f"{of[0].name} and {one.name} need different networks; what fits "
                    f"{of[0].name}: {others or 'no other objective'}"
                )
        return of

    @property
    def weights(self) -> tuple[float, ...]:
        """The weight of each."""
        return tuple(dict(one)["weight"] for one in self.of)

    @property
    def reads_sentences(self) -> bool:  # type: ignore[override]  # of one network all or none do
        """Whether its objectives read sentences."""
        return self.of[0].reads_sentences


def _same_network(
    one: type[Objective[ObjectiveConfig]], other: type[Objective[ObjectiveConfig]]
) -> bool:
    return (one.LOSS_TERMS, one.ENCODER_DECODER) == (other.LOSS_TERMS, other.ENCODER_DECODER)


def _plain(weighted: ObjectiveConfig) -> ObjectiveConfig:
    """The config without its weight, as that of the objective alone; spawned workers pickle it."""
    own = {name: value for name, value in weighted if name != "weight"}
    return get_objective(weighted.name).Config.model_construct(**own)


class MixedObjectives(Objective[Config], config=Config):
    """Several objectives, of which each step has one.

    Attributes:
        LOSS_TERMS: The heads, which all have; the terms of a loss are named ``clm/lm``.
        parts: The objectives.
        names: Their names; several of one name are numbered from 1: ``span_corruption-1``.
    """

    LOSS_TERMS: tuple[str, ...] = ()

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.parts = tuple(make_objective(_plain(one)) for one in config.of)
        first = self.parts[0]
        self.LOSS_TERMS, self.ENCODER_DECODER = first.LOSS_TERMS, first.ENCODER_DECODER
        self.TOKENS = tuple(dict.fromkeys(name for part in self.parts for name in part.TOKENS))
        self.BOTH_SIDES = any(part.BOTH_SIDES for part in self.parts)
        self._shown = next((part for part in self.parts if part.SAMPLES is not None), first)
        self.SAMPLES = self._shown.SAMPLES
        plain, seen = [one.name for one in config.of], Counter[str]()
        several = Counter(plain)
        self.names: tuple[str, ...] = ()
        for name in plain:
            seen[name] += 1
            self.names += (f"{name}-{seen[name]}" if several[name] > 1 else name,)

    @property
    def keeps_texts_apart(self) -> bool:
        """See the base class."""
        return any(part.keeps_texts_apart for part in self.parts)

    @property
    def first_term(self) -> str:
        """That of the first objective."""
        return f"{self.names[0]}/{self.parts[0].first_term}"

    def alone(self) -> Mapping[str, Objective[ObjectiveConfig]]:
        """See the base class."""
        return dict(zip(self.names, self.parts, strict=True))

    def over(self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> Alternating:
        """The examples of all over a store.

        Raises:
            ConfigError: Rows of one are streams that continue from step to step.
        """
        parts = tuple(part.over(store, vocab, seq_len, seed) for part in self.parts)
        for name, part in zip(self.names, parts, strict=True):
            if part.streamed:
                raise ConfigError(
                    f"objective.of: the rows of {name} are streams that continue from step to "
                    "step, which other steps would cut off",
                    f"use `objective: {{name: {name}}}` alone",
                )
        return Alternating(self.names, parts, self.config.weights, seed)

    def check(
        self, tokenizer: PreTrainedTokenizerBase, network: PreTrainedConfig, seq_len: int
    ) -> None:
        """What each of them refuses."""
        for part in self.parts:
            part.check(tokenizer, network, seq_len)

    def check_text(self, store: TokenStore, seq_len: int) -> None:
        """What each of them refuses."""
        for part in self.parts:
            part.check_text(store, seq_len)

    def separator(self, vocab: Vocab) -> int | None:
        """That of the first objective."""
        return self.parts[0].separator(vocab)

    def targets_per_token(self) -> float:
        """The mean over the steps."""
        each = [part.targets_per_token() for part in self.parts]
        return float(np.average(each, weights=self.config.weights))

    def sample(self, ids: Ints, starts: Bools, key: int, vocab: Vocab) -> tuple[Ints, Ints] | None:
        """That of the first objective with samples."""
        return self._shown.sample(ids, starts, key, vocab)


@dataclass(frozen=True)
class Alternating(StoreExamples):
    """The examples of several objectives over a store; those of a step are of one of them.

    An epoch has as many samples as have all words of the text once, on average over the steps.

    Attributes:
        seed: Decides which steps have which objective.
        current: The number of the one objective of a step; None: of all, before a step is known.
    """

    names: tuple[str, ...]
    parts: tuple[StoreExamples, ...]
    shares: Sequence[float]
    seed: int
    current: int | None = None

    @cached_property
    def _length(self) -> int:
        parts = zip(self.shares, self.parts, strict=True)
        return round(sum(self.shares) / sum(share / len(part) for share, part in parts))

    def __len__(self) -> int:
        """Samples in an epoch."""
        return self._length

    @property
    def _now(self) -> StoreExamples:
        return self.parts[self.current or 0]

    def _named(self, number: int, values: Mapping[str, Any]) -> dict[str, Any]:
        return {f"{self.names[number]}/{term}": value for term, value in values.items()}

    def _chosen(self) -> Sequence[int]:
        return range(len(self.parts)) if self.current is None else [self.current]

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """Those of the step's objective, or of all: ``clm/lm``."""
        return tuple(self.weights)

    @property
    def weights(self) -> Mapping[str, float]:
        """Those of the step's objective; before one is known, of all, times their shares."""
        weights: dict[str, float] = {}
        for number in self._chosen():
            share = self.shares[number] / sum(self.shares) if self.current is None else 1.0
            own = self.parts[number].weights
            weights |= self._named(number, {term: share * own[term] for term in own})
        return weights

    @property
    def counted_terms(self) -> tuple[str, ...]:
        """Those of the step's objective, or of all."""
        return tuple(
            f"{self.names[number]}/{term}"
            for number in self._chosen()
            for term in self.parts[number].counted_terms
        )

    def at_step(self, step: int, steps: int) -> Self:
        """The examples of the objective of a step, as it has them then."""
        number = self.current
        if number is None:
            place = int(permute(step, steps, fold(self.seed, stream("objectives"))))
            ends = np.cumsum(exact_shares(self.shares, steps))
            number = int(np.searchsorted(ends, place, side="right"))
        parts = list(self.parts)
        parts[number] = parts[number].at_step(step, steps)
        return replace(self, parts=tuple(parts), current=number)

    def alternatives(self) -> dict[str, Self]:
        """A mixture of each objective alone."""
        each = zip(self.names, self.parts, strict=True)
        return {
            name: replace(self, names=(name,), parts=(part,), shares=(1.0,), current=0)
            for name, part in each
        }

    def _located(self, epochs: Ints, samples: Ints) -> tuple[Ints, Ints]:
        """Epochs and samples of the current objective, which may have more or fewer in an epoch."""
        number = epochs * len(self) + samples
        return number // len(self._now), number % len(self._now)

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The examples of the step's objective, or of the first one."""
        batch = self._now.collate(*self._located(epochs, samples))
        number = self.current or 0
        lists = batch.lists and tuple(
            replace(one, targets=tuple(self._named(number, dict.fromkeys(one.targets))))
            for one in batch.lists
        )
        return replace(batch, targets=self._named(number, batch.targets), lists=lists)

    def _of(self, batch: Batch) -> tuple[int, Batch]:
        """The number of the objective that has made a batch, and the batch as it made it."""
        name = next(iter(batch.targets)).partition("/")[0]
        plain = {term.partition("/")[2]: target for term, target in batch.targets.items()}
        return self.names.index(name), replace(batch, targets=plain)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The summed losses of the terms of the batch's objective."""
        number, plain = self._of(batch)
        return self._named(number, self.parts[number].loss(network, plain))

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The same with the number of right answers."""
        number, plain = self._of(batch)
        return self._named(number, self.parts[number].score(network, plain))

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """The statistics of the step's objective."""
        return self._now.tally(*self._located(epochs, samples))

    def expected(self) -> dict[str, float]:
        """The expected values of those statistics."""
        return self._now.expected()

    def example(self, epoch: int, sample: int) -> Example:
        """One example for reading, with the name of its objective."""
        located = self._located(np.array([epoch]), np.array([sample]))
        example = self._now.example(*(int(one[0]) for one in located))
        name = self.names[self.current or 0]
        return Example(example.rows, f"{example.note} [{name}]".strip())
