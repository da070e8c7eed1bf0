"""``plmctl config list`` and ``explain``: the configs there are, and what their keys mean."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml
from rich.table import Table
from rich.text import Text

from plmctl import registry
from plmctl.config.document import read_document
from plmctl.config.keys import ConfigKey, keys_of, near_keys, plain_name, same_key
from plmctl.config.load import (
    COMMANDS,
    KINDS,
    Kind,
    Shipped,
    configs_folder,
    kind_of,
    schema_of,
    shipped_configs,
)
from plmctl.corpus import sample
from plmctl.errors import ConfigError, did_you_mean
from plmctl.run.configs import model_of
from plmctl.run.display import say, show_result

# --- The list ---


# The folders of the registry, and how a config names a member.
_FOLDERS = {
    "families": "model: {family: ...}",
    "objectives": "objective: {name: ...}",
    "optimizers": "optim: {name: ...}",
    "tasks": "task: {name: ...}",
    "measures": "measures: [{name: ...}]",
}


def run(words: Sequence[str], *, as_json: bool) -> None:
    """List configs and members.

    Configs are the shipped ones, and those under ``configs`` of the working directory. Published
    recipes come before demos, proofs and ablations, which are in folders.

    Args:
        words: Only names and descriptions with all of them.
    """

    def matching(known: Mapping[str, str]) -> dict[str, str]:
        return {
            name: about
            for name, about in sorted(known.items(), key=lambda item: item[0].count("/"))
            if all(word.lower() in f"{name} {about}".lower() for word in words)
        }

    files = {kind: matching(known) for kind, known in _configs().items()}
    members = {
        folder: matching({name: _summary(folder, name) for name in registry.names(folder)})
        for folder in _FOLDERS
    }
    samples = {
        kind: list(matching(dict.fromkeys((f"sample:{name}" for name in names), _SAMPLES[kind])))
        for kind, names in (("text", sample.text_names()), ("labelled", sample.table_names()))
    }
    samples = {kind: [name.removeprefix("sample:") for name in of] for kind, of in samples.items()}
    tables = [
        *(_table(f"configs for plmctl {COMMANDS[kind]}", files[kind]) for kind in KINDS),
        *(_table(key, members[folder]) for folder, key in _FOLDERS.items()),
        _table(
            "data: {train: [...]}",
            {f"sample:{name}": _SAMPLES[kind] for kind in samples for name in samples[kind]},
        ),
    ]
    shown = [table for table in tables if table.row_count]
    document = {
        "configs": files,
        "folder": str(configs_folder()),
        "members": members,
        "samples": samples,
    }
    if not shown:
        raise ConfigError(
            f"no config and no name has {' and '.join(map(repr, words))}", "leave a word out"
        )
    show_result(document, shown, as_json=as_json, whole=True)
    if not as_json:
        say(_COPY.format(configs_folder()))


_COPY = "the shipped configs are in {}; `plmctl config copy NAME FILE` copies one"
_SAMPLES = {"text": "text that a package carries", "labelled": "labelled rows made from it"}


def _configs() -> dict[Kind, dict[str, str]]:
    """Configs by kind and by what is typed for them, with what their first lines say about them."""
    summaries: dict[Kind, dict[str, str]] = {kind: {} for kind in KINDS}
    for one in shipped_configs():
        summaries[one.kind][one.name] = _comment(one.path)
    here = Path("configs")
    if here.resolve() == configs_folder().resolve():
        return summaries
    for path in sorted(here.rglob("*.yaml")):
        try:
            summaries[kind_of(path)][str(path)] = _comment(path)
        except ConfigError:  # another program's YAML
            continue
    return summaries


def _comment(path: Path) -> str:
    """The first sentence of the comment that a config begins with, less its command line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = list(takewhile(lambda line: line.startswith("#"), lines))
    text = " ".join(line.lstrip("# ") for line in comment if not line.startswith("# plmctl"))
    return re.split(r"(?<=\.) (?=[A-Z])", text)[0]


def _summary(folder: str, name: str) -> str:
    """The first line of what a member's config says it is."""
    doc = registry.load(folder, name).Config.__doc__ or ""
    return str(doc.strip().partition("\n")[0])


def _table(title: str, rows: Mapping[str, str]) -> Table:
    table = Table(
        title=Text(title, style="bold"), title_justify="left", box=None, show_header=False
    )
    longest = max(map(len, rows), default=0) + 2
    table.add_column(no_wrap=True, style="cyan", min_width=longest)
    table.add_column(no_wrap=True, overflow="ellipsis")  # a line each; a pipe has all of it
    for name, line in rows.items():
        table.add_row(Text(f"  {name}"), Text(line))
    return table


