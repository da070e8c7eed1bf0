"""Shell completion: names of configs, keys and their values. Nothing here imports torch.

A shell starts plmctl for every press of the tab key, so bodies import what they need.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from plmctl.config.keys import ConfigKey
    from plmctl.config.load import Kind

# The kinds of config that a command takes; any other command with a CONFIG takes all.
_KINDS: dict[str, tuple[Kind, ...]] = {
    "train-tokenizer": ("tokenizer",),
    "prepare": ("pretrain",),
    "preview": ("pretrain",),
    "pretrain": ("pretrain",),
    "plan": ("pretrain",),
    "finetune": ("finetune",),
    "eval": ("eval",),
    "suite": ("finetune",),
    "doctor": ("pretrain", "finetune"),
    "verify-resume": ("pretrain", "finetune"),
}


def complete_config(ctx: typer.Context, incomplete: str) -> list[str]:
    """Shipped configs that the command takes, and YAML files and folders."""
    from plmctl.config.load import shipped_configs

    kinds = _kinds(ctx)
    named = [one.name for one in shipped_configs() if one.kind in kinds]
    twice = {name for name in named if named.count(name) > 1}
    names = [
        one.place if one.name in twice else one.name
        for one in shipped_configs()
        if one.kind in kinds
    ]
    return [name for name in (*_files(incomplete), *names) if name.startswith(incomplete)]


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """``KEY=`` of the kinds of config that the command takes, and ``KEY=VALUE``.

    bash takes ``=`` as a word of its own: of ``compute.precision=bf`` the word to complete is
    ``bf``, and what stands before it is in the parsed arguments.
    """
    before = list(ctx.params.get("overrides") or ())
    if before[-1:] == ["="] and len(before) > 1:  # KEY = VAL
        return [value for value in _values(ctx, before[-2]) if value.startswith(incomplete)]
    # KEY =, of which Click makes KEY and an empty word; KEY = VALUE and an empty word is another.
    if incomplete == "" and before and "=" not in before[-1] and before[-2:-1] != ["="]:
        return _values(ctx, before[-1])
    key, equals, start = incomplete.partition("=")
    if equals:
        return [f"{key}={value}" for value in _values(ctx, key) if value.startswith(start)]
    keys = [one for one in _keys(_kinds(ctx)) if not one.section and "[]" not in one.name]
    names = sorted({one.name for one in keys if one.name.startswith(incomplete)})
    if len(names) == 1:  # with a value beside it the shell puts no space after the =
        return [f"{names[0]}=", *(f"{names[0]}={value}" for value in _values(ctx, names[0]))]
    return [f"{name}=" for name in names]


def complete_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Keys of all kinds of config."""
    names = sorted({one.name for one in _keys(_kinds(ctx))})
    return [name for name in names if name.startswith(incomplete)]


def complete_suite(incomplete: str) -> list[str]:
    """Suites, as they are written on a command line."""
    from plmctl.registry import names

    suites = [name.replace("_", "-") for name in names("suites")]
    return [name for name in suites if name.startswith(incomplete)]


def _kinds(ctx: typer.Context) -> tuple[Kind, ...]:
    from plmctl.config.load import KINDS, find_config, kind_of
    from plmctl.errors import PlmError

    kinds = _KINDS.get(ctx.info_name or "", KINDS)
    given = ctx.params.get("config")
    if given is None or len(kinds) == 1:
        return kinds
    try:
        return (kind_of(find_config(Path(given), kinds)),)
    except PlmError:  # not there yet, or half written
        return kinds


def _keys(kinds: tuple[Kind, ...]) -> list[ConfigKey]:
    from plmctl.config.keys import keys_of
    from plmctl.config.load import schema_of
    from plmctl.run.configs import model_of

    return [one for kind in kinds for one in keys_of(schema_of(model_of(kind)))]


def _values(ctx: typer.Context, name: str) -> list[str]:
    """The values of a key that can be listed, else its default."""
    from plmctl.config.keys import same_key

    keys = same_key(_keys(_kinds(ctx)), name)
    choices = dict.fromkeys(choice for one in keys for choice in one.choices)
    defaults = dict.fromkeys(one.default for one in keys)
    return list(choices) or [value for value in defaults if value not in ("", "empty")]


def _files(incomplete: str) -> list[str]:
    """YAML files and folders that begin so."""
    folder, name = os.path.split(incomplete)
    try:
        entries = sorted(os.scandir(folder or "."), key=lambda entry: entry.name)
    except OSError:
        return []
    return [
        os.path.join(folder, entry.name) + ("/" if entry.is_dir() else "")
        for entry in entries
        if entry.name.startswith(name)
        and (name or not entry.name.startswith("."))
        and (entry.is_dir() or entry.name.endswith((".yaml", ".yml")))
    ]
