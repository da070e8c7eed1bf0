"""WordPiece: BERT's vocabularies.

A word is the longest piece of the vocabulary that it begins with, then the longest that goes on,
marked ``##``. No training code was published; the pieces are learnt by frequency, as byte pairs
are, which is what the tokenizers library does too.

Source: Devlin et al. 2019; google-research/bert, tokenization.py.
"""

from plmctl.tokenization.algorithms.base import (
    CONTINUES,
    Learned,
    Progress,
    VocabTask,
    frequent_characters,
    learn_merged_vocabulary,
    words_as_symbols,
)


def learn(task: VocabTask, progress: Progress) -> Learned:
    """Pieces by frequency; a piece for each character of the alphabet, so that few are unknown.

    Raises:
        ConfigError: The vocabulary is too small for the alphabet.
    """
    alphabet = frequent_characters(task.words, task.config.limit_alphabet)
    words = words_as_symbols(task.words, "continues", alphabet)
    learned = learn_merged_vocabulary(task, words, _join, progress)
    return Learned({"vocab": learned.model["vocab"]}, learned.size)


def _join(left: str, right: str) -> str:
    return left + right.removeprefix(CONTINUES)
