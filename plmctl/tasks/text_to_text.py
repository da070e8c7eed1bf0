"""Text to text: read one text, write another, be it a translation, a summary or a label.

The loss is the cross-entropy of the target's tokens, its end token included. An encoder-decoder
(T5) reads the source, and its decoder the target shifted right by one, the padding token first
(Raffel et al., 2020, arXiv:1910.10683). A network that reads from left to right (GPT-1, GPT-2,
GPT-3) reads the source, a separator and the target in one sequence; only the target's tokens are
learned. ``_t5_casts.py`` has GLUE and SQuAD in T5's words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from plmctl.arrays import Ints, padded
from plmctl.config.base import TaskConfig
from plmctl.errors import ConfigError, DataError
from plmctl.metrics import squad, text
from plmctl.metrics.text import Tokens
from plmctl.models.base import Examples
from plmctl.tasks._sequences import (
    Layout,
    encode_texts,
    gpt1_ids,
    layout_of,
    pad_id_of,
    with_format,
)
from plmctl.tasks._t5_casts import CASTS, CastName, cast_metrics, cast_uncertainty, label_of, spaced
from plmctl.tasks.base import required
from plmctl.tokenization.words import has_chinese

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.labelled import Row
    from plmctl.models.batch import Batch
    from plmctl.models.load import NewHeads
    from plmctl.models.network import Network
    from plmctl.tasks.base import Use


LOSS_TERMS = ("lm",)

_MOST_LABELS = 1000

_WRITE = ("t5", "gpt2", "openai-gpt")


MetricName = Literal["sequence_accuracy", "squad", "trivia_qa", "bleu", "chrf", "rouge"]


class Config(TaskConfig):
    """Read a text and write another: translation, summaries, questions, T5's GLUE and SQuAD."""

    name: Literal["text_to_text"] = "text_to_text"
    cast: CastName | None = None
    """A task in the words of T5: its template, its labels as words and its figures. For columns of
    other names give the template too: `source: "rte sentence1: {premise} sentence2: {claim}"`."""
    source: str | None = None
    """Column of the text to read, or a template such as `question: {question} context: {context}`;
    `translation.en` is a field of a column. Empty: the cast's template, else `source`."""
    target: str | None = None
    """Column of the text to write, which may hold a list: the first is learnt, each is right.
    Empty: the cast's column, else `target`."""
    prefix: str = ""
    """Put before every source, as in `translate English to German: `."""
    max_target_length: int = Field(default=128, ge=2)
    """Tokens of a target, the end token included; longer ones are cut. `train.max_length` is that
    of the source."""
    decoding: Literal["greedy", "beam", "rank"] = "greedy"
    """How answers are made. rank: the likeliest of the labels (those of the cast, else all targets
    of the training rows), by the sum of the log-probabilities of its tokens."""
    beams: int = Field(default=4, ge=2)
    """beam only: hypotheses that are kept (T5: 4)."""
    length_penalty: float = Field(default=0.6, allow_inf_nan=False)
    """beam only: a hypothesis is worth its log-probability over its length to this power."""
    metrics: tuple[MetricName, ...] = ()
    """What answers are worth. squad and trivia_qa: exact match and F1 by their rules; bleu, chrf
    and rouge need `pip install 'plmctl[text]'`. Empty: the cast's figures, else
    sequence_accuracy."""
    tokens: Tokens = "13a"
    """How BLEU and ROUGE cut texts into words. 13a: as sacrebleu and rouge-score do unless told;
    intl: by Unicode (T5's BLEU); zh: every Chinese character is a word."""

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


# --- From rows to sources, targets and examples ---


def text_columns(config: Config) -> tuple[str, ...]:
    """The columns of the source."""
    return tuple(dict.fromkeys(template_columns(config.read)))


def labels_of(config: Config, rows: Sequence[Row]) -> tuple[str, ...]:
    """The labels of a cast, or with ranking the targets of the training rows; else none.

    Raises:
        ConfigError: Too many different targets to rank.
    """
    if config.cast and CASTS[config.cast].labels:
        return CASTS[config.cast].labels
    if config.decoding != "rank":
        return ()
    found = {_targets(config, row)[0] for row in rows}
    if len(found) > _MOST_LABELS:
        raise ConfigError(
            f"task.decoding: rank scores every target for every row, and there are {len(found)}",
            "rank is for labels; write texts with `greedy` or `beam`",
        )
    return tuple(sorted(found))


