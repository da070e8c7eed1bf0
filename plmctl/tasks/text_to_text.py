"""Text to text: read one text, write another, be it a translation, a summary or a label.

The loss is the cross-entropy of the target's tokens, its end token included. An encoder-decoder
(T5) reads the source, and its decoder the target shifted right by one, the padding token first
(Raffel et al., 2020, arXiv:1910.10683). A network that reads from left to right (GPT-1, GPT-2,
GPT-3) reads the source, a separator and the target in one sequence; only the target's tokens are
learned. ``_t5_casts.py`` has GLUE and SQuAD in T5's words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from plmctl.arrays import Ints, lengths_of, padded
from plmctl.characters import KANA
from plmctl.corpus.cells import MISSING, label_name, written_value
from plmctl.errors import ConfigError, DataError
from plmctl.families.base import family_of
from plmctl.metrics import squad, text
from plmctl.metrics.modules import Kind
from plmctl.metrics.text import Tokens
from plmctl.models.completions import EncodedCompletion, score_encoded
from plmctl.tasks._sequences import format_ids, pad_id_of
from plmctl.tasks._t5_casts import CASTS, CastName, cast_metrics, cast_uncertainty, label_of, spaced
from plmctl.tasks.base import (
    Answer,
    Counted,
    MetricNames,
    Outputs,
    ScoredConfig,
    Task,
    TaskExamples,
    Use,
    as_batch,
    learnable,
    required,
)
from plmctl.tokenization.layout import Layout, encode_texts, layout_of
from plmctl.tokenization.words import has_chinese

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.labelled import Labels, Row
    from plmctl.models.batch import Batch
    from plmctl.models.heads.text_generation import SpecialIds
    from plmctl.models.load import HeadSource
    from plmctl.models.network import Network


LOSS_TERMS = ("lm",)

_KANA_LETTER = re.compile(f"[{KANA}]")


class Config(ScoredConfig):
    """Read a text and write another: translation, summaries, questions, T5's GLUE and SQuAD."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("source", "target")

    name: Literal["text_to_text"] = "text_to_text"
    cast: CastName | None = None
    """A task in the words of T5: its template, its labels as words and its metrics. For columns of
    other names give the template too: `source: "rte sentence1: {premise} sentence2: {claim}"`."""
    source: str | None = None
    """Column of the text to read, or a template such as `question: {question} context: {context}`;
    `translation.en` is a field of a column. Empty: the cast's template, else `source`."""
    target: str | None = None
    """Column of the text to write, which may hold a list: the first is learned, each is right.
    Empty: the cast's column, else `target`."""
    prefix: str = ""
    """Put before every source, as in `translate English to German: `."""
    max_target_length: int = Field(default=128, ge=2)
    """Tokens of a target, the end token included; longer ones are cut. `train.max_length` is that
    of the source."""
    decoding: Literal["greedy", "beam", "rank"] = "greedy"
    """How answers are made. rank: the most probable of the labels (those of the cast, else all
    targets of the training rows), by the sum of the log-probabilities of its tokens."""
    beams: int = Field(default=4, ge=2)
    """beam only: number of hypotheses (T5: 4)."""
    length_penalty: float = Field(default=0.6, allow_inf_nan=False)
    """beam only: a hypothesis is scored by its log-probability over its length to this power."""
    metrics: MetricNames = ()
    """What answers are scored by: squad and trivia_qa (exact match and F1 by their rules), bleu,
    chrf and rouge (they need `pip install 'plmctl[text]'`), sequence_accuracy, files of your own
    such as `./my_metric.py` (docs/finetuning.md), or `hf:NAME` for a metric of the Hub. Empty: the
    cast's metrics, else sequence_accuracy."""
    tokens: Tokens = "13a"
    """How BLEU splits texts into words. 13a: the default of sacrebleu; intl: by Unicode (T5's
    BLEU); zh: every Chinese character is a word; char: every character is one, for other scripts
    without spaces. ROUGE reads every script; for it only char makes a difference."""

    @field_validator("source")
    @classmethod
    def _template(cls, source: str | None) -> str | None:
        if source is not None:
            template_columns(source)
        return source

    @property
    def read(self) -> str:
        """The column or the template of the source."""
        return self.source or (CASTS[self.cast].source if self.cast else "source")

    @property
    def written(self) -> str:
        """The column of the target."""
        return self.target or (CASTS[self.cast].target if self.cast else "target")


