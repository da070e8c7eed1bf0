"""The commands. Each one's body imports what it runs, so that ``--help`` answers at once."""

import json
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
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

app = typer.Typer(
    name="plmctl",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_SETTINGS,
    help=_HELP,
    epilog=_EPILOG,
)
config_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings=_SETTINGS,
    help="Show configs: resolved, as a schema, or which there are.",
)

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
Json = Annotated[
    bool, typer.Option("--json", help="Print the result as one JSON document on stdout.")
]


def _example(line: str) -> str:
    return f"\b\nExample: {line}"


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


@app.command(
    "train-tokenizer",
    epilog=_example("plmctl train-tokenizer configs/demo/tokenizer.yaml vocab_size=4096"),
)
def train_tokenizer(
    config: ConfigFile,
    overrides: Overrides = None,
    extend: Annotated[
        str | None,
        typer.Option("--from", metavar="FOLDER", help="Extend this tokenizer, keeping its ids."),
    ] = None,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Train a tokenizer on raw text.

    Learns a vocabulary, writes a Hugging Face tokenizer folder, loads it again and checks that it
    gives the same tokens.
    """
    from plmctl.config.load import load
    from plmctl.runs import train_tokenizer as command

    if extend is not None:
        overrides = [*(overrides or ()), f"extend={json.dumps(extend)}"]
    command.run(load("tokenizer", config, overrides or ()), fresh=fresh, as_json=as_json)


@app.command(epilog=_example("plmctl prepare configs/demo/pretrain.yaml"))
def prepare(config: ConfigFile, overrides: Overrides = None, as_json: Json = False) -> None:
    """Tokenize the text of a pretraining config.

    Writes the token store that pretraining reads, once for a text and a tokenizer. `pretrain` does
    it itself where it is missing.
    """
    from plmctl.config.load import load
    from plmctl.runs import prepare as command

    command.run(load("pretrain", config, overrides or ()), as_json=as_json)


@app.command(epilog=_example("plmctl preview configs/demo/pretrain.yaml objective.rate=0.15"))
def preview(
    config: ConfigFile,
    overrides: Overrides = None,
    count: Annotated[int, typer.Option(min=1, help="Examples that are counted.")] = 10_000,
    examples: Annotated[int, typer.Option(min=0, help="Examples that are shown.")] = 3,
    as_json: Json = False,
) -> None:
    """Show what a pretraining config trains on.

    Prints real training examples, with what is masked, replaced, kept or asked for, and statistics
    beside the values that they should have. Prepares the text where that is not done yet.
    """
    from plmctl.config.load import load
    from plmctl.runs import preview as command

    config_ = load("pretrain", config, overrides or ())
    command.run(config_, count=count, examples=examples, as_json=as_json)


@app.command(
    epilog=_example("plmctl pretrain configs/demo/pretrain.yaml optim.lr=1e-3 launch.processes=2")
)
def pretrain(
    config: ConfigFile, overrides: Overrides = None, fresh: Fresh = False, as_json: Json = False
) -> None:
    """Pretrain a model on raw text.

    Fills the run folder: metrics.jsonl and checkpoints on the way, at the end model/, which
    transformers loads, and report.html.
    """
    from plmctl.config.load import load
    from plmctl.runs import pretrain as command

    command.run(load("pretrain", config, overrides or ()), fresh=fresh, as_json=as_json)


@app.command(epilog=_example("plmctl finetune configs/demo/finetune.yaml data.max_rows=1000"))
def finetune(
    config: ConfigFile, overrides: Overrides = None, fresh: Fresh = False, as_json: Json = False
) -> None:
    """Finetune a model on labelled rows.

    Trains a pretrained model with the task's head and scores it on the validation rows. With
    init=random the same network starts from random weights: what did pretraining buy?
    """
    from plmctl.config.load import load
    from plmctl.runs import finetune as command

    command.run(load("finetune", config, overrides or ()), fresh=fresh, as_json=as_json)


@app.command("eval", epilog=_example("plmctl eval configs/demo/eval.yaml model=runs/mine/model"))
def evaluate(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="A YAML file, or a tokenizer folder.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Overrides of the config, or more tokenizer folders.",
            show_default=False,
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Of tokenizers: text to measure on; if not given, what the first held out.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Of tokenizers: write an HTML page as well.")
    ] = None,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Score a model, or compare tokenizers.

    Scores a model on text or labelled rows: prints a table a measure, and writes the figures to
    eval/ in the run folder. Of tokenizer folders it prints how well they fit a held-out text, side
    by side.
    """
    if config.is_dir():
        from plmctl.runs import tokenizers

        folders = [str(config), *(overrides or ())]
        tokenizers.run(folders, text=text or (), out=out, as_json=as_json)
        return
    from plmctl.config.load import load
    from plmctl.runs import evaluate as command

    command.run(load("eval", config, overrides or ()), fresh=fresh, as_json=as_json)


@app.command(
    epilog=_example('plmctl predict runs/demo/bert/model "the congress of the united [MASK]"')
)
def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model folder or Hub id.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="One text or several.")],
    top: Annotated[int, typer.Option(min=1, help="Answers for each text.")] = 5,
    as_json: Json = False,
) -> None:
    """Ask a model about a text.

    What it is made for decides the question: a masked model fills [MASK], a causal model goes on,
    a classifier names the class.
    """
    from plmctl.runs import predict as command

    command.run(model, texts, top=top, as_json=as_json)


@app.command(epilog=_example("plmctl report runs/demo/bert runs/demo/gpt2 --out compare.html"))
def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Run folders.")],
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Where to; report.html of the first run if not given."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write an HTML page about runs.

    One self-contained file with curves, results, samples and configs; several runs side by side.
    """
    from plmctl.runs import report as command

    command.run(runs, out=out, as_json=as_json)


app.add_typer(config_app, name="config")


@config_app.command(
    "show", epilog=_example("plmctl config show configs/demo/pretrain.yaml schedule.warmup=6%")
)
def config_show(config: ConfigFile, overrides: Overrides = None, as_json: Json = False) -> None:
    """Print a config in full.

    Every default, override and unit is resolved: it is what the run will use.
    """
    from plmctl.config.load import dump, kind_of, load

    resolved = load(kind_of(config, overrides or ()), config, overrides or ())
    typer.echo(resolved.model_dump_json() if as_json else dump(resolved).rstrip())


@config_app.command(
    "schema", epilog=_example("plmctl config schema pretrain > pretrain.schema.json")
)
def config_schema(
    kind: Annotated[
        str, typer.Argument(metavar="KIND", help="tokenizer, pretrain, finetune or eval.")
    ],
) -> None:
    """Print the JSON Schema of a kind of config.

    Editors complete and check YAML files with it.
    """
    from plmctl.config.schema import json_schema

    typer.echo(json_schema(kind))


@config_app.command("list", epilog=_example("plmctl config list"))
def config_list(as_json: Json = False) -> None:
    """List the configs and names there are.

    Files under configs/ of the working directory, and what model, objective, task and measures
    can name.
    """
    from plmctl.runs import listing

    listing.run(as_json=as_json)