def make(
    config: Config,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    labels: tuple[str, ...],
    max_length: int,
    use: Use,
) -> TextToText:
    """The rows as examples; see ``base.Task``.

    Raises:
        ConfigError: A metric whose package is missing, or whose words leave nothing of the targets.
        DataError: A missing column, or a target that is no text or none of the labels.
    """
    texts, sides = [_source(config, row) for row in rows], seq2seq_format(tokenizer)
    if use == "predict":
        sources, cut = sides.sources(texts, max_length)
        return TextToText(config, sources, None, None, labels, sides, int(cut.sum()))
    references = [_targets(config, row) for row in rows]
    check_metrics(references, config.metrics, config.tokens)
    if config.decoding == "rank":
        refuse_unknown_targets([row.origin for row in rows], references, labels)
    dropped = []
    if use == "train":
        full = [bool(t.strip() and r[0].strip()) for t, r in zip(texts, references, strict=True)]
        dropped = [f"{rows[n].origin}: an empty text" for n, keep in enumerate(full) if not keep]
        texts = list(compress(texts, full))
        references = list(compress(references, full))
    sources, cut = sides.sources(texts, max_length)
    targets, also = sides.targets([r[0] for r in references], config.max_target_length)
    lost = int((cut | also).sum())
    return TextToText(
        config, sources, targets, tuple(references), labels, sides, lost, tuple(dropped)
    )


def _source(config: Config, row: Row) -> str:
    change = spaced if config.cast and CASTS[config.cast].spaced else str
    return config.prefix + fill_template(config.read, row, change)


def _targets(config: Config, row: Row) -> tuple[str, ...]:
    return target_texts(config.cast, nested_cell(row, config.written), row.origin)


def target_texts(name: str | None, value: Any, origin: str) -> tuple[str, ...]:
    """The right texts of a row, the one to learn first.

    Args:
        name: Of the cast; None: the row's own texts.
        value: What the row has in its column of targets.
        origin: The row, for messages.

    Raises:
        DataError: No text, or no label of the cast.
    """
    if name is not None and CASTS[name].labels:
        return (label_of(name, value, origin),)
    found = reference_texts(value, origin)
    return tuple(map(spaced, found)) if name is not None and CASTS[name].spaced else found


def refuse_unknown_targets(
    origins: Sequence[str], references: Sequence[Sequence[str]], labels: Sequence[str]
) -> None:
    """Refuse a target that the training rows do not have, where labels are ranked.

    Raises:
        DataError: With its row.
    """
    for origin, found in zip(origins, references, strict=True):
        if found[0] not in labels:
            message = f"{origin}: target {found[0]!r} is not among the training targets"
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
    if isinstance(value, dict):  # {"text": [...]}, or {"value": ..., "aliases": [...]}
        first = [value["value"]] if "value" in value else []
        value = [*first, *(value.get("text") or value.get("aliases") or [])]
    if isinstance(value, str | int | float):
        return (str(value),)
    found = tuple(value) if isinstance(value, list | tuple) else ()
    if not found or not all(isinstance(text, str) for text in found):
        raise DataError(f"{origin}: the target is no text, and no list of texts: {value!r:.80}")
    return tuple(dict.fromkeys(found))


# --- Source and target as token ids and batches: on two sides, or in one sequence ---


def with_end_token(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], longest: int
) -> tuple[TokenRows, NDArray[np.bool_]]:
    """Ids with an end token each, and which texts [N] were cut.

    Args:
        tokenizer: One that has an end token.
        texts: N of them.
        longest: Ids of a text, the end token included; what is more is cut off its end.
    """
    if not texts:
        return (), np.zeros(0, dtype=bool)
    encoded = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    end = required_token_id(tokenizer.eos_token_id)
    cut = np.array([len(row) >= longest for row in encoded])
    return tuple((*row[: longest - 1], end) for row in encoded), cut


