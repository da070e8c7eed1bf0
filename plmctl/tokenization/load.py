"""Loading a tokenizer, its special ids, and its tokens as readable text."""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from plmctl import hub
from plmctl.characters import SPACES
from plmctl.tokenization.check import check_converted, check_tokenizer, check_usable, opening
from plmctl.tokenization.seams import byte_table
from plmctl.tokenization.units import SPACE_BYTE, SPACE_MARK

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


# --- Loading ---


def load_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub id, with a padding token if it has none (GPT-2).

    Raises:
        ConfigError: The folder changed since it was trained, or is incomplete.
        DataError: It gives other ids than when it was saved, or has no vocabulary.
    """
    return with_pad_token(open_tokenizer(source))


def with_pad_token(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The same tokenizer; if it has no padding token, its end token is one."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def open_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a folder or Hub id, as it was saved; errors as ``load_tokenizer``."""
    from transformers import AutoTokenizer

    source = hub.local(source)
    check_tokenizer(source)
    with opening(source):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            source, trust_remote_code=False
        )
    check_usable(source, tokenizer)
    check_converted(source, tokenizer)
    return tokenizer


# --- Special ids ---


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
"""The common names of the special tokens, which some families spell differently."""


@dataclass(frozen=True)
class Vocab:
    """Ids of the special tokens; None if the tokenizer has no such token.

    Attributes:
        size: Largest id + 1: the number of rows of an embedding table.
        sentinels: Ids of ``<extra_id_0>``, ``<extra_id_1>`` ... (T5), up to the first missing one.
        words: The word of each id, if the tokenizer has whole words; else None.
        white: Ids of byte-level BPE whose bytes all occur in white space, each with its bytes.
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
    white: tuple[tuple[int, bytes], ...] = ()

    @classmethod
    def from_folder(cls, source: str) -> Vocab:
        """The ids of a tokenizer folder or Hub id.

        Raises:
            ConfigError: The folder changed since it was trained.
            DataError: It gives other ids than when it was saved.
        """
        return cls.of(open_tokenizer(source))

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Vocab:
        """The ids of a tokenizer that is open, as it was saved."""
        vocab: dict[str, int] = tokenizer.get_vocab()
        sentinels = (f"<extra_id_{number}>" for number in itertools.count())
        return cls(
            size=max(vocab.values()) + 1,
            pad=tokenizer.pad_token_id,
            unk=tokenizer.unk_token_id,
            cls=tokenizer.cls_token_id,
            sep=tokenizer.sep_token_id,
            mask=tokenizer.mask_token_id,
            bos=tokenizer.bos_token_id,
            eos=tokenizer.eos_token_id,
            sentinels=tuple(
                vocab[name] for name in itertools.takewhile(vocab.__contains__, sentinels)
            ),
            words=tuple(sorted(vocab, key=vocab.__getitem__))
            if _is_whole_words(tokenizer)
            else None,
            white=_white(vocab) if _is_byte_level(vocab) else (),
        )


def _is_byte_level(vocab: Iterable[str]) -> bool:
    return any(token.startswith(SPACE_BYTE) for token in vocab)


def _white(vocab: dict[str, int]) -> tuple[tuple[int, bytes], ...]:
    bytes_of_white_space = set(b"".join(SPACES))
    letters = {
        chr(code): byte for code, byte in byte_table().items() if byte in bytes_of_white_space
    }
    return tuple(
        (id_, bytes(letters[letter] for letter in token))
        for token, id_ in sorted(vocab.items(), key=itemgetter(1))
        if token and letters.keys() >= set(token)
    )


def _is_whole_words(tokenizer: PreTrainedTokenizerBase) -> bool:
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    fast = isinstance(tokenizer, PreTrainedTokenizerFast)
    return fast and isinstance(tokenizer.backend_tokenizer.model, WordLevel)


# --- Tokens as readable text ---


_VISIBLE = {"\n": "⏎", "\r": "␍", "\t": "⇥", " ": "·"}


def token_texts(
    tokenizer: PreTrainedTokenizerBase,
) -> tuple[Callable[[Sequence[int]], list[str]], str]:
    """A function from the ids of a row to the text of each token, and the separator of tokens.

    WordPiece's tokens and whole words are shown unchanged, with a space between them. Tokens of
    other algorithms contain their spaces: line ends, tabs and runs of spaces are made visible. In
    byte-level BPE a character can be spread over several tokens: the last one shows the character,
    and those before it show their bytes.
    """
    vocabulary = tokenizer.get_vocab()
    byte_level = _is_byte_level(vocabulary)
    # GPT-2's vocabulary has "##" too, but not as a mark.
    spaced = not byte_level and any(token.startswith("##") for token in vocabulary)
    spaced = spaced or _is_whole_words(tokenizer)
    special = set(tokenizer.all_special_ids)

    def texts(ids: Sequence[int]) -> list[str]:
        tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(list(ids))]
        if byte_level:
            known = [id_ in special for id_ in ids]
            return _show_white_space(_byte_level_texts(tokens, known))
        marked = [token.replace(SPACE_MARK, " ").replace("</w>", " ") for token in tokens]
        return marked if spaced else _show_white_space(marked)

    return texts, " " if spaced else ""


def _byte_level_texts(tokens: Sequence[str], special: Sequence[bool]) -> list[str]:
    """The text of each token of byte-level BPE."""
    table, shown = byte_table(), []
    decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
    for token, is_special in zip(tokens, special, strict=True):
        if is_special or not token or any(ord(letter) not in table for letter in token):
            decoder.reset()
            shown.append(token)
            continue
        own = bytes(table[ord(letter)] for letter in token)
        shown.append(decoder.decode(own) or f"<{own.hex().upper()}>")
    return shown


def _show_white_space(texts: list[str]) -> list[str]:
    """The texts with marks for line ends, tabs, and spaces beside other white space."""
    whole = "".join(texts)
    marked = re.sub(r"[\n\r\t]| (?=\s)|(?<=\s) ", lambda match: _VISIBLE[match[0]], whole)
    ends, at = [], 0
    for text in texts:
        ends.append((at, at + len(text)))
        at += len(text)
    return [marked[start:end] for start, end in ends]
