"""Is a run what it should be? Proofs that a user can run."""

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
    kills: Annotated[int, typer.Option(min=0, help="How often the run is killed.")] = 10,
    steps: Annotated[int, typer.Option(min=2, help="Steps of both runs, at most.")] = 60,
    seed: Annotated[int, typer.Option(help="Decides the moments.")] = 1,
    processes: Annotated[
        int, typer.Option(min=2, help="Another number of processes, to hash the examples under.")
    ] = 2,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the folders of both runs.")] = False,
    as_json: Json = False,
) -> None:
    """Kill a run at random, compare with a whole one.

    Runs a pretraining or finetuning config for some steps, then once more with SIGKILL at random
    moments: while text is prepared, in steps, in the middle of a save. Every logged figure and the
    final state must be equal bit for bit, and the examples of every step the same for another
    number of processes. A kill that misses its moment is made again. Exits with 1 if anything
    differs, or if the run is too short for all kills to land.
    """
    from plmctl.commands.verify_resume import Wanted, run

    path = config_file(config, "pretrain", "finetune")
    wanted = Wanted(kills, steps, seed, processes, keep)
    run(path, overrides or (), wanted, as_json=as_json)


@app.command(epilog=example("plmctl reproduce runs/demo/bert"))
def reproduce(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    lines: Annotated[int, typer.Option(min=1, help="Logged losses that are compared.")] = 20,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the repetition's folder.")] = False,
    as_json: Json = False,
) -> None:
    """Repeat the beginning of a run, and compare.

    Takes the config from the run folder, says which versions and inputs are others now, and
    compares every figure of the first logged losses. Exits with 1 at a difference.
    """
    from plmctl.commands import reproduce as command

    command.run(run, lines=lines, keep=keep, as_json=as_json)
