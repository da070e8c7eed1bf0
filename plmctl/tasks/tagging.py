"""Tagging: a tag for each word of a sentence (named entities, parts of speech).

The label stands on one piece of a word, the first as published (BERT, section 5.3), and the loss
has one target per word. A sentence that is too long is read in windows of whole words, each word
labelled in one of them, so that every word is learned from and scored once. Heads are those of
transformers: dropout and a linear layer on each piece; ``layers: mix`` and ELMo have their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from plmctl.arrays import Ints, padded
from plmctl.config.base import TaskConfig
from plmctl.errors import ConfigError, DataError
from plmctl.metrics.spans import Scheme, is_entity_tag
from plmctl.models.base import Examples
from plmctl.tasks import _elmo
from plmctl.tasks.base import required

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.corpus.labelled import Row
    from plmctl.models.batch import Batch
    from plmctl.models.load import NewHeads
    from plmctl.models.network import Network
    from plmctl.tasks.base import Use


LOSS_TERMS = ("tag",)

_IGNORE = -100  # models.batch.IGNORE, whose module imports torch


class Config(TaskConfig):
    """Give every word of a sentence a tag."""

    name: Literal["tagging"] = "tagging"
    tokens: str = "tokens"
    """Column of the words: a list, or one text. In files of columns `tokens` is the first column,
    and "0", "1", ... are all of them."""
    tags: str = "tags"
    """Column of the tags, one a word: a list, or one text with spaces between. In files of columns
    `tags` is the last column."""
    split: Literal["spaces", "characters"] = "spaces"
    """How a text is cut into words where a row has no list; characters: for Chinese."""
    scheme: Literal["bio", "bioes", "pos"] = "bio"
    """What the tags are. bio (B- and I-, also as IOB1) and bioes (also as BMES or BILOU) spell
    entities, which are scored as wholes; pos: tags of words, scored one by one."""
    strict: bool = False
    """Score only entities that are spelt as the scheme says; false: as conlleval and seqeval."""
    labels: tuple[str, ...] = ()
    """All tags there are; empty: those of the training rows. To be named where the validation rows
    have tags that no training row has."""
    unseen: Literal["refuse", "wrong"] = "refuse"
    """Validation rows with a tag that no training row has: refuse them, since it may be a slip of
    the pen; or score its words, which no answer can then be right for, and say how many."""
    layers: Literal["last", "mix"] = "last"
    """What the head reads: the last layer, or a learnt mix of all, as of ELMo, which always has
    one."""
    piece: Literal["first", "last"] = "first"
    """Which piece of a word has its tag: the first (published), or the last, by which a network
    that reads from left to right (GPT) has seen the whole word."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("labels: a tag is there twice")
        return self


# --- From rows to words, tags and examples ---


def text_columns(config: Config) -> tuple[str, ...]:
    """The column of the words."""
    return (config.tokens,)


def labels_of(config: Config, rows: Sequence[Row]) -> tuple[str, ...]:
    """The tags of the training rows, O first, then in order; or those that the config names.

    Raises:
        DataError: Tags that do not fit their words or the scheme, or a single tag.
    """
    found = set(config.labels)
    for row in rows:
        new = set(row_tags(config, row, row_words(config, row))) - found
        if config.scheme != "pos":
            check_scheme(config.scheme, row.origin, new)
        found |= new
    if len(found) < 2:
        raise DataError(
            f"the training rows have one tag only, {next(iter(found), 'none')!r}",
            f"is {config.tags!r} the column of the tags?",
        )
    return config.labels or tuple(sorted(found, key=lambda tag: (tag != "O", tag)))


