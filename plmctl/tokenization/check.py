"""Is a tokenizer folder what was saved, and does what was saved do what the trained one did?"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plmctl.errors import PlmError
from plmctl.tokenization.probe import check_probe
from plmctl.tokenization.sums import check_sums

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def check_tokenizer(source: str) -> None:
    """Refuse a tokenizer folder that is not what was saved; every command that opens one calls it.

    Args:
        source: A folder, or anything else, of which nothing is known.

    Raises:
        ConfigError: A file has changed or is missing.
        DataError: The tokenizer gives other ids than when it was saved.
    """
    check_sums(source)
    check_probe(source)


def check_saved(folder: Path, trained: "PreTrainedTokenizerBase", texts: Sequence[str]) -> None:
    """Load ``folder`` as a user would and compare.

    Args:
        folder: The saved tokenizer.
        trained: The tokenizer that was saved.
        texts: Lines to encode with both.

    Raises:
        PlmError: Another class, other special tokens, other ids, or a text that does not come back.
    """
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(folder)
    if type(loaded) is not type(trained):
        raise PlmError(f"{folder}: loads as {type(loaded).__name__}, not {type(trained).__name__}")
    if loaded.all_special_ids != trained.all_special_ids:
        raise PlmError(f"{folder}: the special tokens changed on the way to the disk")
    for text in texts:
        ids = loaded(text)["input_ids"]
        if ids != trained(text)["input_ids"]:
            raise PlmError(f"{folder}: other ids after loading, for {text[:60]!r}")
        # Text that names a special token, as a page about tokenizers does, is read as that token
        # here and left out by decoding; unknown characters do not come back either.
        plain = loaded(text, add_special_tokens=False)["input_ids"]
        again = loaded(loaded.decode(ids, skip_special_tokens=True))["input_ids"]
        if again != ids and not set(plain).intersection(loaded.all_special_ids):
            raise PlmError(f"{folder}: decoding and encoding again gives other ids: {text[:60]!r}")
