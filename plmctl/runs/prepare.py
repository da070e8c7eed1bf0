"""``plmctl prepare``: corpus and tokenizer to token stores, once."""

import time
from dataclasses import dataclass
from pathlib import Path

from plmctl import families, objectives, registry
from plmctl.config.pretrain import PretrainConfig
from plmctl.corpus.build import Stores, build, find
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError
from plmctl.reporting.tables import figures_table
from plmctl.runs import launch
from plmctl.runs.say import say, show
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.vocab import TOKEN_NAMES, Vocab
from plmctl.training.display import work_progress


@dataclass(frozen=True)
class Prepared:
    """What pretraining reads."""

    train: TokenStore
    valid: TokenStore | None
    vocab: Vocab
    hashes: dict[str, str]
    """Of the data and the tokenizer, for ``environment.json``."""


def run(config: PretrainConfig, *, as_json: bool) -> None:
    """Build the token stores of a pretraining config, and say what is in them."""
    began = time.perf_counter()
    prepared = prepare(config)
    figures: dict[str, object] = {
        "documents": prepared.train.num_documents,
        "sentences": prepared.train.num_sentences,
        "tokens": prepared.train.num_tokens,
        "validation tokens": prepared.valid.num_tokens if prepared.valid else 0,
        "seconds": round(time.perf_counter() - began, 1),
        "folder": str(prepared.train.path),
    }
    show(figures, [figures_table("token store", figures)], as_json=as_json)


def prepare(config: PretrainConfig) -> Prepared:
    """The stores of a config: found if they are there, else built.

    Under a launcher the main process builds and the others wait for the folder to appear; no
    collective waits with them, so that no time-out can end a long build.

    Raises:
        ConfigError: As ``check_objective``, before any text is read.
    """
    encoder = Encoder(config.tokenizer, config.data.words)
    vocab = Vocab.from_folder(config.tokenizer)
    check_objective(config, vocab)
    root = Path(config.data.store)
    stores = find(config.data, encoder, root=root)
    while stores is None and not launch.is_main():
        time.sleep(0.5)
        stores = find(config.data, encoder, root=root)
    if stores is None:
        say(f"preparing {', '.join(config.data.train)} with {config.tokenizer}")
        stores = _build(config, encoder, root)
    return Prepared(
        TokenStore.open(stores.train),
        TokenStore.open(stores.valid) if stores.valid else None,
        vocab,
        {"data": stores.digest, "tokenizer": encoder.fingerprint},
    )


def check_objective(config: PretrainConfig, vocab: Vocab) -> None:
    """Refuse an objective that the family or the tokenizer cannot serve.

    Raises:
        ConfigError: The family has no heads for it, or the tokenizer lacks a token; with what fits.
    """
    family, objective = config.model.family, config.objective.name
    member, heads = objectives.get(objective), families.get(family).HEADS
    fitting = [name for name in registry.names("objectives") if families.fits(family, name)]
    if objective not in fitting and set(member.PARTS) <= set(heads):
        stacks = "an encoder and a decoder", "one stack of layers"
        ours = getattr(member, "ENCODER_DECODER", False)
        raise ConfigError(
            f"objective.name: {objective} needs {stacks[not ours]}; "
            f"the family {family} has {stacks[ours]}",
            f"objectives that fit it: {', '.join(fitting)}",
        )
    if objective not in fitting:
        raise ConfigError(
            f"objective.name: {objective} needs heads for {' and '.join(member.PARTS)}; "
            f"the family {family} has {' and '.join(heads)}",
            f"objectives that fit it: {', '.join(fitting)}",
        )
    needed = getattr(member, "TOKENS", ())
    missing = [TOKEN_NAMES[name] for name in needed if getattr(vocab, name) in (None, ())]
    if missing:
        raise ConfigError(
            f"tokenizer: {config.tokenizer} has no {', '.join(missing)}, which the objective "
            f"{objective} needs",
            f"train one with `algorithm: {families.get(family).TOKENIZER}` and a `family` that has "
            "it, such as the network's own",
        )


def _build(config: PretrainConfig, encoder: Encoder, root: Path) -> Stores:
    with work_progress("preparing") as progress:
        return build(config.data, encoder, root=root, processes=None, progress=progress)
