"""A tokenizer as the networks' inputs need it."""

from typing import TYPE_CHECKING

from plmctl.tokenization.check import check_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load_tokenizer(source: str) -> "PreTrainedTokenizerBase":
    """The tokenizer of a folder or Hub id, with a padding token if it has none (GPT-2).

    Raises:
        ConfigError: The folder changed since it was trained.
        DataError: It gives other ids than when it was saved.
    """
    from transformers import AutoTokenizer

    check_tokenizer(source)
    tokenizer = AutoTokenizer.from_pretrained(source)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
