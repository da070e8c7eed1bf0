"""The words of a text whose vectors in their sentences are nearest to that of a given word.

As in the ELMo paper (Peters et al., 2018, table 4): a word has a vector for each of its uses, and
uses of one sense are near each other.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import batches
from plmctl.characters import HAN, KANA
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.model import LoadedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from plmctl.families.base import Family

Span = tuple[int, int]
"""Characters [start, end) of a sentence."""
Vectors = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Spans [T, 2] of a sentence's tokens, and their vectors [T, H]."""
VectorReader = Callable[[Sequence[str]], list[Vectors]]
"""Gives the vectors of each of some sentences."""

# Runs of letters and digits, an apostrophe between them; a Han character or kana by itself.
_CHARACTER = KANA + HAN
_WORD = re.compile(rf"[{_CHARACTER}]|[^\W_{_CHARACTER}]+(?:['’][^\W_{_CHARACTER}]+)*")


@dataclass(frozen=True)
class WordUse:
    """A word in its sentence.

    Attributes:
        span: The characters of the word in the sentence.
        similarity: Cosine of its vector with that of the given word.
    """

    sentence: str
    span: Span
    similarity: float = 1.0

    @property
    def word(self) -> str:
        """The word as the sentence writes it."""
        return self.sentence[self.span[0] : self.span[1]]


def find_use(word: str, sentences: Sequence[str]) -> WordUse:
    """The first use of a word.

    Raises:
        DataError: No sentence has it.
    """
    for sentence in sentences:
        for span in spans_of(sentence, word):
            if sentence[slice(*span)].casefold() == word.casefold():
                return WordUse(sentence, span)
    raise DataError(f"{word!r} is in none of {len(sentences)} sentences", "check its spelling")


def spans_of(sentence: str, word: str) -> list[Span]:
    """The words of a sentence; also the uses of ``word`` if the rule cuts it into several words.

    The rule cuts Chinese words and words with a hyphen.
    """
    spans = [match.span() for match in _WORD.finditer(sentence)]
    if word and not _WORD.fullmatch(word):
        uses = re.finditer(re.escape(word), sentence, re.IGNORECASE)
        spans += [match.span() for match in uses]
    return spans


def nearest(
    read: VectorReader, use: WordUse, sentences: Sequence[str], count: int, batch_size: int
) -> tuple[list[WordUse], int]:
    """The uses of words whose vectors are nearest to that of a given use, the nearest first.

    Args:
        read: See ``vector_reader``.
        use: The given use; it is not among the result.
        batch_size: Sentences at once; sentences of similar length are together.

    Returns:
        The uses, and the number of words after the model's last position, which it does not read.

    Raises:
        DataError: The given use is after the model's last position.
    """
    (vectors,) = read([use.sentence])
    (target,) = _word_vectors(vectors, [use.span])
    if target is None:
        raise DataError(
            f"{use.word!r} is after the last position of the model",
            "use a shorter sentence",
        )
    best: list[tuple[float, int, int, WordUse]] = []
    unseen = 0
    for number, span, vector in _word_uses(read, use, sentences, batch_size):
        if vector is None:
            unseen += 1
            continue
        similarity = float(vector @ target)
        # Of equal similarities the first in the text comes first.
        entry = (similarity, -number, -span[0], WordUse(sentences[number], span, similarity))
        if len(best) < count:
            heapq.heappush(best, entry)
        elif entry > best[0]:
            heapq.heapreplace(best, entry)
    return [entry[3] for entry in sorted(best, reverse=True)], unseen


def _word_uses(
    read: VectorReader, use: WordUse, sentences: Sequence[str], batch_size: int
) -> Iterator[tuple[int, Span, NDArray[np.float32] | None]]:
    """The number of the sentence, the span and the vector of each use of a word."""
    lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
    for which in batches(lengths, most=batch_size):
        batch = [sentences[number] for number in which]
        for number, sentence, vectors in zip(which.tolist(), batch, read(batch), strict=True):
            spans = spans_of(sentence, use.word)
            for span, vector in zip(spans, _word_vectors(vectors, spans), strict=True):
                own = sentence == use.sentence and span[0] < use.span[1] and use.span[0] < span[1]
                if not own:  # nor a part of the given use, such as a character of a Chinese word
                    yield number, span, vector


def _word_vectors(vectors: Vectors, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
    """The mean vector of each word's tokens, of length 1; None if the model read none of them."""
    token_spans, states = vectors
    result: list[NDArray[np.float32] | None] = []
    for start, end in spans:
        inside = (token_spans[:, 0] < end) & (token_spans[:, 1] > start)
        mean = states[inside].mean(0) if inside.any() else None
        result.append(None if mean is None else mean / max(float(np.linalg.norm(mean)), 1e-12))
    return result


def reads_both_sides(family: Family) -> bool:
    """Whether the vectors of its words depend on what is after them, too."""
    return bool({"mlm", "backward"} & set(family.HEADS))


def vector_reader(model: LoadedModel, layer: int) -> VectorReader:
    """A function from sentences to the vectors of their tokens.

    Args:
        model: ELMo or an encoder.
        layer: Layer of the network; 0 is the one below the first, -1 the last.

    Raises:
        ConfigError: The model is of another kind, or has no such layer.
    """
    import torch
    from transformers import AutoModel

    from plmctl.models.load import load_network

    family = model.family
    if not reads_both_sides(family):
        raise ConfigError(
            f"{model.name}: {family.name} models are not supported, which are made to write text",
            "use ELMo or an encoder (BERT, RoBERTa, ALBERT ...); for text, `plmctl generate`",
        )
    # The network alone: language-model heads are not needed, and finetuned models have none.
    network = load_network(AutoModel, model.name, pooler_used=False).network
    layers = network.config.num_hidden_layers
    if not -layers - 1 <= layer <= layers:
        raise ConfigError(
            f"{model.name} has no layer {layer}",
            f"use 0 to {layers}, or -1 (the last) to -{layers + 1}",
        )
    network.to(model.device).train(False)
    read = _elmo_vectors if family.READS_CHARACTERS else _encoder_vectors

    def vectors(sentences: Sequence[str]) -> list[Vectors]:
        with torch.inference_mode():
            return read(network, model.tokenizer, sentences, layer)

    return vectors


def _elmo_vectors(
    network: Any, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], layer: int
) -> list[Vectors]:
    import torch

    from plmctl.models.elmo import encode_sentences

    backend: Any = tokenizer
    cut = backend.backend_tokenizer.pre_tokenizer.pre_tokenize_str
    pieces = [cut(sentence) for sentence in sentences]
    characters = torch.from_numpy(encode_sentences([[w for w, _ in words] for words in pieces]))
    states = network(characters.to(network.device)).hidden_states[layer].float().cpu().numpy()
    return [
        (np.array([span for _, span in words], dtype=np.int64).reshape(-1, 2), rows[: len(words)])
        for words, rows in zip(pieces, states, strict=True)
    ]


def _encoder_vectors(
    network: Any, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], layer: int
) -> list[Vectors]:
    """Special tokens and padding have empty spans, so that they belong to no word."""
    from plmctl.families.base import longest_input

    batch = tokenizer(
        list(sentences),
        return_tensors="pt",
        return_offsets_mapping=True,
        split_special_tokens=True,
        padding=True,
        truncation=True,
        max_length=longest_input(network.config),
    )
    places = batch.pop("offset_mapping").numpy()
    states = network(**batch.to(network.device), output_hidden_states=True).hidden_states[layer]
    return list(zip(places, states.float().cpu().numpy(), strict=True))
