"""From text to a tokenizer: count units, cut them into words, learn a vocabulary.

The words are counted and learned here, not by the trainers of the tokenizers library, because the
table of counts must stay within ``max_memory`` whatever the corpus, and because it is faster.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import text_batches
from plmctl.config.tokenizer import TokenizerConfig
from plmctl.errors import DataError
from plmctl.tokenization.algorithms.base import (
    Algorithm,
    Progress,
    VocabTask,
    check_fits,
    get_algorithm,
)
from plmctl.tokenization.algorithms.byte_bpe import ByteBPE
from plmctl.tokenization.extending import extend_tokenizer, load_to_extend
from plmctl.tokenization.parity import learn_fair_merges
from plmctl.tokenization.templates import TokenizerTemplate
from plmctl.tokenization.units import (
    ONE_WORD,
    SPACE_BYTE,
    SPACE_MARK,
    Kind,
    cut,
    kind_of,
    marks_stay,
    pattern,
)
from plmctl.tokenization.words import check_mark

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast


# --- Training a tokenizer ---


_BASE = 500_000_000  # bytes of the process before it learns: Python, transformers, read buffers

_PER_SYMBOL = 60  # bytes per symbol of distinct units: the table of counts, then its symbols

Work = Callable[[str], AbstractContextManager[Progress]]
"""Shows a progress bar with a title."""


@dataclass(frozen=True)
class TrainedTokenizer:
    """A trained tokenizer.

    Attributes:
        tokenizer: It has the family's class, or the general one.
        size: Number of ids; fewer than requested if the text has no more to learn.
        threshold: See ``UnitCounts``.
    """

    tokenizer: PreTrainedTokenizerFast
    size: int
    threshold: int


def train(template: TokenizerTemplate, texts: Iterable[str], work: Work) -> TrainedTokenizer:
    """Learn a tokenizer.

    Args:
        texts: Read once; only distinct units are kept, within ``max_memory``.
        work: Shows the progress of learning; ``texts`` shows that of reading.

    Raises:
        ConfigError: A special token is repeated, or the vocabulary is too small for the alphabet.
        DataError: No text.
    """
    config = template.config
    first, last = template.special_tokens
    if config.data.words == "marked":
        check_mark(config.data.word_mark, first + last)
    algorithm = get_algorithm(config.algorithm)()
    old = load_to_extend(config) if config.extend else None
    rules, kind = (old or template.make({})).backend_tokenizer, template.kind
    counts = count_units(
        as_normalized(texts, rules, kind),
        kind,
        marks_stay=marks_stay(rules),
        budget=_max_symbols(config, algorithm),
        seed=config.seed,
    )
    words = count_words(rules, counts)
    if not words:
        raise DataError(f"no text in {', '.join(config.data.sources)}", "check the paths")
    if old is not None:
        with work("learning") as progress:
            extended = extend_tokenizer(old, algorithm, words, config, progress)
        return TrainedTokenizer(extended, len(extended), counts.threshold)
    task = VocabTask(words, config.vocab_size, first, last, config)
    with work("learning") as progress:
        learned = algorithm.learn(task, progress)
    return TrainedTokenizer(template.make(learned.model), learned.size, counts.threshold)


def train_fair(
    template: TokenizerTemplate,
    texts: Sequence[Iterable[str]],
    parallel: Sequence[Sequence[str]],
    work: Work,
) -> TrainedTokenizer:
    """Learn byte-level BPE by which languages pay the same (``parity``).

    Args:
        texts: The text of each language, read once.
        parallel: The lines of each language, as ``check_parallel`` wants them.

    Raises:
        ConfigError: As ``train``, or the tokenizers library is too old.
    """
    config, (first, last) = template.config, template.special_tokens
    task = VocabTask({}, config.vocab_size, first, last, config)
    alphabet = [chr(code) for code in ByteBPE().alphabet(task).tolist()]
    check_fits(len(alphabet), config.vocab_size, len(first) + len(last))
    room = config.vocab_size - len(first) - len(last) - len(alphabet)
    rules = template.make({}).backend_tokenizer
    with work("learning"):
        merges = learn_fair_merges(rules, texts, parallel, room, config.min_frequency)
    tokens = list(dict.fromkeys([*first, *alphabet, *map("".join, merges), *last]))
    vocab = {token: id_ for id_, token in enumerate(tokens)}
    tokenizer = template.make({"vocab": vocab, "merges": merges})
    return TrainedTokenizer(tokenizer, len(vocab), 1)


def estimate_memory(config: TokenizerConfig, text_bytes: int) -> int:
    """Bytes of memory that learning takes at most, from text of this size."""
    algorithm = get_algorithm(config.algorithm)()
    table = _PER_SYMBOL * min(text_bytes, _max_symbols(config, algorithm))
    return _BASE + table + algorithm.extra_memory(config.max_memory, text_bytes)


def _max_symbols(config: TokenizerConfig, algorithm: Algorithm) -> int:
    """How many symbols the table of counts has room for."""
    extra = algorithm.extra_memory(config.max_memory)
    return max(1_000_000, (config.max_memory - _BASE - extra) // _PER_SYMBOL)


def as_normalized(texts: Iterable[str], tokenizer: Tokenizer, kind: Kind) -> Iterable[str]:
    """Texts whose units have all that is normalized together.

    GPT-2's units of a letter and of an accent after it are two: such texts are normalized first.
    """
    if kind == "bytes" and tokenizer.normalizer:
        return map(tokenizer.normalizer.normalize_str, texts)
    return texts


def count_words(tokenizer: Tokenizer, counts: UnitCounts) -> dict[str, int]:
    """The words of a tokenizer's pre-tokenizer, and how often each occurs."""
    normalizer, cutter = tokenizer.normalizer, tokenizer.pre_tokenizer
    kind = kind_of(tokenizer)
    is_one_word = re.compile(ONE_WORD[kind] if kind else "(?!)").fullmatch
    single: dict[str, int] = {}
    words: Counter[str] = Counter()
    for unit, number in zip(counts.units, counts.numbers.tolist(), strict=True):
        if is_one_word(unit):
            single[unit] = number
            continue
        text = normalizer.normalize_str(unit) if normalizer else unit
        for word, _ in cutter.pre_tokenize_str(text):
            words[word] += number
    # Most units of English, together: a call of the library for each doubles the time of it all.
    text = "\n".join(single).replace(" ", SPACE_BYTE)
    text = normalizer.normalize_str(text) if normalizer else text
    mark = SPACE_MARK if kind == "spaces" else ""
    for word, number in zip(text.split(), single.values(), strict=True):
        words[mark + word] += number
    return words


