"""New tokens for an existing tokenizer: all old ids stay.

Unknown characters are added first, then pieces. Merges are learned from words as the old tokenizer
cuts them, and come after all old merges; WordPiece's pieces are learned in the same way. Pieces of
a Unigram model are fitted to the new text, and new ones are added with their probabilities there.

Text without any new token keeps its ids. In other text, a new token replaces the old tokens that it
consists of; WordPiece, which is greedy, and Unigram may then also cut the rest of such a word
differently.
"""

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from plmctl import hub
from plmctl.config.tokenizer import TokenizerConfig
from plmctl.errors import ConfigError
from plmctl.tokenization.algorithms.base import (
    ENDS,
    Algorithm,
    Mark,
    MergeAlgorithm,
    Progress,
    Words,
    frequent_characters,
    learn_merges,
    marked,
)
from plmctl.tokenization.algorithms.unigram import by_score, fit_pieces, max_characters
from plmctl.tokenization.check import check_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

Settings = dict[str, Any]


def load_to_extend(config: TokenizerConfig) -> "PreTrainedTokenizerFast":
    """The tokenizer to extend.

    Raises:
        ConfigError: It does not exist, has another algorithm, or already has as many ids.
    """
    from transformers import AutoTokenizer

    source = str(config.extend)
    check_tokenizer(source)
    try:
        tokenizer = cast(
            "PreTrainedTokenizerFast", AutoTokenizer.from_pretrained(hub.local(source))
        )
        algorithm = _algorithm(json.loads(tokenizer.backend_tokenizer.to_str()))
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"extend: {source}: no tokenizer here", "name a folder that has tokenizer.json"
        ) from error
    if algorithm != config.algorithm:
        raise ConfigError(
            f"extend: {source} is {algorithm or 'of a kind that cannot be extended'}, "
            f"not {config.algorithm}",
            f"set algorithm to {algorithm}" if algorithm else None,
        )
    if config.vocab_size <= len(tokenizer):
        raise ConfigError(
            f"vocab_size: {source} has {len(tokenizer):,} ids already",
            "increase vocab_size, which counts the old ids and the new ones",
        )
    return tokenizer


def extend_tokenizer(
    old: "PreTrainedTokenizerFast",
    algorithm: Algorithm,
    words: Mapping[str, int],
    config: TokenizerConfig,
    progress: Progress,
) -> "PreTrainedTokenizerFast":
    """The tokenizer with more tokens.

    Args:
        old: The tokenizer to extend; it is not changed.
        config: The number of ids in the end, and the lowest frequency of a merge.
    """
    settings = _complete(json.loads(old.backend_tokenizer.to_str()))
    alphabet = frequent_characters(words, config.limit_alphabet)
    characters = sorted(set(map(chr, alphabet)))
    if isinstance(algorithm, MergeAlgorithm):
        _add_characters(settings["model"], algorithm.mark, characters, config.vocab_size)
        _add_merged(settings, algorithm, words, config, progress)
    else:
        _add_pieces(settings["model"], words, characters, config, progress)
    return _reloaded(old, settings)


def _algorithm(settings: Settings) -> str | None:
    model = settings["model"]
    if model["type"] in ("WordPiece", "Unigram"):
        plain = not model.get("byte_fallback")
        return str(model["type"]).lower() if plain else None
    cutter = settings["pre_tokenizer"] or {}
    types = [part["type"] for part in cutter.get("pretokenizers", [cutter]) if part]
    if "ByteLevel" in types:
        return "byte_bpe"
    return "bpe" if model.get("end_of_word_suffix") == ENDS else None


def _complete(settings: Settings) -> Settings:
    """The settings with all added tokens in the model: their ids must not depend on its size."""
    model = settings["model"]
    for token in sorted(settings["added_tokens"], key=lambda token: token["id"]):
        text, number = token["content"], token["id"]
        if isinstance(model["vocab"], dict):
            model["vocab"].setdefault(text, number)
        elif number >= len(model["vocab"]):
            never = 20 * min(score for _, score in model["vocab"]) - 100
            model["vocab"].append([text, never])
    return settings


def _add_characters(model: Settings, mark: Mark, characters: list[str], size: int) -> None:
    """Add unknown characters, plain and marked, until there are ``size`` tokens."""
    if mark is None:
        return  # byte-level BPE knows all bytes
    vocab = model["vocab"]
    for character in characters:
        for token in (character, marked(character, mark)):
            if token not in vocab and _next(vocab) < size:
                vocab[token] = _next(vocab)


def _add_merged(
    settings: Settings,
    algorithm: MergeAlgorithm,
    words: Mapping[str, int],
    config: TokenizerConfig,
    progress: Progress,
) -> None:
    from tokenizers import Tokenizer

    model = settings["model"]
    vocab: dict[str, int] = model["vocab"]
    tokens = [f"\0{number}" for number in range(_next(vocab))]  # a token that no text contains
    for token, number in vocab.items():
        tokens[number] = token
    cut = _cut(Tokenizer.from_str(json.dumps(settings)), words, tokens)
    merges = learn_merges(
        cut,
        config.vocab_size,
        min_frequency=config.min_frequency,
        join=algorithm.join,
        progress=progress,
    )
    for number in range(len(tokens), len(merges.tokens)):
        vocab[merges.tokens[number]] = number
    if "merges" in model:
        pairs = ([merges.tokens[left], merges.tokens[right]] for left, right in merges.pairs)
        model["merges"] = [*model["merges"], *pairs]


def _cut(tokenizer: "Tokenizer", words: Mapping[str, int], tokens: list[str]) -> Words:
    """The words as the tokenizer cuts them, without unknown tokens."""
    unknown = tokenizer.model.unk_token
    rows, weights = [], []
    for word, number in words.items():
        row = [token.id for token in tokenizer.model.tokenize(word) if token.value != unknown]
        if row:
            rows.append(row)
            weights.append(number)
    sizes = [len(row) for row in rows]
    starts = np.zeros(sum(sizes), dtype=bool)
    starts[np.cumsum(sizes) - sizes] = True
    symbols = np.array([symbol for row in rows for symbol in row], dtype=np.int32)
    return Words(tokens, symbols, starts, np.repeat(np.array(weights, dtype=np.int64), sizes))


def _add_pieces(
    model: Settings,
    words: Mapping[str, int],
    characters: list[str],
    config: TokenizerConfig,
    progress: Progress,
) -> None:
    rows = model["vocab"]
    known = {piece for piece, _ in rows}
    size = config.vocab_size
    pieces = fit_pieces(words, set(characters), size, max_characters(config.max_memory), progress)
    lowest = min(pieces.values())
    new = {c: pieces.get(c, lowest) for c in characters if c not in known}
    for piece, score in by_score(pieces):
        if piece not in known:
            new.setdefault(piece, score)
    rows += [[piece, score] for piece, score in list(new.items())[: size - len(rows)]]


def _reloaded(old: "PreTrainedTokenizerFast", settings: Settings) -> "PreTrainedTokenizerFast":
    """A tokenizer of the same class with other settings, loaded from a folder by transformers."""
    from transformers import AutoTokenizer

    folder = Path(tempfile.mkdtemp())
    try:
        old.save_pretrained(folder)
        (folder / "tokenizer.json").write_text(json.dumps(settings), encoding="utf-8")
        tokenizer = cast("PreTrainedTokenizerFast", AutoTokenizer.from_pretrained(folder))
    finally:
        shutil.rmtree(folder)
    tokenizer.name_or_path = old.name_or_path
    return tokenizer


def _next(vocab: Mapping[str, int]) -> int:
    return max(vocab.values()) + 1
