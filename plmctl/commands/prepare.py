"""``plmctl prepare``: corpus and tokenizer to token stores, once.

``pretrain``, ``preview`` and ``plan`` call ``prepare`` too: it opens the stores of a config, or
builds them.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from plmctl import __version__
from plmctl.addresses import all_shown, shown
from plmctl.config.sections import DataConfig, PrepareConfig
from plmctl.corpus.build import (
    Executor,
    Root,
    Stores,
    build_stores,
    count_missing_words,
    find_stores,
    lines_of,
    moved_of,
    near_of,
)
from plmctl.corpus.overlap import Overlap, measure
from plmctl.corpus.prepared import PreparedText
from plmctl.corpus.remote import RemoteRoot, RemoteStore, is_url, store_root
from plmctl.corpus.source import resolve, size_of
from plmctl.corpus.store import (
    Corpus,
    MixedStore,
    TokenStore,
    mixed_digest,
    stores_of,
    token_dtype,
)
from plmctl.errors import ConfigError, PlmError
from plmctl.files import read_checked, write_atomically, write_checked, writing
from plmctl.reporting.card import PreparedData, data_card
from plmctl.reporting.tables import metrics_table
from plmctl.run.configs import PretrainConfig
from plmctl.run.display import say, show_result, work_progress
from plmctl.run.preflight import preflight
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.unknown import report_text
from plmctl.training.peers import Peers


@dataclass(frozen=True)
class CardRequest:
    """A data card to write.

    Attributes:
        path: The file; a folder: its README.md.
        license: A name that the Hub knows.
        languages: Codes of ISO 639.
    """

    path: Path
    license: str | None = None
    languages: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        """The file."""
        return self.path / "README.md" if self.path.is_dir() else self.path


def run(
    config: PretrainConfig,
    *,
    as_json: bool,
    every_byte: bool = False,
    card: CardRequest | None = None,
) -> None:
    """Build the token stores of a pretraining config, and print what is in them.

    Args:
        every_byte: Compare every byte of existing stores with their hashes.

    Raises:
        ConfigError: As ``preflight``; or the file of the card exists.
    """
    if card is not None and card.file.exists():
        raise ConfigError(
            f"--card: {card.file} exists already", "name another file, or move this one aside"
        )
    began = time.perf_counter()
    encoder = preflight(config).encoder
    text = prepare(config, encoder, every_byte=every_byte, words_needed=True)
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
        "folder": ", ".join(_place(store) for store in stores_of(text.train)),
    }
    say(f"sentences: {text.sentences}")
    say(f"words: {'split by ' if text.num_words else 'not counted: '}{text.word_rule}")
    overlap = say_overlap(config, text)
    if card is not None:
        _write_card(card, config, text, overlap)
    rules = {"sentence_rule": text.sentences, "word_rule": text.word_rule}
    table = metrics_table("token store", contents)
    show_result({**contents, **rules}, [table], as_json=as_json)


def _write_card(
    card: CardRequest, config: PretrainConfig, text: PreparedText, overlap: Overlap | None
) -> None:
    data = config.data
    valid = data.valid if isinstance(data.valid, tuple) else ()
    train = [name for source in data.mixture for name in source.train] or data.train
    mixed: list[tuple[str, float | None]] = [(one.name, one.weight) for one in data.mixture]
    if isinstance(text.train, MixedStore):
        mixed = list(zip(text.train.names, text.train.weights, strict=True))
    facts = PreparedData(
        corpora=[
            (name, weight, manifest)
            for (name, weight), manifest in zip(mixed or [("", None)], text.manifests, strict=True)
        ],
        sizes={shown(source.name): size_of(source) for source in resolve((*train, *valid))},
        settings=all_shown(
            data.model_dump(mode="json", exclude_defaults=True) | {"valid": data.valid}
        ),
        tokenizer=config.tokenizer,
        digest=text.hashes["data"],
        sentences=text.sentences,
        words=f"split by {text.word_rule}" if text.num_words else f"not counted: {text.word_rule}",
        overlap="" if overlap is None else overlap.line(),
        command=("plmctl", *map(shown, sys.argv[1:])),
        version=__version__,
    )
    with writing(card.file):
        card.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(card.file, data_card(facts, card.license, card.languages))
    missing = "" if card.license else ": say its license (--license) before you publish it"
    say(f"{card.file} is the card of this text{missing}")


def _place(store: TokenStore) -> str:
    """The folder of a store, or its URL."""
    remote = None if store.path is None else RemoteStore.of(store.path.parent)
    return str(store.path) if remote is None or store.path is None else f"{remote.url}/train"


def prepare(
    config: PretrainConfig,
    encoder: Encoder,
    *,
    every_byte: bool = False,
    words_needed: bool = False,
    peers: Peers | None = None,
) -> PreparedText:
    """The token stores of a config: opened if they exist and are undamaged, otherwise built.

    Of several processes the first one builds, and the others wait for the folder to appear. If a
    machine does not share the folder with it, its own first process builds. They wait without a
    collective operation, so that no time limit can end a long build.

    Args:
        every_byte: Compare every byte of existing stores with their hashes.
        words_needed: Count the words of a store that is built, also if it takes long; they are
            counted anyway for a config that plans in words.
        peers: The processes of the run; None: this is the only one.

    Raises:
        PlmError: Another process has built a store, and this one does not see it.
    """
    builder = None if peers is None else builder_of(peers, config.data.store)
    open_or_build = partial(
        _stores,
        by=config.prepare,
        encoder=encoder,
        tokenizer=config.tokenizer,
        every_byte=every_byte,
        words_needed=words_needed or config.plans_in_words,
        builder=builder,
    )
    if config.data.mixture:
        return _prepare_mixture(config, encoder, open_or_build)
    stores, built = open_or_build(data_of(config))
    _report(config, {"": stores})
    return PreparedText(
        TokenStore.open(stores.train),
        TokenStore.open(stores.valid) if stores.valid else None,
        {"data": stores.digest, "tokenizer": encoder.fingerprint},
        _sentence_rule(config, stores),
        (stores.words,),
        (stores.word_rule,),
        built,
        (stores.manifest,),
    )


def _report(config: PretrainConfig, stores: Mapping[str, Stores]) -> None:
    """Say what the user should know of the text, by the names of the sources of a mixture.

    Raises:
        DataError: The tokenizer knows hardly anything of it.
    """
    for name, one in stores.items():
        report_text(one.manifest, config.tokenizer, say, name)


_OVERLAP = "overlap.json"
_MEASURED_AS = 2  # increased when the numbers mean another thing: runs of 12 characters


def say_overlap(config: PretrainConfig, text: PreparedText) -> Overlap | None:
    """Say how much of the held-out text stands in the training text; None: it cannot be read.

    It is measured once, and kept beside the store by the hash of both texts.
    """
    folder = stores_of(text.train)[0].path
    path = None if folder is None else folder.parent / _OVERLAP
    known = (path and read_checked(path)) or {}
    if known.get("measured_as") != _MEASURED_AS:
        known = {"measured_as": _MEASURED_AS}
    digest = text.hashes["data"]
    if digest in known:
        overlap = Overlap(**known[digest])
    else:
        try:
            folders = [one.path.parent for one in stores_of(text.train) if one.path is not None]
            moved = frozenset().union(*map(moved_of, folders))
            near = frozenset().union(*map(near_of, folders))
            lines = None
            if config.data.repeated_lines != "keep":
                lines = np.unique(np.concatenate([*map(lines_of, folders)]))
            overlap = measure(data_of_stores(config), moved, near, lines)
        except PlmError as error:
            say(f"the held-out text was not compared with the training text: {error}")
            return None
        with suppress(OSError):  # without write access it is measured at every start
            if path is not None:
                write_checked(path, {**known, digest: overlap.facts()})
    say(overlap.line())
    if (warning := overlap.warning(config.data)) is not None:
        say(warning)
    return overlap


def data_of(config: PretrainConfig) -> DataConfig:
    """The config's data, without sentences if its objective does not read any."""
    if config.objective.reads_sentences:
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


