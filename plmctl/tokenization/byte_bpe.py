"""Byte-level BPE with GPT-2's pre-tokenizer and end-of-text token.

Source: openai/gpt-2, encoder.py. Any UTF-8 text is encoded and comes back exactly; there is no
unknown token. ``<|endoftext|>`` is the last id, as published, and stands between documents.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from plmctl.config.tokenizer import TokenizerConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

END_OF_TEXT = "<|endoftext|>"


def train(config: TokenizerConfig, texts: Iterable[str]) -> "PreTrainedTokenizerBase":
    """A GPT2Tokenizer with merges learnt from ``texts``."""
    import json

    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    from transformers import GPT2Tokenizer

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size - 1,  # the end-of-text token comes last
        min_frequency=config.min_frequency,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    vocab = {**tokenizer.get_vocab(), END_OF_TEXT: tokenizer.get_vocab_size()}
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return GPT2Tokenizer(
        vocab=vocab,
        merges=[tuple(merge) for merge in merges],  # type: ignore[misc]  # pairs; typed as strings
        add_prefix_space=False,
        model_max_length=config.max_length,
    )
