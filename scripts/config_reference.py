"""Write docs/configuration.md from the config models.

python scripts/config_reference.py            write it
python scripts/config_reference.py --check    exit 1 if it is not up to date
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from plmctl.config.load import KINDS, Kind, schema_of
from plmctl.run.configs import model_of

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"

INTRODUCTION = """# Configuration

This page is made from the config models by `make docs`; `plmctl config schema KIND` prints the same
as JSON Schema, for editors.

A config is a YAML file, and each kind is for one command. `plmctl config list` names the configs
that come with plmctl, and `plmctl config show CONFIG` prints one with every default written out.

- **Names.** CONFIG is a file, or the name of a shipped config from any folder: its path below
  `configs/KIND/` without `.yaml` (`bert-base`, `glue/bert/mnli`), below `configs/`
  (`pretrain/gpt1`, `demo/pretrain`), or the whole (`configs/pretrain/bert-base.yaml`). A file of
  that name in the working directory wins. `plmctl config copy NAME FILE` writes a copy to edit.
- **Overrides.** `KEY=VALUE` after the file sets a key, and later ones win: `optim.lr=1e-3`,
  `'data.train=[a.txt, b.txt]'`, `train.phases.0.steps=2000` (0 is the first item of the list).
  Values are YAML.
- **Numbers.** YAML 1.2: `1e-4` is a number, and `yes`, `no`, `on` and `off` are text. `10_000`,
  `10k` and `2B` are counts, `500MB` is a size, `6%` is a share.
- **Paths** are relative to the working directory. In globs, `**` stands for any folders.
- **Empty** means `null`, or nothing after the colon.
- **Mistakes** are reported all at once, each with file, line, column and key, and the nearest known
  key. Nothing is run or written then, and the exit code is 2.
"""

TITLES: dict[Kind, str] = {
    "tokenizer": "A tokenizer: `plmctl train-tokenizer`",
    "pretrain": "Pretraining: `plmctl prepare`, `plmctl pretrain`",
    "finetune": "Finetuning: `plmctl finetune`",
    "eval": "Evaluation: `plmctl eval`",
}

TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true, false",
    "null": "empty",
    "object": "keys",
}
LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}

Schema = dict[str, Any]


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for kind in KINDS:
        schema = schema_of(model_of(kind))
        parts.append(f"## {TITLES[kind]}\n\n{schema['description']}\n\n{table(schema, schema)}")
        parts += members(schema)
    return "\n".join(parts)


def members(schema: Schema) -> Iterator[str]:
    """A section for each thing that a key can name."""
    for key, field in schema["properties"].items():
        union = union_of(field)
        for name, reference in union.get("mapping", {}).items():
            tag, member = union["propertyName"], resolve({"$ref": reference}, schema)
            written = f"{{{tag}: {name}}}"
            written = f"[{written}]" if field.get("type") == "array" else written
            # The key that names it stands in the title.
            named = {**member, "properties": {**member["properties"]}}
            del named["properties"][tag]
            yield f"### `{key}: {written}`\n\n{member['description']}\n\n{table(named, schema)}"


def table(model: Schema, schema: Schema) -> str:
    if not model["properties"]:
        return "It has no further keys.\n"
    lines = ["| key | value | default | |", "| --- | --- | --- | --- |"]
    for key, field, needed in rows(model, schema):
        default = "**needed**" if needed else shown(field)
        cells = (f"`{key}`", typed(field, schema), default, field.get("description", ""))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"


def rows(model: Schema, schema: Schema, prefix: str = "") -> Iterator[tuple[str, Schema, bool]]:
    """Each key that holds a value, dotted; a key that holds keys is followed by those keys."""
    for name, field in model["properties"].items():
        key = prefix + name
        inner = resolve(field, schema)
        items = resolve(inner.get("items", {}), schema)
        needed = name in model.get("required", ())
        if "properties" in inner:
            yield from rows(inner, schema, f"{key}.")
        elif "properties" in items:
            yield key, {**field, "type": "array", "items": {"type": "object"}}, needed
            yield from rows(items, schema, f"{key}[].")
        else:
            yield key, {**inner, **field}, needed
            for choice in field.get("anyOf", ()):  # keys that may be left out, or a plain value
                whole = resolve(choice, schema)
                yield from rows(whole, schema, f"{key}.") if "properties" in whole else ()


def typed(field: Schema, schema: Schema) -> str:
    """What may stand there, for people."""
    field = {**resolve(field, schema), **field}
    union = union_of(field)
    if union:
        names = ", ".join(f"`{name}`" for name in union["mapping"])
        return f"one or more of {names}" if field.get("type") == "array" else f"one of {names}"
    if "examples" in field:  # a number with a unit
        return "such as " + " or ".join(f"`{example}`" for example in field["examples"])
    if "const" in field or "enum" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    if "anyOf" in field:
        return ", or ".join(typed(part, schema) for part in field["anyOf"])
    if field["type"] == "array" and "prefixItems" in field:
        return f"list of {len(field['prefixItems'])}: {typed(field['prefixItems'][0], schema)}"
    if field["type"] == "array":
        return f"list of {typed(field['items'], schema)}"
    limits = [f"{sign} {field[word]:g}" for word, sign in LIMITS.items() if word in field]
    return " ".join([TYPES[field["type"]], ", ".join(limits)]).strip()


def union_of(field: Schema) -> Schema:
    return field.get("discriminator") or field.get("items", {}).get("discriminator") or {}


def resolve(field: Schema, schema: Schema) -> Schema:
    reference = field.get("$ref")
    return schema["$defs"][reference.removeprefix("#/$defs/")] if reference else field


def shown(field: Schema) -> str:
    """The default; none stands here where it depends on other keys."""
    value = field.get("default")
    if value is None:
        return "empty" if "default" in field else ""
    return f"`{value}`" if isinstance(value, str) else f"`{json.dumps(value)}`"


def main() -> None:
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        raise SystemExit(f"{PAGE.name} is not up to date: run `make docs`")


if __name__ == "__main__":
    main()