def required_token_id(found: Any) -> int:
    """The id of a token that the tokenizer must have.

    Raises:
        ConfigError: It has not.
    """
    if not isinstance(found, int):
        raise ConfigError(
            "the model's tokenizer has no padding token or no end token",
            "train one with `family: t5`",
        )
    return found


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

    def generated(self, model: Any, batch: Batch, **decoding: Any) -> Tensor:
        """Ids that are written to each row [B, T]; see ``encoder_decoder_generate``."""

    def label_scores(self, model: Any, batch: Batch, labels: TokenRows) -> Tensor:
        """The log-probability of each label as the whole target, [B, C]."""


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
    """Of an encoder-decoder."""

    tokenizer: PreTrainedTokenizerBase

    @property
    def end(self) -> int:
        """The tokenizer's end token."""
        return required_token_id(self.tokenizer.eos_token_id)

    def sources(self, texts: Sequence[str], longest: int) -> tuple[TokenRows, CutRows]:
        """With end tokens."""
        return with_end_token(self.tokenizer, texts, longest)

    def targets(self, texts: Sequence[str], longest: int) -> tuple[TokenRows, CutRows]:
        """With end tokens."""
        return with_end_token(self.tokenizer, texts, longest)

    def batch(self, sources: Sequence[Any], targets: Sequence[Any] | None) -> Batch:
        """Each side padded to its longest.

        Returns:
            inputs: input_ids, attention_mask [B, L], and where there are targets decoder_input_ids
            [B, T], the padding token first, and positions [K]; targets: lm [K]. Tokens and cells
            are those of both sides.
        """
        pad = required_token_id(self.tokenizer.pad_token_id)
        ids, real = padded(sources, pad)
        inputs = {"input_ids": ids, "attention_mask": real.astype(np.int64)}
        if targets is None:
            return _seq2seq_batch(inputs, None, int(real.sum()), real.size)
        wanted, asked = padded(targets, pad)
        shifted = np.full_like(wanted, pad)
        shifted[:, 1:] = wanted[:, :-1]
        inputs |= {"decoder_input_ids": shifted, "positions": np.flatnonzero(asked)}
        return _seq2seq_batch(
            inputs, wanted[asked], int(real.sum() + asked.sum()), real.size + asked.size
        )

    def generated(self, model: Any, batch: Batch, **decoding: Any) -> Tensor:
        """See ``encoder_decoder_generate``."""
        return encoder_decoder_generate(model, self._read(batch), **decoding)

    def label_scores(self, model: Any, batch: Batch, labels: TokenRows) -> Tensor:
        """See ``encoder_decoder_label_scores``."""
        return encoder_decoder_label_scores(model, self._read(batch), labels)

    def _read(self, batch: Batch) -> dict[str, Tensor]:
        return {name: batch.inputs[name] for name in ("input_ids", "attention_mask")}


def _decoder_only_layout(tokenizer: PreTrainedTokenizerBase) -> Layout:
    """What stands around source and target in one sequence.

    GPT-1: ``_start_ source _delimiter_ target _classify_``, as pairs in its paper. GPT-2 and GPT-3:
    a line break between, and the end-of-text token after; nothing is published.
    """
    found = layout_of(tokenizer, pair=True)
    return Layout(
        found.before, found.between, found.after or (required_token_id(tokenizer.eos_token_id),)
    )