def make(
    config: Config,
    rows: Sequence[Row],
    tokenizer: PreTrainedTokenizerBase,
    labels: tuple[str, ...],
    max_length: int,
    use: Use,
) -> Tagging:
    """The rows as examples; see ``base.Task``. Training rows without words are dropped."""
    read = [(row, tuple(row_words(config, row))) for row in rows]
    dropped = [f"{row.origin}: no words" for row, words in read if not words and use == "train"]
    read = [(row, words) for row, words in read if words or use != "train"]
    allowed = None if use == "score" and config.unseen == "wrong" else labels
    tags = None if use == "predict" else tuple(
        tuple(row_tags(config, row, words, allowed)) for row, words in read
    )  # fmt: skip
    sentences = tuple(words for _, words in read)
    if _elmo.reads_characters(tokenizer):
        found = [
            example
            for row, words in enumerate(sentences)
            for example in sentence_examples(row, [(word,) for word in words], ((), ()), max_length)
        ]
        return Tagging(config, sentences, tuple(found), tags, labels, None, 0, tuple(dropped))
    pieces = Pieces(tokenizer)
    pieces.learn([word for words in sentences for word in words])
    around = pieces.before, pieces.after
    room = min(max_length, tokenizer.model_max_length) - sum(map(len, around))
    found, cut = [], 0
    for row, words in enumerate(sentences):
        cut += any(len(pieces(word)) > room for word in words)
        fitted = [pieces(word)[:room] for word in words]
        found += sentence_examples(row, fitted, around, room, last=config.piece == "last")
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    return Tagging(
        config, sentences, tuple(found), tags, labels, int(pad or 0), cut, tuple(dropped)
    )


_SHOWN = 12


def row_words(config: Config, row: Row) -> list[str]:
    """The words of a row.

    Raises:
        DataError: Neither a list of texts nor a text.
    """
    value = row.cell(config.tokens)
    if isinstance(value, str) and config.split == "characters":
        return [character for character in value if not character.isspace()]
    return _text_list(value, row, config.tokens)


def row_tags(
    config: Config, row: Row, words: Sequence[str], labels: Sequence[str] | None = None
) -> list[str]:
    """The tags of a row, one a word.

    Args:
        config: The task's.
        row: With a column of tags.
        words: Its words.
        labels: What a tag may be; None: anything.

    Raises:
        DataError: Not as many tags as words, or a tag that is not known.
    """
    tags = _text_list(row.cell(config.tags), row, config.tags)
    if len(tags) != len(words):
        raise DataError(
            f"{row.origin}: {len(words)} words in {config.tokens!r}, but {len(tags)} tags in "
            f"{config.tags!r}",
            "give one tag a word",
        )
    known = set(tags if labels is None else labels)
    for number, (word, tag) in enumerate(zip(words, tags, strict=True), 1):
        if tag not in known:
            there = ", ".join([*(labels or ())[:_SHOWN], *["..."][: len(labels or ()) > _SHOWN]])
            raise DataError(
                f"{row.origin}: tag {tag!r} of word {number}, {word!r}, is not among the training "
                f"tags: {there}",
                "mend it; or, if no training row has it, count it as wrong (task.unseen=wrong), or "
                "name all tags under `task.labels`",
            )
    return tags


def check_scheme(scheme: Scheme, origin: str, tags: Iterable[str]) -> None:
    """Refuse tags that a scheme does not have.

    Raises:
        DataError: There is one.
    """
    for tag in sorted(tags):
        if not is_entity_tag(tag, scheme):
            letters = "B- or I-" if scheme == "bio" else "B-, I-, E- or S-"
            raise DataError(
                f"{origin}: tag {tag!r} is not O, nor {letters} and a type",
                "name the scheme of the tags: `task.scheme: bio`, `bioes` or `pos`",
            )


def _text_list(value: Any, row: Row, column: str) -> list[str]:
    if isinstance(value, str):
        return value.split()
    if not isinstance(value, list | tuple):
        raise DataError(
            f"{row.origin}: column {column!r} holds a {type(value).__name__}",
            "expected a list with one text a word, or one text with spaces between the words",
        )
    for number, item in enumerate(value, 1):
        if not isinstance(item, str | int):
            raise DataError(
                f"{row.origin}: item {number} of column {column!r} is a {type(item).__name__}",
                "expected a text for each word",
            )
    return [str(item) for item in value]


# --- Words as pieces, and sentences cut to what a network takes ---


Ids = tuple[int, ...]

Units = tuple[Any, ...]
"""What a network reads of a word: ids of its pieces, or the word itself (ELMo)."""