# --- What a key means ---


def explain(name: str, *, as_json: bool) -> None:
    """Print what a key means, in each kind of config that has it.

    Args:
        name: As in an override; the place in a list may be left out (``train.phases.steps``).

    Raises:
        ConfigError: No kind of config has such a key; the message has near ones.
    """
    keys = {kind: list(keys_of(schema_of(model_of(kind)))) for kind in KINDS}
    entries: list[dict[str, Any]] = []
    for kind in KINDS:
        for key in same_key(keys[kind], name):
            below = [one.name for one in keys[kind] if _is_below(one, key)]
            meaning: dict[str, Any] = {
                "key": key.name,
                "value": key.value,
                "default": key.default,
                "required": key.required,
                "help": key.help,
                "keys": list(dict.fromkeys(below)),
            }
            same = next((one for one in entries if meaning.items() <= one.items()), None)
            if same is None:
                same = meaning | {"kinds": [], "members": [], "example": example_of(kind, key)}
                entries.append(same)
            same["kinds"] += [kind] * (kind not in same["kinds"])
            same["members"] += [key.member] * bool(key.member and key.member not in same["members"])
    if not entries:
        near = near_keys([one for kind in KINDS for one in keys[kind]], name)
        raise ConfigError(
            f"{name}: no config has this key{did_you_mean(near)}",
            "docs/configuration.md and `plmctl config schema KIND` list all keys",
        )
    show_result({"keys": entries}, [_meaning_table(one) for one in entries], as_json=as_json)


def _is_below(one: ConfigKey, key: ConfigKey) -> bool:
    """Whether a key is directly in another; a member's only in that of its member."""
    inside = plain_name(one.name).rpartition(".")[0] == plain_name(key.name)
    return inside and one.member == key.member


def example_of(kind: Kind, key: ConfigKey) -> str:
    """An override of a shipped config, with the value that is written there, or with another."""
    command = f"plmctl {COMMANDS[kind]}"
    written = key.name.replace("[]", ".0")
    for config, data in _shipped_data(kind):
        for value in _values(data, key):
            return f"{command} {config} {shlex.quote(f'{written}={_flow(value)}')}"
    other = [choice for choice in key.choices if choice != key.default]
    value = next(iter(other), key.default if key.default not in ("", "empty") else "...")
    return "" if key.section else f"{command} CONFIG {shlex.quote(f'{written}={value}')}"


@cache
def _shipped_data(kind: Kind) -> list[tuple[str, dict[str, Any]]]:
    """The shipped configs of a kind as they are written, by name; those of folders come last."""
    ours = sorted((one for one in shipped_configs() if one.kind == kind), key=_depth)
    return [(one.name, read_document(one.path).data) for one in ours]


def _depth(one: Shipped) -> int:
    return one.name.count("/")


def _values(data: Any, key: ConfigKey) -> Iterator[Any]:
    """The values that a config gives a key; of a member's key, only if it names the member."""
    top = plain_name(key.name).partition(".")[0]
    named = yaml.safe_load(key.member)[top] if key.member else {}
    wanted = named[0] if isinstance(named, list) else named
    level = [data]
    for part in plain_name(key.name).split("."):
        items = [item for one in level for item in (one if isinstance(one, list) else [one])]
        level = [one[part] for one in items if isinstance(one, dict) and part in one]
        if part == top:
            flat = [item for one in level for item in (one if isinstance(one, list) else [one])]
            level = [one for one in flat if wanted.items() <= one.items()] if wanted else level
    yield from level


def _flow(value: Any) -> str:
    """A value as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.strip().removesuffix("...").strip()


def _meaning_table(entry: Mapping[str, Any]) -> Table:
    kinds = ", ".join(COMMANDS[kind] for kind in entry["kinds"])
    default = "none: it must be given" if entry["required"] else entry["default"]
    rows = {
        "for": "\n".join([f"plmctl {kinds}", *entry["members"]]),
        "meaning": entry["help"],
        "value": entry["value"].replace("`", ""),
        "default": default,
        "keys": "\n".join(entry["keys"]),
        "example": entry["example"],
    }
    title = Text(entry["key"], style="bold")
    table = Table(title=title, title_justify="left", box=None, show_header=False)
    table.add_column(no_wrap=True, style="cyan")
    table.add_column(overflow="fold")
    for name, text in rows.items():
        if text:
            table.add_row(Text(f"  {name}"), Text(text))
    return table
