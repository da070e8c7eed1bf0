"""What all measures share: the base class, and the text, the model and the metrics of each group.

A measure is a file of this folder with a ``Config`` and a subclass of ``Measure``. There are three
groups. The first scores text with an objective of pretraining (``ObjectiveMeasure``). The second
sums log-likelihoods over raw documents (``RawTextConfig``, ``read_corpus``). The third gives the
model a prompt (``PromptedConfig``).
"""

from __future__ import annotations

import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, NamedTuple, TypeVar

import numpy as np
from pydantic import Field

from plmctl import registry
from plmctl.arrays import Floats, Ints
from plmctl.config.base import MeasureConfig, Text
from plmctl.config.sections import ComputeConfig, DataConfig, TextConfig
from plmctl.config.units import Bytes, Count, Share
from plmctl.corpus.document import Document
from plmctl.corpus.labelled import Row, read_rows
from plmctl.corpus.sentences import choose_rule, split_sentences
from plmctl.corpus.subsample import SubsampleLimits, subsample_documents
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.completions import first_sentinel
from plmctl.evaluation.likelihood import Likelihood, TextScores
from plmctl.evaluation.model import LoadedModel, TokenizedText
from plmctl.evaluation.prompting import ShotsConfig
from plmctl.formatting import printable
from plmctl.hashing import digest_of_rows
from plmctl.metrics.statistics import error_of_ratio
from plmctl.objectives.base import get_objective
from plmctl.tokenization.unknown import report_text

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore
    from plmctl.tasks.base import Answer, ScoredConfig, TaskExamples


# --- Every measure ---


@dataclass(frozen=True)
class PerItemScores:
    """The score of each item of a measure: two models are compared by it, item by item.

    Attributes:
        credit: What the score is.
        items: A hash of the items; two models that were measured on the same items have the same.
        values: [N] score of each item.
        sizes: [N] denominators of the values, such as the bytes of a text: the metric is the sum of
            the values over the sum of these. None: the metric is a plain mean.
        better: Whether a high or a low score is better.
    """

    credit: str
    items: str
    values: Sequence[float]
    sizes: Sequence[float] | None = None
    better: Literal["high", "low"] = "high"

    def document(self) -> dict[str, Any]:
        """The content of its file in ``eval/rows/``."""
        document = {"rows": self.items, "credit": self.credit, "better": self.better}
        sizes = {} if self.sizes is None else {"sizes": list(self.sizes)}
        return {**document, "values": list(self.values), **sizes}


class Answered(NamedTuple):
    """Labelled rows, the model's answer to each, and the number of rows without a label.

    The rows have the columns that the finetuning named.
    """

    rows: Sequence[Row]
    examples: TaskExamples[ScoredConfig]
    answers: list[Answer]
    unlabelled: int


@dataclass(frozen=True)
class Measurement:
    """The result of a measure.

    Attributes:
        results: The metrics, with what they were measured on.
        per_item: The scores of the items, by the name of the score; "" if there is only one.
        predictions: For each item by paradigm, the text that the model prefers, or what a
            leaderboard takes of it; only of some measures.
        answered: Labelled rows and the model's answers; only of a finetuned model.
    """

    results: dict[str, Any]
    per_item: Mapping[str, PerItemScores] = field(default_factory=dict)
    predictions: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    answered: Answered | None = None


class AtCheckpoint(NamedTuple):
    """What a measure has of one checkpoint of a run.

    Attributes:
        name: As its branch on the Hub, such as ``chck_10M``.
        words: Words that the network has seen; None: unknown.
        predictions: See ``Measurement``; empty if the measure gives none.
    """

    step: int
    name: str
    words: int | None
    results: Mapping[str, Any]
    predictions: Mapping[str, Any]


C = TypeVar("C", bound=MeasureConfig)