class Pieces:
    """Words to pieces, each word by itself; text that looks like a special token is only text.

    Byte-level tokenizers (GPT-2, RoBERTa) take each word with the space before it, the first of a
    sentence too, as transformers' ``add_prefix_space`` does. A word without any piece (a control
    character, say) is the unknown token, so that it can be labelled.

    Args:
        tokenizer: A fast one.

    Attributes:
        before: Special tokens that begin a sequence.
        after: Special tokens that end it.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        whole: Any = tokenizer
        backend = whole.backend_tokenizer
        self._backend: Tokenizer = type(backend).from_str(backend.to_str())
        self._backend.encode_special_tokens = True
        self._backend.no_padding()
        self._backend.no_truncation()
        unknown = tokenizer.unk_token_id
        self._unknown = int((tokenizer.eos_token_id if unknown is None else unknown) or 0)
        self._space = " " if "ByteLevel" in str(self._backend.pre_tokenizer) else ""
        self._known: dict[str, Ids] = {}
        probe = self._backend.encode("a")
        text = np.flatnonzero(np.array(probe.special_tokens_mask) == 0)
        self.before: Ids = tuple(probe.ids[: text[0]])
        self.after: Ids = tuple(probe.ids[text[-1] + 1 :])

    def learn(self, words: Sequence[str]) -> None:
        """Cut the words that are not known yet, all at once."""
        new = [word for word in dict.fromkeys(words) if word not in self._known]
        made = self._backend.encode_batch(
            [self._space + word.strip() for word in new], add_special_tokens=False
        )
        for word, encoding in zip(new, made, strict=True):
            self._known[word] = tuple(encoding.ids) if word.strip() else ()

    def __call__(self, word: str) -> Ids:
        """The pieces of a word that was learnt, at least one."""
        return self._known[word] or (self._unknown,)


@dataclass(frozen=True)
class SentenceExample:
    """A sentence, or a window of a long one.

    Attributes:
        row: Number of its sentence.
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
        row: Its number.
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


# --- Examples: batches, losses, predictions ---


