"""``plmctl config list``: the configs there are, and what their keys can name."""

import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path

from rich.table import Table
from rich.text import Text

from plmctl import registry
from plmctl.config.load import KINDS, Kind, configs_folder, kind_of, shipped_configs
from plmctl.corpus import sample
from plmctl.errors import ConfigError
from plmctl.run.display import say, show_result

# The folders of the registry, and how a config names a member.
_FOLDERS = {
    "families": "model: {family: ...}",
    "objectives": "objective: {name: ...}",
    "optimizers": "optim: {name: ...}",
    "tasks": "task: {name: ...}",
    "measures": "measures: [{name: ...}]",
}


def run(*, as_json: bool) -> None:
    """Configs are the shipped ones, and those under ``configs`` of the working directory."""
    files = _configs()
    members = {
        folder: {name: _summary(folder, name) for name in registry.names(folder)}
        for folder in _FOLDERS
    }
    samples = {"text": sample.text_names(), "labelled": sample.table_names()}
    tables = [
        *(_table(f"configs for plmctl {_COMMANDS[kind]}", files[kind]) for kind in KINDS),
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
    show_result(document, shown, as_json=as_json, whole=True)
    if not as_json:
        say(_COPY.format(configs_folder()))


_COPY = "the shipped configs are in {}; `plmctl config copy NAME FILE` copies one"
_COMMANDS: dict[Kind, str] = {
    "tokenizer": "train-tokenizer",
    "pretrain": "pretrain",
    "finetune": "finetune",
    "eval": "eval",
}
_SAMPLES = {"text": "text that a package carries", "labelled": "labelled rows made from it"}


def _configs() -> dict[Kind, dict[str, str]]:
    """Configs by kind and by what is typed for them, with what their first lines say about them."""
    found: dict[Kind, dict[str, str]] = {kind: {} for kind in KINDS}
    for one in shipped_configs():
        found[one.kind][one.name] = _comment(one.path)
    here = Path("configs")
    if here.resolve() == configs_folder().resolve():
        return found
    for path in sorted(here.rglob("*.yaml")):
        try:
            found[kind_of(path)][str(path)] = _comment(path)
        except ConfigError:  # another program's YAML
            continue
    return found


def _comment(path: Path) -> str:
    """The first sentence of the comment that a config begins with, less its command line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = list(takewhile(lambda line: line.startswith("#"), lines))
    said = " ".join(line.lstrip("# ") for line in comment if not line.startswith("# plmctl"))
    return re.split(r"(?<=\.) (?=[A-Z])", said)[0]


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