class Measure(ABC, Generic[C]):
    """A measure of a model.

    A subclass names its config as a type and as an object: ``class Perplexity(Measure[Config],
    config=Config)``.
    """

    Config: ClassVar[type[MeasureConfig]]
    """What a user may write for it."""
    OVER_CHECKPOINTS: ClassVar[bool] = False
    """Whether the checkpoints of a run give something together, by the words that each has seen."""

    def __init_subclass__(cls, config: type[MeasureConfig] | None = None) -> None:
        """Set ``Config``; base classes of several measures have none."""
        super().__init_subclass__()
        if config is not None:
            cls.Config = config

    def __init__(self, config: C) -> None:
        self.config = config

    @abstractmethod
    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """Measure a model.

        Args:
            seed: Decides masks, pairs, samples and the draws of the bootstrap.
        """

    def over_checkpoints(self, series: Sequence[AtCheckpoint]) -> dict[str, Any]:
        """What the checkpoints of a run give together, if there is ``OVER_CHECKPOINTS``."""
        raise NotImplementedError


def get_measure(name: str) -> type[Measure[Any]]:
    """The measure of that name.

    Raises:
        ConfigError: There is none; the message has the nearest name.
    """
    return registry.member("measures", name, Measure)


# --- Text: the fields of every measure that reads it ---


class TextMeasureConfig(MeasureConfig):
    """A measure of text."""

    data: tuple[Text, ...] = Field(min_length=1)
    """Text, as `data.train` of pretraining."""
    held_out: Annotated[Share, Field(gt=0)] | None = None
    """Score only the documents that pretraining with this validation share held out."""
    text_separator: Text | None = None
    """What stands between documents and is no text, as `data.separator` of pretraining."""


# --- Text scored with an objective of pretraining ---


class ObjectiveMeasureConfig(TextMeasureConfig):
    """A measure with an objective of pretraining."""

    seq_len: int = Field(default=128, ge=8)
    """Tokens per sequence, special tokens included."""
    max_samples: int | None = Field(default=2000, ge=1)
    """Sequences to score at most, spread over the text; empty: all."""
    store: str = "stores"
    """Folder of the token stores."""


ObjectiveC = TypeVar("ObjectiveC", bound=ObjectiveMeasureConfig)


class ObjectiveMeasure(Measure[ObjectiveC]):
    """Loss, perplexity and accuracy of an objective on text, with fixed masks and pairs."""

    OBJECTIVE: ClassVar[str]
    """The name of the objective."""

    def objective_fields(self, model: LoadedModel) -> dict[str, Any]:
        """The fields of the objective's config that are not its defaults."""
        return {}

    def measure(self, model: LoadedModel, seed: int) -> Measurement:
        """Mean losses and accuracies, ``perplexity/<term>`` of terms over tokens, and counts.

        Raises:
            ConfigError: The model's family does not support the objective.
            DataError: The text is shorter than one sequence, or nothing of it is held out.
        """
        from plmctl.corpus.build import build_stores
        from plmctl.corpus.remote import store_root
        from plmctl.corpus.store import TokenStore
        from plmctl.evaluation.scoring import score
        from plmctl.training.data import scoring_batches
        from plmctl.training.engine import make_accelerator
        from plmctl.training.plan import Slicing

        config, member = self.config, get_objective(self.OBJECTIVE)
        accelerator = model.accelerator or make_accelerator(ComputeConfig(device="cpu"))
        terms, both = member.LOSS_TERMS, member.ENCODER_DECODER
        if not model.family.fits(terms, encoder_decoder=both):
            raise ConfigError(
                f"{model.name}: {self.OBJECTIVE} cannot measure a model of type "
                f"{model.family.name!r}",
                "use a measure of the objective that the model was pretrained with",
            )
        if model.sees_both_sides:
            raise ConfigError(
                f"{model.name}: {self.OBJECTIVE} cannot measure a decoder that sees both sides",
                "leave out both_sides, or use `pseudo_perplexity` or `bits_per_byte`",
            )
        fields = self.objective_fields(model)
        objective = member(member.Config(name=self.OBJECTIVE, **fields))
        stores = build_stores(
            DataConfig(
                train=config.data,
                valid=config.held_out,
                store=config.store,
                sentences="auto" if objective.config.reads_sentences else "none",
                separator=config.text_separator,
            ),
            model.encoder,
            root=store_root(config.store),
            processes=1,
            progress=lambda done, total: None,
            notice=tell,
        )
        folder = stores.train if config.held_out is None else stores.valid
        if folder is None:
            raise DataError(
                f"{', '.join(config.data)}: held_out={config.held_out} selects no document",
                "increase held_out, or leave it out",
            )
        report_text(stores.manifest, model.name, tell)
        store: TokenStore = TokenStore.open(folder)
        examples = objective.over(store, model.vocab, config.seq_len, seed)
        if not len(examples):
            raise DataError(
                f"{', '.join(config.data)}: the text is shorter than one sequence of "
                f"{config.seq_len} tokens",
                "reduce seq_len, or add text",
            )
        batches = scoring_batches(examples, Slicing(1, model.batch_size), config.max_samples)
        network = model.network(terms)
        results: dict[str, Any] = score(accelerator, network, examples, batches)
        for term in terms:
            if term in ("mlm", "lm", "forward", "backward"):
                results[f"perplexity/{term}"] = math.exp(min(results[f"loss/{term}"], 700.0))
        results["sequences"] = min(len(examples), config.max_samples or len(examples))
        return Measurement(results)


