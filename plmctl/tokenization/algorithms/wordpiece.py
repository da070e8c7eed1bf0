"""WordPiece: BERT's vocabularies.

A word is cut from left to right into the longest pieces of the vocabulary; every piece but the
first has the mark ``##``. No training code was published; pieces are learned by frequency, like
byte pairs, as the tokenizers library does.

Source: Devlin et al. 2019; google-research/bert, tokenization.py.
"""

import numpy as np
from numpy.typing import NDArray

from plmctl.tokenization.algorithms.base import (
    CONTINUES,
    Learned,
    Mark,
    MergeAlgorithm,
    Progress,
    VocabTask,
)


class WordPiece(MergeAlgorithm):
    """Pieces by frequency, and one for each character of the alphabet, so that few are unknown."""

    mark: Mark = "continues"

    def alphabet(self, task: VocabTask) -> NDArray[np.uint32]:
        """With the brackets of the special tokens: text that looks like ``[SEP]`` is known text.

        The published vocabularies have them too.
        """
        names = "".join((*task.first, *task.last))
        marks = sorted({ord(character) for character in names if not character.isalnum()})
        return np.union1d(super().alphabet(task), np.array(marks, dtype=np.uint32))

    def join(self, left: str, right: str) -> str:
        """The text of two pieces as one, without the mark between them."""
        return left + right.removeprefix(CONTINUES)

    def learn(self, task: VocabTask, progress: Progress) -> Learned:
        """The vocabulary alone: WordPiece does not use the merges."""
        learned = super().learn(task, progress)
        return Learned({"vocab": learned.model["vocab"]}, learned.size)
