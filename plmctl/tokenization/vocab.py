"""The ids that the rest of plmctl needs to know of a tokenizer."""

from __future__ import annotations

from dataclasses import dataclass

from plmctl.tokenization.sums import check_sums

TOKEN_NAMES = {
    "pad": "[PAD]",
    "unk": "[UNK]",
    "cls": "[CLS]",
    "sep": "[SEP]",
    "mask": "[MASK]",
    "bos": "beginning-of-text token",
    "eos": "end-of-text token",
}
"""How people know the special tokens, which are spelt otherwise in some families."""


@dataclass(frozen=True)
class Vocab:
    """Ids of the special tokens, None where the tokenizer has no such token.

    Attributes:
        size: Largest id + 1: the rows that an embedding table needs.
    """

    size: int
    pad: int | None = None
    unk: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    bos: int | None = None
    eos: int | None = None

    @classmethod
    def from_folder(cls, source: str) -> Vocab:
        """Of a tokenizer folder or Hub id.

        Raises:
            ConfigError: The folder changed since it was trained.
        """
        from transformers import AutoTokenizer

        check_sums(source)
        tokenizer = AutoTokenizer.from_pretrained(source)
        names = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
        ids = {name: getattr(tokenizer, f"{name}_token_id") for name in names}
        return cls(max(tokenizer.get_vocab().values()) + 1, **ids)
