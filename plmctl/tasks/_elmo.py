"""The inputs of ELMo: words by their characters, so that no word is unknown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints
from plmctl.tasks._sequences import truncated_lengths
from plmctl.tasks.base import as_batch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from plmctl.models.batch import Batch


def reads_characters(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether it is a tokenizer of whole words, which ELMo alone has."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return type(getattr(backend, "model", None)).__name__ == "WordLevel"


def load_words(model: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model; for converted weights without one, a split at spaces and marks."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from plmctl.tokenization.load import load_tokenizer

    if not Path(model).is_dir() or (Path(model) / "tokenizer.json").is_file():
        return load_tokenizer(model)
    backend = Tokenizer(models.WordLevel({"<UNK>": 0}, unk_token="<UNK>"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<UNK>"
    )
    return tokenizer


def words_of(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """The words of a text, split as the biLM's training text was."""
    whole: Any = tokenizer
    backend = whole.backend_tokenizer
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    return [word for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]


def changes_of(changes: Mapping[str, Any], *, pretrained: bool) -> dict[str, Any]:
    """Fields of the network's config: dropout is the head's, and random weights are not frozen."""
    head = {"head_dropout": changes["dropout"]} if "dropout" in changes else {}
    rest = {name: value for name, value in changes.items() if name != "dropout"}
    return {**rest, **head, "frozen": pretrained}


BETWEEN = "</S>"
"""The word between the texts of a pair: the network has one sequence only."""


@dataclass(frozen=True)
class Texts:
    """Texts as words: what ``_sequences.EncodedRows`` is for the other families.

    Attributes:
        sentences: [N] the words of each.
        cut: Texts that lost words.
    """

    sentences: tuple[tuple[str, ...], ...]
    cut: int
    lm_weight: float = 0.0

    def __len__(self) -> int:
        """Texts."""
        return len(self.sentences)

    def lengths(self) -> Ints:
        """[N] words of each."""
        return np.array([len(words) for words in self.sentences], dtype=np.int64)

    def batch(self, samples: Ints, targets: Mapping[str, NDArray[Any]]) -> Batch:
        """The texts ``samples``; see ``batch_of``."""
        return batch_of([self.sentences[sample] for sample in samples], targets)


def texts(
    tokenizer: PreTrainedTokenizerBase, columns: Sequence[Sequence[str]], max_length: int
) -> Texts:
    """Texts, or pairs with a word between them, of at most ``max_length`` words.

    Args:
        tokenizer: A tokenizer of whole words.
        columns: The texts, or the firsts and the seconds of pairs, of which the longer is cut.
        max_length: In words.
    """
    sentences, cut = [], 0
    for row in zip(*columns, strict=True):
        parts = [words_of(tokenizer, text) for text in row]
        keep = [min(len(parts[0]), max_length)]
        if len(parts) == 2:
            keep = list(truncated_lengths(len(parts[0]), len(parts[1]), max_length - 1))
        cut += keep != [len(part) for part in parts]
        words = [part[:size] for part, size in zip(parts, keep, strict=True)]
        sentences.append(tuple(words[0] + [BETWEEN] + words[1] if len(words) == 2 else words[0]))
    return Texts(tuple(sentences), cut)


def batch_of(sentences: Sequence[Sequence[str]], targets: Mapping[str, NDArray[Any]]) -> Batch:
    """A batch of sentences of words.

    Returns:
        inputs: character_ids [B, T, C], T at least 1; targets as given.
    """
    from plmctl.models.elmo import encode_sentences

    ids = encode_sentences(sentences or [[]])
    if not ids.shape[1]:  # no sentence has a word
        ids = np.zeros((ids.shape[0], 1, ids.shape[2]), dtype=ids.dtype)
    lengths = np.array([len(words) for words in sentences or [[]]])
    return as_batch({"character_ids": ids}, targets, np.arange(ids.shape[1]) < lengths[:, None])
