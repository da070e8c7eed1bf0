"""Documents in, sums a document out, for any family: what perplexities and bits are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from plmctl.arrays import Ints
from plmctl.config.base import Text
from plmctl.config.data import TextConfig
from plmctl.config.members import MeasureConfig
from plmctl.config.units import Bytes, Count, Share
from plmctl.corpus.document import Document
from plmctl.corpus.excerpt import Limits, excerpt
from plmctl.corpus.sentences import Rule, choose_rule, split_sentences
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.likelihood import bidirectional, causal, encoder_decoder, masked
from plmctl.evaluation.likelihood.masked import Variant
from plmctl.evaluation.likelihood.reader import Reader, Tokens
from plmctl.evaluation.likelihood.scores import Scores

_LOOKED_AT = 50_000  # characters, to choose the rule for sentences by
_DEFAULT_ROW = 128  # of models that read a row once for every token of it
_LEAST = 4  # tokens of a row: a token, two special ones, and one to predict it from


class RawTextConfig(MeasureConfig):
    """A measure of raw text."""

    data: tuple[Text, ...] = Field(min_length=1)
    """Text, as `data.train` of pretraining."""
    text: Text = "text"
    """Column of jsonl, csv, parquet and datasets that holds the text."""
    documents: Literal["auto", "blank_line", "file", "line"] = "auto"
    """What a document is in a txt file, as `data.documents` of pretraining; file: one text from end
    to end, as WikiText is read."""
    sentences: Literal["auto", "line", "en", "zh", "none"] = "auto"
    """Where sentences end, as `data.sentences` of pretraining. auto: by script for masked models
    and ELMo, nowhere for others. A tokenizer that keeps white space reads each document as it is,
    spaces and line ends too."""
    held_out: Annotated[Share, Field(gt=0)] | None = None
    """Score only the documents that pretraining with this validation share held out."""
    max_documents: Count | None = Field(default=None, ge=1)
    """Documents to score at most, a seeded sample; empty: all."""
    max_bytes: Bytes | None = None
    """UTF-8 bytes to score at most, a seeded sample of documents; empty: all."""
    max_document_bytes: Bytes | None = None
    """Score only so many UTF-8 bytes of the beginning of each document; empty: all of it. With a
    small `max_bytes`, this makes it more documents, of which the standard error is taken."""
    seq_len: int | None = Field(default=None, ge=_LEAST)
    """Tokens that a model reads at once, special ones included. Empty: its context (causal), 128
    (masked and encoder-decoder)."""


@dataclass(frozen=True)
class Corpus:
    """Documents to score.

    Attributes:
        read: What was read of them.
        texts: What the tokenizer gets of each: all of it, or its sentences.
        sizes: UTF-8 bytes, characters, and words, [3, N]; words are those between white space, and
            one for the end of each line.
    """

    read: list[Document]
    texts: list[list[str]]
    sizes: Ints


def read_corpus(config: RawTextConfig, reader: Reader) -> Corpus:
    """The documents of a measure, as the model's tokenizer gets them.

    Raises:
        DataError: There is none, or bad input, with file and line.
    """
    source = TextConfig(train=config.data, text=config.text, documents=config.documents)
    limits = Limits(
        config.max_documents,
        config.max_bytes,
        config.max_document_bytes,
        config.held_out,
        reader.subject.seed,
    )
    found = excerpt(source, limits)
    if not found:
        what = f"is held out by {config.held_out}" if config.held_out else "with text in it"
        raise DataError(f"{', '.join(config.data)}: no document {what}", "is the path right?")
    if reader.encoder.keeps_white_space:
        texts = [[document.text] for document in found]
    else:
        rule = _rule(found, reader) if config.sentences == "auto" else config.sentences
        texts = [split_sentences(document.text, rule) for document in found]
    sizes = np.array([_sizes(document.text) for document in found], dtype=np.int64).T
    return Corpus(found, texts, sizes)


def _rule(found: Sequence[Document], reader: Reader) -> Rule:
    if reader.kind in ("causal", "encoder_decoder"):  # which are trained on text as it is
        return "none"
    share = max(1, _LOOKED_AT // len(found))
    return choose_rule(document.text[:share] for document in found)


def _sizes(text: str) -> tuple[int, int, int]:
    lines = text.count("\n") + (not text.endswith("\n"))
    return len(text.encode()), len(text), len(text.split()) + lines


@dataclass(frozen=True)
class Way:
    """How texts are scored, where a family leaves a choice.

    Attributes:
        seq_len: Tokens that the model reads at once; None: the default of its kind.
        stride: Causal models: see ``rows.windows``; None: half of the window.
        begin: Causal models: whether the begin token stands before a text.
        variant: Masked models: see ``masked``.
        span: Encoder-decoders: tokens that are hidden together.
    """

    seq_len: int | None = None
    stride: int | None = None
    begin: bool = True
    variant: Variant = "original"
    span: int = 3


def window_of(reader: Reader, way: Way) -> tuple[int, int]:
    """Tokens of a window, and its stride.

    Raises:
        ConfigError: More than the model can read at once, or a stride that leaves tokens out.
    """
    default = reader.context if reader.kind == "causal" else min(_DEFAULT_ROW, reader.context)
    size = way.seq_len or default
    if size > reader.context:
        raise ConfigError(
            f"seq_len: {size:,}, but {reader.name} reads {reader.context:,} tokens at once",
            f"use at most {reader.context}",
        )
    stride = way.stride or max(1, size // 2)
    if stride > size:
        raise ConfigError(
            f"stride: {stride:,} is more than the window of {size:,} tokens, so that tokens would "
            "be left out",
            f"use at most {size}: the smaller, the more context and the more work",
        )
    return size, stride


def score_texts(reader: Reader, texts: Sequence[Tokens], way: Way) -> Scores:
    """Every token of each text scored once.

    Raises:
        ConfigError: As ``window_of``.
    """
    size, stride = window_of(reader, way)
    if reader.kind == "causal":
        return causal.score(reader, texts, size, stride, reader.begin if way.begin else None)
    if reader.kind == "masked":
        return masked.score(reader, texts, size, way.variant)
    if reader.kind == "encoder_decoder":
        return encoder_decoder.score(reader, texts, size, way.span)
    return bidirectional.score(reader, texts)


def definition(reader: Reader, way: Way) -> str:
    """In one line what a token's likelihood is."""
    size, stride = window_of(reader, way)
    if reader.kind == "causal":
        begin = "a begin token" if way.begin and reader.begin is not None else "no begin token"
        return (
            f"p(token | tokens before it in its document), windows of {size} inputs, stride "
            f"{stride}, {begin}"
        )
    if reader.kind == "masked":
        words = ", later tokens of its word masked too" if way.variant == "word_l2r" else ""
        return f"p(token | the others), one masked copy a token{words}, rows of {size} tokens"
    if reader.kind == "encoder_decoder":
        return (
            f"p(token | the rest, tokens before it in its span), spans of {way.span} tokens hidden "
            f"one after the other, rows of {size} tokens, without sentinels and end tokens"
        )
    return "p(word | words before it in its document), mean of both directions, without marks"
