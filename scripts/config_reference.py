"""Write docs/configuration.md from the config models.

python scripts/config_reference.py            write it
python scripts/config_reference.py --check    exit 1 if it is not up to date
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from plmctl.config.keys import ConfigKey, Schema, keys_of, members_of
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
  that name in the working directory wins, also if its `.yaml` is left out; the command prints which
  file it uses. `plmctl config copy NAME FILE` writes a copy to edit.
- **Help.** `plmctl config explain KEY` prints what this page has about a key, with an example.
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


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for kind in KINDS:
        schema = schema_of(model_of(kind))
        tags = {prefix + tag for _, tag, prefix, _, _ in members_of(schema)}
        keys = [one for one in keys_of(schema) if not one.member and one.name not in tags]
        parts.append(f"## {TITLES[kind]}\n\n{schema['description']}\n\n{table(keys)}")
        parts += members(schema)
    return "\n".join(parts)


def members(schema: Schema) -> Iterator[str]:
    """A section for each thing that a key can name."""
    keys = list(keys_of(schema))
    for member, tag, prefix, model, _ in members_of(schema):
        # The key that names it stands in the title.
        own = [one for one in keys if one.member == member and one.name != prefix + tag]
        yield f"### `{member}`\n\n{model['description']}\n\n{table(own, prefix)}"


def table(keys: list[ConfigKey], prefix: str = "") -> str:
    """A row per key that holds a value; the keys of a member are without their prefix."""
    lines = ["| key | value | default | |", "| --- | --- | --- | --- |"]
    for key in keys:
        name = key.name.removeprefix(prefix)
        default = f"`{key.default}`" if key.default not in ("", "empty") else key.default
        cells = (f"`{name}`", key.value, "**needed**" if key.required else default, key.help)
        if not key.section:
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else "It has no further keys.\n"


def main() -> None:
    text = page()
    if "--check" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    elif not PAGE.is_file() or PAGE.read_text(encoding="utf-8") != text:
        raise SystemExit(f"{PAGE.name} is not up to date: run `make docs`")


if __name__ == "__main__":
    main()
