"""Whole words by frequency: the vocabulary that ELMo's language model predicts.

Ids are in the order of frequency after the special tokens, which its sampled softmax relies on.
Source: Peters et al. 2018; allenai/bilm-tf, README.
"""

from plmctl.tokenization.algorithms.base import Learned, Progress, VocabTask


def learn(task: VocabTask, progress: Progress) -> Learned:
    """The most frequent words that were seen ``min_frequency`` times; ties by code points."""
    special = {*task.first, *task.last}
    seen = [
        word
        for word, count in task.words.items()
        if count >= task.config.min_frequency and word not in special
    ]
    seen.sort(key=lambda word: (-task.words[word], word))
    tokens = [*task.first, *seen[: task.size - len(special)], *task.last]
    progress(len(tokens), len(tokens))
    vocab = {token: number for number, token in enumerate(tokens)}
    return Learned({"vocab": vocab}, len(vocab))