# --- The task ---


_MOST_LABELS = 1000


class TextToText(Task[Config], config=Config):
    """Pairs of texts, and a network that reads the first and writes the second."""

    WRITES = True

    def text_columns(self) -> tuple[str, ...]:
        """The columns of the source."""
        return tuple(dict.fromkeys(template_columns(self.config.read)))

    def labels(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """The labels of a cast, or with ranking the targets of the training rows; else none.

        Raises:
            ConfigError: Too many different targets to rank.
            DataError: A target to rank that is no label.
        """
        config = self.config
        if config.cast and CASTS[config.cast].labels:
            return CASTS[config.cast].labels
        if config.decoding != "rank":
            return ()
        targets = set()
        for row in rows:
            target = self.targets(row)[0]
            if not target or target in MISSING:
                raise DataError(
                    f"{row.origin}: column {config.written!r}: the target is {target!r}, no label",
                    "leave the row out",
                )
            targets.add(target)
        if len(targets) > _MOST_LABELS:
            raise ConfigError(
                f"task.decoding: rank scores every target for every row, and there are "
                f"{len(targets)} targets",
                "rank is for labels; write texts with `greedy` or `beam`",
            )
        return tuple(sorted(targets))

    def labels_of(self, rows: Sequence[Row], labels: tuple[str, ...]) -> list[Labels]:
        """The target of each row, if targets are ranked and no cast has fixed words for them."""
        if self.config.cast or self.config.decoding != "rank":
            return []
        read = [reference_texts(nested_cell(row, self.config.written), row.origin) for row in rows]
        return [[(texts[0], label_name(texts[0]))] for texts in read]

    def positions(self, max_length: int) -> int:
        """Source and target: a network that reads from left to right has both in one sequence."""
        return max_length + self.config.max_target_length

    def source(self, row: Row) -> str:
        """The text to read."""
        change = spaced if self.config.cast and CASTS[self.config.cast].spaced else str
        return self.config.prefix + fill_template(self.config.read, row, change)

    def all_texts(self, row: Row) -> list[str]:
        """The source, and the targets of a labelled row."""
        there = row.values.get(self.config.written.partition(".")[0]) is not None
        return [self.source(row), *(self.targets(row) if there else ())]

    def prompt(self, row: Row) -> str:
        """The text to read."""
        return self.source(row)

    def right_answer(self, row: Row) -> str:
        """The text to learn."""
        return self.targets(row)[0]

    def targets(self, row: Row) -> tuple[str, ...]:
        """The right texts, the one to learn first."""
        value = nested_cell(row, self.config.written)
        texts = target_texts(self.config.cast, value, row.origin)
        # Targets that are ranked are labels: each has one name.
        return tuple(map(label_name, texts)) if self.config.decoding == "rank" else texts

    def make(
        self,
        rows: Sequence[Row],
        tokenizer: PreTrainedTokenizerBase,
        labels: tuple[str, ...],
        max_length: int,
        use: Use,
    ) -> TextToTextExamples:
        """The rows as examples; training rows with an empty text are dropped.

        Raises:
            ConfigError: A metric's package is not installed, or it finds no words in the targets.
            DataError: A missing column, or a target that is no text or none of the labels.
        """
        config = self.config
        texts, seq2seq = [self.source(row) for row in rows], seq2seq_format(tokenizer)
        if use == "predict":
            sources, cut = seq2seq.sources(texts, max_length)
            return TextToTextExamples(
                config, sources, None, None, labels, seq2seq, cut=int(cut.sum())
            )
        references = [self.targets(row) for row in rows]
        check_metrics(references, config.metrics, config.tokens)
        if config.decoding == "rank":
            refuse_unknown_targets([row.origin for row in rows], references, labels)
        read, dropped = learnable(
            list(zip(rows, texts, references, strict=True)),
            lambda one: (
                None if one[1].strip() and one[2][0].strip() else f"{one[0].origin}: an empty text"
            ),
            use,
        )
        right = tuple(texts for _, _, texts in read)
        sources, cut = seq2seq.sources([text for _, text, _ in read], max_length)
        targets, also = seq2seq.targets([texts[0] for texts in right], config.max_target_length)
        return TextToTextExamples(
            config, sources, targets, right, labels, seq2seq,
            cut=int((cut | also).sum()), dropped=dropped,
        )  # fmt: skip

    def count(self, rows: Sequence[Row], labels: tuple[str, ...]) -> Iterator[Counted]:
        """Labels by TF-IDF; other texts are the input itself, or that of the nearest row."""
        from plmctl.counting import texts, written

        def read(rows: Sequence[Row]) -> list[str]:
            return [self.source(row).removeprefix(self.config.prefix) for row in rows]

        def answers(rows: Sequence[Row], write: Callable[[list[str]], list[str]]) -> list[Answer]:
            return [{"prediction": text.strip()} for text in write(read(rows))]

        targets = [self.targets(row)[0] for row in rows]
        if labels:
            ids = {label: number for number, label in enumerate(labels)}
            known = [number for number, target in enumerate(targets) if target in ids]
            predict = texts.learn_label(
                [(text,) for text in read([rows[number] for number in known])],
                np.array([ids[targets[number]] for number in known]),
                len(labels),
            )

            def name(sources: list[str]) -> list[str]:
                best = predict([(text,) for text in sources]).argmax(1)
                return [labels[number] for number in best]

            yield Counted(
                "TF-IDF with logistic regression", lambda rows, _: answers(rows, name), len(known)
            )
            return
        yield Counted("the input itself", lambda rows, _: answers(rows, list), 0)
        nearest = written.learn_nearest(read(rows), targets)
        yield Counted("nearest row by TF-IDF", lambda rows, _: answers(rows, nearest), len(rows))

    def check(self, model: str, network: PreTrainedConfig) -> None:
        """Refuse a network that writes no text."""
        if "lm" not in family_of(network).HEADS:
            raise ConfigError(
                f"{model}: a {network.model_type}, which cannot read one text and write another",
                "text_to_text needs a network that writes; others have the task classification",
            )

    def load(self, start: HeadSource) -> PreTrainedModel:
        """The network with its language-model head."""
        from plmctl.models.heads.text_generation import load_writer, start_with_padding
        from plmctl.models.load import config_of

        network = config_of(start.model)
        if not network.is_encoder_decoder:
            return load_writer(start, start.changes, format_ids(start.tokenizer))
        family = family_of(network)
        load = family.load if start.pretrained else family.from_scratch
        model = load(start.model, LOSS_TERMS, **start.changes)
        start_with_padding(model)
        return model

    @staticmethod
    def forward(model: Any, **inputs: Any) -> dict[str, Tensor]:
        """Logits of the target tokens, [K, V]."""
        from plmctl.models.heads.text_generation import write

        run = family_of(model.config).forward if model.config.is_encoder_decoder else write
        return run(model, **inputs)


# --- Examples: batches, losses, answers, metrics ---


@dataclass(frozen=True)
class TextToTextExamples(TaskExamples[Config]):
    """Rows as token ids of source and target.

    Attributes:
        sources: [N].
        targets: [N] with their end tokens; None for ``predict``.
        right: [N] the right texts of each row; None for ``predict``.
        labels: The labels of a cast or for ranking; empty: answers are free text.
    """

    sources: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[int, ...], ...] | None
    right: tuple[tuple[str, ...], ...] | None
    labels: tuple[str, ...]
    format: Seq2SeqFormat

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """The tokens of the target."""
        return LOSS_TERMS

    def __len__(self) -> int:
        """Rows."""
        return len(self.sources)

    def lengths(self) -> Ints:
        """[N] tokens of each source, and of its target if it has one."""
        lengths = lengths_of(self.sources)
        return lengths if self.targets is None else lengths + lengths_of(self.targets)

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The rows ``samples`` padded to the longest of them; see ``Seq2SeqFormat.batch``.

        Args:
            epochs: [B], not used: rows are the same in every epoch.
            samples: [B] row numbers.
        """
        sources = [self.sources[sample] for sample in samples]
        targets = None if self.targets is None else [self.targets[sample] for sample in samples]
        return self.format.batch(sources, targets)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Cross-entropy of the target tokens in nats, summed, without stored logits."""
        sums: dict[str, Tensor] = network(loss_on=batch.targets, **batch.inputs)
        return sums

    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The ids that are written, [B, T], or log-probabilities of the labels, [B, labels]."""
        import torch

        from plmctl.models.heads.text_generation import Search, generate_rows

        config, model, rows = self.config, network.model, self.format.rows(batch)
        if config.decoding == "rank":
            # Each with its end token: the beginning of another label is no likelier for that.
            labels, _ = self.format.targets(self.labels, config.max_target_length)
            texts = [
                self.format.completion(row, label, model.config) for row in rows for label in labels
            ]
            scores = [score.log_prob for score in score_encoded(model, texts, len(rows))]
            return {"label": torch.tensor(scores).view(len(rows), len(labels))}
        beams = config.beams if config.decoding == "beam" else 1
        search = Search(config.max_target_length, beams, config.length_penalty, early_stopping=True)
        generated = generate_rows(model, rows, search, self.format.special_ids(model.config))
        ids, _ = padded(generated, self.format.end)
        return {"ids": torch.from_numpy(ids)}

    def answers(self, outputs: Outputs) -> list[Answer]:
        """The text that was written, or the most probable label with all probabilities."""
        if self.config.decoding == "rank":
            return [rank_labels(self.labels, row) for row in outputs["label"]]
        end = self.format.end
        ids = [row[: [*row, end].index(end)].tolist() for row in outputs["ids"]]
        texts = self.format.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [{"prediction": text.strip()} for text in texts]

    @property
    def metric_kind(self) -> Kind:
        """Texts."""
        return "text"

    @property
    def usual_metrics(self) -> tuple[str, ...]:
        """A labelled cast has metrics of its own; other casts SQuAD's; texts by character."""
        if self._labelled_cast is not None:
            return ()
        return ("squad",) if self.config.cast else ("sequence_accuracy",)

    @property
    def metric_options(self) -> dict[str, Any]:
        """How BLEU and ROUGE split texts into words."""
        return {"tokens": self.config.tokens}

    def predictions(self, answers: Sequence[Answer]) -> list[str]:
        """The texts that were written."""
        return [answer["prediction"] for answer in answers]

    def references(self) -> tuple[tuple[str, ...], ...]:
        """The right texts of each row."""
        return required(self.right, "targets")

    def compute_metrics(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The metrics of a labelled cast, then those of the config.

        BLEU, chrF, ROUGE and those of squad and trivia_qa go from 0 to 100, others from 0 to 1.
        """
        metrics: dict[str, Any] = {}
        if (cast := self._labelled_cast) is not None:
            metrics = cast_metrics(cast, self.predictions(answers), self.references())
        metrics |= super().compute_metrics(answers)
        if "squad" in (self.config.metrics or self.usual_metrics):
            metrics.pop("total", None)
        return metrics

    def uncertainty(self, answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
        """The intervals of the metrics of a labelled cast, or of squad."""
        predictions, references = self.predictions(answers), self.references()
        if self._labelled_cast is not None:
            return cast_uncertainty(self._labelled_cast, predictions, references)
        if "squad" in (self.config.metrics or self.usual_metrics):
            return squad.uncertainty(squad.scores(predictions, references, "squad"))
        return {}

    def per_example_scores(self, answers: Sequence[Answer]) -> tuple[str, list[float]]:
        """SQuAD's F1 of each text with the nearest of its references, from 0 to 1."""
        scores = squad.scores(self.predictions(answers), self.references(), "squad")
        return "f1", list(scores.f1)

    @property
    def _labelled_cast(self) -> CastName | None:
        """The cast of T5, if its targets are labels."""
        cast = self.config.cast
        return cast if cast is not None and CASTS[cast].labels else None


# --- The right texts of a row ---


def target_texts(name: str | None, value: Any, origin: str) -> tuple[str, ...]:
    """The right texts of a row, the one to learn first.

    Args:
        name: The name of the cast; None: the row's own texts.
        value: What the row has in its column of targets.

    Raises:
        DataError: No text, or no label of the cast.
    """
    if name is not None and CASTS[name].labels:
        return (label_of(name, value, origin),)
    texts = reference_texts(value, origin)
    return tuple(map(spaced, texts)) if name is not None and CASTS[name].spaced else texts


def refuse_unknown_targets(
    origins: Sequence[str], references: Sequence[Sequence[str]], labels: Sequence[str]
) -> None:
    """Refuse a target that the training rows do not have, where labels are ranked.

    Raises:
        DataError: With its row.
    """
    for origin, texts in zip(origins, references, strict=True):
        if texts[0] not in labels:
            message = f"{origin}: target {texts[0]!r} is not among the training targets"
            raise DataError(message, ", ".join(labels[:20]))


# --- A row's text: a column, or a template with columns in braces ---


def template_columns(source: str) -> tuple[str, ...]:
    """The columns of a template, or the one that is named.

    Raises:
        ValueError: Braces that do not match, or with nothing in them.
    """
    if "{" not in source and "}" not in source:
        return (source,)
    names = tuple(name for _, name, _, _ in Formatter().parse(source) if name is not None)
    if not names or not all(names):
        raise ValueError("expected a column, or a template as in `question: {question}`")
    return names


def fill_template(source: str, row: Row, change: Callable[[str], str]) -> str:
    """The text of a row, with ``change`` made to what stands in its columns.

    Raises:
        DataError: No such column.
    """
    if "{" not in source:
        return change(str(nested_cell(row, source)))
    return "".join(
        before if name is None else before + change(str(nested_cell(row, name)))
        for before, name, _, _ in Formatter().parse(source)
    )


def nested_cell(row: Row, column: str) -> Any:
    """What a row has in a column; `translation.en` also looks into a column that holds fields.

    Raises:
        DataError: No such column, or nothing in it.
    """
    head, dot, rest = column.partition(".")
    inner = row.values.get(head)
    if column in row.values or not dot or not isinstance(inner, dict):
        return row.cell(column)
    if inner.get(rest) is None:
        raise DataError(f"{row.origin}: no {rest!r} in column {head!r}: it has {', '.join(inner)}")
    return inner[rest]


def reference_texts(value: Any, origin: str) -> tuple[str, ...]:
    """A target and the other right answers: a text, a list of them, or SQuAD's or TriviaQA's form.

    Raises:
        DataError: None, or something else.
    """
    if isinstance(value, str) and (read := written_value(value)) is not None:
        # "[1]" may be a text: a list that was written as text has quotes.
        items = read if isinstance(read, list) else read.get("text", read.get("aliases"))
        value = (
            read if isinstance(items, list) and any(isinstance(i, str) for i in items) else value
        )
    if isinstance(value, dict):  # {"text": [...]}, or {"value": ..., "aliases": [...]}
        first = [value["value"]] if "value" in value else []
        value = [*first, *(value.get("text") or value.get("aliases") or [])]
    if isinstance(value, str | int | float) and value == value:
        return (str(value),)
    texts = tuple(value) if isinstance(value, list | tuple) else ()
    if not texts or not all(isinstance(text, str) for text in texts):
        raise DataError(f"{origin}: the target is no text, and no list of texts: {value!r:.80}")
    return tuple(dict.fromkeys(texts))


# --- Source and target as token ids and batches: on two sides, or in one sequence ---


def with_end_token(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], longest: int
) -> tuple[TokenRows, NDArray[np.bool_]]:
    """Ids with an end token each, and which texts [N] were cut.

    Args:
        tokenizer: One that has an end token.
        longest: Ids of a text, the end token included; what is more is cut off its end.
    """
    if not texts:
        return (), np.zeros(0, dtype=bool)
    encoded = encode_texts(tokenizer, texts)
    end = required_token_id(tokenizer.eos_token_id)
    cut = np.array([len(row) >= longest for row in encoded])
    return tuple((*row[: longest - 1], end) for row in encoded), cut


