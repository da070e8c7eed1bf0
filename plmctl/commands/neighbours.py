"""``plmctl neighbours``: the uses of words that a model takes for near each other."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from plmctl.config.sections import ComputeConfig, TextConfig
from plmctl.corpus.reading import documents
from plmctl.corpus.sentences import choose_rule, split_sentences
from plmctl.corpus.source import resolve
from plmctl.errors import DataError
from plmctl.reporting.tables import rows_table
from plmctl.run.display import say, show_result
from plmctl.run.preflight import check_model


@dataclass(frozen=True)
class Asked:
    """The word, where it stands, and who is asked."""

    model: str
    word: str
    sentence: str | None
    layer: int
    device: Literal["auto", "cpu", "cuda", "mps"]


@dataclass(frozen=True)
class Limits:
    """How many neighbours, of how many sentences, how many sentences at once."""

    top: int
    sentences: int
    batch_size: int


def run(asked: Asked, files: Sequence[str], limits: Limits, *, as_json: bool) -> None:
    """A table of words and their sentences, the nearest first."""
    from plmctl.evaluation.neighbours import find_use, nearest, vector_reader
    from plmctl.training.engine import make_accelerator

    check_model(asked.model)
    sentences = list(islice(_sentences(files), limits.sentences))
    if not sentences:
        raise DataError(f"no text in {', '.join(files)}")
    use = find_use(asked.word, sentences if asked.sentence is None else [asked.sentence])
    accelerator = make_accelerator(ComputeConfig(device=asked.device))
    read = vector_reader(asked.model, asked.layer, accelerator.device)
    found, unseen = nearest(read, use, sentences, limits.top, limits.batch_size)
    if len(sentences) == limits.sentences:
        say(f"looked in the first {len(sentences):,} sentences: --max-sentences")
    if unseen:
        say(f"{unseen} words stand behind the model's last position, and were not seen")
    document = {
        "model": asked.model,
        "word": use.word,
        "sentence": use.sentence,
        "sentences": len(sentences),
        "unseen_words": unseen,
        "neighbours": [
            {
                "word": one.word,
                "similarity": round(one.similarity, 4),
                "sentence": one.sentence,
                "start": one.span[0],
            }
            for one in found
        ],
    }
    title = f"{use.word}: {_marked(use.sentence, use.span)}"
    rows = [(_marked(one.sentence, one.span), one.similarity) for one in found]
    table = rows_table(title, ["nearest", "cosine"], rows)
    show_result(document, [table], as_json=as_json)


def _sentences(files: Sequence[str]) -> Iterator[str]:
    """All different sentences of the text, in order."""
    config = TextConfig(train=tuple(files))
    seen: set[str] = set()
    for source in resolve(tuple(files)):
        for document in documents(source, config):
            for sentence in split_sentences(document.text, choose_rule([document.text[:2000]])):
                if sentence not in seen:
                    seen.add(sentence)
                    yield sentence


def _marked(sentence: str, span: tuple[int, int]) -> str:
    """What stands around a word, the word in brackets."""
    start, end = span
    before, after = sentence[max(0, start - 40) : start], sentence[end : end + 40]
    return f"{'…' if start > 40 else ''}{before}[{sentence[start:end]}]{after}" + (
        "…" if len(sentence) > end + 40 else ""
    )
