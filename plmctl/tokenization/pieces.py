"""Tokens as people read them."""

import codecs
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from plmctl.tokenization.seams import byte_table

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SHOWN = {"\n": "⏎", "\r": "␍", "\t": "⇥", " ": "·"}


def token_texts(
    tokenizer: "PreTrainedTokenizerBase",
) -> tuple[Callable[[Sequence[int]], list[str]], str]:
    """A function from the ids of a row to the text of each, and what stands between tokens.

    WordPiece's tokens are shown as they are, with a space between them. Those of other algorithms
    carry their spaces themselves: line ends, tabs and runs of spaces are made visible. In
    byte-level BPE a character may be spread over several tokens: the last of them shows it, and
    those before it their bytes.
    """
    vocabulary = tokenizer.get_vocab()
    byte_level = any(token.startswith("\u0120") for token in vocabulary)
    # GPT-2's own vocabulary has "##" too, which is no mark there.
    spaced = not byte_level and any(token.startswith("##") for token in vocabulary)
    special = set(tokenizer.all_special_ids)

    def texts(ids: Sequence[int]) -> list[str]:
        tokens = [str(token) for token in tokenizer.convert_ids_to_tokens(list(ids))]
        if byte_level:
            known = [id_ in special for id_ in ids]
            return _visible(_characters(tokens, known))
        marked = [token.replace("\u2581", " ").replace("</w>", " ") for token in tokens]
        return marked if spaced else _visible(marked)

    return texts, " " if spaced else ""


def _characters(tokens: Sequence[str], special: Sequence[bool]) -> list[str]:
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


def _visible(texts: list[str]) -> list[str]:
    """The texts with marks for line ends, tabs, and spaces beside other white space."""
    whole = "".join(texts)
    marked = re.sub(r"[\n\r\t]| (?=\s)|(?<=\s) ", lambda found: _SHOWN[found[0]], whole)
    ends, at = [], 0
    for text in texts:
        ends.append((at, at + len(text)))
        at += len(text)
    return [marked[start:end] for start, end in ends]