def tell(line: str) -> None:
    """Say a line, of what a measure reads."""
    print(printable(line), file=sys.stderr)


# --- Likelihoods of raw text: documents, metrics with their standard errors ---


_SCRIPT_CHARACTERS = 50_000  # characters from which the rule for sentences is chosen

_MIN_ROW = 4  # tokens of a row: a token, two special ones, and one to predict it from


class DocumentsConfig(TextMeasureConfig):
    """A measure of documents."""

    text: Text = "text"
    """Column of jsonl, csv, parquet and datasets that holds the text."""
    documents: Literal["auto", "blank_line", "file", "line"] = "auto"
    """What a document is in a txt file, as `data.documents` of pretraining; file: the whole file is
    one text, as WikiText is read."""
    sentences: Literal["auto", "line", "en", "zh", "none"] = "auto"
    """Where sentences end, as `data.sentences` of pretraining. auto: by script for masked models
    and ELMo, nowhere for others. A tokenizer that keeps white space reads each document as it is,
    spaces and line ends too."""
    max_documents: Count | None = Field(default=None, ge=1)
    """Documents to score at most, a seeded sample; empty: all."""
    max_bytes: Bytes | None = None
    """UTF-8 bytes to score at most, a seeded sample of documents; empty: all."""
    max_document_bytes: Bytes | None = None
    """Score only this many UTF-8 bytes at the beginning of each document; empty: all of it. With a
    small `max_bytes`, more documents are scored, over which the standard error is taken."""


class RawTextConfig(DocumentsConfig):
    """A measure of documents, read in windows."""

    seq_len: int | None = Field(default=None, ge=_MIN_ROW)
    """Tokens that a model reads at once, special tokens included. Empty: its context (causal), 128
    (masked and encoder-decoder)."""


@dataclass(frozen=True)
class ScoredCorpus:
    """Documents to score.

    Attributes:
        texts: The text of each as the tokenizer reads it: all of it, or its sentences.
        sizes: UTF-8 bytes, characters, and words, [3, N]; words are those between white space, and
            one for the end of each line.
    """

    documents: list[Document]
    texts: list[list[str]]
    sizes: Ints


