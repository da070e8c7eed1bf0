"""``plmctl config``: show, list, explain and copy configs, and print their schema."""

import json
from pathlib import Path
from typing import Annotated

import typer

from plmctl.cli.app import SETTINGS, ConfigFile, Json, Overrides, app, config_file, example
from plmctl.cli.completion import complete_key

config_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=SETTINGS,
    help="Show, list, explain and copy configs; print their schema.",
)

app.add_typer(config_app, name="config")


@config_app.command("show", epilog=example("plmctl config show bert-base schedule.warmup=6%"))
def config_show(
    config: ConfigFile,
    overrides: Overrides = None,
    sources: Annotated[
        bool,
        typer.Option("--sources", help="The published values instead, and where each stands."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Print a config in full.

    Every default, override and unit is resolved, as the run will use it.
    """
    from plmctl.config.load import dump, kind_of
    from plmctl.run.configs import load

    path = config_file(config)
    resolved = load(kind_of(path, overrides or ()), path, overrides or ())
    if sources:
        from plmctl.commands import config as command

        command.show_sources(path, json.loads(resolved.model_dump_json()), as_json=as_json)
        return
    typer.echo(resolved.model_dump_json() if as_json else dump(resolved).rstrip())


@config_app.command(
    "schema", epilog=example("plmctl config schema pretrain > pretrain.schema.json")
)
def config_schema(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="tokenizer, pretrain, finetune or eval.")
    ],
) -> None:
    """Print the JSON Schema of a kind of config.

    Editors complete and check YAML files with it.
    """
    from plmctl.run.configs import json_schema

    typer.echo(json_schema(kind))


@config_app.command("explain", epilog=example("plmctl config explain train.phases"))
def config_explain(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="A key as in an override, such as optim.lr or train.phases.0.steps.",
            autocompletion=complete_key,
        ),
    ],
    as_json: Json = False,
) -> None:
    """Explain a key.

    Prints what a key means, its values, units and default, and an example, for each kind of config
    that has it.
    """
    from plmctl.commands import config as command

    command.explain(key, as_json=as_json)


@config_app.command("list", epilog=example("plmctl config list bert"))
def config_list(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WORD", help="Only lines with all of these words.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List configs, and the names that they can use.

    Prints the shipped configs by the names that commands take in any folder, files under configs/
    of the working directory, and the names for model, objective, optim, task and measures.
    """
    from plmctl.commands import config as listing

    listing.run(words or (), as_json=as_json)


@config_app.command("copy", epilog=example("plmctl config copy bert-base mine.yaml"))
def config_copy(
    config: ConfigFile,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The file to write; it must not exist.")
    ],
) -> None:
    """Copy a shipped config to a new file, to edit it.

    The copy has the comments of the original, and no defaults. An existing FILE is never
    overwritten.
    """
    from plmctl.config.load import copy_config
    from plmctl.run.display import say

    copy_config(config_file(config), file)
    say(f"wrote {file}")
