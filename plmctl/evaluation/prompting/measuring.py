"""What the measures by prompting have in common: their data, their model, their figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from plmctl.config.data import TextConfig
from plmctl.config.members import MeasureConfig
from plmctl.corpus.reading import documents
from plmctl.corpus.source import resolve
from plmctl.corpus.tables import Row, read_rows
from plmctl.corpus.tabular import rows
from plmctl.errors import DataError
from plmctl.evaluation.prompting.encoding import sentinel_of
from plmctl.evaluation.prompting.model import load
from plmctl.evaluation.prompting.shots import ShotsConfig
from plmctl.hashing import digest_of_rows

if TYPE_CHECKING:
    from plmctl.evaluation.measures import Subject
    from plmctl.evaluation.prompting.model import Generative


class PromptedConfig(MeasureConfig):
    """A measure by prompting."""

    data: tuple[str, ...] = Field(min_length=1)
    """Rows: jsonl, csv, tsv, parquet, folders saved by `datasets`, `hf:NAME`."""
    shots: ShotsConfig = ShotsConfig()
    """Examples before each item: `{count: 5, train: [FILE]}`."""
    between: str = " "
    """What stands between a prompt and what follows it, where that does not begin with a space; it
    counts as a part of the latter. Empty for Chinese."""
    max_items: int | None = Field(default=None, ge=1)
    """Score the first of the items only; empty: all."""
    seq_len: int | None = Field(default=None, ge=8)
    """Tokens that the model is given at most, cut from the left; empty: its positions (T5: 512)."""
    sentinel: bool = False
    """T5 only: ask for the completion in place of a sentinel, as span corruption has taught it.
    Without it T5 is asked for the text that follows, which a model learns by prefix_lm."""


def open_model(config: PromptedConfig, subject: Subject) -> Generative:
    """The model of a measure; see ``model.load``."""
    model = load(subject.model, subject.accelerator, config.seq_len)
    if config.sentinel:
        sentinel_of(model)
    return model


def item_rows(config: PromptedConfig) -> list[Row]:
    """The rows to score."""
    return read_rows(config.data)[: config.max_items]


def line_rows(names: Sequence[str]) -> list[Row]:
    """Rows, each line of a txt file being one with the column `text`; empty lines are left out.

    Raises:
        DataError: Nothing is there, or a malformed row.
    """
    by_line = TextConfig(train=tuple(names), documents="line")
    found = []
    for source in resolve(tuple(names)):
        if source.kind in ("text", "sample"):
            lines = documents(source, by_line)
            found += [Row({"text": line.text.rstrip("\r\n")}, line.origin) for line in lines]
        else:
            found += [Row(values, origin) for values, origin in rows(source)]
    if not found:
        raise DataError(f"no rows in {', '.join(names)}", "are the paths right?")
    return found


def spaced(config: PromptedConfig, text: str) -> str:
    """A completion with what stands before it."""
    return text if text[:1].isspace() else config.between + text


def hash_of(scored: Sequence[Row]) -> str:
    """Of what the rows hold, to know the data again."""
    return digest_of_rows([dict(row.values) for row in scored])
