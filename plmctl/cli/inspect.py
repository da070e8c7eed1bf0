"""The machine, the cost of a run, the best size for a budget, and the pages in a browser."""

from pathlib import Path
from typing import Annotated

import typer

from plmctl.cli.app import ConfigFile, Json, Overrides, app, config_file, example
from plmctl.cli.completion import complete_config
from plmctl.errors import ConfigError

Port = Annotated[int, typer.Option(min=0, max=65535, help="Port of the server; 0 is a free one.")]
Browser = Annotated[
    bool, typer.Option("--browser/--no-browser", help="Open the page, if there is a desktop.")
]


@app.command(epilog=example("plmctl docs tasks/tagging#lemmas"))
def docs(
    page: Annotated[
        str | None,
        typer.Argument(
            metavar="PAGE", help="Its name, or PAGE#PART; none: list them.", show_default=False
        ),
    ] = None,
    zh: Annotated[bool, typer.Option("--zh", help="The Chinese pages.")] = False,
) -> None:
    """Read the documentation, without a network.

    Prints a page that comes with plmctl, or lists all of them.
    """
    from plmctl.commands import docs as command

    command.run(page, chinese=zh)


@app.command(epilog=example("plmctl doctor demo/pretrain compute.threads=1"))
def doctor(
    config: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG",
            help="A YAML file of a run, or the name of a shipped config.",
            show_default=False,
            autocompletion=complete_config,
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


@app.command(epilog=example("plmctl plan bert-base --vocab-size 30522"))
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


@app.command(
    epilog=example("plmctl scaling demo/gpt2/pretrain --budget 10m schedule.name=wsd"),
)
def scaling(
    config: ConfigFile,
    overrides: Overrides = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            help="Sizes of the family (tiny,mini), or the overrides of one size "
            "('model.n_layer=3 model.n_embd=192'); may be given several times. Without it, sizes "
            "that fit the budget.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str,
        typer.Option(help="Cost of all runs: 30m, 2h, '1e15 FLOPs' or '20M tokens'."),
    ] = "1h",
    rungs: Annotated[
        int | None,
        typer.Option(
            min=2, help="Number of sizes, if they are not named; by default 4.", show_default=False
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Folder of all runs; by default the config's run folder with -scaling.",
            show_default=False,
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show the runs and train nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Train a ladder of sizes and predict the next size.

    Pretrains a few sizes of the config's family for two or three lengths each, fits the law
    L(N, D) = E + A/N^alpha + B/D^beta to their validation losses, and predicts the best size, its
    steps and its loss for 2, 4 and 10 times the compute of the largest run. Writes scaling.json and
    scaling.html. The same command resumes; finished runs are kept.
    """
    from plmctl.commands.scaling import ScalingRequest, run
    from plmctl.run.stop import stopping_at_once

    path = config_file(config, "pretrain")
    request = ScalingRequest(tuple(sizes or ()), budget, rungs, out, plan)
    with stopping_at_once():
        run(path, overrides or (), request, as_json=as_json)


@app.command(epilog=example("plmctl status runs/demo/bert"))
def status(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="A run folder, or one that init wrote; by default the newest below runs/.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how far a run is.

    Prints its state (running, stopped, killed, failed, finished), progress, time left, last
    metrics, last checkpoint, and what to do next.
    """
    from plmctl.commands.status import run

    run(folder, as_json=as_json)


@app.command(epilog=example("plmctl board runs"))
def board(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="All runs below it are shown.")
    ] = Path("runs"),
    port: Port = 0,
    browser: Browser = True,
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Write the page as files, for a web folder; nothing is served.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show all runs in a browser, while they train.

    Serves a page on this machine only, until Ctrl-C: a table of all runs below a folder, curves of
    the chosen ones over each other, differences between their configs, and a page for each run with
    its results and samples. Damaged folders are shown as such. Nothing is written to the runs.
    """
    from plmctl.commands.board import run

    run(folder, port=port, out=out, browser=browser, as_json=as_json)


@app.command("try", epilog=example("plmctl try runs/demo/bert runs/demo/gpt2"))
def try_model(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A run folder, a model folder or a Hub id.")
    ],
    second: Annotated[
        str | None,
        typer.Argument(metavar="SECOND", help="Another one, shown beside it.", show_default=False),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Text in which the nearest uses of a word are searched; by default that of the "
            "run. May be given several times.",
            show_default=False,
        ),
    ] = None,
    port: Port = 0,
    browser: Browser = True,
    as_json: Json = False,
) -> None:
    """Try a model in a browser.

    Serves a page on this machine only, until Ctrl-C, with a box for your text. It shows what the
    model can: fill in masks, continue a text as it is generated, classify, tag words, mark an
    answer in its passage, write a text for a text, and find the nearest uses of a word. Examples
    are from the run's held-out text. The answers are those of predict, generate and neighbours.
    """
    from plmctl.commands.try_model import run

    run([model, *([second] if second else [])], text or [], port, browser=browser, as_json=as_json)
