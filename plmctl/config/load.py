"""From a YAML file to a frozen config, or to every mistake in it at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from pydantic import ValidationError

from plmctl.config.base import Model
from plmctl.config.document import Document, Fault, read
from plmctl.config.mistakes import faults
from plmctl.config.overrides import override
from plmctl.config.write import to_yaml
from plmctl.errors import ConfigError

if TYPE_CHECKING:
    from plmctl.config.evaluate import EvalConfig
    from plmctl.config.finetune import FinetuneConfig
    from plmctl.config.pretrain import PretrainConfig
    from plmctl.config.tokenizer import TokenizerConfig

M = TypeVar("M", bound=Model)
Kind = Literal["tokenizer", "pretrain", "finetune", "eval"]
KINDS: tuple[Kind, ...] = ("tokenizer", "pretrain", "finetune", "eval")

# The key that only this kind of config has.
_MARKS: dict[Kind, str] = {
    "tokenizer": "algorithm",
    "pretrain": "tokenizer",
    "finetune": "task",
    "eval": "measures",
}


def model_of(kind: Kind) -> type[Model]:
    """The config model of a kind."""
    # Imported one by one: each loads the members of its folders.
    if kind == "tokenizer":
        from plmctl.config.tokenizer import TokenizerConfig

        return TokenizerConfig
    if kind == "pretrain":
        from plmctl.config.pretrain import PretrainConfig

        return PretrainConfig
    if kind == "finetune":
        from plmctl.config.finetune import FinetuneConfig

        return FinetuneConfig
    from plmctl.config.evaluate import EvalConfig

    return EvalConfig


def kind_of(path: str | Path, overrides: Sequence[str] = ()) -> Kind:
    """Which command a file is for, from its keys.

    Raises:
        ConfigError: It cannot be read, or has the mark of none.
    """
    document = _read(path, overrides)
    for kind, mark in _MARKS.items():
        if mark in document.data:
            return kind
    raise ConfigError(
        f"{document.name}: no config of plmctl",
        "a tokenizer's has the key `algorithm`, pretraining `tokenizer`, finetuning `task`, "
        "evaluation `measures`",
    )


@overload
def load(
    kind: Literal["tokenizer"], path: str | Path, overrides: Sequence[str] = ()
) -> TokenizerConfig: ...
@overload
def load(
    kind: Literal["pretrain"], path: str | Path, overrides: Sequence[str] = ()
) -> PretrainConfig: ...
@overload
def load(
    kind: Literal["finetune"], path: str | Path, overrides: Sequence[str] = ()
) -> FinetuneConfig: ...
@overload
def load(kind: Literal["eval"], path: str | Path, overrides: Sequence[str] = ()) -> EvalConfig: ...
@overload
def load(kind: Kind, path: str | Path, overrides: Sequence[str] = ()) -> Model: ...


def load(kind: Kind, path: str | Path, overrides: Sequence[str] = ()) -> Model:
    """The config in a file, with ``KEY=VALUE`` overrides, later ones over earlier ones.

    Raises:
        ConfigError: Every mistake, each as ``file:line:column: key: what was expected``, or that
            the file is for another command.
    """
    document = _read(path, overrides)
    other = next((k for k, mark in _MARKS.items() if mark in document.data), kind)
    if other != kind and _MARKS[kind] not in document.data:
        command = "train-tokenizer" if other == "tokenizer" else other
        raise ConfigError(
            f"{document.name}: this config is for another command", f"use `plmctl {command}`"
        )
    return _validated(model_of(kind), document)


def parse(model: type[M], path: str | Path) -> M:
    """The config of a known model in a file; errors as ``load``."""
    return _validated(model, _read(path))


def dump(config: Model) -> str:
    """A config as YAML, every default written out and every unit resolved; ``load`` reads it."""
    return to_yaml(config.model_dump(mode="json"))


def difference(before: Model, after: Model) -> list[str]:
    """What differs, as ``key: before -> after``."""
    old, new = (dict(_leaves(model.model_dump(mode="json"))) for model in (before, after))
    return [
        f"{key}: {_shown(old, key)} -> {_shown(new, key)}"
        for key in {**old, **new}
        if _shown(old, key) != _shown(new, key)
    ]


def _shown(leaves: dict[str, Any], key: str) -> str:
    return json.dumps(leaves[key], ensure_ascii=False) if key in leaves else "(not there)"


def _leaves(data: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Values by dotted key; a list of mappings by number, any other list as a whole."""
    if isinstance(data, list) and any(isinstance(item, dict) for item in data):
        data = dict(enumerate(data))
    if not isinstance(data, dict):
        yield key, data
        return
    for name, value in data.items():
        yield from _leaves(value, f"{key}.{name}" if key else name)


def _read(path: str | Path, overrides: Sequence[str] = ()) -> Document:
    document = read(path)
    override(document, overrides)
    return document


def _validated(model: type[M], document: Document) -> M:
    found: list[Fault] = list(document.faults)
    try:
        # Through JSON, where strict is what a user expects: no "10" for 10, but lists for tuples.
        config = model.model_validate_json(json.dumps(document.data), strict=True)
    except ValidationError as error:
        found += faults(model, document, error.errors(include_url=False))
    if found:
        count = f"{len(found)} mistakes\n  " if len(found) > 1 else ""
        raise ConfigError(count + "\n  ".join(map(str, sorted(found))))
    return config
