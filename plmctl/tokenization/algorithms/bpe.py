"""Byte-pair encoding over characters, with a mark at the end of words: GPT-1's vocabulary.

Source: Sennrich, Haddow and Birch 2016; Radford et al. 2018; openai/finetune-transformer-lm,
text_utils.py. The original cleans text with ftfy and cuts words with spaCy; transformers, and so
the tokenizers that are trained here, clean and cut as BERT does.
"""

from operator import add

from plmctl.tokenization.algorithms.base import (
    Learned,
    Progress,
    VocabTask,
    frequent_characters,
    learn_merged_vocabulary,
    words_as_symbols,
)


def learn(task: VocabTask, progress: Progress) -> Learned:
    """Merges by frequency; the last character of a word has the mark from the start.

    Raises:
        ConfigError: The vocabulary is too small for the alphabet.
    """
    alphabet = frequent_characters(task.words, task.config.limit_alphabet)
    return learn_merged_vocabulary(
        task, words_as_symbols(task.words, "ends", alphabet), add, progress
    )
