"""From raw text to a trained model: a config in, a folder out."""

import json
from pathlib import Path
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
from plmctl.cli.completion import complete_override
from plmctl.errors import ConfigError


@app.command(epilog=example("plmctl text thesis/ --out corpus.jsonl"))
def text(
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help="A folder of files, or one file.")
    ],
    out: Annotated[
        str, typer.Option(metavar="FILE", help="The .jsonl file to write, outside of the folder.")
    ],
    encoding: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Of plain text that is not UTF-8, such as gb18030.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Processes that read; by default one per core."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Move an existing output aside, and read all again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Turn html, pdf, docx and other files into text.

    Reads html, pdf, docx, epub, markdown, source code, subtitles, plain text, tables and Wikipedia
    dumps below a folder. Writes a line per file, chapter, article or row, with its text and its
    source, and a report of what was left out and why. Most formats need `pip install
    'plmctl[documents]'`.
    """
    from plmctl.commands import text as command

    command.run(folder, out, encoding=encoding, workers=workers, fresh=fresh, as_json=as_json)


@app.command(epilog=example("plmctl init corpus/ --lang sw --budget 2h"))
def init(
    corpus: Annotated[
        list[str],
        typer.Argument(metavar="CORPUS", help="A folder of text, or files, or sample:NAME."),
    ],
    lang: Annotated[
        str | None,
        typer.Option(metavar="CODE", help="The language: en, zh, sw, km ...", show_default=False),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="bert, roberta, albert, gpt2, t5 ...; by default bert.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str, typer.Option(help='How much pretraining may use: 2h, "100M tokens", 1e17FLOPs.')
    ] = "2h",
    out: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="The folder to write; by default named after the corpus."
        ),
    ] = None,
    evaluation: Annotated[
        list[str] | None,
        typer.Option(
            "--eval",
            metavar="FILE",
            help="A file for evaluation: its overlap with the corpus is counted. Repeatable.",
            show_default=False,
        ),
    ] = None,
    smoke: Annotated[
        bool | None,
        typer.Option(
            "--smoke/--no-smoke",
            help="Try all steps on a sample in two minutes; by default a terminal asks.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Propose configs for a corpus.

    Looks at the text (script, copies, faults, lines), proposes a model and settings for this
    machine and the budget with a reason for each, and writes commented configs for the tokenizer,
    pretraining, finetuning and evaluation.
    """
    from plmctl.commands.init import InitRequest, run

    request = InitRequest(corpus, out, lang, family, budget, evaluation or (), smoke)
    run(request, as_json=as_json)


