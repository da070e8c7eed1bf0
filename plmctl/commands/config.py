"""``plmctl config list``, ``explain`` and ``show --sources``: configs, their keys and sources."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

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
from plmctl.reporting.tables import metrics_table
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
        *(
            _table(
                f"configs for plmctl {COMMANDS[kind]}",
                files[kind] if words else _folded(files[kind]),
            )
            for kind in KINDS
        ),
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


def _folded(files: Mapping[str, str]) -> dict[str, str]:
    """Configs in folders as one row a folder: without words the list is for an overview."""
    rows, inside = dict[str, str](), dict[str, list[str]]()
    for name, about in files.items():
        folder, _, below = name.partition("/")
        if below and folder != "configs":  # the user's own files have a row each
            inside.setdefault(folder, []).append(below)
        else:
            rows[name] = about
    for folder, names in inside.items():
        about = f"`plmctl config list {folder}/`: {', '.join(names)}"
        rows[f"{folder}/ ({len(names)})"] = about
    return rows


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
                same["published"] = _published(kind, key)
                entries.append(same)
            same["kinds"] += [kind] * (kind not in same["kinds"])
            same["members"] += [key.member] * bool(key.member and key.member not in same["members"])
    if not entries:
        near = near_keys([one for kind in KINDS for one in keys[kind]], name)
        raise ConfigError(
            f"{name}: no config has this key{did_you_mean(near)}",
            "`plmctl docs configuration` and `plmctl config schema KIND` list all keys",
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
    """The values that a config gives a key; of a member's key, only if it names the member.

    Of a list the first item, which is the one that an example sets.
    """
    top = plain_name(key.name).partition(".")[0]
    named = yaml.safe_load(key.member)[top] if key.member else {}
    wanted = named[0] if isinstance(named, list) else named
    level = [data]
    for part in plain_name(key.name).split("."):
        items = [item for one in level for item in (one[:1] if isinstance(one, list) else [one])]
        level = [one[part] for one in items if isinstance(one, dict) and part in one]
        if part == top:
            flat = [item for one in level for item in (one[:1] if isinstance(one, list) else [one])]
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
        "published": "\n".join(entry["published"]),
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


# --- Where the values of the shipped recipes come from ---


class PublishedRow(NamedTuple):
    """A value that a shipped config has from a paper or from published code.

    Attributes:
        file: The config, below ``configs/``.
        key: As in an override, or one of those that ``configs/sources.yml`` says are computed.
    """

    file: str
    key: str
    value: Any
    source: str
    family: str


@cache
def published_rows() -> tuple[PublishedRow, ...]:
    """The rows of ``configs/sources.yml``, with patterns of files expanded."""
    root, rows = configs_folder(), list[PublishedRow]()
    for group in read_document(root / "sources.yml").data["recipes"]:
        for pattern in group["files"]:
            files = sorted(path.relative_to(root).as_posix() for path in root.glob(pattern))
            assert files, f"{pattern}: no such config"
            for file in files:
                for source, values in group["sources"].items():
                    for key, value in values.items():
                        rows.append(PublishedRow(file, key, value, source, group["family"]))
    return tuple(rows)


def value_at(data: Any, key: str) -> Any:
    """The value of a config at a key such as ``train.phases.0.steps``; KeyError: it has none."""
    for part in key.split("."):
        if not isinstance(data, list | dict):
            raise KeyError(key)
        data = data[int(part)] if isinstance(data, list) else data[part]
    return data


def show_sources(path: Path, resolved: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the values of a config that come from a paper or from published code.

    Args:
        resolved: The config with its overrides, as plain data.

    Raises:
        ConfigError: Nothing of it is in the table.
    """
    rows = [row for row in published_rows() if configs_folder() / row.file == path]
    if not rows:
        raise ConfigError(
            f"{path}: no source is noted for this config",
            "a recipe of a paper has them: plmctl config show bert-base --sources",
        )
    known = list[dict[str, Any]]()
    for row in rows:
        entry = {"key": row.key, "value": row.value, "source": row.source, "here": row.value}
        with suppress(KeyError):  # a computed one
            entry["here"] = value_at(resolved, row.key)
        known.append(entry)
    by_source: dict[str, dict[str, object]] = {}
    for one in known:
        here, there = _flow(one["here"]), _flow(one["value"])
        value = here if here == there else f"{here} (there {there})"
        by_source.setdefault(one["source"], {})[one["key"]] = value
    tables = [metrics_table(source, values) for source, values in by_source.items()]
    show_result({"sources": known}, tables, as_json=as_json)
    if not as_json:
        say("all other keys have plmctl's defaults: plmctl config show prints them")


def _leaf(member: Mapping[str, Any]) -> Iterator[Any]:
    """``optim.name`` and ``adamw`` of ``{optim: {name: adamw}}``; nothing of an empty one."""
    for top, named in member.items():
        for name, value in (named[0] if isinstance(named, list) else named).items():
            yield from (f"{top}.{name}", value)


_MOST_PUBLISHED = 6  # values of a key that are shown


def _published(kind: Kind, key: ConfigKey) -> list[str]:
    """``0.0001: bert-base, bert-large (Devlin et al., ...)``, the most common values first."""
    places = {f"{one.place}.yaml": one.name for one in shipped_configs() if one.kind == kind}
    member = [*_leaf(yaml.safe_load(key.member or "{}"))]
    of_member = {row.file for row in published_rows() if [row.key, row.value] == member}
    by_value: dict[str, list[PublishedRow]] = {}
    for row in published_rows():
        same = plain_name(key.name) == ".".join(p for p in row.key.split(".") if not p.isdigit())
        if same and row.file in places and (not member or row.file in of_member):
            by_value.setdefault(_flow(row.value), []).append(row)
    lines = list[str]()
    for value, rows in sorted(by_value.items(), key=lambda item: -len(item[1])):
        more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
        lines.append(f"{value}: {places[rows[0].file]}{more} ({rows[0].source})")
    rest = len(lines) - _MOST_PUBLISHED
    return lines[:_MOST_PUBLISHED] + ([f"and {rest} other values"] if rest > 0 else [])
