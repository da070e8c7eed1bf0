"""``plmctl neighbours``: the uses of words whose vectors are nearest to that of a given word."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from plmctl.config.sections import ComputeConfig, TextConfig
from plmctl.corpus.reading import documents
from plmctl.corpus.sentences import choose_rule, split_sentences
from plmctl.corpus.source import resolve
from plmctl.errors import DataError
from plmctl.reporting.tables import rows_table
from plmctl.run.display import say, show_result
from plmctl.run.named_model import named_model

if TYPE_CHECKING:
    from plmctl.evaluation.neighbours import VectorReader, WordUse

Device = Literal["auto", "cpu", "cuda", "mps"]


@dataclass(frozen=True)
class NeighboursRequest:
    """A word in its sentence, and where to look for its neighbours.

    Attributes:
        model: A model folder or Hub id.
        sentence: Its sentence; None: the first of the text that has it.
        layer: Layer of the network; 0 is the one below the first, -1 the last.
        max_sentences: Sentences of the text to read at most.
        batch_size: Sentences at once.
    """

    model: str
    word: str
    sentence: str | None
    layer: int
    top: int
    max_sentences: int
    batch_size: int
    device: Device


def run(request: NeighboursRequest, files: Sequence[str], *, as_json: bool) -> None:
    """Show a table of words and their sentences, the nearest first."""
    request = replace(request, model=named_model(request.model))
    from plmctl.evaluation.neighbours import find_use, nearest  # imports PyTorch: seconds

    sentences = sentences_of(files, request.max_sentences)
    use = find_use(request.word, [request.sentence] if request.sentence is not None else sentences)
    read = opened_reader(request.model, sentences, request.layer, request.device)
    uses, unseen = nearest(read, use, sentences, request.top, request.batch_size)
    if len(sentences) == request.max_sentences:
        say(f"only the first {len(sentences):,} sentences were read: --max-sentences")
    if unseen:
        say(f"{unseen} words are after the model's last position and were left out")
    document = {
        "model": request.model,
        "word": use.word,
        "sentence": use.sentence,
        "sentences": len(sentences),
        "unseen_words": unseen,
        "neighbours": list(map(in_plain_types, uses)),
    }
    title = f"{use.word}: {_marked(use.sentence, use.span)}"
    rows = [(_marked(one.sentence, one.span), one.similarity) for one in uses]
    table = rows_table(title, ["nearest", "cosine"], rows)
    show_result(document, [table], as_json=as_json)


def opened_reader(
    name: str, sentences: list[str], layer: int = -1, device: Device = "auto"
) -> "VectorReader":
    """What reads the vectors of words; says what the tokenizer does not know of the sentences."""
    from plmctl.evaluation.model import LoadedModel
    from plmctl.evaluation.neighbours import vector_reader
    from plmctl.training.engine import make_accelerator

    model = LoadedModel(name, make_accelerator(ComputeConfig(device=device)))
    model.note_unknown(sentences)
    model.say_unknown("the sentences")
    return vector_reader(model, layer)


def in_plain_types(one: "WordUse") -> dict[str, Any]:
    """A use of a word as the JSON document has it."""
    return {
        "word": one.word,
        "similarity": round(one.similarity, 4),
        "sentence": one.sentence,
        "start": one.span[0],
    }


def sentences_of(files: Sequence[str], most: int) -> list[str]:
    """The first different sentences of the text.

    Raises:
        DataError: There are none.
    """
    sentences = list(islice(_sentences(files), most))
    if not sentences:
        raise DataError(f"no text in {', '.join(files)}", "name files with text")
    return sentences


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
    """A word in brackets, with the text around it."""
    start, end = span
    before, after = sentence[max(0, start - 40) : start], sentence[end : end + 40]
    return f"{'…' if start > 40 else ''}{before}[{sentence[start:end]}]{after}" + (
        "…" if len(sentence) > end + 40 else ""
    )
