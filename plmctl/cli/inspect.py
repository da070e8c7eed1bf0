"""The machine, and the cost of a run."""

from pathlib import Path
from typing import Annotated

import typer

from plmctl.cli.app import ConfigFile, Json, Overrides, app, config_file, example
from plmctl.errors import ConfigError


@app.command(epilog=example("plmctl doctor demo/pretrain compute.threads=1"))
def doctor(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="[CONFIG]",
            help="A YAML file of a run, or the name of a shipped config.",
            show_default=False,
        ),
    ] = None,
    overrides: Overrides = None,
    as_json: Json = False,
) -> None:
    """Show what is installed, and what a run would use.

    Prints processor, devices, memory, disk, and package versions beside the tested ones. With a
    config of pretrain or finetune: also the device, precision, attention kernel, threads, processes
    and micro-batches of that run.
    """
    from plmctl.commands import doctor as command

    if config is None:
        command.run(None, as_json=as_json)
        return
    from plmctl.config.load import kind_of
    from plmctl.run.configs import load

    config = config_file(config, "pretrain", "finetune")
    kind = kind_of(config, overrides or ())
    if kind == "pretrain":
        command.run(load("pretrain", config, overrides or ()), as_json=as_json)
    elif kind == "finetune":
        command.run(load("finetune", config, overrides or ()), as_json=as_json)
    else:
        raise ConfigError(
            f"{config}: a config of the kind {kind}", "give a pretrain or finetune config"
        )


@app.command(epilog=example("plmctl plan demo/pretrain train.batch_size=64"))
def plan(
    config: ConfigFile,
    overrides: Overrides = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Time a few micro-batches on this machine."),
    ] = False,
    vocab_size: Annotated[
        int | None,
        typer.Option(min=6, help="Number of ids of a tokenizer that is not trained yet."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(help='Compare the sizes of the family within 2h, "100M tokens", 1e17FLOPs.'),
    ] = None,
    as_json: Json = False,
) -> None:
    """Estimate the cost of a pretraining.

    Prints parameters, tokens, passes over the text, FLOPs, memory (an estimate) and disk; with
    --measure also the time on this machine. With --budget: for each size of the family the steps
    that fit, the predicted order of the losses, and the overrides of the best size. Nothing is
    written to the run folder.
    """
    from plmctl.commands.plan import run
    from plmctl.run.configs import load

    loaded = load("pretrain", config_file(config, "pretrain"), overrides or ())
    run(loaded, measure=measure, vocab_size=vocab_size, as_json=as_json, budget=budget)
