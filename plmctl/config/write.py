"""Plain data as YAML that any reader takes for the same data."""

from __future__ import annotations

from typing import Any

import yaml

from plmctl.config.document import Loader


class _Dumper(yaml.SafeDumper):
    """Quotes what YAML 1.1 or 1.2 would not take for text, and keeps short lists in a line."""


# PyYAML's own rules are those of 1.1, to which `1e-4` is text: a run folder of that name needs
# its quotes as well as one named `yes`.
for _letter, _rules in Loader.yaml_implicit_resolvers.items():
    for _rule_tag, _rule in _rules:
        _Dumper.add_implicit_resolver(_rule_tag, _rule, [_letter])


def _list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    flow = not any(isinstance(item, dict | list) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=flow)


def _str(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    # Only this style escapes the rarer line breaks; in the others PyYAML folds them away.
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"'
    )


_Dumper.add_representer(list, _list)
_Dumper.add_representer(str, _str)


def to_yaml(data: dict[str, Any]) -> str:
    """Data as block YAML, in the order of its keys."""
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
