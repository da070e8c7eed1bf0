"""Texts to arrays of ids: ``Encoder`` against ``Tokenizer.encode_batch``, which must agree."""

import argparse
import hashlib
from pathlib import Path
from typing import Any

from benchmarks.text import Results, measured, set_threads, train_tokenizer, write_text

_BATCH = 1000  # texts given at once, as `datasets.map` does


def prepare(args: argparse.Namespace, folder: Path) -> None:
    """The text, and a tokenizer of it."""
    write_text(args, folder)
    train_tokenizer(args, folder)


def run(args: argparse.Namespace, side: str) -> Results:
    """The speed of a side, and a digest of its ids."""
    set_threads(args)
    encoded, results = _SIDES[side](args)
    return results | {"digest": _digest_of(encoded)}


def _plmctl(args: argparse.Namespace) -> tuple[Any, Results]:
    from plmctl.tokenization.encode import Encoder

    encoder, batches = Encoder(str(args.folder / "tokenizer")), _batches_of(args)
    assert encoder.vocab_size  # loaded
    return measured(args, lambda: [[ids for ids, _ in encoder(b)] for b in batches])


def _stock(args: argparse.Namespace) -> tuple[Any, Results]:
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(args.folder / "tokenizer" / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    batches = _batches_of(args)

    def work() -> list[list[Any]]:
        encodings = (tokenizer.encode_batch(b, add_special_tokens=False) for b in batches)
        return [[np.array(encoding.ids, dtype=np.int64) for encoding in e] for e in encodings]

    return measured(args, work)


_SIDES = {"plmctl": _plmctl, "stock": _stock}


def _batches_of(args: argparse.Namespace) -> list[list[str]]:
    text = (args.folder / "text.txt").read_text(encoding="utf-8")
    lines = [line for line in text.split("\n") if line]
    return [lines[at : at + _BATCH] for at in range(0, len(lines), _BATCH)]


def _digest_of(encoded: list[list[Any]]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for ids in (ids for batch in encoded for ids in batch):
        digest.update(len(ids).to_bytes(4, "little") + ids.astype("<i8").tobytes())
    return digest.hexdigest()
