"""Words of sentences: as rows have them, as pieces of a tokenizer, and heads on each of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plmctl.corpus.cells import written_value
from plmctl.errors import ConfigError, DataError
from plmctl.families.base import Family, family_of
from plmctl.tasks import _elmo
from plmctl.tokenization.layout import Ids, layout_of
from plmctl.tokenization.units import plain_copy

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from plmctl.corpus.labelled import Row

_HALF_A_LIST = re.compile(r"\s*\[[^\s\]].*,.*\S\]\s*", re.DOTALL)


def text_list(value: Any, row: Row, column: str, *, words: bool) -> list[Any]:
    """The items of a list, or of a text with spaces between them or a list written as text."""
    if isinstance(value, str):
        read = written_value(value)
        # "[1]" may be a word: a list of words that was written as text has quotes.
        quoted = isinstance(read, list) and any(isinstance(item, str) for item in read)
        if not quoted and (words or not isinstance(read, list)):
            if not words and (isinstance(read, dict) or _HALF_A_LIST.fullmatch(value)):
                raise DataError(
                    f"{row.origin}: column {column!r}: {value:.60} looks like a list, and cannot "
                    "be read as one",
                    """write ["O", "B-PER"], or the tags with spaces between them""",
                )
            return value.split()
        value = read
    if not isinstance(value, list | tuple):
        raise DataError(
            f"{row.origin}: column {column!r} holds a {type(value).__name__}",
            "expected a list with one text per word, or one text with spaces between the words",
        )
    for number, item in enumerate(value, 1):
        if not isinstance(item, str | int | float) or item != item:
            raise DataError(
                f"{row.origin}: item {number} of column {column!r} is a {type(item).__name__}",
                "expected a text for each word",
            )
    return list(value)


class WordPieces:
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
        self._backend = plain_copy(tokenizer)
        unknown = tokenizer.unk_token_id
        self._unknown = int((tokenizer.eos_token_id if unknown is None else unknown) or 0)
        self._space = " " if "ByteLevel" in str(self._backend.pre_tokenizer) else ""
        self._known: dict[str, Ids] = {}
        layout = layout_of(tokenizer, pair=False)
        self.before, self.after = layout.before, layout.after

    def learn(self, words: Sequence[str]) -> None:
        """Cut the words that are not known yet, all at once."""
        new = [word for word in dict.fromkeys(words) if word not in self._known]
        encodings = self._backend.encode_batch(
            [self._space + word.strip() for word in new], add_special_tokens=False
        )
        for word, encoding in zip(new, encodings, strict=True):
            self._known[word] = tuple(encoding.ids) if word.strip() else ()

    def __call__(self, word: str) -> Ids:
        """The pieces of a word that was learned, at least one."""
        return self._known[word] or (self._unknown,)


# --- Models that can have a head on every word ---


def load_word_tokenizer(model: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a model, without a template of its family.

    Raises:
        ConfigError: The tokenizer is a slow one.
    """
    from plmctl.models.load import config_of
    from plmctl.models.own_heads import encoder_config
    from plmctl.tokenization.load import load_tokenizer

    if family_of(encoder_config(config_of(model))).READS_CHARACTERS:
        return _elmo.load_words(model)
    tokenizer = load_tokenizer(model)
    if not tokenizer.is_fast:
        raise ConfigError(f"{model}: its tokenizer has no tokenizer.json", "convert it to one")
    return tokenizer


def check_word_head(model: str, task: str, *, beside: bool = False) -> type[Family]:
    """The family of a model that can have a head on every word.

    Args:
        beside: Whether the head is one beside an encoder, which may have another head's folder.

    Raises:
        ConfigError: The family has no such head.
    """
    from plmctl.models.heads import tagging  # noqa: F401  # declares its own network
    from plmctl.models.load import config_of
    from plmctl.models.own_heads import encoder_config, no_head

    network: Any = config_of(model)
    if beside:
        network = encoder_config(network)
    family = family_of(network)
    if family.head_class("tagging", network) is None:
        hint = "take an encoder (BERT and others), a decoder (GPT-2 and others) or ELMo"
        raise no_head(model, network, task, hint)
    return type(family)
