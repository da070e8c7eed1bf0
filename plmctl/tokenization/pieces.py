"""Single tokens as people read them."""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def token_text(tokenizer: "PreTrainedTokenizerBase") -> tuple[Callable[[int], str], str]:
    """A function from id to text, and what stands between tokens.

    WordPiece's tokens are shown as they are, with a space between them. Those of other algorithms
    carry their spaces themselves, as a mark or, in byte-level BPE, as a byte in disguise; bytes
    that are no whole character are shown as U+FFFD.
    """
    vocabulary = tokenizer.get_vocab()
    spaced = any(token.startswith("##") for token in vocabulary)
    byte_level = any(token.startswith("\u0120") for token in vocabulary)
    special = set(tokenizer.all_special_ids)

    def text(id_: int) -> str:
        token = str(tokenizer.convert_ids_to_tokens(id_))
        if byte_level and id_ not in special:
            token = str(tokenizer.decode([id_], clean_up_tokenization_spaces=False))
        return token.replace("\u2581", " ").replace("</w>", " ").replace("\n", "\\n")

    return text, " " if spaced else ""
