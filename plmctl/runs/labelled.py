"""The labelled rows of a finetuning: read, checked, and as its task has them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from plmctl import tasks
from plmctl.config.finetune import FinetuneConfig
from plmctl.corpus.check_rows import check, refuse_empty, with_examples
from plmctl.corpus.tables import rows_digest, split_rows
from plmctl.errors import DataError

_FEW = 8


@dataclass(frozen=True)
class Examples:
    """Labelled rows as a task has them."""

    tokenizer: Any
    labels: tuple[str, ...]
    train: tasks.Examples
    valid: dict[str, tasks.Examples]
    """By the name of each validation set; the first is what choices go by."""
    check: dict[str, Any]
    """What was found in the rows (``corpus.check_rows``)."""
    few: tasks.Examples
    """Some rows of the first validation set: what needs no more is tried on them at the start."""
    hashes: dict[str, str]
    """Of all rows and of each validation set, for ``environment.json``."""

    @property
    def judge(self) -> tasks.Examples:
        """The validation rows that choices go by."""
        return next(iter(self.valid.values()))


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
    longest = config.train.max_length
    taken = tasks.positions(config.task, longest)
    further = " and task.max_target_length" if taken > longest else ""
    refuse_longer(config.model, taken, f"train.max_length{further}")
    split = split_rows(
        config.data,
        config.seed,
        tasks.split_columns(config.task),
        partial(tasks.is_labelled, config.task),
    )
    columns = task.text_columns(config.task)
    for rows in (split.train, *split.valid.values()):
        refuse_empty(rows, columns)
    labels = task.labels_of(config.task, split.train)
    make = partial(task.make, config.task, tokenizer=tokenizer, labels=labels, max_length=longest)
    made = make(split.train, use="train")
    scored = {name: make(rows, use="score") for name, rows in split.valid.items()}
    named = next((f for f in ("label", "tags") if labels and hasattr(config.task, f)), None)
    label = getattr(config.task, named) if named else None
    cut = {"train": made.cut, **{name: examples.cut for name, examples in scored.items()}}
    found = with_examples(
        check(split.train, split.valid, columns, label), cut, made.dropped, split.unlabelled
    )
    if not len(made):
        raise DataError(
            "; ".join(["no row can be learnt from", *made.dropped[:3]]), "look at eval/data.json"
        )
    held_out = [row for rows in split.valid.values() for row in rows]
    hashes = {"data": rows_digest([*split.train, *held_out])}
    hashes |= {
        name: rows_digest(rows)
        for name, rows in zip(file_names(split.valid), split.valid.values(), strict=True)
    }
    few = make(next(iter(split.valid.values()))[:_FEW], use="score")
    return Examples(tokenizer, labels, made, scored, found, few, hashes)


def file_names(valid: Iterable[str]) -> list[str]:
    """What validation sets are called in files: the first is ``valid``, whatever its name."""
    return [f"valid-{name}" if number else "valid" for number, name in enumerate(valid)]
