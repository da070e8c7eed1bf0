"""Byte-level byte-pair encoding: GPT-2's and RoBERTa's vocabularies.

Any UTF-8 text is encoded and comes back exactly; there are no unknown characters. The pre-tokenizer
has already written each byte as a character, so the alphabet is these 256, in the published order:
first the bytes that are printable characters, then the others.

Source: Radford et al. 2019; openai/gpt-2, encoder.py.
"""

import numpy as np
from numpy.typing import NDArray

from plmctl.tokenization.algorithms.base import MergeAlgorithm, VocabTask


class ByteBPE(MergeAlgorithm):
    """Merges by frequency over all 256 bytes, whether they occur or not."""

    def alphabet(self, task: VocabTask) -> NDArray[np.uint32]:
        """One character for each byte."""
        from tokenizers.pre_tokenizers import ByteLevel

        return np.array(sorted(map(ord, ByteLevel.alphabet())), dtype=np.uint32)