def root_of(config: PretrainConfig, data: DataConfig) -> Root:
    """The folder of the stores of the data.

    Raises:
        ConfigError: `data.store` is a URL of an unknown protocol, or needs another library.
    """
    return store_root(data.store, config.prepare.cache, config.prepare.cache_size)


def _count_words(config: PretrainConfig, encoder: Encoder) -> bool:
    """Count the words of stores that have no count; whether any were counted."""
    counted = False
    for data in data_of_stores(config):
        with work_progress("counting words") as progress:
            root = root_of(config, data)
            stores = count_missing_words(data, encoder, root=root, progress=progress)
        counted |= stores is not None
    return counted


def _sentence_rule(config: PretrainConfig, stores: Stores) -> str:
    """How a text was split into sentences, and why, in words."""
    if data_of(config) is not config.data:
        return f"none ({config.objective.name} reads text as it is)"
    return str(stores.sentences)


# --- Several processes: who builds ---


_APPEARS = 60.0  # seconds for a finished folder to appear on another machine


@dataclass(frozen=True)
class StoreBuilder:
    """Another process, which builds the stores that this one reads."""

    peers: Peers
    rank: int

    def wait_for(self, find: Callable[[], Stores | None], place: str) -> Stores | None:
        """The stores, when it has built them; None: they do not appear, so build them here.

        Raises:
            PlmError: They do not appear, and this is not the first process of its machine.
        """
        finished: float | None = None
        while (stores := find()) is None:
            if finished is None and self.peers.facts_of(BUILT, self.rank) is not None:
                finished = time.monotonic()
            if finished is not None and time.monotonic() - finished > _APPEARS:
                if self.peers.is_first_here:  # its copy of the text is another one
                    return None
                raise PlmError(
                    f"process {self.peers.rank} on {platform.node()}: process {self.rank} has "
                    f"built the token store, and it is not in {place}",
                    "data.store must be a folder that the processes of a machine share",
                )
            time.sleep(0.5)
        return stores


