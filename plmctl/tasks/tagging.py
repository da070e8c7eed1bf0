"""Tagging: a tag for each word of a sentence (named entities, parts of speech)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from plmctl.arrays import IGNORE
from plmctl.errors import ConfigError, DataError
from plmctl.metrics.spans import Scheme, is_entity_tag
from plmctl.tasks._word_labels import WordConfig, WordExamples, WordTask, row_tags, row_words
from plmctl.tasks._words import text_list
from plmctl.tasks.base import Answer, Counted, ScoredConfig, Use

if TYPE_CHECKING:
    from plmctl.corpus.labelled import Labels, Row


class Config(WordConfig):
    """Give every word of a sentence a tag."""

    name: Literal["tagging"] = "tagging"
    scheme: Literal["bio", "bioes", "pos"] = "bio"
    """What the tags are. bio (B- and I-, also as IOB1) and bioes (also as BMES or BILOU) spell
    entities, which are scored as wholes; pos: tags of words, scored one by one."""
    strict: bool = False
    """Score only entities that are written as the scheme says; false: as conlleval and seqeval."""
    labels: tuple[str, ...] = ()
    """All tags; empty: those of the training rows. Name them if the validation rows have tags that
    no training row has."""
    unseen: Literal["refuse", "wrong"] = "refuse"
    """Validation rows with a tag that no training row has. refuse: an error, since it may be a
    typo; wrong: count every answer to such a word as wrong, and report how many there are."""

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len(set(self.labels)) < len(self.labels):
            raise ValueError("labels: a tag is there twice")
        return self


# --- The task ---


class Tagging(WordTask[Config], config=Config):
    """Sentences with a tag per word."""

    HEADS = ("ForTokenClassification",)

    def right_answer(self, row: Row) -> str:
        """The words that have another tag than O, with their tags, as ``readable`` has them."""
        words = row_words(self.config, row)
        pairs = zip(words, row_tags(self.config, row, words), strict=True)
        return " ".join(f"{word}/{tag}" for word, tag in pairs if tag != "O") or "O"

    def labels_of(self, rows: Sequence[Row], labels: tuple[str, ...]) -> list[Labels]:
        """The tags of each row."""
        column, read = self.config.tags, []
        for row in rows:
            written = text_list(row.cell(column), row, column, words=False)
            tags = row_tags(self.config, row, row_words(self.config, row))
            read.append(list(zip(written, tags, strict=True)))
        return read

    def labels(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """The tags of the training rows, O first, then in order; or those that the config names.

        Raises:
            DataError: Tags that do not fit their words or the scheme, or a single tag.
        """
        config = self.config
        tags = set(config.labels)
        for row in rows:
            new = set(row_tags(config, row, row_words(config, row))) - tags
            if config.scheme != "pos":
                check_scheme(config.scheme, row.origin, new)
            tags |= new
        if len(tags) < 2:
            raise DataError(
                f"the training rows have one tag only, {next(iter(tags), 'none')!r}",
                f"is {config.tags!r} the column of the tags?",
            )
        return config.labels or tuple(sorted(tags, key=lambda tag: (tag != "O", tag)))

    def allowed(self, labels: tuple[str, ...], use: Use) -> tuple[str, ...] | None:
        """The tags of the training rows, unless others are counted as wrong."""
        return None if use == "score" and self.config.unseen == "wrong" else labels

    @property
    def examples(self) -> type[TaggingExamples]:
        """Sentences with their tags."""
        return TaggingExamples

    def count(self, rows: Sequence[Row], labels: tuple[str, ...]) -> Iterator[Counted]:
        """A CRF; if it cannot learn from all rows, also each word's most frequent tag.

        Raises:
            ConfigError: python-crfsuite is not installed, after the other method.
        """
        from plmctl.counting import tags

        def read(rows: Sequence[Row]) -> list[list[str]]:
            return [row_words(self.config, row) for row in rows]

        words = read(rows)
        right = [row_tags(self.config, row, of) for row, of in zip(rows, words, strict=True)]

        def answers(tag: tags.Tag, rows: Sequence[Row]) -> list[Answer]:
            words = read(rows)
            both = zip(words, tag(words), strict=True)
            return [{"tokens": of, "prediction": given} for of, given in both]

        learned = 0
        missing: ConfigError | None = None
        try:
            crf, learned = tags.learn_crf(words, right)
        except ConfigError as error:
            missing = error
        else:
            yield Counted("CRF", lambda rows, _: answers(crf, rows), learned)
        if learned < len(rows):
            frequent = tags.learn_most_frequent(words, right)
            yield Counted("most frequent tag", lambda rows, _: answers(frequent, rows), len(rows))
        if missing:
            raise missing

    @classmethod
    def of_network(cls, name: str, network: Any) -> tuple[ScoredConfig, tuple[str, ...]]:
        """The tags of a network that plmctl has not finetuned."""
        return Config(), tuple(network.id2label[number] for number in range(network.num_labels))


class TaggingExamples(WordExamples[Config]):
    """Sentences with their tags."""

    @property
    def usual_metrics(self) -> tuple[str, ...]:
        """Entities as wholes, or tags word by word."""
        return ("tag_accuracy",) if self.config.scheme == "pos" else ("entities",)

    @property
    def metric_options(self) -> dict[str, Any]:
        """How tags spell entities."""
        if self.config.scheme == "pos":
            return {}
        return {"scheme": self.config.scheme, "strict": self.config.strict}

    def compute_metrics(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The metrics, and how many words have a tag that is no label, if any."""
        unseen = sum(row.count(IGNORE) for row in self.label_ids)
        return {**super().compute_metrics(answers), **({"unseen_tags": unseen} if unseen else {})}


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