@dataclass(frozen=True)
class DecoderOnlyFormat:
    """Of a network that reads from left to right."""

    tokenizer: PreTrainedTokenizerBase
    layout: Layout

    @property
    def end(self) -> int:
        """GPT-1's ``_classify_``, or the end-of-text token."""
        return self.layout.after[-1]

    def sources(self, texts: Sequence[str], longest: int) -> tuple[TokenRows, CutRows]:
        """With what stands before the source and between it and the target."""
        before, between = self.layout.before, self.layout.between
        encoded, cut = self._kept(texts, longest - len(before) - len(between))
        return tuple((*before, *row, *between) for row in encoded), cut

    def targets(self, texts: Sequence[str], longest: int) -> tuple[TokenRows, CutRows]:
        """With end tokens."""
        encoded, cut = self._kept(texts, longest - len(self.layout.after))
        return tuple((*row, *self.layout.after) for row in encoded), cut

    def batch(self, sources: Sequence[Any], targets: Sequence[Any] | None) -> Batch:
        """Rows padded at their ends.

        Returns:
            inputs: input_ids, attention_mask [B, L]; prompts [B], the lengths of the sources; and
            where there are targets positions [K], the cells that predict their tokens;
            targets: lm [K].
        """
        rows = sources if targets is None else list(map(_source_and_target, sources, targets))
        ids, real = padded(rows, pad_id_of(self.tokenizer))
        read = np.array([len(source) for source in sources], dtype=np.int64)
        inputs = {"input_ids": ids, "attention_mask": real.astype(np.int64), "prompts": read}
        if targets is None:
            return _seq2seq_batch(inputs, None, int(real.sum()), real.size)
        asked = (np.arange(ids.shape[1]) >= read[:, None]) & real
        inputs["positions"] = np.flatnonzero(asked) - 1  # each is predicted from the cell before
        return _seq2seq_batch(inputs, ids[asked], int(real.sum()), real.size)

    def generated(self, model: Any, batch: Batch, **decoding: Any) -> Tensor:
        """See ``heads.writer.generated``."""
        from plmctl.models.heads.text_generation import Prompts, generate_answers

        read = Prompts(batch.inputs["input_ids"], batch.inputs["prompts"])
        return generate_answers(model, read, end=self.end, **decoding)

    def label_scores(self, model: Any, batch: Batch, labels: TokenRows) -> Tensor:
        """See ``heads.writer.label_scores``."""
        from plmctl.models.heads.text_generation import Prompts, label_scores

        read = Prompts(batch.inputs["input_ids"], batch.inputs["prompts"])
        return label_scores(model, read, labels)

    def _kept(self, texts: Sequence[str], room: int) -> tuple[list[list[int]], CutRows]:
        encoded = encode_texts(self.tokenizer, texts)
        cut = np.array([len(row) > max(1, room) for row in encoded], dtype=bool)
        return [row[: max(1, room)] for row in encoded], cut


