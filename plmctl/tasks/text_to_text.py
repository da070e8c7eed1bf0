"""Text to text: read one text, write another, be it a translation, a summary or a label.

The loss is the cross-entropy of the target's tokens, its end token included. T5's decoder reads the
target shifted right by one, the padding token first (Raffel et al., 2020, arXiv:1910.10683); GPT-1,
GPT-2 and GPT-3 read source and target in one sequence, and learn the target alone (``_sides``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from plmctl.arrays import Ints
from plmctl.config.members import TaskConfig
from plmctl.errors import ConfigError
from plmctl.metrics.text import Tokens
from plmctl.tasks import _decoding, _templates, _text_figures
from plmctl.tasks._formats import gpt1_ids, with_format
from plmctl.tasks._known import known
from plmctl.tasks._sides import Sides, sides_of
from plmctl.tasks._t5_casts import CASTS, CastName, spaced, target_texts

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.tables import Row
    from plmctl.modeling.batch import Batch
    from plmctl.modeling.load import NewHeads
    from plmctl.modeling.network import Network
    from plmctl.tasks import Use


PARTS = ("lm",)
_MOST_LABELS = 1000
_WRITE = ("t5", "gpt2", "openai-gpt")


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
    metrics: tuple[_text_figures.Metric, ...] = ()
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
            _templates.columns_of(source)
        return source

    @property
    def read(self) -> str:
        """The column or the template of the source."""
        return self.source or (CASTS[self.cast].source if self.cast else "source")

    @property
    def written(self) -> str:
        """The column of the target."""
        return self.target or (CASTS[self.cast].target if self.cast else "target")


def text_columns(config: Config) -> tuple[str, ...]:
    """The columns of the source."""
    return tuple(dict.fromkeys(_templates.columns_of(config.read)))


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


def positions(config: Config, max_length: int) -> int:
    """What a row takes of the positions of a network that reads from left to right."""
    return max_length + config.max_target_length


def tokenizer(config: Config, model: str) -> PreTrainedTokenizerBase:
    """The model's own, with GPT's template for pairs.

    Raises:
        ConfigError: The model writes no text.
    """
    from plmctl.modeling.auto import config_of
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
    """A network with its language-model head; see ``tasks.Task``."""
    from plmctl.families import t5
    from plmctl.modeling.auto import config_of

    if not config_of(model).is_encoder_decoder:
        from plmctl.modeling.heads.writer import load_writer

        ids = gpt1_ids(tokenizer(config, model))
        return load_writer(model, ids, pretrained=pretrained, changes=changes)
    return t5.load(model, PARTS, **changes) if pretrained else t5.anew(model, **changes)


def forward(model: Any, **inputs: Any) -> dict[str, Tensor]:
    """Logits of the target tokens, [K, V]."""
    from plmctl.families import t5
    from plmctl.modeling.heads import writer

    run = t5.forward if model.config.is_encoder_decoder else writer.write
    return run(model, **inputs)


@dataclass(frozen=True)
class TextToText:
    """Rows as token ids on both sides; see ``tasks.Examples``."""

    config: Config
    sources: tuple[tuple[int, ...], ...]
    targets: tuple[tuple[int, ...], ...] | None
    """With their end tokens; None for rows that are to be answered."""
    references: tuple[tuple[str, ...], ...] | None
    """[N] right answers."""
    labels: tuple[str, ...]
    sides: Sides
    cut: int = 0
    dropped: tuple[str, ...] = ()
    parts: tuple[str, ...] = PARTS

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
            See ``_sides``.
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
        from plmctl.modeling.losses import score_sums

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
            return [_decoding.ranked(self.labels, row) for row in outputs["label"]]
        end = self.sides.end
        ids = [row[: [*row, end].index(end)].tolist() for row in outputs["ids"]]
        texts = self.sides.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [{"prediction": text.strip()} for text in texts]

    def figures(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """See ``tasks._text_figures``."""
        references = known(self.references, "targets")
        written, c = [answer["prediction"] for answer in answers], self.config
        return _text_figures.figures(written, references, c.cast, c.metrics, c.tokens)

    def uncertainty(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
        """See ``tasks._text_figures``."""
        references, c = known(self.references, "targets"), self.config
        return _text_figures.uncertainty(answers, references, c.cast, c.metrics)

    def credits(self, answers: Sequence[Mapping[str, Any]]) -> tuple[str, list[float]]:
        """SQuAD's F1 of each text, over its words."""
        references = known(self.references, "targets")
        return _text_figures.credits([answer["prediction"] for answer in answers], references)


def make(
    config: Config,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    labels: tuple[str, ...],
    max_length: int,
    use: Use,
) -> TextToText:
    """The rows as examples; see ``tasks.Task``.

    Raises:
        ConfigError: A metric whose package is missing, or whose words leave nothing of the targets.
        DataError: A missing column, or a target that is no text or none of the labels.
    """
    texts, sides = [_source(config, row) for row in rows], sides_of(tokenizer)
    if use == "predict":
        sources, cut = sides.sources(texts, max_length)
        return TextToText(config, sources, None, None, labels, sides, int(cut.sum()))
    references = [_targets(config, row) for row in rows]
    _text_figures.check(references, config.metrics, config.tokens)
    if config.decoding == "rank":
        _text_figures.refuse_others([row.origin for row in rows], references, labels)
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
    return config.prefix + _templates.filled(config.read, row, change)


def _targets(config: Config, row: Row) -> tuple[str, ...]:
    return target_texts(config.cast, _templates.cell(row, config.written), row.origin)
