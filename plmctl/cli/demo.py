"""The main job, end to end, on text that a package carries."""

from typing import Annotated

import typer

from plmctl.cli.app import Json, app, example

_HELP = """Show what pretraining buys, in minutes.

Trains a tokenizer, pretrains a small model on raw text, finetunes it on a few labelled rows,
finetunes the same network from random weights, and prints both results side by side.

\b
en   BERT and GPT-2 on messages of the presidents of the United States; the era of a paragraph
zh   GPT-2 on Chinese news and reviews; whether a review is good
ner  BERT on Chinese news; persons, places and organisations. With --data: on your file
qa   BERT on the texts of your file (--data); answers to its questions

Writes to runs/ of the working directory. If you stop it, the same command continues; a finished
demo prints its table.
"""


@app.command(help=_HELP, epilog=example("plmctl demo en"))
def demo(
    name: Annotated[str, typer.Argument(metavar="NAME", help="en, zh, ner or qa.")] = "en",
    seed: Annotated[int, typer.Option(min=0, help="The seed, or the first of them.")] = 1,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds: the table has means and spread.")
    ] = 1,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Your labelled rows. ner: CoNLL columns, or jsonl with tokens and tags. qa: JSON "
            "as SQuAD's.",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="Run a few steps per stage, to test the installation."),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print all that the stages print.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Move the demo's run folders aside and start again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the stages of a demo."""
    from plmctl.commands import demo as command

    command.run(
        name,
        seed=seed,
        seeds=seeds,
        data=data,
        quick=quick,
        verbose=verbose,
        fresh=fresh,
        as_json=as_json,
    )
