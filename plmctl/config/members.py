"""Bases of the configs that live beside their owners: objectives, families, tasks, measures."""

from typing import ClassVar, Literal

from plmctl.config.base import Model


class ObjectiveConfig(Model):
    """Config of an objective (``plmctl/objectives``)."""

    name: str

    reads_sentences: ClassVar[bool] = True
    """Whether its examples are made of sentences; else it reads text as it comes."""


class ModelConfig(Model):
    """Config of a family's network (``plmctl/families``)."""

    family: str
    init_from: str | None = None
    """Continue from this pretrained folder or Hub id instead of fresh weights."""
    extend_vocab: Literal["mean", "subtokens"] | None = None
    """init_from only: rows for the ids that its tokenizer does not have. subtokens: each the mean
    of the tokens that its tokenizer cuts the new one into; mean: of all its tokens."""


class TaskConfig(Model):
    """Config of a finetuning task (``plmctl/tasks``)."""

    name: str


class MeasureConfig(Model):
    """Config of an evaluation measure (``plmctl/evaluation/measures``)."""

    name: str
