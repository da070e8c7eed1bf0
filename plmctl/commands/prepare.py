"""``plmctl prepare``: corpus and tokenizer to token stores, once.

``pretrain``, ``preview`` and ``plan`` call ``prepare`` too: it opens the stores of a config, or
builds them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from plmctl.config.sections import DataConfig, MixtureSource
from plmctl.corpus.build import Stores, build_stores, count_missing_words, find_stores
from plmctl.corpus.store import Corpus, MixedStore, TokenStore, mixed_digest, stores_of
from plmctl.corpus.words import WordRule
from plmctl.reporting.tables import metrics_table
from plmctl.run import launch
from plmctl.run.configs import PretrainConfig
from plmctl.run.display import say, show_result, work_progress
from plmctl.run.preflight import preflight
from plmctl.tokenization.encode import Encoder


@dataclass(frozen=True)
class PreparedText:
    """The token stores of a pretraining."""

    train: Corpus
    valid: Corpus | None
    hashes: dict[str, str]
    """The hashes of the data and the tokenizer, for ``environment.json``."""
    sentences: str
    """How the text is split into sentences, and why."""
    words: tuple[int | None, ...]
    """Words of each store of the training text; None: they were not counted."""
    word_rules: tuple[WordRule, ...]
    """How they were counted, or why not."""
    built: bool
    """Whether a store was built; otherwise all were there."""

    @property
    def num_words(self) -> int | None:
        """Words of the training text; None if those of a store are unknown."""
        known = [count for count in self.words if count is not None]
        return sum(known) if len(known) == len(self.words) else None

    @property
    def word_rule(self) -> str:
        """The rule by which words were counted, or why they were not."""
        names = [rule.name for rule in self.word_rules]
        if all(names):
            return " and ".join(dict.fromkeys(names))
        return next(rule.reason for rule in self.word_rules if not rule.name)


def run(config: PretrainConfig, *, as_json: bool, every_byte: bool = False) -> None:
    """Build the token stores of a pretraining config, and print what is in them.

    Args:
        config: The config of a pretraining.
        as_json: Print the result as JSON.
        every_byte: Compare every byte of existing stores with their hashes.
    """
    began = time.perf_counter()
    encoder = preflight(config).encoder
    text = prepare(config, encoder, every_byte=every_byte)
    if not text.built:
        say("the token stores exist already; nothing was built")
    if text.num_words is None and _count_words(config, encoder):
        text = prepare(config, encoder)
    contents: dict[str, object] = {
        "documents": text.train.num_documents,
        "sentences": text.train.num_sentences,
        "words": text.num_words,
        "tokens": text.train.num_tokens,
        "validation tokens": text.valid.num_tokens if text.valid else 0,
        "seconds": round(time.perf_counter() - began, 1),
        "folder": ", ".join(str(store.path) for store in stores_of(text.train)),
    }
    say(f"sentences: {text.sentences}")
    say(f"words: {'split by ' if text.num_words else 'not counted: '}{text.word_rule}")
    rules = {"sentence_rule": text.sentences, "word_rule": text.word_rule}
    table = metrics_table("token store", contents)
    show_result({**contents, **rules}, [table], as_json=as_json)


def prepare(config: PretrainConfig, encoder: Encoder, *, every_byte: bool = False) -> PreparedText:
    """The token stores of a config: opened if they exist and are undamaged, otherwise built.

    Under a launcher the main process builds, and the others wait for the folder to appear. They
    wait without a collective operation, so that no time-out can end a long build.
    """
    if config.data.mixture:
        return _prepare_mixture(config, encoder, every_byte)
    stores, built = _stores(data_of(config), encoder, config.tokenizer, every_byte)
    return PreparedText(
        TokenStore.open(stores.train),
        TokenStore.open(stores.valid) if stores.valid else None,
        {"data": stores.digest, "tokenizer": encoder.fingerprint},
        _sentence_rule(config, stores),
        (stores.words,),
        (stores.word_rule,),
        built,
    )


def data_of(config: PretrainConfig) -> DataConfig:
    """The config's data; ``sentences: auto`` is none if its objective does not read sentences."""
    if config.data.sentences != "auto" or config.objective.reads_sentences:
        return config.data
    return config.data.model_copy(update={"sentences": "none"})


def data_of_stores(config: PretrainConfig) -> list[DataConfig]:
    """The data of each store: of the corpus, or of each source of a mixture.

    Separate validation files are built once, with the first source.
    """
    data, own = data_of(config), []
    for number, source in enumerate(data.mixture):
        valid = None if number and isinstance(data.valid, tuple) else data.valid
        changes = {"train": source.train, "mixture": (), "valid": valid}
        own.append(data.model_copy(update=changes))
    return own or [data]


def _count_words(config: PretrainConfig, encoder: Encoder) -> bool:
    """Count the words of stores that have no count; whether any were counted."""
    counted = False
    for data in data_of_stores(config):
        with work_progress("counting words") as progress:
            root = Path(data.store)
            stores = count_missing_words(data, encoder, root=root, progress=progress)
        counted |= stores is not None
    return counted


def _sentence_rule(config: PretrainConfig, stores: Stores) -> str:
    """How a text was split into sentences, and why, in words."""
    if data_of(config) is not config.data:
        return f"none ({config.objective.name} reads text as it is)"
    return str(stores.sentences)


def _stores(
    data: DataConfig, encoder: Encoder, tokenizer: str, every_byte: bool
) -> tuple[Stores, bool]:
    """The stores, and whether they were built now."""
    root = Path(data.store)
    stores = find_stores(data, encoder, root=root, every_byte=every_byte)
    while stores is None and not launch.is_main():
        time.sleep(0.5)
        stores = find_stores(data, encoder, root=root)
    new = stores is None
    if stores is None:
        say(f"preparing {', '.join(data.train)} with {tokenizer}")
        with work_progress("preparing") as progress:
            stores = build_stores(
                data,
                encoder,
                root=root,
                processes=None,
                progress=progress,
                notice=say,
                every_byte=every_byte,
            )
    return stores, new


# --- Mixtures: a store for each source ---


def _prepare_mixture(config: PretrainConfig, encoder: Encoder, every_byte: bool) -> PreparedText:
    """A store for each source."""
    data = data_of(config)
    own = data_of_stores(config)
    opened = [_stores(one, encoder, config.tokenizer, every_byte) for one in own]
    built = [stores for stores, _ in opened]
    parts = list(zip(data.mixture, built, strict=True))
    held_out = [(source, Path(stores.valid)) for source, stores in parts if stores.valid]
    empty = [source.name for source, stores in parts if stores.valid is None]
    if data.valid and held_out and empty and not isinstance(data.valid, tuple):
        say(f"no document of {', '.join(empty)} is held out: it is missing from the validation")
    digest = mixed_digest([s.digest for s in built], [source.weight for source in data.mixture])
    return PreparedText(
        _mixed([(source, stores.train) for source, stores in parts]),
        _mixed(held_out) if held_out else None,
        {"data": digest, "tokenizer": encoder.fingerprint},
        "; ".join(f"{source.name}: {_sentence_rule(config, stores)}" for source, stores in parts),
        tuple(stores.words for stores in built),
        tuple(stores.word_rule for stores in built),
        any(is_new for _, is_new in opened),
    )


def _mixed(parts: list[tuple[MixtureSource, Path]]) -> Corpus:
    stores = tuple(TokenStore.open(folder) for _, folder in parts)
    if len(stores) == 1:
        return stores[0]
    names, weights = zip(*((source.name, source.weight) for source, _ in parts), strict=True)
    return MixedStore(names, stores, weights)
