"""The application, and the arguments that commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from plmctl import __version__
from plmctl.cli.completion import complete_config, complete_override

if TYPE_CHECKING:
    from plmctl.config.load import Kind

# \b keeps the lines of a paragraph as they are.
_HELP = """From your own raw text to a pretrained, finetuned and evaluated language model.

\b
  plmctl init my-folder                     configs for your text, with a reason for each choice
  plmctl run my-folder-bert                 all of it, to the report
  plmctl try my-folder-bert/runs/bert       the model, on a page in your browser

Of html, pdf, docx and other files `plmctl text` makes text first.

Each stage is also a command. It reads a config: a YAML file, or the name of one that comes with
plmctl (`plmctl config list`); KEY=VALUE after it overrides a key. Run the same command again to
resume an interrupted run; a finished run is left alone.
"""
_EPILOG = "With --debug anywhere in the command, an error shows its traceback."
SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# The help shows the commands in this order, which is that of a first day with plmctl.
GROUPS = {
    "Start": "demo course docs text init run config doctor",
    "Train": "train-tokenizer prepare preview plan pretrain finetune scaling submit",
    "Measure": "eval suite compare compare-tokenizers",
    "Look": "try predict generate neighbours status report board",
    "Check": "verify-resume reproduce",
    "Share": "export push",
}


class _Grouped(TyperGroup):
    """The commands by group. Typer's own groups need Rich, which takes as long as all the rest."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a table of the commands of each group, with columns of the same width."""
        width = max(map(len, self.commands))
        for group, names in GROUPS.items():
            rows = [(name.ljust(width), self.commands[name].get_short_help_str(100))
                    for name in names.split()]  # fmt: skip
            with formatter.section(group):
                formatter.write_dl(rows)


app = typer.Typer(
    name="plmctl",
    cls=_Grouped,
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
    """``__main__`` removes ``--debug`` from the arguments, because it may be anywhere in them."""


ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML file, or the name of a shipped config (see config list).",
        autocompletion=complete_config,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Overrides, as in optim.lr=1e-3 'data.train=[a.txt, b.txt]'; the last one wins.",
        show_default=False,
        autocompletion=complete_override,
    ),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Move an existing run folder aside and start from scratch.")
]
Until = Annotated[
    int | None,
    typer.Option(
        min=1,
        metavar="STEP",
        help="Save and stop after this step, with exit code 75; the same command resumes.",
        show_default=False,
    ),
]
AcceptGap = Annotated[
    bool,
    typer.Option("--accept-gap", help="Resume although lines of metrics.jsonl were lost."),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON document on stdout.")
]


def example(line: str) -> str:
    """The epilog of a command: a line that works."""
    return f"\b\nExample: {line}"


def config_file(requested: Path, *kinds: "Kind") -> Path:
    """The file that CONFIG means; which one it is, is printed if a shipped config has the name.

    Args:
        requested: A file, or the name of a shipped config.
        *kinds: The kinds that the command takes; none: any kind.

    Raises:
        ConfigError: No such file and no such name, or a name of several configs.
    """
    from plmctl.config.load import KINDS, find_config, is_shipped, shipped_names
    from plmctl.run.display import say

    path = find_config(requested, kinds or KINDS)
    if path != requested and is_shipped(path):
        say(f"using the shipped config {path}")
    elif path != requested or requested.as_posix() in shipped_names():
        say(f"using {path} of this folder, not a shipped config")
    return path
