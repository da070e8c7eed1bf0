"""Continued pretraining: does the folder fit the config, and what is new in it?"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl import families
from plmctl.config.members import ModelConfig
from plmctl.config.pretrain import PretrainConfig
from plmctl.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

_OURS = set(ModelConfig.model_fields)


def check_continued(config: PretrainConfig, loaded: "PreTrainedConfig", needed: int) -> None:
    """Refuse a folder whose network or tokenizer is another one than the config's.

    Args:
        config: With ``model.init_from``.
        loaded: The folder's config.
        needed: Ids that the run's tokenizer has.

    Raises:
        ConfigError: A field of the network that the folder has otherwise; a token with another id;
            more ids than the network has, and no ``model.extend_vocab``.
    """
    _check_shape(config, loaded)
    if needed > loaded.vocab_size and config.model.extend_vocab is None:
        raise ConfigError(
            f"{config.tokenizer} has {needed:,} ids, but the vocabulary of "
            f"{config.model.init_from} has {loaded.vocab_size:,}",
            "use the tokenizer that the model was made with; or, if yours extends it, set "
            "`model.extend_vocab: subtokens`",
        )
    before = _own_tokenizer(config)
    if before is not None:
        _check_ids(config, before)


def dropout_of(config: PretrainConfig) -> dict[str, Any]:
    """The dropout that the config sets for a loaded network, where it is not the family's."""
    names = families.get(config.model.family).DROPOUT
    return {name: getattr(config.model, name) for name in _set(config) if name in names}


def new_ids(config: PretrainConfig, rows: int) -> dict[int, list[int]]:
    """For each id that the folder's tokenizer does not have, the old ids that stand for it.

    Args:
        config: With ``model.init_from`` and ``model.extend_vocab``.
        rows: Of the folder's embeddings, where the folder has no tokenizer.
    """
    from plmctl.tokenization.load import load_tokenizer

    tokenizer, before = load_tokenizer(config.tokenizer), _own_tokenizer(config)
    known = max(before.get_vocab().values()) + 1 if before is not None else rows
    found: dict[int, list[int]] = {}
    for token, id_ in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
        if id_ < known:
            continue
        found[id_] = []
        if config.model.extend_vocab == "subtokens" and before is not None:
            text = tokenizer.convert_tokens_to_string([token]).removeprefix("##").strip()
            pieces = before(text, add_special_tokens=False)["input_ids"]
            found[id_] = [piece for piece in pieces if piece != before.unk_token_id]
    return found


def _set(config: PretrainConfig) -> set[str]:
    """Fields that are not as they are by default: a resolved config names all of them."""
    fields = type(config.model).model_fields.items()
    return {n for n, f in fields if getattr(config.model, n) != f.default} - _OURS


def _check_shape(config: PretrainConfig, loaded: "PreTrainedConfig") -> None:
    """Compare with the network that the config would build, if it says anything of its shape."""
    import torch

    dropout = set(families.get(config.model.family).DROPOUT)
    if not _set(config) - dropout:
        return
    family = families.get(config.model.family)
    with torch.device("meta"):
        made = family.build(config.model, vocab_size=100, pad_id=0, parts=family.HEADS).config
    for name in sorted(set(type(config.model).model_fields) - _OURS - dropout):
        asked, there = getattr(made, name, None), getattr(loaded, name, None)
        if name not in _set(config) and "size" not in _set(config):
            continue
        if asked is not None and there is not None and asked != there:
            raise ConfigError(
                f"model: {config.model.init_from} has {name} {there}, and this config asks for "
                f"{asked}",
                "leave the size and its fields out: the folder says what they are",
            )


def _check_ids(config: PretrainConfig, before: "PreTrainedTokenizerBase") -> None:
    from plmctl.tokenization.load import load_tokenizer

    ours = load_tokenizer(config.tokenizer).get_vocab()
    for token, id_ in sorted(before.get_vocab().items(), key=lambda item: item[1]):
        if ours.get(token) != id_:
            now = f"as {ours[token]:,}" if token in ours else "not at all"
            raise ConfigError(
                f"tokenizer: {config.tokenizer} has {token!r} {now}, and the tokenizer of "
                f"{config.model.init_from} as {id_:,}",
                f"use `tokenizer: {config.model.init_from}`, or one that extends it "
                "(`plmctl train-tokenizer CONFIG --from FOLDER`)",
            )


def _own_tokenizer(config: PretrainConfig) -> "PreTrainedTokenizerBase | None":
    """The tokenizer that lies beside the weights, if one does."""
    from plmctl.tokenization.load import load_tokenizer

    source = str(config.model.init_from)
    if Path(source).is_dir() and not (Path(source) / "tokenizer.json").is_file():
        return None
    return load_tokenizer(source)