@dataclass(frozen=True)
class Tagging(Examples):
    """Sentences as a network reads them, with their tags; see ``base.TaskExamples``."""

    config: Config
    sentences: tuple[tuple[str, ...], ...]
    examples: tuple[SentenceExample, ...]
    tags: tuple[tuple[str, ...], ...] | None
    """Of each sentence; None for sentences that are to be answered."""
    labels: tuple[str, ...]
    pad_id: int | None
    """None: the network reads characters (ELMo)."""
    cut: int = 0
    dropped: tuple[str, ...] = ()
    loss_terms: tuple[str, ...] = LOSS_TERMS

    def __len__(self) -> int:
        """Sentences and windows."""
        return len(self.examples)

    def lengths(self) -> Ints:
        """[N] pieces of each, special tokens included; words of ELMo's."""
        return np.array([len(example.read) for example in self.examples], dtype=np.int64)

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The examples ``samples`` padded to the longest of them.

        Args:
            epochs: [B], not used: examples are the same in every epoch.
            samples: [B] their numbers.

        Returns:
            inputs: input_ids and attention_mask [B, L], or character_ids [B, L, C];
            targets: tag [B, L], IGNORE but at one piece a word.
        """
        import torch

        from plmctl.models.batch import Batch

        chosen = [self.examples[sample] for sample in samples]
        targets = {} if self.tags is None else {"tag": self._targets(chosen)}
        if self.pad_id is None:
            return _elmo.batch_of([example.read for example in chosen], targets)
        ids, real = padded([example.read for example in chosen], self.pad_id)
        inputs = {"input_ids": ids, "attention_mask": real.astype(np.int64)}
        return Batch(
            {name: torch.from_numpy(array) for name, array in inputs.items()},
            {name: torch.from_numpy(array) for name, array in targets.items()},
            int(real.sum()),
            real.size,
        )

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the words' tags, in nats."""
        from plmctl.models.losses import cross_entropy_sums

        return cross_entropy_sums(network(**batch.inputs), batch.targets)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss, and the number of words with the right tag."""
        from plmctl.models.losses import score_sums

        return score_sums(network(**batch.inputs), batch.targets)

    def outputs(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The most probable tag of every piece [B, L], and its probability."""
        best = network(**batch.inputs)["tag"].float().softmax(-1).max(-1)
        return {"tag": best.indices, "probability": best.values}

    def answers(self, outputs: Mapping[str, Sequence[NDArray[Any]]]) -> list[dict[str, Any]]:
        """The words of each sentence, their tags, and the probability of each."""
        said: list[list[str]] = [[] for _ in self.sentences]
        sure: list[list[float]] = [[] for _ in self.sentences]
        both = zip(
            self.examples, outputs.get("tag", ()), outputs.get("probability", ()), strict=True
        )
        for example, tags, probabilities in both:  # windows of a sentence are in order
            places = list(example.places)
            said[example.row] += [self.labels[number] for number in tags[places]]
            sure[example.row] += map(float, probabilities[places])
        return [
            {"tokens": list(words), "prediction": tags, "probabilities": probabilities}
            for words, tags, probabilities in zip(self.sentences, said, sure, strict=True)
        ]

    def figures(self, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Entities as wholes (``metrics.spans.entities``), or the accuracy of the tags."""
        from plmctl.metrics import spans

        tags = required(self.tags, "tags")
        said = [answer["prediction"] for answer in answers]
        if self.config.scheme != "pos":
            found = spans.entities(said, tags, self.config.scheme, strict=self.config.strict)
            return {**found, **self._unseen()}
        return {
            "accuracy": spans.accuracy(said, tags),
            "majority": spans.majority(tags),
            "words": sum(map(len, tags)),
            **self._unseen(),
        }

    def credits(self, answers: Sequence[Mapping[str, Any]]) -> tuple[str, list[float]]:
        """The share of each sentence's tags that are right."""
        tags = required(self.tags, "tags")
        pairs = zip((answer["prediction"] for answer in answers), tags, strict=True)
        return "tag accuracy", [float(np.mean(np.equal(said, true))) for said, true in pairs]

    def _unseen(self) -> dict[str, int]:
        """How many words have a tag that there is no label for, if any."""
        count = sum(tag not in self.labels for row in required(self.tags, "tags") for tag in row)
        return {"unseen_tags": count} if count else {}

    def _targets(self, chosen: Sequence[SentenceExample]) -> Ints:
        assert self.tags is not None
        numbers = {tag: number for number, tag in enumerate(self.labels)}
        width = max((len(example.read) for example in chosen), default=0)
        targets = np.full((len(chosen), max(1, width)), _IGNORE, dtype=np.int64)
        for row, example in zip(targets, chosen, strict=True):
            tags = self.tags[example.row][example.first : example.first + len(example.places)]
            row[list(example.places)] = [numbers.get(tag, _IGNORE) for tag in tags]
        return targets


# --- The network ---


def tokenizer(config: Config, model: str) -> PreTrainedTokenizerBase:
    """The model's own.

    Raises:
        ConfigError: The family has no head for tagging, or the tokenizer is a slow one.
    """
    from plmctl.models.heads.tagging import check_tagger
    from plmctl.tokenization.load import load_tokenizer

    if check_tagger(model) == "elmo":
        return _elmo.load_words(model)
    made = load_tokenizer(model)
    if getattr(made, "backend_tokenizer", None) is None:
        raise ConfigError(f"{model}: its tokenizer has no tokenizer.json", "convert it to one")
    return made


def load(
    config: Config,
    model: str,
    labels: tuple[str, ...],
    *,
    pretrained: bool,
    changes: Any,
    new_heads: NewHeads | None = None,
) -> PreTrainedModel:
    """The network with a head on every piece whose config names the tags; see ``base.Task``."""
    from plmctl.models.heads.tagging import check_tagger, load_tagger

    if check_tagger(model) == "elmo":
        changes = _elmo.changes_of(changes, pretrained=pretrained)
    mix = config.layers == "mix"
    made = load_tagger(
        model, labels, pretrained=pretrained, mix=mix, changes=changes, new_heads=new_heads
    )
    return cast("PreTrainedModel", made)


def forward(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
    """Logits of the tags at every piece, [B, L, tags]."""
    return {"tag": model(**inputs).logits}
