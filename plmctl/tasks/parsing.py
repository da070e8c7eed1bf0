"""Parsing: the head of each word of a sentence in its dependency tree, and the relation to it.

A biaffine head (``models.heads.parsing``) on any network that can tag. The loss is the
cross-entropy of the heads plus that of the relations to the right heads. Answers are trees with one
root. A sentence is read as a whole, since a head may be anywhere: of one that is too long the
beginning is read, the words after it hang on the word before them, and all its words are scored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from plmctl.arrays import IGNORE, Ints, lengths_of, padded
from plmctl.errors import DataError
from plmctl.metrics import dependencies, statistics
from plmctl.metrics.modules import Kind
from plmctl.tasks import _elmo
from plmctl.tasks._sequences import pad_id_of
from plmctl.tasks._trees import best_tree, problem_of
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

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.labelled import Labels, Row
    from plmctl.models.batch import Batch
    from plmctl.models.load import HeadSource
    from plmctl.models.network import Network


class Config(ScoredConfig):
    """Give every word of a sentence its head and its relation to it."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("tokens", "heads", "relations")

    name: Literal["parsing"] = "parsing"
    tokens: str = "tokens"
    """Column of the words: a list, or one text with spaces between them; of CoNLL-U the forms."""
    heads: str = "head"
    """Column of the heads: for each word the number of its head, from 1, or 0 for the root."""
    relations: str = "deprel"
    """Column of the relations. They are learned with their subtypes and scored without."""
    piece: Literal["first", "last", "mean"] = "mean"
    """What stands for a word: its first piece, its last, or the mean of its pieces."""
    layers: Literal["last", "mix"] = "last"
    """What the head reads: the last layer, or a learned mix of all layers, which ELMo always
    has."""
    arc_size: int = Field(default=500, ge=1)
    """Size of the vectors that heads are scored by."""
    relation_size: int = Field(default=100, ge=1)
    """Size of the vectors that relations are scored by."""
    head_dropout: float = Field(default=0.33, ge=0, lt=1)
    """Dropout of the head of the network; `train.dropout` is that of its layers."""


# --- The task ---


