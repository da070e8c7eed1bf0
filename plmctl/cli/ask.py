"""What a model answers, what runs have reached, and a model as a folder or on the Hub."""

from typing import Annotated

import typer

from plmctl.cli.app import Json, app, example
from plmctl.errors import ConfigError


@app.command(epilog=example("plmctl export runs/demo/bert runs/demo/bert-early --step 1000"))
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run folder of a pretraining.")],
    out: Annotated[str, typer.Argument(metavar="FOLDER", help="A new folder to write.")],
    step: Annotated[
        int | None, typer.Option(help="Step of the checkpoint; by default the newest.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a checkpoint as a model folder.

    Writes what `pretrain` writes to model/ at its end, for any checkpoint that is kept: to try a
    model while it trains, or to finetune from the middle of a run.
    """
    from plmctl.commands import export as command

    command.run(run, out, step=step, as_json=as_json)


@app.command(epilog=example("plmctl push runs/demo/bert my-bert --license mit --dry-run"))
def push(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder or a run folder.")],
    repo: Annotated[
        str,
        typer.Argument(metavar="REPO", help="On the Hub: OWNER/NAME, or NAME for yours."),
    ],
    license_name: Annotated[
        str | None,
        typer.Option(
            "--license", metavar="NAME", help="apache-2.0, mit, cc-by-4.0 ...", show_default=False
        ),
    ] = None,
    language: Annotated[
        list[str] | None,
        typer.Option(metavar="CODE", help="en, zh ...; may be repeated.", show_default=False),
    ] = None,
    evaluation: Annotated[
        list[str] | None,
        typer.Option(
            "--eval",
            metavar="RUN",
            help="A run folder of `plmctl eval` with results of this model; may be repeated.",
            show_default=False,
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Create a private repository.")
    ] = False,
    checkpoints: Annotated[
        bool,
        typer.Option(
            "--checkpoints", help="Also upload each checkpoint that is kept, to its own branch."
        ),
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace another model in an existing repository.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print files, sizes and the card; uses no network."),
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Upload without asking for confirmation.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Upload a model to the Hugging Face Hub.

    Writes a card with training data, objective, hyperparameters and results, shows what would be
    uploaded, asks, and uploads. No other command of plmctl uploads anything. The token is that of
    `hf auth login`, or HF_TOKEN.
    """
    from plmctl.commands import push as command

    request = command.PushRequest(
        model,
        repo,
        languages=language or (),
        license=license_name,
        evaluations=evaluation or (),
        private=private,
        checkpoints=checkpoints,
        replace=replace,
    )
    command.run(request, dry_run=dry_run, yes=yes, as_json=as_json)


@app.command(
    epilog=example('plmctl predict runs/demo/bert/model "the congress of the united [MASK]"')
)
def predict(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model folder, a run folder or a Hub id.")
    ],
    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="One text or several.", show_default=False),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="ROWS",
            help="Rows instead of texts: jsonl, csv, tsv, parquet ...; - is stdin (jsonl).",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="With --input: write one JSON line per row here; by default to stdout.",
        ),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD=COLUMN",
            help="With --input: the column of a field of the task, as in text=review.",
            show_default=False,
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Move an existing output file aside.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Number of answers per text.")] = 5,
    as_json: Json = False,
) -> None:
    """Apply a model to a text.

    A masked model fills [MASK], a T5 its sentinels (<extra_id_0> ...), a causal model continues the
    text, a classifier predicts the class; a task with pairs takes two texts. With --input a
    finetuned model predicts the rows of a file of any size: each output line has the row's columns,
    `prediction`, and further results of the task, such as `probabilities`.
    """
    if (source is None) == (not texts):
        raise ConfigError("predict needs either texts, or --input with rows")
    if source is not None:
        from plmctl.commands.predict import run_rows

        run_rows(model, source, output, column or (), fresh=fresh)
        return
    if output is not None or column:
        raise ConfigError("--output and --column need --input")
    from plmctl.commands.predict import run

    run(model, texts or [], top=top, as_json=as_json)


@app.command(epilog=example("plmctl compare runs/demo/bert-era runs/demo/bert-era-scratch"))
def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Run folders, two or more.")],
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Also write an HTML page with curves.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare runs side by side.

    Prints their key metrics. For each pair of runs that were scored on the same rows, pairs,
    questions or documents (finetunings, suites and evaluations), also prints the difference, its
    95 % interval and its p-value by the paired bootstrap.
    """
    from plmctl.commands import compare as command

    command.run(runs, out=out, as_json=as_json)


@app.command(epilog=example("plmctl report runs/demo/bert runs/demo/gpt2 --out compare.html"))
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Run folders.")],
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The page; default: report.html of the first run."),
    ] = None,
    plots: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write each plot as image files as well.")
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", metavar="FORMAT", help="With --plots: svg, png or pdf."),
    ] = None,
    terminal: Annotated[
        bool, typer.Option("--terminal", help="Print the curves as text; write nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write an HTML report of runs.

    One self-contained file with curves, results, samples and configs; several runs side by side.
    --plots writes every curve as SVG and PNG files, or in the formats given.
    """
    from plmctl.commands import report as command

    if terminal:
        if out or plots or formats or as_json:
            raise ConfigError(
                "--terminal cannot be used with --out, --plots, --format and --json",
                "leave one of them out",
            )
        command.run_terminal(runs)
        return
    command.run(runs, out=out, plots=plots, formats=formats, as_json=as_json)
