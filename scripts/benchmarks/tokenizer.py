"""A text file to a vocabulary: against the trainer of the tokenizers library.

Both have the same normalizer and pre-tokenizer.
"""

import argparse
from pathlib import Path

from benchmarks.text import (
    Results,
    measured,
    set_threads,
    tokenizer_config,
    train_tokenizer,
    write_text,
)


def prepare(given: argparse.Namespace, folder: Path) -> None:
    """The text."""
    write_text(given, folder)


def run(given: argparse.Namespace, side: str) -> Results:
    """The speed of a side."""
    set_threads(given)
    return _SIDES[side](given)


def _plmctl(given: argparse.Namespace) -> Results:
    from plmctl.tokenization.templates import make_tokenizer

    make_tokenizer(tokenizer_config(given, given.folder), {})  # imports, and tables that are kept
    trained, results = measured(given, lambda: train_tokenizer(given, given.folder))
    return results | {"vocabulary": trained.size}


def _stock(given: argparse.Namespace) -> Results:
    from tokenizers import Tokenizer, models, trainers

    from plmctl.tokenization.templates import make_tokenizer, special_tokens

    config = tokenizer_config(given, given.folder)
    rules = make_tokenizer(config, {}).backend_tokenizer
    first, last = special_tokens(config)
    model, trainer = {
        "wordpiece": (models.WordPiece, trainers.WordPieceTrainer),
        "byte_bpe": (models.BPE, trainers.BpeTrainer),
        "bpe": (models.BPE, trainers.BpeTrainer),
        "unigram": (models.Unigram, trainers.UnigramTrainer),
    }[given.algorithm]
    tokenizer = Tokenizer(model())
    tokenizer.normalizer, tokenizer.pre_tokenizer = rules.normalizer, rules.pre_tokenizer
    settings = {"vocab_size": given.vocab_size, "show_progress": False}
    settings["special_tokens"] = [*first, *last]
    if given.algorithm == "unigram":
        settings["unk_token"] = "<unk>"
    else:
        settings["min_frequency"] = config.min_frequency
    learner = trainer(**settings)
    _, results = measured(given, lambda: tokenizer.train([config.data.train[0]], learner))
    return results | {"vocabulary": tokenizer.get_vocab_size()}


_SIDES = {"plmctl": _plmctl, "stock": _stock}
