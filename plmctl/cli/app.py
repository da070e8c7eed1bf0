"""The application, and the arguments that commands share."""

from pathlib import Path
from typing import Annotated

import typer

from plmctl import __version__

# \b keeps the lines of a paragraph as they are.
_HELP = """From your own raw text to a pretrained, finetuned and evaluated language model.

Each command reads a YAML file; KEY=VALUE after it overrides a key. The same command again
continues a run that was cut short, and leaves a finished one alone.

\b
  plmctl config list                                     files to begin with
  plmctl train-tokenizer configs/demo/tokenizer.yaml     a vocabulary from your text
  plmctl pretrain configs/demo/pretrain.yaml             a language model
  plmctl finetune configs/demo/finetune.yaml             a classifier made from it
  plmctl eval configs/demo/eval.yaml                     how good it is
"""
_EPILOG = "With --debug anywhere in the line, an expected error shows its traceback."
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

app = typer.Typer(
    name="plmctl",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=SETTINGS,
    help=_HELP,
    epilog=_EPILOG,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"plmctl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """``--debug`` is taken out of the line by ``__main__``, since it may stand anywhere in it."""


ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Overrides, as in optim.lr=1e-3 'data.train=[a.txt, b.txt]'; later wins.",
        show_default=False,
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Move the run folder aside, if it is there, and start anew.")
]
Until = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="STEP",
        help="Save and stop after this step, with exit code 75; the same command goes on.",
        show_default=False,
    ),
]
AcceptGap = Annotated[
    bool,
    typer.Option("--accept-gap", help="Continue although lines of metrics.jsonl were lost."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON document on stdout.")
]


def example(line: str) -> str:
    """The epilog of a command: a line that works."""
    return f"\b\nExample: {line}"