class Parsing(Task[Config], config=Config):
    """Sentences with their trees, and a network with a biaffine head."""

    def text_columns(self) -> tuple[str, ...]:
        """The column of the words."""
        return (self.config.tokens,)

    def texts_of(self, row: Row) -> list[str]:
        """The words in one text."""
        return [" ".join(self._words(row))]

    def right_answer(self, row: Row) -> str:
        """The words with their relations and heads, as ``readable`` has them."""
        words = self._words(row)
        return _readable(words, *self._tree(row, words))

    def readable(self, answer: Answer, values: Mapping[str, Any], top: int) -> list[ReadableAnswer]:
        """The words, each with its relation and its head."""
        tree = answer["prediction"], answer["relations"]
        return [ReadableAnswer(_readable(answer["tokens"], *tree))]

    has_labels = True

    def labels_of(self, rows: Sequence[Row], labels: tuple[str, ...]) -> list[Labels]:
        """The relations of each row."""
        read = [self._tree(row, self._words(row))[1] for row in rows]
        return [list(zip(relations, relations, strict=True)) for relations in read]

    def labels(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """The relations of the training rows, in order.

        Raises:
            DataError: As ``make``.
        """
        return tuple(sorted({one for row in rows for one in self._tree(row, self._words(row))[1]}))

    def tokenizer(self, model: str) -> PreTrainedTokenizerBase:
        """The model's, without a template of its family; errors as in tagging."""
        return load_word_tokenizer(model)

    def check(self, model: str, network: PreTrainedConfig) -> None:
        """Refuse a family whose networks cannot have the head."""
        check_word_head(model, "parsing", beside=True)

    def load(self, start: HeadSource) -> PreTrainedModel:
        """The network with the biaffine head."""
        from plmctl.models.heads.parsing import BiaffineHead
        from plmctl.models.own_heads import with_head

        config = self.config
        sizes = config.arc_size, config.relation_size
        family = check_word_head(start.model, "parsing", beside=True)
        mix = config.layers == "mix" or family.READS_CHARACTERS
        return with_head(
            start,
            lambda encoder: BiaffineHead(
                encoder, len(start.labels), sizes, config.head_dropout, mix=mix
            ),
        )

    def make(
        self,
        rows: Sequence[Row],
        tokenizer: PreTrainedTokenizerBase,
        labels: tuple[str, ...],
        max_length: int,
        use: Use,
    ) -> ParsingExamples:
        """The rows as examples; training rows without words are dropped.

        Raises:
            DataError: Heads or relations that do not fit their words, or are no tree with one root.
        """
        read, dropped = learnable(
            [(row, tuple(self._words(row))) for row in rows],
            lambda one: None if one[1] else f"{one[0].origin}: no words",
            use,
        )
        trees = None if use == "predict" else tuple(self._tree(row, words) for row, words in read)
        sentences = tuple(words for _, words in read)
        if _elmo.reads_characters(tokenizer):
            units: list[list[tuple[Any, ...]]] = [[(word,) for word in of] for of in sentences]
            before, after = tuple[int, ...](), tuple[int, ...]()
            room, pad_id = max_length, None
        else:
            pieces = WordPieces(tokenizer)
            pieces.learn([word for words in sentences for word in words])
            units = [[pieces(word) for word in words] for words in sentences]
            before, after, pad_id = pieces.before, pieces.after, pad_id_of(tokenizer)
            room = min(max_length, tokenizer.model_max_length) - len(before) - len(after)
        read_words = [self._read(of, len(before), room) for of in units]
        flat = tuple(
            (*before, *[unit for word in of[: len(places)] for unit in word][:room], *after)
            or (pad_id or 0,)  # a sentence without words, between no special tokens
            for of, places in zip(units, read_words, strict=True)
        )
        cut = sum(
            len(of) > len(places) or sum(map(len, of)) > room
            for of, places in zip(units, read_words, strict=True)
        )
        return ParsingExamples(
            self.config,
            sentences,
            flat,
            tuple(read_words),
            trees,
            labels,
            pad_id,
            cut=cut,
            dropped=dropped,
        )

    def _read(self, words: Sequence[Sequence[Any]], first: int, room: int) -> list[tuple[int, int]]:
        """The places of each word that fits: its first piece and the one after its last."""
        ends = np.cumsum([first, *map(len, words)]).tolist()
        fit = [(start, end) for start, end in pairwise(ends) if end <= first + room]
        fit = fit or [(first, first + room)][: len(words)]  # a first word that is too long is cut
        piece = self.config.piece
        if piece == "mean":
            return fit
        return [(s, s + 1) if piece == "first" else (end - 1, end) for s, end in fit]

    def _words(self, row: Row) -> list[str]:
        """The words of a row.

        Raises:
            DataError: Neither a list of texts nor a text.
        """
        column = self.config.tokens
        return [str(item) for item in text_list(row.cell(column), row, column, words=True)]

    def _tree(self, row: Row, words: Sequence[str]) -> Tree:
        """The heads and the relations of a row.

        Raises:
            DataError: They do not fit the words, or the heads are no tree with one root.
        """
        columns, both = (self.config.heads, self.config.relations), []
        for column in columns:
            if column not in row.values:
                raise DataError(
                    f"{row.origin}: no column {column!r}: these rows have no trees",
                    "parsing needs a treebank: CoNLL-U (.conllu) with its ten columns, or rows "
                    "with the columns of task.heads and task.relations",
                )
            items = text_list(row.cell(column), row, column, words=False)
            if len(items) != len(words):
                raise DataError(
                    f"{row.origin}: {len(words)} words in {self.config.tokens!r}, but {len(items)} "
                    f"in {column!r}",
                    "give one per word",
                )
            both.append([name_of(item, f"{row.origin}: column {column!r}") for item in items])
        heads, relations = both
        for number, (head, relation) in enumerate(zip(heads, relations, strict=True), 1):
            if not head.isdecimal() or relation in ("", "_"):
                what = f"head {head!r}" if not head.isdecimal() else f"relation {relation!r}"
                raise DataError(
                    f"{row.origin}: the {what} of word {number}, {words[number - 1]!r}, is none",
                    "a treebank without trees can be tagged (task.name=tagging), and not parsed; "
                    "leave out sentences without a tree",
                )
        numbers = [int(head) for head in heads]
        if words and (problem := problem_of(numbers)):
            raise DataError(
                f"{row.origin}: no tree: {problem}",
                "correct the sentence, or leave it out; each word has one head, and one word the "
                "head 0",
            )
        return numbers, relations

    @staticmethod
    def forward(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
        """Scores of heads and relations; see ``models.heads.parsing``."""
        from plmctl.models.heads.parsing import parse

        return parse(model, **inputs)


Tree = tuple[list[int], list[str]]
"""The head of each word, from 0 (ROOT), and its relation to it."""


def _readable(words: Sequence[str], heads: Sequence[int], relations: Sequence[str]) -> str:
    """Words with relations and heads, as in ``Cats/nsubj<sleep sleep/root``."""
    named = ["", *words]
    return " ".join(
        f"{word}/{relation}{f'<{named[head]}' if head else ''}"
        for word, head, relation in zip(words, heads, relations, strict=True)
    )


# --- Examples: losses, answers, metrics ---


@dataclass(frozen=True)
class ParsingExamples(TaskExamples[Config]):
    """Sentences as a network reads them, with their trees.

    Attributes:
        read: What is read of each: ids, or words (ELMo), special tokens around them.
        places: Of each word that is read where its vector comes from: [start, end) of ``read``.
        trees: None for ``predict``.
        pad_id: None: the network reads characters (ELMo).
    """

    sentences: tuple[tuple[str, ...], ...]
    read: tuple[tuple[Any, ...], ...]
    places: tuple[list[tuple[int, int]], ...]
    trees: tuple[Tree, ...] | None
    labels: tuple[str, ...]
    pad_id: int | None

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """Both have a target per word."""
        return ("arc", "relation")

    @property
    def notices(self) -> tuple[str, ...]:
        """Relations that are not learned: the answer to such a word cannot be right."""
        known = {label.partition(":")[0] for label in self.labels}
        unseen = Counter(
            one for _, relations in self.trees or () for one in relations
            if one.partition(":")[0] not in known
        )  # fmt: skip
        if not unseen:
            return ()
        names = ", ".join(sorted(unseen)[:5])
        return (f"{unseen.total():,} words have a relation of no training row ({names}): wrong",)

    def __len__(self) -> int:
        """Sentences."""
        return len(self.sentences)

    def lengths(self) -> Ints:
        """[N] pieces of each, special tokens included; for ELMo words."""
        return lengths_of(self.read)

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The sentences ``samples`` padded to the longest of them.

        Args:
            epochs: [B], not used: examples are the same in every epoch.
            samples: [B] their numbers.

        Returns:
            inputs: input_ids and attention_mask [B, L], or character_ids [B, L, C]; starts and ends
            [B, W] of words; with trees heads [B, W].
            targets: arc and relation [B, W], IGNORE where there is none.
        """
        read = [self.read[sample] for sample in samples]
        places = [self.places[sample] for sample in samples]
        spans = np.zeros((2, len(places), max([1, *map(len, places)])), dtype=np.int64)
        for row, of in enumerate(places):
            spans[:, row, : len(of)] = np.reshape(of, (-1, 2)).T
        inputs, targets = dict(zip(("starts", "ends"), spans, strict=True)), {}
        if self.trees is not None:
            trees = [self.trees[sample] for sample in samples]
            targets = self._targets(trees, spans.shape[1:], list(map(len, places)))
            inputs["heads"] = np.maximum(targets["arc"], 0)
        if self.pad_id is None:
            batch = _elmo.batch_of(read, targets)
            more = as_batch(inputs, {}, np.ones(0, dtype=bool))
            batch.inputs.update(more.inputs)
            return batch
        ids, real = padded(read, self.pad_id)
        texts = {"input_ids": ids, "attention_mask": real.astype(np.int64)}
        return as_batch({**texts, **inputs}, targets, real)

    def _targets(
        self, trees: Sequence[Tree], shape: tuple[int, ...], read: Sequence[int]
    ) -> dict[str, Ints]:
        """Heads and relations; none where the head or the word itself is not read."""
        ids = {label: number for number, label in enumerate(self.labels)}
        targets = {name: np.full(shape, IGNORE, dtype=np.int64) for name in self.loss_terms}
        for place, ((heads, relations), count) in enumerate(zip(trees, read, strict=True)):
            for word, (head, relation) in enumerate(
                zip(heads[:count], relations[:count], strict=True)
            ):
                if head <= count:
                    targets["arc"][place, word] = head
                    targets["relation"][place, word] = ids.get(relation, IGNORE)
        return targets

    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The scores of heads [B, W, W + 1], and the best relation to each."""
        inputs = {name: value for name, value in batch.inputs.items() if name != "heads"}
        scores = network(**inputs)
        return {"arc": scores["arc"].float(), "relation": scores["relation"]}

    def answers(self, outputs: Outputs) -> list[Answer]:
        """The words of each sentence, the tree of the highest score, and its relations."""
        answers = []
        several = zip(
            self.sentences,
            self.places,
            outputs.get("arc", ()),
            outputs.get("relation", ()),
            strict=True,
        )
        for words, places, scores, relations in several:
            count = len(places)
            heads = best_tree(scores[:count, : count + 1]) if count else np.zeros(0, np.int64)
            named = [self.labels[number] for number in relations[np.arange(count), heads]]
            behind = range(count, len(words))
            answers.append(
                {
                    "tokens": list(words),
                    "prediction": [*heads.tolist(), *behind],
                    "relations": [*named, *["dep"] * len(behind)],
                }
            )
        return answers

    @property
    def metric_kind(self) -> Kind:
        """The arcs of each sentence."""
        return "tree"

    @property
    def usual_metrics(self) -> tuple[str, ...]:
        """Attachment scores."""
        return ("attachment",)

    def predictions(self, answers: Sequence[Answer]) -> list[list[str]]:
        """The arcs of each sentence; see ``metrics.dependencies``."""
        return [_arcs((answer["prediction"], answer["relations"])) for answer in answers]

    def references(self) -> list[list[str]]:
        """The right arcs of each sentence."""
        return [_arcs(tree) for tree in required(self.trees, "trees")]

    def uncertainty(self, answers: Sequence[Answer]) -> dict[str, dict[str, float]]:
        """The uncertainty of both attachment scores."""
        right, words = self._right(answers), np.array([len(of) for of in self.sentences])
        if len(words) < 2:
            return {}
        return {
            name: statistics.uncertainty(
                lambda given, of: float(given.sum() / of.sum()), right[name], words
            )
            for name in right
        }

    def per_example_scores(self, answers: Sequence[Answer]) -> tuple[str, list[float]]:
        """The share of each sentence's words whose head and relation are right."""
        words = [max(1, len(of)) for of in self.sentences]
        return "labelled attachment", (self._right(answers)["las"] / words).tolist()

    def _right(self, answers: Sequence[Answer]) -> dict[str, Ints]:
        """[N] how many words of each sentence are right, by metric."""
        both = zip(self.predictions(answers), self.references(), strict=True)
        counts = np.array([dependencies.right_words(*one) for one in both]).reshape(-1, 2)
        return {"uas": counts[:, 0], "las": counts[:, 1]}


def _arcs(tree: Tree) -> list[str]:
    return [dependencies.arc(head, relation) for head, relation in zip(*tree, strict=True)]