BUILT = "text"  # the facts that a process has when its text is prepared


def builder_of(peers: Peers, store: str) -> StoreBuilder | None:
    """The process that builds the stores for this one; None: this process does it.

    Args:
        peers: The processes of the run, all of which call this.
        store: Folder or URL of all stores; a URL is the same on all machines.
    """
    several = peers.on_several_machines
    shared = several and (is_url(store) or sees_folder_of_main(peers, Path(store)))
    if not peers.is_first_here:
        return StoreBuilder(peers, peers.rank - int(os.environ["LOCAL_RANK"]))
    return StoreBuilder(peers, 0) if shared and peers.rank > 0 else None


def sees_folder_of_main(peers: Peers, folder: Path) -> bool:
    """Whether a folder of this process is that of process 0; called by all of them."""
    mark = folder / f".shared-{peers.rank}-{os.getpid()}-{platform.node()}"
    if peers.rank == 0:
        with writing(mark):
            folder.mkdir(parents=True, exist_ok=True)
            mark.touch()
    marks = peers.compare("store mark", {"name": mark.name})
    seen: bool = (folder / marks[0]["name"]).exists()
    peers.compare("store seen", {"seen": seen})
    mark.unlink(missing_ok=True)
    return seen


def _stores(
    data: DataConfig,
    *,
    by: PrepareConfig,
    encoder: Encoder,
    tokenizer: str,
    every_byte: bool,
    words_needed: bool,
    builder: StoreBuilder | None,
) -> tuple[Stores, bool]:
    """The stores, and whether they were built now."""
    root = store_root(data.store, by.cache, by.cache_size)
    stores = find_stores(data, encoder, root=root, every_byte=every_byte)
    if stores is None and builder is not None:
        place = str(root.absolute()) if isinstance(root, Path) else data.store
        stores = builder.wait_for(partial(find_stores, data, encoder, root=root), place)
    new = stores is None
    if stores is None:
        executor = _executor(by)
        say(f"preparing {', '.join(data.train)} with {tokenizer}")
        with work_progress("preparing") as progress:
            stores = build_stores(
                data,
                encoder,
                root=root,
                processes=None if by.workers == "auto" else by.workers,
                executor=executor,
                progress=progress,
                notice=say,
                words_needed=words_needed,
                every_byte=every_byte,
            )
    if isinstance(root, RemoteRoot):
        _say_if_too_large(stores, data.store, root.limit)
    return stores, new


