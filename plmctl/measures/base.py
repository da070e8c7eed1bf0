"""What all measures share: what a measure defines, and the text, the model and the metrics of it.

A measure is a file of this folder with ``Config`` and ``measure``. There are three groups. The
first scores text with the model's own objective (``TextMeasureConfig``, ``score_text``). The second
sums log-likelihoods over raw documents (``RawTextConfig``, ``read_corpus``). The third gives the
model a prompt (``PromptedConfig``, ``load_prompted_model``).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, cast

import numpy as np
from pydantic import Field

from plmctl import registry
from plmctl.arrays import Floats, Ints
from plmctl.config.base import MeasureConfig, Text
from plmctl.config.sections import DataConfig, TextConfig
from plmctl.config.units import Bytes, Count, Share
from plmctl.corpus.document import Document
from plmctl.corpus.labelled import Row, read_rows
from plmctl.corpus.sentences import Rule, choose_rule, split_sentences
from plmctl.corpus.subsample import SubsampleLimits, subsample_documents
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.completions import first_sentinel
from plmctl.evaluation.likelihood import (
    TextScores,
)
from plmctl.evaluation.model import LoadedModel, TokenizedText, family_of, load_generator
from plmctl.evaluation.prompting import ShotsConfig
from plmctl.families.base import family_fits, get_family
from plmctl.hashing import digest_of_rows
from plmctl.metrics.statistics import error_of_ratio
from plmctl.objectives.base import get_objective

if TYPE_CHECKING:
    from pathlib import Path

    from plmctl.config.base import ObjectiveConfig
    from plmctl.evaluation.model import EvaluatedModel, LoadedGenerator


PER_ITEM = "each"
"""Where ``Measure.measure`` puts what each item is worth, apart from the figures."""


@dataclass(frozen=True)
class PerItemScores:
    """What each item of a measure is worth: two models are compared by it, item by item.

    Attributes:
        credit: What it is.
        items: A hash of what was asked; models that were asked the same have the same.
        values: [N] of each item.
        sizes: [N] what the values are to be divided by, as the bytes of a text; None: the figure is
            a plain mean. Else it is the sum of the values over the sum of these.
        better: Which end is the good one.
    """

    credit: str
    items: str
    values: Sequence[float]
    sizes: Sequence[float] | None = None
    better: Literal["high", "low"] = "high"

    def document(self) -> dict[str, Any]:
        """As it stands in ``eval/rows/``."""
        made = {"rows": self.items, "credit": self.credit, "better": self.better}
        sizes = {} if self.sizes is None else {"sizes": list(self.sizes)}
        return {**made, "values": list(self.values), **sizes}


class Measure(Protocol):
    """What a file of this folder defines; the module itself is the object."""

    def measure(self, config: Any, subject: EvaluatedModel) -> dict[str, Any]:
        """The figures, with what they were measured on.

        Where there are items, ``PER_ITEM`` has ``PerItemScores`` by name: the metrics by which
        models are compared. The name is "" if a measure has only one.
        """


def get_measure(name: str) -> Measure:
    """The measure of that name.

    Raises:
        ConfigError: There is none; the message has the nearest.
    """
    return cast(Measure, registry.load("measures", name))


# --- Text by the model's own objective ---


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


def score_text(
    config: TextMeasureConfig, objective: ObjectiveConfig, subject: EvaluatedModel
) -> dict[str, Any]:
    """Losses, perplexities and accuracies of an objective on text, on fixed masks and pairs.

    Args:
        config: The text and the length of the sequences.
        objective: Its name and rates.
        subject: The model.

    Returns:
        The metrics of ``scoring.score``, ``perplexity/<part>`` for parts over tokens, and the
        number of sequences.
    """
    from pathlib import Path

    from plmctl.evaluation.scoring import score
    from plmctl.models.network import Network
    from plmctl.tokenization.load import Vocab
    from plmctl.training.data import Slicing, scoring_batches

    member = get_objective(objective.name)
    name = family_of(subject.model)
    if not family_fits(name, member.LOSS_TERMS, encoder_decoder=member.ENCODER_DECODER):
        raise ConfigError(
            f"{subject.model}: a model of type {name!r} cannot be measured by {objective.name}",
            "ask for a measure of what it was trained with",
        )
    family = get_family(name)
    store = _token_store(config, objective, subject.model, Path(config.store))
    vocab = Vocab.from_folder(subject.model)
    step = member.make(objective, store, vocab, config.seq_len, subject.seed)
    if not len(step):
        raise DataError(f"{', '.join(config.data)}: not one sequence of {config.seq_len} tokens")
    network = Network(family.load(subject.model, member.LOSS_TERMS), family.forward)
    network.to(subject.accelerator.device)
    batches = scoring_batches(step, Slicing(1, subject.batch_size), config.max_samples)
    figures: dict[str, Any] = score(subject.accelerator, network, step, batches)
    for part in member.LOSS_TERMS:
        if part in ("mlm", "lm", "forward", "backward"):
            figures[f"perplexity/{part}"] = math.exp(min(figures[f"loss/{part}"], 700.0))
    figures["sequences"] = min(len(step), config.max_samples or len(step))
    return figures


def _token_store(
    config: TextMeasureConfig, objective: ObjectiveConfig, model: str, root: Path
) -> Any:
    from plmctl.corpus.build import build_stores
    from plmctl.corpus.store import TokenStore
    from plmctl.tokenization.encode import Encoder

    sentences: Any = "auto" if objective.reads_sentences else "none"
    data = DataConfig(
        train=config.data, valid=config.held_out, store=str(root), sentences=sentences
    )
    stores = build_stores(
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


# --- Likelihoods of raw text: documents, metrics with their standard errors ---


_SCRIPT_CHARACTERS = 50_000  # characters, to choose the rule for sentences by

_MIN_ROW = 4  # tokens of a row: a token, two special ones, and one to predict it from


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
    seq_len: int | None = Field(default=None, ge=_MIN_ROW)
    """Tokens that a model reads at once, special ones included. Empty: its context (causal), 128
    (masked and encoder-decoder)."""


@dataclass(frozen=True)
class ScoredCorpus:
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


def read_corpus(config: RawTextConfig, reader: LoadedModel) -> ScoredCorpus:
    """The documents of a measure, as the model's tokenizer gets them.

    Raises:
        DataError: There is none, or bad input, with file and line.
    """
    source = TextConfig(train=config.data, text=config.text, documents=config.documents)
    limits = SubsampleLimits(
        config.max_documents,
        config.max_bytes,
        config.max_document_bytes,
        config.held_out,
        reader.subject.seed,
    )
    found = subsample_documents(source, limits)
    if not found:
        what = f"is held out by {config.held_out}" if config.held_out else "with text in it"
        raise DataError(f"{', '.join(config.data)}: no document {what}", "is the path right?")
    if reader.encoder.keeps_white_space:
        texts = [[document.text] for document in found]
    else:
        rule = _sentence_rule(found, reader) if config.sentences == "auto" else config.sentences
        texts = [split_sentences(document.text, rule) for document in found]
    sizes = np.array([_text_sizes(document.text) for document in found], dtype=np.int64).T
    return ScoredCorpus(found, texts, sizes)


def _sentence_rule(found: Sequence[Document], reader: LoadedModel) -> Rule:
    if reader.kind in ("causal", "encoder_decoder"):  # which are trained on text as it is
        return "none"
    share = max(1, _SCRIPT_CHARACTERS // len(found))
    return choose_rule(document.text[:share] for document in found)


def _text_sizes(text: str) -> tuple[int, int, int]:
    lines = text.count("\n") + (not text.endswith("\n"))
    return len(text.encode()), len(text), len(text.split()) + lines


def ratio_metrics(
    name: str,
    numerator: Floats,
    denominator: Floats | Ints,
    seed: int,
    function: Callable[[Floats], Floats] = lambda ratio: ratio,
) -> dict[str, float | None]:
    """``name``, a function of a ratio of sums over documents, and ``name_se``, by the bootstrap.

    Raises:
        DataError: There is nothing to divide by.
    """
    below = np.asarray(denominator, dtype=np.float64)
    if not below.sum():
        raise DataError("nothing to score: no text has a token that is predicted")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        value = float(function(np.array([numerator.sum() / below.sum()]))[0])
        error = error_of_ratio(numerator, below, seed, function)
    return {name: value, f"{name}_se": error}


def bits_of(
    reader: LoadedModel, tokens: Sequence[TokenizedText], scores: TextScores
) -> tuple[Floats, Floats]:
    """What each text costs in bits, and how much of that is for the bytes of unknown text.

    Two things cost what a softmax over a closed vocabulary gets for nothing, so that no model gains
    by them: a token that stands for unknown text has 8 bits for each of its bytes besides its own
    likelihood, and a first token that a model cannot predict log2 of the vocabulary.

    Raises:
        DataError: The tokenizer leaves nothing of all the texts.
    """
    if not any(len(text.ids) for text in tokens):
        raise DataError(f"nothing to score: the tokenizer of {reader.name} leaves no token")
    spelt = 8.0 * np.array([text.unknown_bytes for text in tokens])
    return scores.nll / np.log(2) + scores.first * np.log2(reader.outputs) + spelt, spelt


BITS_DEFINITION = (
    "8 bits a byte of unknown text, log2(vocabulary) for a first token without a prediction; "
    "document separators are not scored"
)
"""What else ``bits_of`` counts, for definitions."""


def corpus_counts(
    corpus: ScoredCorpus, tokens: Sequence[TokenizedText], scores: TextScores
) -> dict[str, Any]:
    """How much was scored."""
    size, characters, words = corpus.sizes.sum(1).tolist()
    return {
        "documents": len(corpus.texts),
        "bytes": size,
        "characters": characters,
        "words": words,
        "tokens": sum(len(text.ids) for text in tokens),
        "scored": int(scores.scored.sum()),
        "unknown": sum(text.unknown for text in tokens),
    }


# --- Prompts ---


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


def load_prompted_model(config: PromptedConfig, subject: EvaluatedModel) -> LoadedGenerator:
    """The model of a measure; see ``model.load_generator``."""
    model = load_generator(subject.model, subject.accelerator, config.seq_len)
    if config.sentinel:
        first_sentinel(model)
    return model


def item_rows(config: PromptedConfig) -> list[Row]:
    """The rows to score."""
    return read_rows(config.data)[: config.max_items]


def with_separator(config: PromptedConfig, text: str) -> str:
    """A completion with what stands before it."""
    return text if text[:1].isspace() else config.between + text


def hash_of_rows(scored: Sequence[Row]) -> str:
    """Of what the rows hold, to know the data again."""
    return digest_of_rows([dict(row.values) for row in scored])
