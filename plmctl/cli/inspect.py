"""What is here, and what a run would take."""

from pathlib import Path
from typing import Annotated

import typer

from plmctl.cli.app import Json, Overrides, app, example
from plmctl.errors import ConfigError


@app.command(epilog=example("plmctl doctor configs/demo/pretrain.yaml compute.threads=1"))
def doctor(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG]", help="A YAML file of a run.", show_default=False),
    ] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Say what is installed here, and what a run would use.

    Processor, devices, memory, disk; package versions beside those that plmctl is tested with, and
    the optional ones. With a config of pretrain or finetune: the device, precision, attention
    kernel, threads, processes and micro-batches of that run.
    """
    from plmctl.runs import doctor as command

    if config is None:
        command.run(None, as_json=as_json)
        return
    from plmctl.config.load import kind_of, load

    kind = kind_of(config, overrides or ())
    if kind == "pretrain":
        command.run(load("pretrain", config, overrides or ()), as_json=as_json)
    elif kind == "finetune":
        command.run(load("finetune", config, overrides or ()), as_json=as_json)
    else:
        raise ConfigError(f"{config}: expected a config of pretrain or finetune, not of {kind}")