def read_corpus(config: DocumentsConfig, likelihood: Likelihood, seed: int) -> ScoredCorpus:
    """The documents of a measure, as the model's tokenizer reads them.

    Raises:
        DataError: There is none, or bad input, with file and line.
    """
    source = TextConfig(
        train=config.data,
        text=config.text,
        documents=config.documents,
        separator=config.text_separator,
    )
    limits = SubsampleLimits(
        config.max_documents, config.max_bytes, config.max_document_bytes, config.held_out, seed
    )
    documents = subsample_documents(source, limits)
    if not documents:
        what = "has text"
        if config.held_out:
            what = f"is selected by held_out={config.held_out}"
        raise DataError(f"{', '.join(config.data)}: no document {what}", "check the paths")
    if likelihood.model.encoder.keeps_white_space:
        texts = [[document.text] for document in documents]
    else:
        if config.sentences != "auto":
            rule = config.sentences
        elif likelihood.READS_SENTENCES:
            share = max(1, _SCRIPT_CHARACTERS // len(documents))
            rule = choose_rule(document.text[:share] for document in documents)
        else:
            rule = "none"
        texts = [split_sentences(document.text, rule) for document in documents]
    sizes = np.array([_text_sizes(document.text) for document in documents], dtype=np.int64).T
    return ScoredCorpus(documents, texts, sizes)


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
        DataError: No token is scored.
    """
    divisor = np.asarray(denominator, dtype=np.float64)
    if not divisor.sum():
        raise DataError("nothing to score: no text has a token that is predicted")
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        value = float(function(np.array([numerator.sum() / divisor.sum()]))[0])
        error = error_of_ratio(numerator, divisor, seed, function)
    return {name: value, f"{name}_se": error}


def bits_of(
    model: LoadedModel, tokens: Sequence[TokenizedText], scores: TextScores
) -> tuple[Floats, Floats]:
    """The bits of each text, and how many of them are for the bytes of unknown text.

    A softmax over a closed vocabulary gets two things for free. They are added here, so that no
    model gains by them: a token that stands for unknown text costs 8 bits per byte besides its own
    likelihood, and a first token that a model cannot predict costs log2 of the vocabulary.

    Raises:
        DataError: No text has a token.
    """
    if not any(len(text.ids) for text in tokens):
        raise DataError(f"nothing to score: the tokenizer of {model.name} returns no token")
    unknown = 8.0 * np.array([text.unknown_bytes for text in tokens])
    return scores.nll / np.log(2) + scores.first * np.log2(model.outputs) + unknown, unknown


BITS_DEFINITION = (
    "8 bits a byte of unknown text, log2(vocabulary) for a first token without a prediction; "
    "document separators are not scored"
)
"""What ``bits_of`` adds, for definitions."""


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

    shots: ShotsConfig = ShotsConfig()
    """Examples before each item: `{count: 5, train: [FILE]}`."""
    between: str = " "
    """Text between a prompt and what follows it, if that does not begin with a space; it counts as
    a part of the latter. Empty for Chinese."""
    max_items: int | None = Field(default=None, ge=1)
    """Score the first of the items only; empty: all."""
    seq_len: int | None = Field(default=None, ge=8)
    """Tokens that the model reads at most; prompts are cut from the left. Empty: its positions (T5:
    512)."""
    sentinel: bool = False
    """T5 only: predict the completion in place of a sentinel, as span corruption trains it. Without
    it, T5 predicts the text that follows, which it learns by prefix_lm."""

    def with_separator(self, text: str) -> str:
        """A completion with the text between it and its prompt."""
        return text if text[:1].isspace() else self.between + text


PromptedC = TypeVar("PromptedC", bound=PromptedConfig)


class PromptedMeasure(Measure[PromptedC]):
    """A measure that gives the model a prompt per item."""

    def prompted_model(self, model: LoadedModel) -> LoadedModel:
        """The model with the window of this measure.

        Raises:
            ConfigError: It does not generate text, or has no sentinels if they are required.
        """
        prompted = model.for_generation(self.config.seq_len)
        if self.config.sentinel:
            first_sentinel(prompted)
        return prompted

    def item_rows(self) -> list[Row]:
        """The rows to score."""
        return read_rows(self.config.data)[: self.config.max_items]

    def shot_rows(self) -> list[Row]:
        """The rows from which examples are drawn."""
        shots = self.config.shots
        return read_rows(shots.train) if shots.count and shots.train else []


def hash_of_rows(rows: Sequence[Row]) -> str:
    """A hash of the values of the rows, by which the data are recognised."""
    return digest_of_rows([dict(row.values) for row in rows])