def required_token_id(id_: Any) -> int:
    """The id of a token that the tokenizer must have.

    Raises:
        ConfigError: It has not.
    """
    if not isinstance(id_, int):
        raise ConfigError(
            "the model's tokenizer has no padding token or no end token",
            "train one with `family: t5`",
        )
    return id_


TokenRows = tuple[tuple[int, ...], ...]

CutRows = NDArray[np.bool_]


class Seq2SeqFormat(Protocol):
    """How a network takes source and target."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The model's own."""

    @property
    def end(self) -> int:
        """The id that ends a target."""

    def sources(self, texts: Sequence[str], longest: int) -> tuple[TokenRows, CutRows]:
        """Ids of sources, with what stands around them of ``longest`` at most; which lost text."""

    def targets(self, texts: Sequence[str], longest: int) -> tuple[TokenRows, CutRows]:
        """Ids of targets with their end tokens, of ``longest`` at most, and which lost text."""

    def batch(self, sources: Sequence[Any], targets: Sequence[Any] | None) -> Batch:
        """Rows as a network takes them; without targets where they are to be answered."""

    def rows(self, batch: Batch) -> list[list[int]]:
        """The sources of a batch."""

    def special_ids(self, config: Any) -> SpecialIds:
        """Ids that generating requires, of a network with this config."""

    def completion(
        self, source: Sequence[int], target: Sequence[int], config: Any
    ) -> EncodedCompletion:
        """A target after its source, to be scored by a network with this config."""


