"""The ids that the rest of plmctl needs to know of a tokenizer."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from plmctl.tokenization.check import check_tokenizer

TOKEN_NAMES = {
    "pad": "[PAD]",
    "unk": "[UNK]",
    "cls": "[CLS]",
    "sep": "[SEP]",
    "mask": "[MASK]",
    "bos": "beginning-of-text token",
    "eos": "end-of-text token",
    "sentinels": "sentinels (<extra_id_0>, <extra_id_1> ...)",
}
"""How people know the special tokens, which are spelt otherwise in some families."""


@dataclass(frozen=True)
class Vocab:
    """Ids of the special tokens, None where the tokenizer has no such token.

    Attributes:
        size: Largest id + 1: the rows that an embedding table needs.
        sentinels: Ids of ``<extra_id_0>``, ``<extra_id_1>`` ... (T5), up to the first one missing.
        words: The word of each id, of a tokenizer of whole words; else None.
    """

    size: int
    pad: int | None = None
    unk: int | None = None
    cls: int | None = None
    sep: int | None = None
    mask: int | None = None
    bos: int | None = None
    eos: int | None = None
    sentinels: tuple[int, ...] = ()
    words: tuple[str, ...] | None = None

    @classmethod
    def from_folder(cls, source: str) -> Vocab:
        """Of a tokenizer folder or Hub id.

        Raises:
            ConfigError: The folder changed since it was trained.
            DataError: It gives other ids than when it was saved.
        """
        from transformers import AutoTokenizer

        check_tokenizer(source)
        tokenizer = AutoTokenizer.from_pretrained(source)
        names = ("pad", "unk", "cls", "sep", "mask", "bos", "eos")
        ids = {name: getattr(tokenizer, f"{name}_token_id") for name in names}
        vocab: dict[str, int] = tokenizer.get_vocab()
        model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
        whole = type(model).__name__ == "WordLevel"
        words = tuple(sorted(vocab, key=vocab.__getitem__)) if whole else None
        return cls(max(vocab.values()) + 1, **ids, sentinels=_sentinels(vocab), words=words)


def _sentinels(vocab: dict[str, int]) -> tuple[int, ...]:
    names = (f"<extra_id_{number}>" for number in itertools.count())
    return tuple(vocab[name] for name in itertools.takewhile(vocab.__contains__, names))
