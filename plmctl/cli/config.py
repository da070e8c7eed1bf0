"""``plmctl config``: configs resolved, as a schema, or which there are."""

from typing import Annotated

import typer

from plmctl.cli.app import SETTINGS, ConfigFile, Json, Overrides, app, example

config_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=SETTINGS,
    help="Show configs: resolved, as a schema, or which there are.",
)

app.add_typer(config_app, name="config")


@config_app.command(
    "show", epilog=example("plmctl config show configs/demo/pretrain.yaml schedule.warmup=6%")
)
def config_show(config: ConfigFile, overrides: Overrides = None, as_json: Json = False) -> None:
    """Print a config in full.

    Every default, override and unit is resolved: it is what the run will use.
    """
    from plmctl.config.load import dump, kind_of, load

    resolved = load(kind_of(config, overrides or ()), config, overrides or ())
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
    from plmctl.config.schema import json_schema

    typer.echo(json_schema(kind))


@config_app.command("list", epilog=example("plmctl config list"))
def config_list(as_json: Json = False) -> None:
    """List the configs and names there are.

    Files under configs/ of the working directory, and what model, objective, task and measures
    can name.
    """
    from plmctl.runs import listing

    listing.run(as_json=as_json)
