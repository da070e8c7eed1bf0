"""Texts to arrays of ids: ``Encoder`` against ``Tokenizer.encode_batch``, which must agree."""

import argparse
import hashlib
from pathlib import Path
from typing import Any

from benchmarks.text import Results, measured, set_threads, train_tokenizer, write_text

_BATCH = 1000  # texts given at once, as `datasets.map` does


def prepare(given: argparse.Namespace, folder: Path) -> None:
    """The text, and a tokenizer of it."""
    write_text(given, folder)
    train_tokenizer(given, folder)


def run(given: argparse.Namespace, side: str) -> Results:
    """The speed of a side, and a digest of its ids."""
    set_threads(given)
    made, results = _SIDES[side](given)
    return results | {"digest": _digest_of(made)}


def _plmctl(given: argparse.Namespace) -> tuple[Any, Results]:
    from plmctl.tokenization.encode import Encoder

    encoder, batches = Encoder(str(given.folder / "tokenizer")), _batches_of(given)
    assert encoder.vocab_size  # loaded
    return measured(given, lambda: [[ids for ids, _ in encoder(b)] for b in batches])


def _stock(given: argparse.Namespace) -> tuple[Any, Results]:
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(given.folder / "tokenizer" / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    batches = _batches_of(given)

    def work() -> list[list[Any]]:
        found = (tokenizer.encode_batch(b, add_special_tokens=False) for b in batches)
        return [[np.array(encoding.ids, dtype=np.int64) for encoding in e] for e in found]

    return measured(given, work)


_SIDES = {"plmctl": _plmctl, "stock": _stock}


def _batches_of(given: argparse.Namespace) -> list[list[str]]:
    text = (given.folder / "text.txt").read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if line]
    return [lines[at : at + _BATCH] for at in range(0, len(lines), _BATCH)]


def _digest_of(made: list[list[Any]]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for ids in (ids for batch in made for ids in batch):
        found.update(len(ids).to_bytes(4, "little") + ids.astype("<i8").tobytes())
    return found.hexdigest()
