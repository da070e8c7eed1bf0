"""The labelled rows of a finetuning: read, checked, and as its task has them."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from plmctl import tasks
from plmctl.config.finetune import FinetuneConfig
from plmctl.corpus.check_rows import check, refuse_empty, with_examples
from plmctl.corpus.tables import rows_digest, split_rows
from plmctl.errors import DataError


@dataclass(frozen=True)
class Examples:
    """Labelled rows as a task has them."""

    tokenizer: Any
    labels: tuple[str, ...]
    train: tasks.Examples
    valid: tasks.Examples
    check: dict[str, Any]
    """What was found in the rows (``corpus.check_rows``)."""
    hashes: dict[str, str]
    """Of the rows, for ``environment.json``."""


def read_examples(config: FinetuneConfig) -> Examples:
    """The rows of a config, split and tokenized.

    Raises:
        ConfigError: ``train.max_length`` is beyond the network's positions.
        DataError: A missing file or column, a row without text, or a label that is not among the
            training rows'.
    """
    task = tasks.get(config.task.name)
    from plmctl.modeling.auto import refuse_longer

    tokenizer = task.tokenizer(config.task, config.model)
    refuse_longer(config.model, config.train.max_length, "train.max_length")
    train, valid = split_rows(config.data, config.seed, tasks.split_columns(config.task))
    columns = task.text_columns(config.task)
    for rows in (train, valid):
        refuse_empty(rows, columns)
    labels = task.labels_of(config.task, train)
    make = partial(task.make, config.task, tokenizer=tokenizer, labels=labels)
    longest = config.train.max_length
    made = make(train, max_length=longest, use="train")
    scored = make(valid, max_length=longest, use="score")
    named = next((f for f in ("label", "tags") if labels and hasattr(config.task, f)), None)
    found = check(train, valid, columns, getattr(config.task, named) if named else None)
    found = with_examples(found, {"train": made.cut, "valid": scored.cut}, made.dropped)
    if not len(made):
        raise DataError(
            "; ".join(["no row can be learnt from", *made.dropped[:3]]), "look at eval/data.json"
        )
    hashes = {"data": rows_digest([*train, *valid]), "valid": rows_digest(valid)}
    return Examples(tokenizer, labels, made, scored, found, hashes)