def seq2seq_format(tokenizer: PreTrainedTokenizerBase) -> Seq2SeqFormat:
    """What the model of a tokenizer's folder takes."""
    from plmctl.models.load import config_of

    two = config_of(tokenizer.name_or_path).is_encoder_decoder
    return (
        EncoderDecoderFormat(tokenizer)
        if two
        else DecoderOnlyFormat(tokenizer, _decoder_only_layout(tokenizer))
    )


@dataclass(frozen=True)
class EncoderDecoderFormat:
    """The format of an encoder-decoder."""

    tokenizer: PreTrainedTokenizerBase

    @property
    def end(self) -> int:
        """The tokenizer's end token."""
        return required_token_id(self.tokenizer.eos_token_id)

    def sources(self, texts: Sequence[str], longest: int) -> tuple[TokenRows, CutRows]:
        """Token ids with the end token."""
        return with_end_token(self.tokenizer, texts, longest)

    def targets(self, texts: Sequence[str], longest: int) -> tuple[TokenRows, CutRows]:
        """Token ids with the end token."""
        return with_end_token(self.tokenizer, texts, longest)

    def batch(self, sources: Sequence[Any], targets: Sequence[Any] | None) -> Batch:
        """Each side padded to its longest.

        Returns:
            inputs: input_ids, attention_mask [B, L], and where there are targets decoder_input_ids
            [B, T], the padding token first, and positions [K]; targets: lm [K]. Tokens and
            padding are those of both sides.
        """
        pad = required_token_id(self.tokenizer.pad_token_id)
        ids, real = padded(sources, pad)
        inputs = {"input_ids": ids, "attention_mask": real.astype(np.int64)}
        if targets is None:
            return as_batch(inputs, {}, real)
        wanted, predicted = padded(targets, pad)
        shifted = np.full_like(wanted, pad)
        shifted[:, 1:] = wanted[:, :-1]
        inputs |= {"decoder_input_ids": shifted, "positions": np.flatnonzero(predicted)}
        return as_batch(inputs, {"lm": wanted[predicted]}, np.append(real, predicted))

    def rows(self, batch: Batch) -> list[list[int]]:
        """The ids that the encoder reads."""
        return _unpadded(batch.inputs["input_ids"], batch.inputs["attention_mask"].sum(1))

    def special_ids(self, config: Any) -> SpecialIds:
        """The ids of the network's config, which has T5's own wherever the folder comes from."""
        from plmctl.models.heads.text_generation import SpecialIds

        ends, start = (config.eos_token_id,), (config.decoder_start_token_id,)
        return SpecialIds(ends, config.pad_token_id, start)

    def completion(
        self, source: Sequence[int], target: Sequence[int], config: Any
    ) -> EncodedCompletion:
        """The encoder reads the source; the target follows the decoder's start token."""
        start = self.special_ids(config).start
        return EncodedCompletion((*start, *target), len(start), source=tuple(source))


