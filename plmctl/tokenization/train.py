"""From text to a tokenizer: units are counted, cut into words, and learnt from."""

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plmctl.config.tokenizer import TokenizerConfig
from plmctl.errors import DataError
from plmctl.tokenization import algorithms, extending, templates
from plmctl.tokenization.algorithms import unigram
from plmctl.tokenization.counting import Counts, count

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

_BASE = 500_000_000  # bytes of the process before it learns: Python, transformers, text being read
_PER_SYMBOL = 60  # bytes a symbol of distinct units: the table of counts, then its symbols

Work = Callable[[str], AbstractContextManager[algorithms.Progress]]
"""Shows the progress of a piece of work, given its title."""


@dataclass(frozen=True)
class Trained:
    """A tokenizer and how it came about.

    Attributes:
        tokenizer: Of the family's class, or of the general one.
        size: Ids; fewer than were asked for if the text has no more to merge.
        counts: What was seen.
    """

    tokenizer: "PreTrainedTokenizerFast"
    size: int
    counts: Counts


def train(config: TokenizerConfig, texts: Iterable[str], work: Work) -> Trained:
    """Learn a tokenizer.

    Args:
        config: What to learn.
        texts: Read once; only distinct units are kept, within ``max_memory``.
        work: Shows the progress of learning. That of reading is the matter of ``texts``.

    Raises:
        ConfigError: Special tokens that repeat, a vocabulary too small for the alphabet.
        DataError: No text.
    """
    first, last = templates.special_tokens(config)
    old = extending.load(config) if config.extend else None
    rules = (old or templates.make(config, {})).backend_tokenizer
    counts = count(texts, templates.kind_of_units(config), budget=_budget(config), seed=config.seed)
    words = _words(rules, counts)
    if not words:
        raise DataError(f"no text in {', '.join(config.data.train)}", "are the paths right?")
    if old is not None:
        with work("learning") as progress:
            extended = extending.extend(old, words, config, progress)
        return Trained(extended, len(extended), counts)
    task = algorithms.Task(words, config.vocab_size, first, last, config)
    with work("learning") as progress:
        learned = algorithms.get(config.algorithm).learn(task, progress)
    return Trained(templates.make(config, learned.model), learned.size, counts)


def forecast(config: TokenizerConfig, text_bytes: int) -> int:
    """Bytes of memory that learning takes at most, from text of this size."""
    table = _PER_SYMBOL * min(text_bytes, _budget(config))
    return _BASE + table + min(unigram.BYTES * text_bytes, _lattice(config))


def _budget(config: TokenizerConfig) -> int:
    return max(1_000_000, (config.max_memory - _BASE - _lattice(config)) // _PER_SYMBOL)


def _lattice(config: TokenizerConfig) -> int:
    """Bytes that Unigram takes besides the table of counts."""
    return unigram.BYTES * unigram.room(config.max_memory) if config.algorithm == "unigram" else 0


def _words(tokenizer: "Tokenizer", counts: Counts) -> dict[str, int]:
    """The words of the pre-tokenizer, and how often each was seen."""
    normalizer, cutter = tokenizer.normalizer, tokenizer.pre_tokenizer
    words: Counter[str] = Counter()
    for unit, number in zip(counts.units, counts.numbers.tolist(), strict=True):
        text = normalizer.normalize_str(unit) if normalizer else unit
        for word, _ in cutter.pre_tokenize_str(text):
            words[word] += number
    return {word: words[word] for word in sorted(words)}
