"""Scoring text with a language model's own objective."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from plmctl import families, objectives, registry
from plmctl.config.data import DataConfig
from plmctl.config.members import MeasureConfig
from plmctl.config.units import Share
from plmctl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from pathlib import Path

    from plmctl.config.members import ObjectiveConfig
    from plmctl.evaluation.measures import Subject


class TextMeasureConfig(MeasureConfig):
    """A measure of text."""

    data: tuple[str, ...] = Field(min_length=1)
    """Text, as `data.train` of pretraining."""
    held_out: Annotated[Share, Field(gt=0)] | None = None
    """Score only the documents that pretraining with this validation share held out."""
    seq_len: int = Field(default=128, ge=8)
    """Tokens a sequence, special ones included."""
    max_samples: int | None = Field(default=2000, ge=1)
    """Sequences to score at most; empty: all."""
    store: str = "stores"
    """Folder that keeps the token stores."""


def family_of(model: str) -> str:
    """The family of a model folder or Hub id, from its config.

    Raises:
        ConfigError: Its architecture is none of plmctl's.
    """
    from plmctl.modeling.auto import config_of

    kind = config_of(model).model_type
    known = registry.names("families")
    called = {getattr(families.get(name), "MODEL_TYPE", name): name for name in known}
    if kind not in called:
        raise ConfigError(f"{model}: a model of type {kind!r}; known are: {', '.join(called)}")
    return called[str(kind)]


def score_text(
    config: TextMeasureConfig, objective: ObjectiveConfig, subject: Subject
) -> dict[str, Any]:
    """Losses, perplexities and accuracies of an objective on text, on fixed masks and pairs.

    Args:
        config: The text and the length of the sequences.
        objective: Its name and rates.
        subject: The model.

    Returns:
        The figures of ``scoring.score``, ``perplexity/<part>`` for parts over tokens, and the
        number of sequences.
    """
    from pathlib import Path

    from plmctl.evaluation.scoring import score
    from plmctl.modeling.network import Network
    from plmctl.tokenization.vocab import Vocab
    from plmctl.training.data import Slicing, scoring_batches

    member = objectives.get(objective.name)
    name = family_of(subject.model)
    if not families.fits(name, objective.name):
        raise ConfigError(
            f"{subject.model}: a model of type {name!r} cannot be measured by {objective.name}",
            "ask for a measure of what it was trained with",
        )
    family = families.get(name)
    store = _store(config, objective, subject.model, Path(config.store))
    vocab = Vocab.from_folder(subject.model)
    step = member.make(objective, store, vocab, config.seq_len, subject.seed)
    if not len(step):
        raise DataError(f"{', '.join(config.data)}: not one sequence of {config.seq_len} tokens")
    network = Network(family.load(subject.model, member.PARTS), family.forward)
    network.to(subject.accelerator.device)
    batches = scoring_batches(step, Slicing(1, subject.batch_size), config.max_samples)
    figures: dict[str, Any] = score(subject.accelerator, network, step, batches)
    for part in member.PARTS:
        if part in ("mlm", "lm", "forward", "backward"):
            figures[f"perplexity/{part}"] = math.exp(min(figures[f"loss/{part}"], 700.0))
    figures["sequences"] = min(len(step), config.max_samples or len(step))
    return figures


def _store(config: TextMeasureConfig, objective: ObjectiveConfig, model: str, root: Path) -> Any:
    from plmctl.corpus.build import build
    from plmctl.corpus.store import TokenStore
    from plmctl.tokenization.encode import Encoder

    sentences: Any = "auto" if objective.reads_sentences else "none"
    data = DataConfig(
        train=config.data, valid=config.held_out, store=str(root), sentences=sentences
    )
    stores = build(
        data,
        Encoder(model),
        root=root,
        processes=1,
        progress=lambda done, total: None,
        notice=lambda line: print(line, file=sys.stderr),
    )
    if config.held_out is None:
        return TokenStore.open(stores.train)
    if stores.valid is None:
        raise DataError(f"{', '.join(config.data)}: no document is held out by {config.held_out}")
    return TokenStore.open(stores.valid)
