"""Commands that measure: a model by a config or by a suite, and tokenizers."""

import os
import shlex
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from plmctl.cli.app import ConfigFile, Fresh, Json, Overrides, app, config_file, example
from plmctl.cli.completion import complete_override, complete_suite
from plmctl.errors import ConfigError

_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt", "spiece.model")


class _Eval(TyperCommand):
    """`eval` answers its old forms, suites and tokenizers, with the new command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse the old forms before Click sees their options, which `eval` does not have."""
        for place, argument in enumerate(args):
            option, equals, name = argument.partition("=")
            if option == "--suite":
                after = place + (1 if equals else 2)
                name = name if equals else " ".join(args[place + 1 : after])
                model, *rest = [*args[:place], *args[after:]] or ["MODEL"]
                raise _moved("a suite has a command of its own", "suite", model, name, *rest)
            if option in ("--text", "--out"):
                raise _moved("tokenizers have a command of their own", "compare-tokenizers", *args)
        return super().parse_args(ctx, args)


def _moved(what: str, *line: str) -> ConfigError:
    return ConfigError(f"eval: {what}", f"write: plmctl {shlex.join(line)}")


@app.command("eval", cls=_Eval, epilog=example("plmctl eval demo/eval model=runs/mine/model"))
def evaluate(
    config: ConfigFile,
    overrides: Overrides = None,
    at_checkpoints: Annotated[
        bool, typer.Option("--at-checkpoints", help="Score every checkpoint of the model's run.")
    ] = False,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Score a model by the measures of a config.

    Measures a model on text or labelled rows: prints one table per measure and writes the results
    to eval/ in the run folder. `model=FOLDER` measures another model.
    """
    # A folder of data may have the name of the shipped config that reads it, as blimp/ has.
    is_model = any(os.path.isfile(config / name) for name in ("config.json", "model/config.json"))
    is_tokenizer = any(os.path.isfile(config / name) for name in _TOKENIZER_FILES)
    if is_tokenizer and not is_model:
        folders = [str(config), *(overrides or ())]
        raise _moved("tokenizers have a command of their own", "compare-tokenizers", *folders)
    path = config if is_model else config_file(config, "eval")
    if path.is_dir():
        raise ConfigError(
            f"{path}: a folder, not a config",
            f"for a model name the measures: plmctl eval CONFIG model={path}, or a suite: "
            f"plmctl suite {path} glue",
        )
    from plmctl.commands import evaluate as command
    from plmctl.run.configs import load

    resolved = load("eval", path, overrides or ())
    command.run(resolved, at_checkpoints=at_checkpoints, fresh=fresh, as_json=as_json)


@app.command(epilog=example("plmctl suite runs/mine/model glue --data glue --seeds 3"))
def suite(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A model folder, a run folder or a Hub id.")
    ],
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="glue, squad, clue, babylm, babylm-fast, babylm-2025, chinese-babylm, ud or "
            "language.",
            autocompletion=complete_suite,
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Overrides of all recipes; TASK.KEY=VALUE for one; run=FOLDER.",
            show_default=False,
            autocompletion=complete_override,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Folder with TASK/train.jsonl and dev.jsonl, or as the organisers publish it; "
            "by default the Hub.",
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="A,B", help="Run only these tasks.", show_default=False)
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds per task; reports the median.")
    ] = 1,
    grid: Annotated[bool, typer.Option("--grid", help="Try the grids of the recipes.")] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of parallel runs; by default one per GPU.", show_default=False
        ),
    ] = None,
    lang: Annotated[
        str | None,
        typer.Option(
            metavar="CODE", help="ud, language: whose published results.", show_default=False
        ),
    ] = None,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Score a model on each task of a public suite.

    Finetunes the model where a task needs it, and prints one table beside published scores.
    """
    from plmctl.commands.evaluate_suite import SuiteRequest, run

    names = None if tasks is None else tuple(filter(None, map(str.strip, tasks.split(","))))
    if names == ():
        raise ConfigError("--tasks: the list is empty", "write --tasks sst2,rte")
    folder = name.replace("-", "_")
    request = SuiteRequest(
        model, folder, overrides or (), data, names, seeds, grid, jobs, fresh, lang
    )
    run(request, as_json=as_json)


@app.command(
    "compare-tokenizers",
    epilog=example("plmctl compare-tokenizers runs/wordpiece runs/unigram --text valid.txt"),
)
def compare_tokenizers(
    folders: Annotated[
        list[str], typer.Argument(metavar="FOLDER", help="Tokenizer folders, one or more.")
    ],
    text: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Evaluation text; by default the validation text of the first tokenizer.",
            show_default=False,
        ),
    ] = None,
    parallel: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=FILE",
            help="A language and its sentences, which mean the same as those of the others, line "
            "by line: what each language pays. Two or more.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="FILE", help="Also write an HTML page.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare tokenizers on a held-out text.

    Prints, side by side, how well they fit the text: bytes per token, words that are cut, unknown
    characters, and the tokens that they share.
    """
    from plmctl.commands import evaluate_tokenizers as command

    command.run(folders, text=text or (), parallel=parallel or (), out=out, as_json=as_json)
