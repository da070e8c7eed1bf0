"""The words of a text whose vectors in their sentences are nearest to that of a given word.

What the ELMo paper shows of its vectors (Peters et al., 2018, table 4): a word has a vector for
each of its uses, and uses of one sense are near each other.
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
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.model import family_of
from plmctl.families.base import get_family

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Span = tuple[int, int]
"""Characters [start, end) of a sentence."""
Vectors = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Spans [T, 2] of a sentence's tokens, and their vectors [T, H]."""
VectorReader = Callable[[Sequence[str]], list[Vectors]]
"""Gives the vectors of each of some sentences."""

# Runs of letters and digits, an apostrophe between them; a Han character or kana by itself.
_CHARACTER = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CHARACTER}]|[^\W_{_CHARACTER}]+(?:['’][^\W_{_CHARACTER}]+)*")


@dataclass(frozen=True)
class WordUse:
    """A word where it stands.

    Attributes:
        sentence: The whole of it.
        span: Its characters in the sentence.
        similarity: Cosine of its vector with that of the word that was asked about.
    """

    sentence: str
    span: Span
    similarity: float = 1.0

    @property
    def word(self) -> str:
        """As it is written there."""
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
    raise DataError(f"{word!r} is in none of {len(sentences)} sentences", "is it spelt as there?")


def spans_of(sentence: str, word: str) -> list[Span]:
    """The words of a sentence; uses of ``word`` itself also where it is several words by the rule.

    A Chinese word, and one with a hyphen, is such.
    """
    found = [match.span() for match in _WORD.finditer(sentence)]
    if word and not _WORD.fullmatch(word):
        uses = re.finditer(re.escape(word), sentence, re.IGNORECASE)
        found += [match.span() for match in uses]
    return found


def nearest(
    read: VectorReader, use: WordUse, sentences: Sequence[str], count: int, batch_size: int
) -> tuple[list[WordUse], int]:
    """The uses of words that are nearest to one of them, the nearest first.

    Args:
        read: See ``vector_reader``.
        use: What is asked about; it is left out of the answer.
        sentences: Where to look.
        count: How many.
        batch_size: Sentences at once; those of like length are together.

    Returns:
        The uses, and how many words stand behind the model's last position, unseen.

    Raises:
        DataError: The word stands behind the positions that the model has.
    """
    (vectors,) = read([use.sentence])
    (asked,) = _word_vectors(vectors, [use.span])
    if asked is None:
        raise DataError(
            f"{use.word!r} stands behind the last position of the model",
            "give a shorter sentence",
        )
    best: list[tuple[float, int, int, WordUse]] = []
    unseen = 0
    for number, span, vector in _word_uses(read, use, sentences, batch_size):
        if vector is None:
            unseen += 1
            continue
        similarity = float(vector @ asked)
        # Of equal ones the first in the text comes first.
        entry = (similarity, -number, -span[0], WordUse(sentences[number], span, similarity))
        if len(best) < count:
            heapq.heappush(best, entry)
        elif entry > best[0]:
            heapq.heapreplace(best, entry)
    return [entry[3] for entry in sorted(best, reverse=True)], unseen


def _word_uses(
    read: VectorReader, use: WordUse, sentences: Sequence[str], batch_size: int
) -> Iterator[tuple[int, Span, NDArray[np.float32] | None]]:
    """The number of its sentence, its place and its vector, of each use of the word."""
    lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
    for which in batches(lengths, most=batch_size):
        batch = [sentences[number] for number in which]
        for number, sentence, vectors in zip(which.tolist(), batch, read(batch), strict=True):
            spans = spans_of(sentence, use.word)
            for span, vector in zip(spans, _word_vectors(vectors, spans), strict=True):
                if (sentence, span) != (use.sentence, use.span):
                    yield number, span, vector


def _word_vectors(vectors: Vectors, spans: Sequence[Span]) -> list[NDArray[np.float32] | None]:
    """The mean vector of each word's tokens, of length 1; None where the model saw none of them."""
    places, states = vectors
    found: list[NDArray[np.float32] | None] = []
    for start, end in spans:
        inside = (places[:, 0] < end) & (places[:, 1] > start)
        mean = states[inside].mean(0) if inside.any() else None
        found.append(None if mean is None else mean / max(float(np.linalg.norm(mean)), 1e-12))
    return found


def vector_reader(model: str, layer: int, device: Any) -> VectorReader:
    """What gives the vectors of sentences' tokens.

    Args:
        model: A folder or Hub id of ELMo or an encoder.
        layer: Which of its layers; 0 is the one below the first, -1 the last.
        device: Where to compute.

    Raises:
        ConfigError: It is another kind of model, or has no such layer.
    """
    import torch
    from transformers import AutoModel

    from plmctl.models.load import load_network
    from plmctl.tokenization.load import load_tokenizer

    family = family_of(model)
    heads = get_family(family).HEADS
    if family != "elmo" and "mlm" not in heads:
        raise ConfigError(
            f"{model}: a {family} model sees only what stands before a word, or is made to write",
            "ask ELMo or an encoder (BERT, RoBERTa, ALBERT ...); `plmctl generate` lets it write",
        )
    network = load_network(AutoModel, model, pooler_used=False).network
    layers = network.config.num_hidden_layers
    if not -layers - 1 <= layer <= layers:
        raise ConfigError(
            f"{model}: no layer {layer}", f"0 to {layers}, or -1, the last, to -{layers + 1}"
        )
    network.to(device).train(False)
    tokenizer = load_tokenizer(model)
    read = _elmo_vectors if family == "elmo" else _encoder_vectors

    def vectors(sentences: Sequence[str]) -> list[Vectors]:
        with torch.inference_mode():
            return read(network, tokenizer, sentences, layer)

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
    """Special tokens and padding have empty spans, so that no word is of them."""
    from plmctl.models.load import longest_input

    batch = tokenizer(
        list(sentences),
        return_tensors="pt",
        return_offsets_mapping=True,
        padding=True,
        truncation=True,
        max_length=longest_input(network.config),
    )
    places = batch.pop("offset_mapping").numpy()
    states = network(**batch.to(network.device), output_hidden_states=True).hidden_states[layer]
    return list(zip(places, states.float().cpu().numpy(), strict=True))
