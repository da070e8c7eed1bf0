"""Commands that verify that a run is exact: ``verify-resume`` and ``reproduce``."""

from pathlib import Path
from typing import Annotated

import typer

from plmctl.cli.app import ConfigFile, Json, Overrides, app, config_file, example


@app.command(
    "verify-resume",
    epilog=example("plmctl verify-resume demo/pretrain train.batch_size=16"),
)
def verify_resume(
    config: ConfigFile,
    overrides: Overrides = None,
    kills: Annotated[int, typer.Option(min=0, help="Number of kills.")] = 10,
    steps: Annotated[int, typer.Option(min=2, help="Maximum number of steps of each run.")] = 60,
    seed: Annotated[int, typer.Option(help="Seed of the random moments.")] = 1,
    processes: Annotated[
        int,
        typer.Option(min=2, help="Number of processes with which the examples are compared."),
    ] = 2,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folders of both runs.")] = False,
    as_json: Json = False,
) -> None:
    """Kill a run at random moments, resume it, and compare.

    Runs a pretrain or finetune config without interruption, then again with SIGKILL at random
    moments: while it prepares text, in steps, and in the middle of saves. Every logged metric and
    the final state must be equal bit for bit. Every step must also have the same examples with
    another number of processes. A kill that misses its moment is repeated. Exits with 1 if anything
    differs, or if the run is too short for all kills.
    """
    from plmctl.commands.verify_resume import Options, run

    path = config_file(config, "pretrain", "finetune")
    options = Options(kills, steps, seed, processes, keep)
    run(path, overrides or (), options, as_json=as_json)


@app.command(epilog=example("plmctl reproduce runs/demo/bert"))
def reproduce(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    lines: Annotated[int, typer.Option(min=1, help="Number of logged losses to compare.")] = 20,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the folder of the repetition.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Repeat the first steps of a run and compare.

    Reads the config from the run folder and runs it again in a new folder. Lists the versions and
    inputs that have changed since, and compares every digit of the first logged losses. Exits with
    1 if they differ.
    """
    from plmctl.commands import reproduce as command

    command.run(run, lines=lines, keep=keep, as_json=as_json)
