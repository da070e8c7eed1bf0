"""Byte-level byte-pair encoding: GPT-2's and RoBERTa's vocabularies.

Any UTF-8 text is encoded and comes back exactly; there is no unknown character. The pre-tokenizer
has written each byte as a character by now, so the alphabet is 256 of them, in the published order:
first the bytes that are printable by themselves, then the others.

Source: Radford et al. 2019; openai/gpt-2, encoder.py.
"""

from operator import add

import numpy as np

from plmctl.tokenization.algorithms.base import (
    Learned,
    Progress,
    VocabTask,
    learn_merged_vocabulary,
    words_as_symbols,
)


def learn(task: VocabTask, progress: Progress) -> Learned:
    """Merges by frequency over all bytes, seen or not.

    Raises:
        ConfigError: The vocabulary is too small for the bytes.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = np.array(sorted(map(ord, ByteLevel.alphabet())), dtype=np.uint32)
    return learn_merged_vocabulary(
        task, words_as_symbols(task.words, None, alphabet), add, progress
    )
