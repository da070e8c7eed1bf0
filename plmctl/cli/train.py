"""From raw text to a trained model: a config in, a folder out."""

import json
from typing import Annotated

import typer

from plmctl.cli.app import (
    AcceptGap,
    ConfigFile,
    Fresh,
    Json,
    Overrides,
    Until,
    app,
    config_file,
    example,
)
from plmctl.errors import ConfigError


@app.command(
    "train-tokenizer",
    epilog=example("plmctl train-tokenizer demo/tokenizer vocab_size=4096"),
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
    from plmctl.commands import train_tokenizer as command
    from plmctl.run.configs import load

    if extend is not None:
        overrides = [*(overrides or ()), f"extend={json.dumps(extend)}"]
    command.run(
        load("tokenizer", config_file(config, "tokenizer"), overrides or ()),
        fresh=fresh,
        as_json=as_json,
    )


@app.command(epilog=example("plmctl prepare demo/pretrain"))
def prepare(
    config: ConfigFile,
    overrides: Overrides = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Compare every byte of a store that is there with its hash."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Tokenize the text of a pretraining config.

    Writes the token store that pretraining reads, once for a text and a tokenizer. `pretrain` does
    it itself if it is missing. A store that is there is checked, and what is damaged is made again.
    """
    from plmctl.commands.prepare import run
    from plmctl.run.configs import load
    from plmctl.run.stop import stopping_at_once

    with stopping_at_once():
        loaded = load("pretrain", config_file(config, "pretrain"), overrides or ())
        run(loaded, as_json=as_json, every_byte=verify)


@app.command(epilog=example("plmctl preview demo/pretrain objective.rate=0.15"))
def preview(
    config: ConfigFile,
    overrides: Overrides = None,
    count: Annotated[int, typer.Option(min=1, help="Examples that are counted.")] = 10_000,
    examples: Annotated[int, typer.Option(min=0, help="Examples that are shown.")] = 3,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="STEP", help="Show the examples of this step.", show_default=False
        ),
    ] = None,
    digest: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="STEPS",
            help="Print a hash of the examples of each of the first steps, of pretraining or "
            "finetuning.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a pretraining config trains on.

    Prints real training examples, with what is masked, replaced, kept or asked for, and statistics
    beside the values that they should have. Prepares the text where that is not done yet.
    With --batch: the examples that a step of the run has, those that a step which diverged had.
    With --digest: hashes, which are equal on two machines if the examples are the same.
    """
    from plmctl.commands import preview as command
    from plmctl.run.configs import load

    if digest is not None:
        if batch is not None:
            raise ConfigError("--digest does not go with --batch", "leave one of them out")
        path = config_file(config, "pretrain", "finetune")
        command.run_digest(path, overrides or (), steps=digest, as_json=as_json)
        return
    config_ = load("pretrain", config_file(config, "pretrain"), overrides or ())
    if batch is not None:
        command.run_batch(config_, batch=batch, examples=examples, as_json=as_json)
        return
    command.run(config_, count=count, examples=examples, as_json=as_json)


@app.command(epilog=example("plmctl pretrain demo/pretrain optim.lr=1e-3 launch.processes=2"))
def pretrain(
    config: ConfigFile,
    overrides: Overrides = None,
    until: Until = None,
    accept_gap: AcceptGap = False,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Pretrain a model on raw text.

    Fills the run folder: metrics.jsonl and checkpoints on the way, at the end model/, which
    transformers loads, and report.html.
    """
    from plmctl.commands.pretrain import run
    from plmctl.run.configs import load
    from plmctl.run.stop import stopping_at_once

    with stopping_at_once():
        config_ = load("pretrain", config_file(config, "pretrain"), overrides or ())
        run(config_, fresh=fresh, as_json=as_json, until=until, accept_gap=accept_gap)


@app.command(epilog=example("plmctl finetune demo/finetune data.max_rows=1000"))
def finetune(
    config: ConfigFile,
    overrides: Overrides = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Runs with as many seeds; a table of median and spread."),
    ] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="Try every combination of the config's `grid`.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Of --seeds and --grid: runs at once; one a GPU if not given."),
    ] = None,
    until: Until = None,
    accept_gap: AcceptGap = False,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Finetune a model on labelled rows.

    Trains a pretrained model with the task's head and scores it on the validation rows. With
    init=random the same network starts from random weights: what did pretraining buy? --seeds and
    --grid make several runs under the run folder and choose among them; finished ones are kept.
    """
    from plmctl.run.configs import load

    if seeds is not None or grid:
        if fresh:
            raise ConfigError("--fresh does not go with --seeds and --grid", "name another `run=`")
        from plmctl.commands.finetune import run_protocol

        loaded = load("finetune", config_file(config, "finetune"), overrides or ())
        run_protocol(
            loaded, seeds or 1, grid=grid, jobs=jobs, as_json=as_json, accept_gap=accept_gap
        )
        return
    from plmctl.commands.finetune import run
    from plmctl.run.stop import stopping_at_once

    with stopping_at_once():
        config_ = load("finetune", config_file(config, "finetune"), overrides or ())
        run(config_, fresh=fresh, as_json=as_json, until=until, accept_gap=accept_gap)