def _source_and_target(source: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    return (*source, *target)


def _seq2seq_batch(
    inputs: dict[str, NDArray[Any]], wanted: NDArray[Any] | None, tokens: int, cells: int
) -> Batch:
    import torch

    from plmctl.models.batch import Batch

    made = {name: torch.from_numpy(array) for name, array in inputs.items()}
    targets = {} if wanted is None else {"lm": torch.from_numpy(wanted)}
    return Batch(made, targets, tokens, cells)


# --- Examples: batches, losses, answers ---


@dataclass(frozen=True)
class TextToText(Examples):
    """Rows as token ids on both sides; see ``base.TaskExamples``."""

    config: Config
    sources: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[int, ...], ...] | None
    """With their end tokens; None for rows that are to be answered."""
    references: tuple[tuple[str, ...], ...] | None
    """[N] right answers."""
    labels: tuple[str, ...]
    sides: Seq2SeqFormat
    cut: int = 0
    dropped: tuple[str, ...] = ()
    loss_terms: tuple[str, ...] = LOSS_TERMS

    def __len__(self) -> int:
        """Rows."""
        return len(self.sources)

    def lengths(self) -> Ints:
        """[N] tokens of each source, and of its target where it has one."""
        read: Ints = np.array([len(row) for row in self.sources], dtype=np.int64)
        if self.targets is not None:
            read += np.array([len(row) for row in self.targets], dtype=np.int64)
        return read

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The rows ``samples``, each side padded to the longest of them.

        Args:
            epochs: [B], not used: rows are the same in every epoch.
            samples: [B] row numbers.

        Returns:
            See ``Seq2SeqFormat.batch``.
        """
        sources = [self.sources[sample] for sample in samples]
        targets = None if self.targets is None else [self.targets[sample] for sample in samples]
        return self.sides.batch(sources, targets)

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the target tokens, in nats."""
        sums: dict[str, Tensor] = network(loss_on=batch.targets, **batch.inputs)
        return sums

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss, and the number of right first guesses, each after the true tokens before it."""
        from plmctl.models.losses import score_sums

        return score_sums(network(**batch.inputs), batch.targets)

    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The ids that are written, [B, T], or log-probabilities of the labels, [B, labels]."""
        config = self.config
        if config.decoding == "rank":
            labels, _ = self.sides.targets(self.labels, config.max_target_length)
            return {"label": self.sides.label_scores(network.model, batch, labels)}
        ids = self.sides.generated(
            network.model,
            batch,
            longest=config.max_target_length,
            beams=config.beams if config.decoding == "beam" else 1,
            length_penalty=config.length_penalty,
        )
        return {"ids": ids}

    def answers(self, outputs: Mapping[str, Sequence[NDArray[Any]]]) -> list[dict[str, Any]]:
        """The text that was written, or the likeliest label with all probabilities."""
        if self.config.decoding == "rank":
            return [rank_labels(self.labels, row) for row in outputs["label"]]
        end = self.sides.end
        ids = [row[: [*row, end].index(end)].tolist() for row in outputs["ids"]]
        texts = self.sides.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [{"prediction": text.strip()} for text in texts]

    def figures(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See ``text_metrics``."""
        references = required(self.references, "targets")
        written, c = [answer["prediction"] for answer in answers], self.config
        return text_metrics(written, references, c.cast, c.metrics, c.tokens)

    def uncertainty(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
        """See ``text_uncertainty``."""
        references, c = required(self.references, "targets"), self.config
        return text_uncertainty(answers, references, c.cast, c.metrics)

    def credits(self, answers: Sequence[Mapping[str, Any]]) -> tuple[str, list[float]]:
        """SQuAD's F1 of each text, over its words."""
        references = required(self.references, "targets")
        return per_row_f1([answer["prediction"] for answer in answers], references)


# --- The network ---


def positions(config: Config, max_length: int) -> int:
    """What a row takes of the positions of a network that reads from left to right."""
    return max_length + config.max_target_length


def tokenizer(config: Config, model: str) -> PreTrainedTokenizerBase:
    """The model's own, with GPT's template for pairs.

    Raises:
        ConfigError: The model writes no text.
    """
    from plmctl.models.load import config_of
    from plmctl.tokenization.load import load_tokenizer

    if (kind := str(config_of(model).model_type)) not in _WRITE:
        raise ConfigError(
            f"{model}: a {kind}, which cannot read one text and write another",
            "text_to_text needs a t5, gpt1, gpt2 or gpt3; others have the task classification",
        )
    return with_format(load_tokenizer(model), kind)


def load(
    config: Config,
    model: str,
    labels: tuple[str, ...],
    *,
    pretrained: bool,
    changes: Any,
    new_heads: NewHeads | None = None,
) -> PreTrainedModel:
    """A network with its language-model head; see ``base.Task``."""
    from plmctl.families.t5 import T5
    from plmctl.models.load import config_of

    if not config_of(model).is_encoder_decoder:
        from plmctl.models.heads.text_generation import load_writer

        ids = gpt1_ids(tokenizer(config, model))
        return load_writer(model, ids, pretrained=pretrained, changes=changes)
    return (
        T5.load(model, LOSS_TERMS, **changes) if pretrained else T5.from_scratch(model, **changes)
    )


def forward(model: Any, **inputs: Any) -> dict[str, Tensor]:
    """Logits of the target tokens, [K, V]."""
    from plmctl.families.t5 import T5
    from plmctl.models.heads.text_generation import write

    run = T5.forward if model.config.is_encoder_decoder else write
    return run(model, **inputs)


# --- Answers of an encoder-decoder: the text that it writes, or the likeliest of given texts ---


def encoder_decoder_generate(
    model: Any, inputs: dict[str, Tensor], *, longest: int, beams: int, length_penalty: float
) -> Tensor:
    """The most probable continuation, token by token or by beams.

    Args:
        model: An encoder-decoder of transformers.
        inputs: input_ids and attention_mask, [B, L].
        longest: Tokens of an answer, at most.
        beams: 1 is greedy.
        length_penalty: The sum of the log-probabilities is divided by the length to this power.

    Returns:
        [B, T]: the start token, the answer, and padding after its end.
    """
    from transformers import GenerationConfig

    settings = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=longest,
        num_beams=beams,
        length_penalty=length_penalty if beams > 1 else None,
        early_stopping=beams > 1,
        do_sample=False,
        decoder_start_token_id=model.config.decoder_start_token_id,
        pad_token_id=model.config.pad_token_id,
        eos_token_id=model.config.eos_token_id,
    )
    ids: Tensor = model.generate(**inputs, generation_config=settings)
    return ids


