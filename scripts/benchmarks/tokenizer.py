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


def prepare(args: argparse.Namespace, folder: Path) -> None:
    """The text."""
    write_text(args, folder)


def run(args: argparse.Namespace, side: str) -> Results:
    """The speed of a side."""
    set_threads(args)
    return _SIDES[side](args)


def _plmctl(args: argparse.Namespace) -> Results:
    from plmctl.families.base import get_family

    config = tokenizer_config(args, args.folder)
    get_family(config.family).TOKENIZER(config).make({})  # imports, and tables that are kept
    trained, results = measured(args, lambda: train_tokenizer(args, args.folder))
    return results | {"vocabulary": trained.size}


def _stock(args: argparse.Namespace) -> Results:
    from tokenizers import Tokenizer, models, trainers

    from plmctl.families.base import get_family

    config = tokenizer_config(args, args.folder)
    template = get_family(config.family).TOKENIZER(config)
    rules = template.make({}).backend_tokenizer
    first, last = template.special_tokens
    model, trainer = {
        "wordpiece": (models.WordPiece, trainers.WordPieceTrainer),
        "byte_bpe": (models.BPE, trainers.BpeTrainer),
        "bpe": (models.BPE, trainers.BpeTrainer),
        "unigram": (models.Unigram, trainers.UnigramTrainer),
    }[args.algorithm]
    tokenizer = Tokenizer(model())
    tokenizer.normalizer, tokenizer.pre_tokenizer = rules.normalizer, rules.pre_tokenizer
    settings = {"vocab_size": args.vocab_size, "show_progress": False}
    settings["special_tokens"] = [*first, *last]
    if args.algorithm == "unigram":
        settings["unk_token"] = "<unk>"
    else:
        settings["min_frequency"] = config.min_frequency
    learner = trainer(**settings)
    _, results = measured(args, lambda: tokenizer.train([config.data.train[0]], learner))
    return results | {"vocabulary": tokenizer.get_vocab_size()}


_SIDES = {"plmctl": _plmctl, "stock": _stock}
