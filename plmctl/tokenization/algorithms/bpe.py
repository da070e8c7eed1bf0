"""Byte-pair encoding over characters, with a mark at the end of words: GPT-1's vocabulary.

Source: Sennrich, Haddow and Birch 2016; Radford et al. 2018; openai/finetune-transformer-lm,
text_utils.py. The original cleans text with ftfy and cuts words with spaCy; transformers, and so
the tokenizers that are trained here, clean and cut as BERT does.
"""

from plmctl.tokenization.algorithms.base import Mark, MergeAlgorithm


class BPE(MergeAlgorithm):
    """Merges by frequency; the last character of a word has a mark from the start."""

    mark: Mark = "ends"