# --- Counting the units of a corpus in bounded memory ---
#
# Texts whose parts repeat are cut into parts, of one unit or a few, and only the units of distinct
# parts are looked up: 0.7 of the time of a look-up for each unit of English, 0.4 of it for BERT's
# units of Chinese.
#
# The table of counts is exact until it is full. Then it is thinned by threshold sampling (Duffield,
# Lund and Thorup 2005): with a threshold t, a unit that occurred c < t times stays with probability
# c / t and counts as t. So the expected count of every unit, and of everything in it, stays the
# same, and frequent units stay exact. This happens only with text that hardly repeats: gigabytes of
# English, or tens of megabytes of text without spaces.


LONGEST_UNIT = 64
"""Characters of a unit; longer ones are cut: machine noise, and text without spaces."""

_CHECK_EVERY = 1_000_000  # characters that are cut together, before the table's size is checked

_SPACED = 0.05  # from this share of spaces on, a text has words between spaces


@dataclass(frozen=True)
class UnitCounts:
    """How often each unit occurs.

    Attributes:
        units: The distinct units, sorted.
        numbers: How often each occurs.
        threshold: Rarer units were sampled; 1 if the counts are exact.
    """

    units: list[str]
    numbers: NDArray[np.int64]
    characters: int
    threshold: int


def count_units(
    texts: Iterable[str], kind: Kind, *, budget: int, seed: int, marks_stay: bool = False
) -> UnitCounts:
    """Count the units of ``texts``.

    Args:
        texts: Read once, in order; the result depends on the order only if the table overflows.
        marks_stay: See ``pattern``.
        budget: Maximum number of symbols of all distinct units: bytes if ``kind`` is "bytes", else
            characters.
    """
    find = pattern(kind, LONGEST_UNIT, marks_stay=marks_stay).findall
    measure = _utf8_length if kind == "bytes" else len
    table: Counter[str] = Counter()
    draws = random.Random(seed)
    characters, next_check, threshold = 0, _CHECK_EVERY, 1
    for batch in text_batches(texts, _CHECK_EVERY):
        # BERT's parts repeat, in English and in Chinese, where they are characters. GPT-2's do not
        # in text without spaces, and what is between spaces, with its marks, hardly does.
        if (
            sum(text.count(" ") for text in batch) > _SPACED * sum(map(len, batch))
            if kind == "bytes"
            else kind == "marks"
        ):
            parts = cut(batch, kind)
            numbers = np.bincount(parts.which, minlength=len(parts.texts)).tolist()
            for part, number in zip(parts.texts, numbers, strict=True):
                unit = part.lstrip(" ") if kind == "marks" else part
                for one in (unit,) if unit in table else find(part):
                    table[one] += number
        else:
            table.update(chain.from_iterable(map(find, batch)))
        characters += sum(map(len, batch))
        if characters >= next_check:
            size = sum(map(measure, table))
            if size > budget:
                threshold, table = _thin_table(table, measure, budget // 2, threshold, draws)
                size = budget // 2
            # The table can hardly overflow before: it already contains most of a text.
            next_check = characters + max(_CHECK_EVERY, (budget - size) // 4)
    if sum(map(measure, table)) > budget:
        threshold, table = _thin_table(table, measure, budget, threshold, draws)
    units = sorted(table)
    numbers = np.array([table[unit] for unit in units], dtype=np.int64)
    return UnitCounts(units, numbers, characters, threshold)


def _thin_table(
    table: Counter[str],
    measure: Callable[[str], int],
    target: int,
    threshold: int,
    draws: random.Random,
) -> tuple[int, Counter[str]]:
    """A threshold, and the table thinned by it to about ``target`` symbols."""
    counts = np.fromiter(table.values(), np.float64, len(table))
    lengths = np.fromiter(map(measure, table), np.float64, len(table))
    while float((lengths * np.minimum(1.0, counts / threshold)).sum()) > target:
        threshold += 1 + threshold // 8
    thinned: Counter[str] = Counter()
    for unit, number in table.items():
        if number >= threshold or draws.randrange(threshold) < number:
            thinned[unit] = max(number, threshold)
    return threshold, thinned


def _utf8_length(text: str) -> int:
    return len(text.encode())