def _decoder_only_layout(tokenizer: PreTrainedTokenizerBase) -> Layout:
    """What stands around source and target in one sequence.

    GPT-1: ``_start_ source _delimiter_ target _classify_``, as pairs in its paper. GPT-2 and GPT-3:
    a line break between, and the end-of-text token after; nothing is published.
    """
    pair = layout_of(tokenizer, pair=True)
    return Layout(
        pair.before, pair.between, pair.after or (required_token_id(tokenizer.eos_token_id),)
    )


@dataclass(frozen=True)
class DecoderOnlyFormat:
    """The format of a decoder-only network."""

    tokenizer: PreTrainedTokenizerBase
    layout: Layout

    @property
    def end(self) -> int:
        """GPT-1's ``_classify_``, or the end-of-text token."""
        return self.layout.after[-1]

    def sources(self, texts: Sequence[str], longest: int) -> tuple[TokenRows, CutRows]:
        """Token ids of the sources, with what stands before them and before the targets."""
        before, between = self.layout.before, self.layout.between
        encoded, cut = self._kept(texts, longest - len(before) - len(between))
        return tuple((*before, *row, *between) for row in encoded), cut

    def targets(self, texts: Sequence[str], longest: int) -> tuple[TokenRows, CutRows]:
        """Token ids with the end token."""
        encoded, cut = self._kept(texts, longest - len(self.layout.after))
        return tuple((*row, *self.layout.after) for row in encoded), cut

    def batch(self, sources: Sequence[Any], targets: Sequence[Any] | None) -> Batch:
        """Rows padded at their ends.

        Returns:
            inputs: input_ids, attention_mask [B, L]; prompts [B], the lengths of the sources; and
            where there are targets positions [K], the positions that predict their tokens;
            targets: lm [K].
        """
        rows = sources if targets is None else list(map(_source_and_target, sources, targets))
        ids, real = padded(rows, pad_id_of(self.tokenizer))
        read = np.array([len(source) for source in sources], dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": real.astype(np.int64), "prompts": read}
        if targets is None:
            return as_batch(inputs, {}, real)
        predicted = (np.arange(ids.shape[1]) >= read[:, None]) & real
        inputs["positions"] = np.flatnonzero(predicted) - 1  # each is predicted before it
        return as_batch(inputs, {"lm": ids[predicted]}, real)

    def rows(self, batch: Batch) -> list[list[int]]:
        """The ids before the target."""
        return _unpadded(batch.inputs["input_ids"], batch.inputs["prompts"])

    def special_ids(self, config: Any) -> SpecialIds:
        """The end token, which is the padding too."""
        from plmctl.models.heads.text_generation import SpecialIds

        return SpecialIds((self.end,), self.end)

    def completion(
        self, source: Sequence[int], target: Sequence[int], config: Any
    ) -> EncodedCompletion:
        """Both in one sequence."""
        return EncodedCompletion(_source_and_target(source, target), len(source))

    def _kept(self, texts: Sequence[str], room: int) -> tuple[list[list[int]], CutRows]:
        encoded = encode_texts(self.tokenizer, texts)
        cut = np.array([len(row) > max(1, room) for row in encoded], dtype=bool)
        return [row[: max(1, room)] for row in encoded], cut


def _unpadded(ids: Tensor, lengths: Tensor) -> list[list[int]]:
    pairs = zip(ids.tolist(), lengths.tolist(), strict=True)
    return [row[:length] for row, length in pairs]


def _source_and_target(source: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    return (*source, *target)


# --- The most probable of given texts ---


def rank_labels(labels: Sequence[str], scores: NDArray[Any]) -> dict[str, Any]:
    """The likeliest label, with the probabilities of all as if there were no others.

    Args:
        labels: C.
        scores: [C] log-probabilities.
    """
    shares = np.exp(scores.astype(np.float64) - scores.max())
    shares /= shares.sum()
    return {
        "prediction": labels[int(scores.argmax())],
        "probabilities": dict(zip(labels, shares.tolist(), strict=True)),
    }


# --- Checks before training ---


def check_metrics(
    references: Sequence[Sequence[str]], metrics: Sequence[str], tokens: text.Tokens
) -> None:
    """Refuse metrics that could not score these texts.

    Raises:
        ConfigError: A package is not installed, or the words of a metric are not those of the
            script of the texts.
    """
    text.require(metrics)
    unspaced = [texts[0] for texts in references if text.without_spaces(texts[0])]
    if len(unspaced) <= len(references) / 2:
        return
    chinese = 2 * sum(map(has_chinese, unspaced)) > len(unspaced)
    japanese = 2 * sum(_KANA_LETTER.search(one) is not None for one in unspaced) > len(unspaced)
    fits = "zh" if chinese and not japanese else "char"
    if "bleu" in metrics and tokens != "char" and tokens != fits:
        raise ConfigError(
            f"task.tokens: BLEU with {tokens} takes a sentence of these targets for one word: they "
            f"have no spaces between words, as in {unspaced[0][:20]!r}",
            f"set `task.tokens: {fits}`",
        )
    if by_words := [name for name in metrics if name in ("squad", "squad_v2", "trivia_qa")]:
        raise ConfigError(
            f"task.metrics: the F1 of {by_words[0]} counts words between spaces, which these "
            f"targets do not have, as in {unspaced[0][:20]!r}",
            "use cmrc2018, which counts characters",
        )
