"""Whether the word starts of a store can carry whole-word masking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl.config.masking import MaskingConfig
from plmctl.errors import ConfigError
from plmctl.shaping.masking import count_exact
from plmctl.shaping.spans import budget

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore

_WINDOWS, _WINDOW = 64, 4096  # places that are looked at, and tokens of each
# English has 0.86 (8,000 ids) to 0.96 (ids learnt from little text), Chinese characters 0.995.
_ALL_START = 0.99
_TOO_LONG = 0.2
_SPANS_TOO_LONG = 0.5  # a span that is cut off still predicts something of a long word


def check_text(objective: Any, store: TokenStore, seq_len: int) -> None:
    """Refuse text whose words the objective cannot mask: ``check_words``, ``check_spans``."""
    if isinstance(objective, MaskingConfig):
        check_words(objective, store, seq_len)
    elif objective.name == "mlm+sbo":
        check_spans(objective.rate, store, seq_len)


def check_words(config: MaskingConfig, store: TokenStore, seq_len: int) -> None:
    """Refuse word starts with which the objective would not do what its config says.

    Args:
        config: What is masked.
        store: Where words start.
        seq_len: Length of a full row, which decides how long a word may be to be masked at all.

    Raises:
        ConfigError: Nearly every token is a word, so that whole words are nothing else than tokens;
            or much of the text stands in words that are longer than what a row has to predict, and
            would never be masked.
    """
    if config.unit == "token" or not store.num_tokens:
        return
    sizes = word_sizes(store)
    share = len(sizes) / sizes.sum()
    if config.unit == "word" and share > _ALL_START:
        raise ConfigError(
            f"objective.unit: word, but {share:.1%} of the tokens are words of their own, so that "
            "this would be the masking of tokens",
            "for Chinese set `data.words: jieba`, which finds words of several characters; "
            "otherwise use `unit: token`",
        )
    most = int(count_exact(np.array([seq_len]), config.rate, config.max_predictions)[0])
    long = sizes[sizes > most].sum() / sizes.sum()
    if long > _TOO_LONG:
        raise ConfigError(
            f"objective.unit: {config.unit}, but {long:.0%} of the tokens stand in words of more "
            f"than {most} tokens, which is all that a row of {seq_len} has to predict: they would "
            "never be masked",
            "text without spaces is one long word to this tokenizer; use `unit: token`, a larger "
            "vocabulary or, if words are only a little longer, longer rows",
        )


def check_spans(rate: float, store: TokenStore, seq_len: int) -> None:
    """Refuse word starts with which spans of words would be nothing but beginnings of words.

    Args:
        rate: Share of a row that is predicted.
        store: Where words start.
        seq_len: Length of a full row, two special tokens included.

    Raises:
        ConfigError: Most of the text stands in words that are longer than all that a row predicts.
    """
    if not store.num_tokens:
        return
    sizes = word_sizes(store)
    most = int(budget(np.array([seq_len - 2]), rate)[0])
    long = sizes[sizes > most].sum() / sizes.sum()
    if long > _SPANS_TOO_LONG:
        raise ConfigError(
            f"objective.name: mlm+sbo masks whole words, but {long:.0%} of the tokens stand in "
            f"words of more than {most} tokens, which is all that a row of {seq_len} predicts",
            "text without spaces is one long word to this tokenizer; use the objective 'mlm', a "
            "larger vocabulary, or longer rows",
        )


def word_sizes(store: TokenStore) -> NDArray[np.int64]:
    """Tokens of each word, in stretches of the store spread over all of it."""
    size = min(_WINDOW, store.num_tokens)
    count = min(_WINDOWS, store.num_tokens // size)
    first = np.linspace(0, store.num_tokens - size, count).astype(np.int64)
    starts = store.word_starts(first[:, None] + np.arange(size))
    starts[:, 0] = True  # a word that was cut counts as far as it is seen
    return np.diff(np.append(np.flatnonzero(starts), starts.size))
