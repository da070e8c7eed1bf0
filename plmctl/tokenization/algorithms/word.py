"""Whole words by frequency: the vocabulary that ELMo's language model predicts.

After the special tokens, ids are in the order of frequency, which ELMo's sampled softmax relies on.

Source: Peters et al. 2018; allenai/bilm-tf, README.
"""

from plmctl.tokenization.algorithms.base import Algorithm, Learned, Progress, VocabTask


class Word(Algorithm):
    """The most frequent words; words of equal frequency are in the order of code points."""

    def learn(self, task: VocabTask, progress: Progress) -> Learned:
        """Words that occur at least ``min_frequency`` times."""
        special = {*task.first, *task.last}
        words = [
            word
            for word, count in task.words.items()
            if count >= task.config.min_frequency and word not in special
        ]
        words.sort(key=lambda word: (-task.words[word], word))
        tokens = [*task.first, *words[: task.size - len(special)], *task.last]
        progress(len(tokens), len(tokens))
        vocab = {token: id_ for id_, token in enumerate(tokens)}
        return Learned({"vocab": vocab}, len(vocab))