def _say_if_too_large(stores: Stores, name: str, limit: int) -> None:
    """A store at a URL that does not fit into the local cache is fetched again and again."""
    counts, width = stores.manifest["train"], token_dtype(stores.manifest["vocab_size"]).itemsize
    size = counts["tokens"] * (width + 1 / 8) + 4 * (counts["sentences"] + counts["documents"])
    if size > limit:
        say(
            f"{name}: the store has {size / 1e9:.1f} GB, and the cache keeps {limit / 1e9:.1f} GB: "
            "training reads in random order, so that parts are fetched many times; increase "
            "prepare.cache_size, or train where the whole store fits"
        )


def _executor(by: PrepareConfig) -> Executor | None:
    """Who builds shards instead of this machine.

    Raises:
        ConfigError: A library or a command is missing.
    """
    if by.executor == "local":
        return None
    from plmctl.corpus.executors import Machines

    machines = Machines(by, say)
    machines.check()
    return machines


# --- Mixtures: a store for each source ---


def _prepare_mixture(
    config: PretrainConfig,
    encoder: Encoder,
    open_or_build: Callable[[DataConfig], tuple[Stores, bool]],
) -> PreparedText:
    """A store for each source."""
    data = data_of(config)
    opened = [open_or_build(one) for one in data_of_stores(config)]
    built = [stores for stores, _ in opened]
    _report(config, dict(zip([source.name for source in data.mixture], built, strict=True)))
    weights = _weights(data, built)
    parts = list(zip(data.mixture, weights, built, strict=True))
    held_out = [(one.name, weight, Path(s.valid)) for one, weight, s in parts if s.valid]
    empty = [source.name for source, _, stores in parts if stores.valid is None]
    if data.valid and held_out and empty and not isinstance(data.valid, tuple):
        say(f"no document of {', '.join(empty)} is held out: it is missing from the validation")
    digest = mixed_digest([s.digest for s in built], weights)
    return PreparedText(
        _mixed([(source.name, weight, stores.train) for source, weight, stores in parts]),
        _mixed(held_out) if held_out else None,
        {"data": digest, "tokenizer": encoder.fingerprint},
        "; ".join(f"{one.name}: {_sentence_rule(config, stores)}" for one, _, stores in parts),
        tuple(stores.words for stores in built),
        tuple(stores.word_rule for stores in built),
        any(is_new for _, is_new in opened),
        tuple(stores.manifest for stores in built),
    )


def _weights(data: DataConfig, built: Sequence[Stores]) -> list[float]:
    """The weights of the sources: those of the config, or by size (Conneau et al., 2020, XLM-R).

    By size they are shares, the sizes to the power of ``mixture_alpha`` over their sum; a line says
    how often an epoch of the mixture, which has as many samples as all sources, reads each of them.
    """
    alpha = data.mixture_alpha
    if alpha is None:
        return [source.weight or 0.0 for source in data.mixture]  # the config has all of them
    sizes = [int(stores.manifest["train"]["tokens"]) for stores in built]
    powers = [size**alpha for size in sizes]
    shares = [power / sum(powers) for power in powers]
    for source, size, share in zip(data.mixture, sizes, shares, strict=True):
        say(
            f"mixture: {source.name} has {size / sum(sizes):.1%} of the tokens and is {share:.1%} "
            f"of the samples: an epoch reads it {share * sum(sizes) / size:.2f} times"
        )
    return shares


def _mixed(parts: list[tuple[str, float, Path]]) -> Corpus:
    stores = tuple(TokenStore.open(folder) for _, _, folder in parts)
    if len(stores) == 1:
        return stores[0]
    names, weights = zip(*((name, weight) for name, weight, _ in parts), strict=True)
    return MixedStore(names, stores, weights)
