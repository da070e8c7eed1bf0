"""The commands. Each one's body imports what it runs, so that ``--help`` answers at once."""

from pathlib import Path
from typing import Annotated

import typer

from plmctl import __version__

app = typer.Typer(
    name="plmctl",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="From your own raw text to a pretrained, finetuned and evaluated language model.\n\n"
    "Begin with `plmctl config list`, which shows the configs that are shipped.",
)
config_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look at configs.")
app.add_typer(config_app, name="config")

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, as in optim.lr=1e-3; later wins."),
]
Fresh = Annotated[
    bool, typer.Option("--fresh", help="Move a run folder that is there aside and begin anew.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"plmctl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an expected error.")
    ] = False,
) -> None:
    """Options of all commands; --debug is read in ``__main__``."""


@app.command("train-tokenizer")
def train_tokenizer(
    config: ConfigFile, overrides: Overrides = None, fresh: Fresh = False, as_json: Json = False
) -> None:
    """Train a tokenizer on raw text.

    Example: plmctl train-tokenizer configs/demo/tokenizer.yaml vocab_size=4096
    """
    from plmctl.config.load import load
    from plmctl.runs import train_tokenizer as command

    command.run(load("tokenizer", config, tuple(overrides or ())), fresh=fresh, as_json=as_json)


@app.command()
def prepare(config: ConfigFile, overrides: Overrides = None, as_json: Json = False) -> None:
    """Tokenize the corpus of a pretraining config, once (pretrain does it too).

    Example: plmctl prepare configs/demo/pretrain.yaml
    """
    from plmctl.config.load import load
    from plmctl.runs import prepare as command

    command.run(load("pretrain", config, tuple(overrides or ())), as_json=as_json)


@app.command()
def pretrain(
    config: ConfigFile, overrides: Overrides = None, fresh: Fresh = False, as_json: Json = False
) -> None:
    """Pretrain a model on raw text. The same command again goes on with a run that was cut short.

    Example: plmctl pretrain configs/demo/pretrain.yaml optim.lr=1e-3 launch.processes=2
    """
    from plmctl.config.load import load
    from plmctl.runs import pretrain as command

    command.run(load("pretrain", config, tuple(overrides or ())), fresh=fresh, as_json=as_json)


@app.command()
def finetune(
    config: ConfigFile, overrides: Overrides = None, fresh: Fresh = False, as_json: Json = False
) -> None:
    """Finetune a pretrained model on labelled rows.

    Example: plmctl finetune configs/demo/finetune.yaml data.max_rows=1000
    """
    from plmctl.config.load import load
    from plmctl.runs import finetune as command

    command.run(load("finetune", config, tuple(overrides or ())), fresh=fresh, as_json=as_json)


@app.command("eval")
def evaluate(
    config: ConfigFile, overrides: Overrides = None, fresh: Fresh = False, as_json: Json = False
) -> None:
    """Score a model folder.

    Example: plmctl eval configs/demo/eval.yaml model=runs/mine/model
    """
    from plmctl.config.load import load
    from plmctl.runs import evaluate as command

    command.run(load("eval", config, tuple(overrides or ())), fresh=fresh, as_json=as_json)


@app.command()
def predict(
    model: Annotated[str, typer.Argument(help="A model folder or Hub id.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT...", help="Texts.")],
    top: Annotated[int, typer.Option(min=1, help="How many answers.")] = 5,
    as_json: Json = False,
) -> None:
    """Fill the mask of each text, name its class, or go on with it: what the model is made for.

    Example: plmctl predict runs/demo/bert/model "the congress of the united [MASK]"
    """
    from plmctl.runs import predict as command

    command.run(model, texts, top=top, as_json=as_json)


@app.command()
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Run folders.")],
    out: Annotated[str | None, typer.Option(help="Default: report.html of the first run.")] = None,
    as_json: Json = False,
) -> None:
    """Write one self-contained HTML page about one run or several.

    Example: plmctl report runs/demo/bert runs/demo/gpt2 --out compare.html
    """
    from plmctl.runs import report as command

    command.run(runs, out=out, as_json=as_json)


@config_app.command("show")
def config_show(config: ConfigFile, overrides: Overrides = None) -> None:
    """Print a config with every default and override written out."""
    from plmctl.config.load import dump, kind_of, load

    given = tuple(overrides or ())
    typer.echo(dump(load(kind_of(config, given), config, given)), nl=False)


@config_app.command("schema")
def config_schema(
    kind: Annotated[str, typer.Argument(help="tokenizer, pretrain, finetune or eval.")],
) -> None:
    """Print the JSON Schema of a kind of config, for editors."""
    from plmctl.config.schema import json_schema

    typer.echo(json_schema(kind))


@config_app.command("list")
def config_list(as_json: Json = False) -> None:
    """List the configs that are shipped, and what their names can be filled with."""
    from plmctl.runs import listing

    listing.run(as_json=as_json)