@app.command(epilog=example("plmctl run corpus-bert"))
def run(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A folder of configs, as init writes it.")
    ],
    until: Annotated[
        str | None,
        typer.Option(
            metavar="STAGE",
            help="The last stage: tokenizer, pretrain, eval or finetune.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Time for all stages together, as 2h: pretraining gets what fits.",
            show_default=False,
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Move the run folders aside and start again.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run all that init wrote, to the report.

    Trains the tokenizer, pretrains, evaluates, finetunes if the labelled rows are there, and writes
    the report. If you stop it, the same command continues; what is finished is left alone.
    """
    from plmctl.commands import run as command

    command.run(folder, until=until, budget=budget, fresh=fresh, as_json=as_json)


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
        typer.Option("--verify", help="Compare every byte of an existing store with its hash."),
    ] = False,
    card: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write a data card, to publish the text with it: a README.md for the Hub.",
            show_default=False,
        ),
    ] = None,
    license_name: Annotated[
        str | None,
        typer.Option(
            "--license",
            metavar="NAME",
            help="With --card: license of the text, such as cc-by-4.0.",
            show_default=False,
        ),
    ] = None,
    language: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CODE", help="For --card: en, zh ...; may be repeated.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tokenize the text of a pretraining config.

    Writes the token store that pretraining reads, once per text and tokenizer. `pretrain` builds it
    itself if it is missing. An existing store is checked, and damaged files are built again. A
    cluster builds it with `prepare.executor=slurm` or `prepare.executor=ray`.
    With --card: what is in the text, its sources with their hashes, and how to make it again.
    """
    from plmctl.commands.prepare import CardRequest, run
    from plmctl.run.configs import load
    from plmctl.run.stop import stopping_at_once

    if card is None and (license_name or language):
        raise ConfigError("--license and --language are for --card", "add --card README.md")
    request = CardRequest(card, license_name, tuple(language or ())) if card else None
    with stopping_at_once():
        loaded = load("pretrain", config_file(config, "pretrain"), overrides or ())
        run(loaded, as_json=as_json, every_byte=verify, card=request)


@app.command(epilog=example("plmctl preview demo/pretrain objective.rate=0.15"))
def preview(
    config: ConfigFile,
    overrides: Overrides = None,
    count: Annotated[
        int, typer.Option(min=1, help="Number of examples for the statistics.")
    ] = 10_000,
    examples: Annotated[int, typer.Option(min=0, help="Number of examples to print.")] = 3,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="STEP", help="Print the examples of this step.", show_default=False
        ),
    ] = None,
    digest: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="STEPS",
            help="Print a hash of the examples of each of the first STEPS steps, of pretraining or "
            "finetuning.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a pretraining config trains on.

    Prints real training examples (which tokens are masked, replaced, kept and predicted) and
    statistics beside their expected values. Prepares the text if it is not prepared yet.
    With --batch: the examples of one step, such as a step that diverged.
    With --digest: hashes, which are equal on two machines if the examples are the same.
    """
    from plmctl.run.configs import load
    from plmctl.run.preflight import check_parts

    if digest is not None:
        if batch is not None:
            raise ConfigError("--digest cannot be used with --batch", "leave one of them out")
        path = config_file(config, "pretrain", "finetune")
        from plmctl.commands import preview as command

        command.run_digest(path, overrides or (), steps=digest, as_json=as_json)
        return
    config_ = load("pretrain", config_file(config, "pretrain"), overrides or ())
    check_parts(config_)
    from plmctl.commands import preview as command  # imports PyTorch, which takes seconds

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

    Writes metrics.jsonl and checkpoints to the run folder while it trains, and at the end model/,
    which transformers loads, and report.html.
    """
    from plmctl.run.configs import load
    from plmctl.run.launch import StartOptions
    from plmctl.run.preflight import check_start
    from plmctl.run.stop import stopping_at_once

    with stopping_at_once():
        config_ = load("pretrain", config_file(config, "pretrain"), overrides or ())
        check_start(config_, fresh=fresh)
        from plmctl.commands.pretrain import run  # imports PyTorch, which takes seconds

        run(config_, StartOptions(fresh, until, accept_gap), as_json=as_json)


@app.command(epilog=example("plmctl finetune demo/finetune data.max_rows=1000"))
def finetune(
    config: ConfigFile,
    overrides: Overrides = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Number of seeds to run; reports median and spread."),
    ] = None,
    grid: Annotated[
        bool, typer.Option("--grid", help="Try every combination of the config's `grid`.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="With --seeds or --grid: number of parallel runs; by default one per GPU."
        ),
    ] = None,
    until: Until = None,
    accept_gap: AcceptGap = False,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Finetune a model on labelled rows.

    Trains a pretrained model with a head for the task and scores it on the validation rows. With
    init=random the same network starts from random weights, which measures the effect of
    pretraining. --seeds and --grid start several runs under the run folder and choose the best;
    finished runs are kept.
    """
    from plmctl.run.configs import load

    if seeds is not None or grid:
        if fresh:
            raise ConfigError(
                "--fresh cannot be used with --seeds and --grid", "name another `run=`"
            )
        from plmctl.commands.finetune_grid import run_protocol

        loaded = load("finetune", config_file(config, "finetune"), overrides or ())
        run_protocol(
            loaded, seeds or 1, grid=grid, jobs=jobs, as_json=as_json, accept_gap=accept_gap
        )
        return
    from plmctl.commands.finetune import run
    from plmctl.run.launch import StartOptions
    from plmctl.run.stop import stopping_at_once

    with stopping_at_once():
        config_ = load("finetune", config_file(config, "finetune"), overrides or ())
        run(config_, StartOptions(fresh, until, accept_gap), as_json=as_json)


@app.command(epilog=example("plmctl submit demo/pretrain --slurm partition=gpu time=2h"))
def submit(
    config: ConfigFile,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE",
            help="Options of sbatch, as in partition=gpu time=24h account=lab nodes=2 "
            "gpus-per-node=4, and overrides of the config.",
            show_default=False,
            autocompletion=complete_override,
        ),
    ] = None,
    slurm: Annotated[bool, typer.Option("--slurm", help="A job of Slurm.")] = False,
    now: Annotated[
        bool, typer.Option("--now", help="Submit the script; otherwise it is only written.")
    ] = False,
    prepare: Annotated[
        bool, typer.Option("--prepare", help="Submit `plmctl prepare` instead of the training.")
    ] = False,
    save_before: Annotated[
        str, typer.Option(metavar="TIME", help="Save this long before the time limit.")
    ] = "5m",
    requeues: Annotated[
        int,
        typer.Option(min=0, help="How many times the job may be put back into the queue."),
    ] = 20,
    before: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LINE",
            help="A line of shell before the command, such as 'module load cuda'. Repeatable.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The script to write; by default beside the run folder, named after it.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a job for a cluster, and submit it if you say so.

    Writes and shows a batch script that pretrains or finetunes, by the kind of the config: nodes,
    GPUs and CPUs follow its `launch` and `compute`. Before the time limit plmctl saves a
    checkpoint, and the script puts the job back into the queue until the run is finished.
    """
    from plmctl.commands.submit import run

    if not slurm:
        raise ConfigError(
            "plmctl submit: which scheduler? add --slurm",
            "for Kubernetes and SkyPilot, `plmctl docs clusters` has files to start from",
        )
    run(
        str(config),
        config_file(config, "pretrain", "finetune"),
        arguments or (),
        prepare=prepare,
        script=out,
        save_before=save_before,
        requeues=requeues,
        before=before or (),
        now=now,
        as_json=as_json,
    )


@app.command(
    hidden=True, context_settings={"ignore_unknown_options": True}, epilog=example("plmctl resume")
)
def resume(arguments: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Say how a run is resumed: there is no such command."""
    raise ConfigError(
        "plmctl resume: there is no such command",
        "run the same command again: it resumes an interrupted run",
    )
