"""A label for each word of a sentence: what the tasks with such labels share.

The label stands on one piece of a word, the first as published (BERT, section 5.3), and the loss
has one target per word. A sentence that is too long is read in windows of whole words, each word
labelled in one of them, so that every word is learned from and scored once. Heads are those of
transformers: dropout and a linear layer on each piece; ``layers: mix`` and ELMo have their own.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np

from plmctl.arrays import IGNORE, Ints, lengths_of, padded
from plmctl.corpus.cells import look_alikes_of, text_name
from plmctl.errors import DataError, did_you_mean
from plmctl.metrics.modules import Kind
from plmctl.tasks import _elmo
from plmctl.tasks._sequences import pad_id_of
from plmctl.tasks._words import WordPieces, check_word_head, load_word_tokenizer, text_list
from plmctl.tasks.base import (
    Answer,
    Outputs,
    ReadableAnswer,
    ScoredConfig,
    Task,
    TaskExamples,
    Use,
    as_batch,
    learnable,
    name_of,
    required,
)
from plmctl.tokenization.layout import Ids

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.labelled import Row
    from plmctl.models.batch import Batch
    from plmctl.models.load import HeadSource
    from plmctl.models.network import Network


class WordConfig(ScoredConfig):
    """What every word of a sentence has."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("tokens", "tags")

    tokens: str = "tokens"
    """Column of the words: a list, or one text. In files of columns `tokens` is the first column
    (of CoNLL-U the forms), and "0", "1", ... are all of them."""
    tags: str = "tags"
    """Column of the tags, one per word: a list, or one text separated by spaces. In files of
    columns `tags` is the last column, of CoNLL-U `upos`."""
    split: Literal["spaces", "characters"] = "spaces"
    """How a text is split into words if a row has no list; characters: for Chinese."""
    layers: Literal["last", "mix"] = "last"
    """What the head reads: the last layer, or a learned mix of all layers, which ELMo always
    has."""
    piece: Literal["first", "last"] = "first"
    """Which piece of a word has its tag: the first (published), or the last, by which a network
    that reads from left to right (GPT) has seen the whole word."""


W = TypeVar("W", bound=WordConfig)


# --- The task ---


