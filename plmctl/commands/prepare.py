"""``plmctl prepare``: corpus and tokenizer to token stores, once.

``pretrain``, ``preview`` and ``plan`` call ``prepare`` too: it finds the stores of a config, or
builds them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from plmctl.config.sections import DataConfig, MixtureSource
from plmctl.corpus.build import Stores, build_stores, find_stores
from plmctl.corpus.store import Corpus, MixedStore, TokenStore, mixed_digest, stores_of
from plmctl.reporting.tables import metrics_table
from plmctl.run import launch
from plmctl.run.configs import PretrainConfig
from plmctl.run.display import say, show_result, work_progress
from plmctl.run.preflight import check_objective
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.load import Vocab


@dataclass(frozen=True)
class Prepared:
    """What pretraining reads."""

    train: Corpus
    valid: Corpus | None
    vocab: Vocab
    hashes: dict[str, str]
    """Of the data and the tokenizer, for ``environment.json``."""
    sentences: str
    """How the text is cut into sentences, and why."""


def run(config: PretrainConfig, *, as_json: bool, every_byte: bool = False) -> None:
    """Build the token stores of a pretraining config, and say what is in them.

    Args:
        config: Of a pretraining.
        as_json: Print the result as JSON.
        every_byte: Compare every byte of stores that are there with their hashes.
    """
    began = time.perf_counter()
    prepared = prepare(config, every_byte=every_byte)
    figures: dict[str, object] = {
        "documents": prepared.train.num_documents,
        "sentences": prepared.train.num_sentences,
        "tokens": prepared.train.num_tokens,
        "validation tokens": prepared.valid.num_tokens if prepared.valid else 0,
        "seconds": round(time.perf_counter() - began, 1),
        "folder": ", ".join(str(store.path) for store in stores_of(prepared.train)),
    }
    say(f"sentences: {prepared.sentences}")
    table = metrics_table("token store", figures)
    show_result({**figures, "sentence_rule": prepared.sentences}, [table], as_json=as_json)


def prepare(config: PretrainConfig, *, every_byte: bool = False) -> Prepared:
    """The stores of a config: found if they are there and undamaged, else built.

    Under a launcher the main process builds and the others wait for the folder to appear; no
    collective waits with them, so that no time-out can end a long build.

    Raises:
        ConfigError: As ``check_objective``, before any text is read.
    """
    encoder = Encoder(config.tokenizer, config.data.words)
    vocab = Vocab.from_folder(config.tokenizer)
    check_objective(config, vocab)
    if config.data.mixture:
        return _prepare_mixture(config, encoder, vocab, every_byte)
    stores = _stores(data_of(config), encoder, config.tokenizer, every_byte)
    return Prepared(
        TokenStore.open(stores.train),
        TokenStore.open(stores.valid) if stores.valid else None,
        vocab,
        {"data": stores.digest, "tokenizer": encoder.fingerprint},
        _sentence_rule(config, stores),
    )


def data_of(config: PretrainConfig) -> DataConfig:
    """The config's data; ``sentences: auto`` is none if its objective is not made of sentences."""
    if config.data.sentences != "auto" or config.objective.reads_sentences:
        return config.data
    return config.data.model_copy(update={"sentences": "none"})


def _sentence_rule(config: PretrainConfig, stores: Stores) -> str:
    """How a text was cut into sentences, and why, in words."""
    if data_of(config) is not config.data:
        return f"none ({config.objective.name} reads text as it is)"
    return str(stores.sentences)


def _stores(data: DataConfig, encoder: Encoder, tokenizer: str, every_byte: bool) -> Stores:
    root = Path(data.store)
    stores = find_stores(data, encoder, root=root, every_byte=every_byte)
    while stores is None and not launch.is_main():
        time.sleep(0.5)
        stores = find_stores(data, encoder, root=root)
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
    return stores


# --- Mixtures: a store for each source ---


def _prepare_mixture(
    config: PretrainConfig, encoder: Encoder, vocab: Vocab, every_byte: bool
) -> Prepared:
    """A store for each source; a separate validation text is built once, with the first."""
    data, made = data_of(config), []
    for number, source in enumerate(data.mixture):
        valid = None if number and isinstance(data.valid, tuple) else data.valid
        changes = {"train": source.train, "mixture": (), "valid": valid}
        own = data.model_copy(update=changes)
        made.append(_stores(own, encoder, config.tokenizer, every_byte))
    parts = list(zip(data.mixture, made, strict=True))
    held_out = [(source, Path(stores.valid)) for source, stores in parts if stores.valid]
    empty = [source.name for source, stores in parts if stores.valid is None]
    if data.valid and held_out and empty and not isinstance(data.valid, tuple):
        say(f"no document of {', '.join(empty)} is held out: validation is without it")
    digest = mixed_digest([s.digest for s in made], [source.weight for source in data.mixture])
    return Prepared(
        _mixed([(source, stores.train) for source, stores in parts]),
        _mixed(held_out) if held_out else None,
        vocab,
        {"data": digest, "tokenizer": encoder.fingerprint},
        "; ".join(f"{source.name}: {_sentence_rule(config, stores)}" for source, stores in parts),
    )


def _mixed(parts: list[tuple[MixtureSource, Path]]) -> Corpus:
    stores = tuple(TokenStore.open(folder) for _, folder in parts)
    if len(stores) == 1:
        return stores[0]
    names, weights = zip(*((source.name, source.weight) for source, _ in parts), strict=True)
    return MixedStore(names, stores, weights)
