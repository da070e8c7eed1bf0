"""Byte-level BPE by which all languages pay the same (Foroutan et al. 2025, arXiv:2508.04796).

At each merge the language that is cut worst in parallel text gets the pair that helps it most. The
trainer is that of the tokenizers library, which fails in silence where its parallel text is missing
or is not parallel, so such text is demanded and checked. ``quality.Fairness`` says what they pay.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_ALIKE = 0.3  # rank correlation of the lengths of parallel lines: translations have 0.7 and more

_FEWEST = 50  # parallel lines


def learn_fair_merges(
    rules: Tokenizer,
    texts: Sequence[Iterable[str]],
    parallel: Sequence[Sequence[str]],
    merges: int,
    min_frequency: int,
) -> list[tuple[str, str]]:
    """The merges, in their order.

    Args:
        rules: A tokenizer with the normalizer and the pre-tokenizer; it is not changed.
        texts: The text of each language, read once.
        parallel: The lines of each language, ``check_parallel``.
        merges: Number of merges; fewer if no pair is left.

    Raises:
        ConfigError: The tokenizers library has no such trainer.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    try:
        from tokenizers.trainers import ParityBpeTrainer
    except ImportError as error:
        raise ConfigError(
            "parity: this version of the tokenizers library has no parity-aware trainer",
            "pip install 'tokenizers>=0.23.2'",
        ) from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer, tokenizer.pre_tokenizer = rules.normalizer, rules.pre_tokenizer
    trainer = ParityBpeTrainer(
        num_merges=merges,
        min_frequency=min_frequency,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    trainer.train_from_iterator(
        tokenizer,
        train_iterators=list(map(iter, texts)),
        dev_iterators=list(map(iter, parallel)),
    )
    learned = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(left, right) for left, right in learned]


def check_parallel(lines: Mapping[str, Sequence[str]], say: Callable[[str], None]) -> None:
    """Refuse text that cannot be parallel, and warn of text that does not look so.

    The trainer compares the tokens of the whole text of each language: with other text than that of
    the others a language looks cheap or dear, and gets too few or too many merges.

    Args:
        lines: The parallel lines of each language; line i of all means the same.

    Raises:
        DataError: The files have different numbers of lines, or too few.
    """
    counts = {name: len(own) for name, own in lines.items()}
    if len(set(counts.values())) > 1:
        numbers = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        raise DataError(
            f"data.mixture: parallel files with different numbers of lines: {numbers}",
            "line i of each file must mean the same as line i of the others",
        )
    if min(counts.values()) < _FEWEST:
        raise DataError(
            f"data.mixture: {min(counts.values())} parallel lines",
            f"give {_FEWEST} or more, the same sentences in each language",
        )
    lengths = {name: _ranks([len(line) for line in own]) for name, own in lines.items()}
    for one, other in combinations(lines, 2):
        alike = float(np.corrcoef(lengths[one], lengths[other])[0, 1])
        if alike < _ALIKE:
            say(
                f"the parallel lines of {one} and {other} do not look parallel: their lengths have "
                f"a rank correlation of {alike:.2f}, translations 0.7 and more. Languages whose "
                "lines do not mean the same get too few or too many tokens"
            )


def _ranks(values: Sequence[int]) -> Any:
    return np.argsort(np.argsort(values, kind="stable"), kind="stable")
