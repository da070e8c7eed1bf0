"""Where text and labelled rows come from."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from plmctl.config.base import Model, Text
from plmctl.config.units import Share

SetName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
"""Of a validation set: it becomes part of the names of figures and files."""


class TextConfig(Model):
    """Text to read."""

    train: tuple[Text, ...] = Field(min_length=1)
    """Paths and globs (txt, jsonl, csv, parquet, also .gz and .zst), folders saved by `datasets`,
    `hf:NAME`, `hf:NAME:CONFIG:SPLIT`, `sample:NAME`."""
    text: Text = "text"
    """Column of jsonl, csv, parquet and datasets that holds the text."""
    documents: Literal["auto", "blank_line", "file", "line"] = "auto"
    """What a document is in a txt file; auto: blank lines separate them if there are any, else the
    file is one."""


class MixtureSource(Model):
    """One of several corpora."""

    name: Text
    """What it is called in messages and logs."""
    train: tuple[Text, ...] = Field(min_length=1)
    """Its text, as `data.train`."""
    weight: float = Field(gt=0)
    """Its share of the samples, relative to the other weights."""


class DataConfig(TextConfig):
    """Text for pretraining."""

    train: tuple[Text, ...] = ()
    """Paths and globs (txt, jsonl, csv, parquet, also .gz and .zst), folders saved by `datasets`,
    `hf:NAME`, `hf:NAME:CONFIG:SPLIT`, `sample:NAME`."""
    mixture: tuple[MixtureSource, ...] = ()
    """In place of `train`: several corpora, each with a share of the samples, so that some are seen
    several times while others are not yet seen once (GPT-3). `valid` is a share of each, scored in
    the same mixture, or one text of its own."""
    valid: Share | tuple[Text, ...] | None = 0.01
    """Share of the documents held out by their hash (1%), or sources of their own; empty: none."""
    sentences: Literal["auto", "line", "en", "zh", "none"] = "auto"
    """Where sentences end, for objectives that are made of them. en: by punctuation, in scripts
    with spaces; zh: Chinese and Japanese; line: at every line end; none: nowhere. auto: none for
    `clm` and T5's objectives; line where text files plainly have one sentence per line, with blank
    lines between documents, as BERT's own input has; else by script. `prepare` and `preview` say
    what was chosen and why. The text itself is kept either way."""
    words: Literal["pretokenizer", "jieba", "albert"] = "pretokenizer"
    """Where words start, for whole-word masking. pretokenizer: where the tokenizer's own rules cut
    text, and at each Chinese character; jieba: Chinese words of several characters too, by jieba
    (`pip install 'plmctl[zh]'`); albert: as ALBERT's code, for English and a Unigram tokenizer: a
    piece with a digit, an apostrophe or a character that is not English is a word."""
    store: Text = "stores"
    """Folder that keeps the token stores."""

    @model_validator(mode="after")
    def _one_way(self) -> "DataConfig":
        names = [source.name for source in self.mixture]
        if bool(self.train) == bool(names):
            raise ValueError("expected `train` or `mixture`, and not both")
        if len(set(names)) < len(names):
            raise ValueError("expected another name for each source of the mixture")
        return self


class TableConfig(Model):
    """Labelled rows for finetuning."""

    train: tuple[Text, ...] = Field(min_length=1)
    """Paths and globs (csv, tsv without quoting, jsonl, parquet, CoNLL columns), folders saved by
    `datasets`, `hf:NAME:SPLIT`, `hf:NAME:CONFIG:SPLIT`, `sample:NAME`."""
    valid: Share | tuple[Text, ...] | dict[SetName, tuple[Text, ...]] = 0.1
    """Rows to validate on, or the share of the training rows that is held out by a hash. Several
    sets by name, as in `{matched: [...], mismatched: [...]}`: all are scored at the end, and what
    is chosen (best weights, an end, a grid) goes by the first."""
    max_rows: int | None = Field(default=None, ge=1)
    """Train on this many rows at most: a seeded sample."""

    @field_validator("valid")
    @classmethod
    def _sets_have_sources(
        cls, valid: float | tuple[str, ...] | dict[str, tuple[str, ...]]
    ) -> float | tuple[str, ...] | dict[str, tuple[str, ...]]:
        sets = valid if isinstance(valid, dict) else {"valid": valid}
        if not sets or "train" in sets:
            raise ValueError("expected the name of one set or more, and not the name train")
        if not all(sets.values()) and not isinstance(valid, float):
            raise ValueError("expected one source or more")
        return valid