def encoder_decoder_label_scores(
    model: Any, inputs: dict[str, Tensor], labels: Sequence[Sequence[int]]
) -> Tensor:
    """The log-probability of each label as the whole answer; the encoder runs once a row.

    Args:
        model: An encoder-decoder of transformers.
        inputs: input_ids and attention_mask, [B, L].
        labels: C token sequences, each with its end token: a label that is the beginning of another
            one is no likelier for it.

    Returns:
        [B, C], in nats.
    """
    import torch

    encoded = model.get_encoder()(**inputs)
    rows = len(inputs["input_ids"])
    scores = []
    for label in labels:
        target_T = torch.tensor(label, device=inputs["input_ids"].device)
        target_BT = target_T.expand(rows, -1)
        start_B1 = torch.full_like(target_BT[:, :1], model.config.decoder_start_token_id)
        logits_BTV = model(
            encoder_outputs=encoded,
            attention_mask=inputs["attention_mask"],
            decoder_input_ids=torch.cat([start_B1, target_BT[:, :-1]], dim=1),
            use_cache=False,
        ).logits
        each_BT = logits_BTV.float().log_softmax(-1).gather(-1, target_BT[..., None]).squeeze(-1)
        scores.append(each_BT.sum(-1))
    return torch.stack(scores, dim=1)


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


# --- Metrics of written answers ---


def check_metrics(
    references: Sequence[Sequence[str]], metrics: Sequence[MetricName], tokens: text.Tokens
) -> None:
    """Refuse before training what could not be scored after it.

    Raises:
        ConfigError: A package is missing, or words of Latin letters are asked of Chinese texts.
    """
    text.require(metrics)
    if tokens == "13a" and {"bleu", "rouge"} & set(metrics):
        chinese = sum(has_chinese(texts[0]) for texts in references)
        if chinese > len(references) / 2:
            raise ConfigError(
                "task.tokens: 13a takes a Chinese sentence for one word in BLEU, and for none in "
                "ROUGE",
                "set `task.tokens: zh`",
            )


def text_metrics(
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    cast: str | None,
    metrics: Sequence[MetricName],
    tokens: text.Tokens,
) -> dict[str, Any]:
    """The figures of a cast with labels, then those of ``metrics``.

    BLEU, chrF, ROUGE and the figures of squad and trivia_qa go from 0 to 100, others from 0 to 1.

    Args:
        predictions: [N] what was written.
        references: [N] the right texts of each row.
        cast: Name of T5's cast, if there is one.
        metrics: None: what is usual.
        tokens: How BLEU and ROUGE cut texts into words.
    """
    found: dict[str, Any] = {}
    labelled = cast is not None and bool(CASTS[cast].labels)
    if cast is not None and labelled:
        found = dict(cast_metrics(cast, predictions, [texts[0] for texts in references]))
    elif not metrics:
        metrics = ("squad",) if cast else ("sequence_accuracy",)
    for metric in metrics:
        found |= _metric_values(metric, predictions, references, tokens)
    return found


def _metric_values(
    metric: MetricName,
    predictions: Sequence[str],
    references: Sequence[Sequence[str]],
    tokens: text.Tokens,
) -> dict[str, float]:
    if metric == "rouge":
        return text.rouge(predictions, references, tokens)
    if metric == "squad":
        counted = squad.summary(squad.scores(predictions, references, "squad"))
        return {name: counted[name] for name in ("exact_match", "f1")}
    if metric == "trivia_qa":
        return {
            "trivia_qa_exact_match": 100 * text.exact_match(predictions, references, "trivia_qa"),
            "trivia_qa_f1": 100 * text.f1(predictions, references, "trivia_qa"),
        }
    if metric == "bleu":
        return {"bleu": text.bleu(predictions, references, tokens)}
    if metric == "chrf":
        return {"chrf": text.chrf(predictions, references)}
    return {"sequence_accuracy": text.sequence_accuracy(predictions, references)}


def text_uncertainty(
    answers: Sequence[Mapping[str, Any]],
    references: Sequence[Sequence[str]],
    cast: str | None,
    metrics: Sequence[MetricName],
) -> dict[str, dict[str, float]]:
    """How sure the figures of a cast are, and those of squad; arguments as ``text_metrics``."""
    predictions = [answer["prediction"] for answer in answers]
    if cast is not None and CASTS[cast].labels:
        return cast_uncertainty(cast, predictions, [texts[0] for texts in references])
    if "squad" in (metrics or (("squad",) if cast else ())):
        return squad.uncertainty(squad.scores(predictions, references, "squad"))
    return {}


def per_row_f1(
    predictions: Sequence[str], references: Sequence[Sequence[str]]
) -> tuple[str, list[float]]:
    """SQuAD's F1 of each text against the nearest of its references, from 0 to 1."""
    return "f1", list(squad.scores(predictions, references, "squad").f1)