class WordTask(Task[W]):
    """Sentences with a label per word, and a network with a head on every piece."""

    has_labels = True

    def text_columns(self) -> tuple[str, ...]:
        """The column of the words."""
        return (self.config.tokens,)

    def warnings(self, *, left_to_right: bool) -> Iterator[str]:
        """A decoder has not seen the rest of a word at its first piece."""
        if left_to_right and self.config.piece == "first":
            yield (
                "task.piece: first, but this network reads from left to right: at a word's first "
                "piece it has not seen the rest; task.piece=last labels words when it has"
            )

    def texts_of(self, row: Row) -> list[str]:
        """The words in one text."""
        return [
            ("" if self.config.split == "characters" else " ").join(row_words(self.config, row))
        ]

    def readable(self, answer: Answer, values: Mapping[str, Any], top: int) -> list[ReadableAnswer]:
        """The words, each with its tag."""
        pairs = zip(answer["tokens"], answer["prediction"], strict=True)
        return [ReadableAnswer(" ".join(f"{word}/{tag}" for word, tag in pairs))]

    def tokenizer(self, model: str) -> PreTrainedTokenizerBase:
        """See ``load_word_tokenizer``."""
        return load_word_tokenizer(model)

    def check(self, model: str, network: PreTrainedConfig) -> None:
        """Refuse a family without a head on every piece."""
        check_word_head(model, self.config.name)

    def load(self, start: HeadSource) -> PreTrainedModel:
        """The network with a head on every piece; its config names the labels."""
        from plmctl.models.heads.tagging import load_tagger

        family, changes = check_word_head(start.model, self.config.name), start.changes
        if family.READS_CHARACTERS:
            changes = _elmo.changes_of(changes, pretrained=start.pretrained)
        mix = self.config.layers == "mix"
        tagger: PreTrainedModel = load_tagger(start, changes, family.initialize_head, mix=mix)
        return tagger

    @staticmethod
    def forward(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
        """Logits of the labels at every piece, [B, L, labels]."""
        return {"tag": model(**inputs).logits}

    def make(
        self,
        rows: Sequence[Row],
        tokenizer: PreTrainedTokenizerBase,
        labels: tuple[str, ...],
        max_length: int,
        use: Use,
    ) -> WordExamples[W]:
        """The rows as examples; training rows without words are dropped."""
        config = self.config
        read, dropped = learnable(
            [(row, tuple(row_words(config, row))) for row in rows],
            lambda one: None if one[1] else f"{one[0].origin}: no words",
            use,
        )
        allowed = self.allowed(labels, use)
        tags = None if use == "predict" else tuple(
            tuple(row_tags(config, row, words, allowed)) for row, words in read
        )  # fmt: skip
        sentences = tuple(words for _, words in read)
        examples: list[SentenceExample] = []
        cut, pad_id = 0, None
        if _elmo.reads_characters(tokenizer):
            for row, words in enumerate(sentences):
                units = [(word,) for word in words]
                examples += sentence_examples(row, units, ((), ()), max_length)
        else:
            pad_id = pad_id_of(tokenizer)
            pieces = WordPieces(tokenizer)
            pieces.learn([word for words in sentences for word in words])
            around = pieces.before, pieces.after
            room = min(max_length, tokenizer.model_max_length) - sum(map(len, around))
            for row, words in enumerate(sentences):
                cut += any(len(pieces(word)) > room for word in words)
                fitted = [pieces(word)[:room] for word in words]
                last = config.piece == "last"
                examples += sentence_examples(row, fitted, around, room, last=last)
        return self.examples(
            config,
            sentences,
            tuple(examples),
            tags,
            labels,
            pad_id,
            cut=cut,
            dropped=dropped,
        )

    def allowed(self, labels: tuple[str, ...], use: Use) -> tuple[str, ...] | None:
        """What a tag of a row may be; None: anything."""
        return None

    @property
    @abstractmethod
    def examples(self) -> type[WordExamples[W]]:
        """The class of its examples."""


# --- Examples: losses, predictions, metrics ---


@dataclass(frozen=True)
class WordExamples(TaskExamples[W]):
    """Sentences as a network reads them, with a tag per word.

    Attributes:
        tags: The tags of each sentence; None for ``predict``.
        pad_id: None: the network reads characters (ELMo).
    """

    sentences: tuple[tuple[str, ...], ...]
    examples: tuple[SentenceExample, ...]
    tags: tuple[tuple[str, ...], ...] | None
    labels: tuple[str, ...]
    pad_id: int | None

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """One target per word: its tag."""
        return ("tag",)

    def __len__(self) -> int:
        """Sentences and windows."""
        return len(self.examples)

    def lengths(self) -> Ints:
        """[N] pieces of each, special tokens included; for ELMo words."""
        return lengths_of([example.read for example in self.examples])

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The examples ``samples`` padded to the longest of them.

        Args:
            epochs: [B], not used: examples are the same in every epoch.
            samples: [B] their numbers.

        Returns:
            inputs: input_ids and attention_mask [B, L], or character_ids [B, L, C];
            targets: tag [B, L], IGNORE except at one piece per word.
        """
        chosen = [self.examples[sample] for sample in samples]
        targets = {} if self.tags is None else {"tag": self._targets(chosen)}
        if self.pad_id is None:
            return _elmo.batch_of([example.read for example in chosen], targets)
        ids, real = padded([example.read for example in chosen], self.pad_id)
        return as_batch({"input_ids": ids, "attention_mask": real.astype(np.int64)}, targets, real)

    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The most probable tag of every piece [B, L], and its probability."""
        best = network(**batch.inputs)["tag"].float().softmax(-1).max(-1)
        return {"tag": best.indices, "probability": best.values}

    def answers(self, outputs: Outputs) -> list[Answer]:
        """The words of each sentence, their tags, and the probability of each."""
        tags: list[list[str]] = [[] for _ in self.sentences]
        probabilities: list[list[float]] = [[] for _ in self.sentences]
        both = zip(
            self.examples, outputs.get("tag", ()), outputs.get("probability", ()), strict=True
        )
        for example, numbers, of_pieces in both:  # windows of a sentence are in order
            places = list(example.places)
            labels = [self.labels[number] for number in numbers[places]]
            words = self.sentences[example.row][example.first :]
            tags[example.row] += map(self.tag_of, words, labels)
            probabilities[example.row] += map(float, of_pieces[places])
        return [
            {"tokens": list(words), "prediction": predicted, "probabilities": of_words}
            for words, predicted, of_words in zip(self.sentences, tags, probabilities, strict=True)
        ]

    def tag_of(self, word: str, label: str) -> str:
        """The tag that a label gives a word."""
        return label

    def label_of(self, word: str, tag: str) -> str:
        """The label that gives a word its tag."""
        return tag

    @cached_property
    def label_ids(self) -> list[list[int]]:
        """The number of each word's label, by sentence; IGNORE: it is none."""
        ids = {label: number for number, label in enumerate(self.labels)}
        rows = zip(self.sentences, required(self.tags, "tags"), strict=True)
        return [[ids.get(label, IGNORE) for label in map(self.label_of, *row)] for row in rows]

    @property
    def metric_kind(self) -> Kind:
        """The tags of each sentence."""
        return "tags"

    @property
    def usual_metrics(self) -> tuple[str, ...]:
        """Tags word by word."""
        return ("tag_accuracy",)

    def predictions(self, answers: Sequence[Answer]) -> list[list[str]]:
        """The tags of each sentence."""
        return [answer["prediction"] for answer in answers]

    def references(self) -> list[list[str]]:
        """The right tags of each sentence."""
        return [list(tags) for tags in required(self.tags, "tags")]

    def per_example_scores(self, answers: Sequence[Answer]) -> tuple[str, list[float]]:
        """The share of each sentence's tags that are right."""
        pairs = zip(self.predictions(answers), self.references(), strict=True)
        return "tag accuracy", [float(np.mean(np.equal(tags, true))) for tags, true in pairs]

    def _targets(self, chosen: Sequence[SentenceExample]) -> Ints:
        width = max((len(example.read) for example in chosen), default=0)
        targets = np.full((len(chosen), max(1, width)), IGNORE, dtype=np.int64)
        for row, example in zip(targets, chosen, strict=True):
            ids = self.label_ids[example.row]
            row[list(example.places)] = ids[example.first : example.first + len(example.places)]
        return targets


# --- The words and tags of a row ---


_SHOWN = 12


def row_words(config: WordConfig, row: Row) -> list[str]:
    """The words of a row.

    Raises:
        DataError: Neither a list of texts nor a text.
    """
    value = row.cell(config.tokens)
    if isinstance(value, str) and config.split == "characters":
        return [character for character in value if not character.isspace()]
    return [str(item) for item in text_list(value, row, config.tokens, words=True)]


def row_tags(
    config: WordConfig, row: Row, words: Sequence[str], labels: Sequence[str] | None = None
) -> list[str]:
    """The tags of a row, one per word.

    Args:
        labels: What a tag may be; None: anything.

    Raises:
        DataError: Not as many tags as words, or a tag that is not known.
    """
    where = f"{row.origin}: column {config.tags!r}"
    items = text_list(row.cell(config.tags), row, config.tags, words=False)
    if len(items) != len(words):
        raise DataError(
            f"{row.origin}: {len(words)} words in {config.tokens!r}, but {len(items)} tags in "
            f"{config.tags!r}",
            "give one tag per word",
        )
    tags = [name_of(item, where) for item in items]
    known = {text_name(label): label for label in labels or ()}
    known |= {label: label for label in labels or ()}
    for number, (word, tag) in enumerate(zip(words, tags, strict=True), 1):
        if not tag:
            raise DataError(f"{where}: the tag of word {number}, {word!r}, is empty")
        if labels is not None and tag not in known:
            there = ", ".join([*labels[:_SHOWN], *["..."][: len(labels) > _SHOWN]])
            raise DataError(
                f"{row.origin}: tag {tag!r} of word {number}, {word!r}, is not among the training "
                f"tags: {there}{did_you_mean(look_alikes_of(tag, known))}",
                "fix it; or, if no training row has it, count it as wrong (task.unseen=wrong), or "
                "name all tags under `task.labels`",
            )
    return [known.get(tag, tag) for tag in tags]


# --- Sentences cut to what a network takes ---


Units = tuple[Any, ...]
"""What a network reads of a word: ids of its pieces, or the word itself (ELMo)."""


@dataclass(frozen=True)
class SentenceExample:
    """A sentence, or a window of a long one.

    Attributes:
        read: Units of its words, and special tokens around them.
        first: The first word that is labelled here; those after it follow.
        places: Where in ``read`` the labels stand.
    """

    row: int
    read: Units
    first: int
    places: Ids


def sentence_examples(
    row: int, words: Sequence[Units], around: tuple[Ids, Ids], room: int, *, last: bool = False
) -> Iterator[SentenceExample]:
    """A sentence as examples: itself, or its windows.

    Args:
        words: The units of each word, at least one and at most ``room``.
        around: Special tokens before and after.
        room: Units that there is place for between them.
        last: A word is labelled at its last unit; else at its first.
    """
    before, after = around
    for window in sentence_windows([len(units) for units in words], room):
        inside = words[window.start : window.stop]
        ends = len(before) + np.cumsum([0, *map(len, inside)])
        places = ends[1:] - 1 if last else ends[:-1]
        labelled = places[window.first - window.start : window.last - window.start]
        flat = tuple(unit for units in inside for unit in units)
        yield SentenceExample(row, before + flat + after, window.first, tuple(labelled.tolist()))


@dataclass(frozen=True)
class SentenceWindow:
    """A part of a sentence.

    Attributes:
        start: The first word that is read.
        stop: The word after the last that is read.
        first: The first word that is labelled here.
        last: The word after the last that is labelled here.
    """

    start: int
    stop: int
    first: int
    last: int


def sentence_windows(sizes: Sequence[int], room: int) -> Iterator[SentenceWindow]:
    """Windows of whole words over a sentence, each word labelled in one of them.

    They overlap by about half. A word in two is labelled where it has more words around it: the
    overlap is shared at its middle.

    Args:
        sizes: Pieces of each word, none above ``room``.
        room: Pieces that a window has place for.
    """
    ends = np.cumsum([0, *sizes])
    start = first = 0
    while first < len(sizes):
        stop = int(np.searchsorted(ends, ends[start] + room, side="right")) - 1
        if stop >= len(sizes):
            yield SentenceWindow(start, len(sizes), first, len(sizes))
            return
        # Half of this window again, but no more than leaves place for the next word.
        shared = min(room // 2, room - sizes[stop])
        after = int(np.searchsorted(ends, ends[stop] - shared, side="left"))
        after = max(after, start + 1)
        last = (after + stop + 1) // 2
        if last > first:
            yield SentenceWindow(start, stop, first, last)
        start, first = after, last
