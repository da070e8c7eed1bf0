"""``plmctl demo``: what does pretraining on raw text buy, where labelled rows are few?

For each model of a demo: train a tokenizer, pretrain, finetune on a few labelled rows from the
pretrained and from random weights, evaluate. Then one table. The configs are those of
``configs/demo``, and every stage is a command that a user could type. Stages that do not need each
other run side by side, one per CPU.

From top to bottom: the demos, the plan of one, running the stages, the results, a user's own rows.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from plmctl.config.load import COMMANDS, Kind, configs_folder
from plmctl.config.tokenizer import TokenizerConfig
from plmctl.corpus import sample
from plmctl.corpus.document import share_of
from plmctl.corpus.labelled import read_rows, rows_digest
from plmctl.cpus import usable_cpus, usable_memory
from plmctl.errors import ConfigError, DataError, PlmError, Preempted, nearest
from plmctl.files import write_atomically, writing
from plmctl.formatting import printable
from plmctl.run.configs import EvalConfig, FinetuneConfig, PretrainConfig, load
from plmctl.run.display import StageLines, show_result
from plmctl.run.folder import check_run, is_finished
from plmctl.run.stop import StopRequest, stopping_at_once
from plmctl.tokenization.words import has_chinese

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.table import Table

    StageConfig = TokenizerConfig | PretrainConfig | FinetuneConfig | EvalConfig


# --- The demos ---


@dataclass(frozen=True)
class Demo:
    """A demo.

    Attributes:
        configs: Folders of ``configs/``, one per model.
        title: Above the table.
        metric: The metric of the finetuned models, in their results.
        text: The sample that it needs; None: it needs the user's rows.
        next_steps: Command lines to try, with the run folders by name: ``{pretrain}`` and
            ``{finetune}`` of the first model, ``{pretrain_last}`` of the last.
    """

    configs: tuple[str, ...]
    title: str
    metric: str
    text: str | None
    next_steps: tuple[str, ...]


_BOUGHT = "What pretraining bought: "

DEMOS = {
    "en": Demo(
        ("demo", "demo/gpt2"),
        f"{_BOUGHT}accuracy on held-out documents",
        "accuracy",
        "sotu",
        (
            'plmctl generate {pretrain_last}/model --prompt "The people of" --top-p 0.9',
            'plmctl predict {finetune}/model "We must help the schools of our cities."',
        ),
    ),
    "zh": Demo(
        ("demo/zh",),
        f"{_BOUGHT}accuracy on held-out reviews",
        "accuracy",
        "zh-news",
        (
            "plmctl generate {pretrain}/model --prompt 中国政府 --top-p 0.9",
            "plmctl predict {finetune}/model 质量很好，送货也快",
        ),
    ),
    "ner": Demo(
        ("demo/ner",),
        f"{_BOUGHT}F1 of the entities of held-out sentences",
        "f1",
        "zh-news",
        (
            "plmctl compare {finetune} {finetune}-scratch",
            "plmctl predict {pretrain}/model 中国政[MASK]",
        ),
    ),
    "qa": Demo(
        ("demo/qa",),
        f"{_BOUGHT}F1 of the answers to questions on held-out texts",
        "f1",
        None,
        (
            "plmctl compare {finetune} {finetune}-scratch",
            "plmctl report {finetune}",
        ),
    ),
}
"""By name."""


def run(
    name: str,
    *,
    seed: int,
    seeds: int,
    data: str | None = None,
    quick: bool = False,
    verbose: bool = False,
    fresh: bool = False,
    as_json: bool = False,
) -> None:
    """Run the stages that are not finished, and print what pretraining bought.

    Args:
        name: Of the demo.
        seed: The first seed.
        seeds: The number of seeds.
        data: The user's labelled rows, for ner and qa.
        quick: A few steps of each stage, to try that everything works.
        verbose: Print all that the stages print; it is in ``logs/`` of the demo anyway.
        fresh: Move the run folders aside.

    Raises:
        ConfigError: No such demo, or its package or rows are missing; or a run folder is of another
            config.
        Preempted: A signal stopped a stage; the same command continues.
    """
    demo = find_demo(name, data)
    rows = None if data is None else own_rows(data, name)
    if quick:
        rows = quick_rows(demo) if rows is None else rows.shortened()
    again = shlex.join(
        ["plmctl", "demo", name, *(["--data", data] if data else []), *["--quick"] * quick]
        + [f"--seed={seed}"] * (seed != 1)
        + [f"--seeds={seeds}"] * (seeds != 1)
    )
    models = [
        plan_model(config, number, quick=quick, rows=rows)
        for number in range(seed, seed + seeds)
        for config in demo.configs
    ]
    stages = list({stage.config.run: stage for model in models for stage in model.stages}.values())
    root = models[0].root if seeds == 1 else models[0].base
    report = root / ("report.html" if seeds == 1 else f"report-{seeds}-seeds.html")
    try:
        for stage in stages:
            check_run(stage.config, stage.config.run, fresh=fresh)
    except ConfigError as error:
        raise ConfigError(
            error.message, f"`{again} --fresh` moves the old runs aside and starts from scratch"
        ) from error
    if fresh or not report.is_file() or not all(stage.is_finished() for stage in stages):
        if rows is not None:
            rows.write(models[0].base)
        try:
            with stopping_at_once():
                run_stages(stages, fresh=fresh, verbose=verbose)
                _write_report(models, report)
        except Preempted as error:
            raise Preempted(error.message, f"to continue: {again}") from error
    document = results_document(name, demo, models, quick=quick) | {"report": str(report)}
    document["next"] = next_steps(demo, models)
    show_result(document, [results_table(demo, document)], as_json=as_json)
    if not as_json:
        print_rest(document)


def find_demo(name: str, data: str | None) -> Demo:
    """The demo of a name, if what it needs is there.

    Raises:
        ConfigError: There is no such demo, its package is not installed, or it needs rows.
    """
    if name not in DEMOS:
        raise ConfigError(f"no demo {name!r}{nearest(name, DEMOS)}", "try `plmctl demo en`")
    demo = DEMOS[name]
    if data is not None:
        if name not in _OWN_COLUMNS:
            raise ConfigError(
                f"demo {name} takes no --data",
                "for your own text: `plmctl init FOLDER`",
            )
    elif demo.text is None:
        raise ConfigError(
            f"demo {name} needs your rows: no package carries questions with answers",
            f"plmctl demo {name} --data FILE, a JSON file as SQuAD's (train-v1.1.json), or jsonl "
            "with question, context and answers",
        )
    else:
        sample.files(demo.text)
    return demo


# --- The plan: the configs of each stage ---


@dataclass(frozen=True)
class Stage:
    """A run of another command.

    Attributes:
        kind: Of its config.
        model: The family of the model.
        name: What the stage is called.
        about: What it does.
        place: Its config's name.
        overrides: Of the config in ``place``.
        config: The result.
        needs: The run folder that it reads; empty: none.
    """

    kind: Kind
    model: str
    name: str
    about: str
    place: str
    overrides: tuple[str, ...]
    config: StageConfig
    needs: str

    def is_finished(self) -> bool:
        """Whether the run is finished."""
        return is_finished(Path(self.config.run))

    @property
    def title(self) -> str:
        """What the terminal shows of it."""
        return f"{self.model:5} {self.name:12} {self.about:46}"

    @property
    def log(self) -> Path:
        """Where its output goes: ``logs/`` beside its run."""
        run = Path(self.config.run)
        return run.parent / "logs" / f"{run.name}.log"

    @property
    def command(self) -> str:
        """The command line that does the same."""
        return shlex.join(["plmctl", COMMANDS[self.kind], self.place, *self.overrides])


@dataclass(frozen=True)
class ModelPlan:
    """The stages of a model and a seed.

    Attributes:
        base: The folder of the demo.
        root: The folder of its seed: the same for seed 1.
    """

    seed: int
    base: Path
    root: Path
    tokenizer: Stage
    pretrain: Stage
    finetune: Stage
    scratch: Stage
    evaluate: Stage

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In their order."""
        return (self.tokenizer, self.pretrain, self.finetune, self.scratch, self.evaluate)


# What makes a demo short: it shows that everything works, and learns nothing.
_QUICK: dict[Kind, tuple[str, ...]] = {
    "tokenizer": (),
    "pretrain": (
        "train.phases.0.steps=20",
        "schedule.warmup=2",
        "log.validate_every=20",
        "log.validate_samples=32",
    ),
    "finetune": ("train.epochs=1",),
    "eval": (),
}


def plan_model(folder: str, seed: int, *, quick: bool, rows: Rows | None) -> ModelPlan:
    """The stages of a model.

    Args:
        folder: Of its configs, in ``configs/``.
        seed: Of all stages but the tokenizer: the same text gives the same one.
        quick: Shorten them; they get a folder of their own.
        rows: Text and rows in place of those of the configs.
    """
    written = {
        kind: Path(cast("StageConfig", load(kind, configs_folder() / folder / f"{kind}.yaml")).run)
        for kind in _QUICK
    }
    base = written["pretrain"].parent
    base = base.with_name(
        base.name + (f"-{rows.name}" if rows and rows.name else "") + "-quick" * quick
    )
    root = base if seed == 1 else base / f"seed-{seed}"
    tokenizer, pretrained = base / written["tokenizer"].name, root / written["pretrain"].name
    measures = load("eval", configs_folder() / folder / "eval.yaml").measures
    settings = {} if rows is None else rows.overrides(base, len(measures))
    family = ""

    def stage(
        kind: Kind, run: Path, name: str, about: str, *overrides: str, needs: Path | None = None
    ) -> Stage:
        place = f"{folder}/{kind}"
        keys = [f"run={json.dumps(str(run), ensure_ascii=False)}", *overrides]
        keys += [] if kind == "tokenizer" else [f"seed={seed}"]
        # One process, also with several GPUs: the models are too small to be divided.
        keys += ["launch.processes=1"] if kind in ("pretrain", "finetune") else []
        keys += [*settings.get(kind, ()), *(_QUICK[kind] if quick else ())]
        config: Any = load(kind, configs_folder() / f"{place}.yaml", keys)
        return Stage(
            kind, family, name, about, place, tuple(keys), config, str(needs) if needs else ""
        )

    family = stage("pretrain", pretrained, "", "").config.model.family  # type: ignore[union-attr]  # a pretraining
    model = f"model={json.dumps(f'{pretrained}/model', ensure_ascii=False)}"
    tuned = root / written["finetune"].name
    scratch = tuned.with_name(f"{tuned.name}-scratch")
    return ModelPlan(
        seed,
        base,
        root,
        stage("tokenizer", tokenizer, "tokenizer", "learns a vocabulary from the text"),
        stage(
            "pretrain",
            pretrained,
            "pretraining",
            "learns from the text, without labels",
            f"tokenizer={json.dumps(str(tokenizer), ensure_ascii=False)}",
            needs=tokenizer,
        ),
        stage(
            "finetune",
            tuned,
            "finetuning",
            "learns from the labelled rows",
            model,
            needs=pretrained,
        ),
        stage(
            "finetune",
            scratch,
            "from scratch",
            "the same, from random weights",
            model,
            "init=random",
            needs=pretrained,
        ),
        stage(
            "eval",
            root / written["eval"].name,
            "evaluation",
            "measures the pretrained model on held-out text",
            model,
            needs=pretrained,
        ),
    )


# --- Running the stages ---


def run_stages(stages: Sequence[Stage], *, fresh: bool, verbose: bool) -> None:
    """Run the stages that are not finished, each as a process of its own; a line for each.

    A process has one thread: a second one makes these small networks about 1.3 times as fast, a
    second process nearly doubles the work. A pretraining that has two CPUs for itself takes both.

    Args:
        stages: In their order.
        fresh: Run all of them, in new folders.
        verbose: Print what they print.

    Raises:
        PlmError: A stage failed; its message and exit code.
        Preempted: A stage was stopped.
    """
    waiting = [stage for stage in stages if fresh or not stage.is_finished()]
    pretrainings = sum(stage.kind == "pretrain" for stage in stages)
    # A signal is a flag, not an exception, which could come between a stage's start and its entry
    # in `running`: nobody would stop that stage.
    with StageLines(len(stages)) as lines, StopRequest() as stop, _running() as running:
        for stage in stages:
            if stage not in waiting:
                lines.ended(stage.title, "finished before")
        while waiting or running:
            stop.check()
            unfinished = {stage.config.run for stage in [*waiting, *(one.stage for one in running)]}
            for stage in [stage for stage in waiting if stage.needs not in unfinished]:
                if len(running) < _at_once():
                    waiting.remove(stage)
                    alone = stage.kind == "pretrain" and usable_cpus() >= 2 * pretrainings
                    running.append(_start(stage, 2 if alone else 1, fresh=fresh))
            time.sleep(_POLL)
            for one in list(running):
                ended = one.process.poll() is not None  # before its last output is read
                for line in one.new_lines():
                    if verbose:
                        lines.output(Path(one.stage.config.run).name, line)
                if ended:
                    running.remove(one)
                    one.output.close()
                    one.check()
                    lines.ended(one.stage.title, f"{time.monotonic() - one.began:5.0f} s")
            lines.show([(one.stage.title.rstrip(), one.lines[-1]) for one in running])


_POLL = 0.1  # seconds
_MEMORY = 2**30  # bytes of a stage


def _at_once() -> int:
    """How many stages this machine runs side by side."""
    return max(1, min(usable_cpus(), usable_memory() // _MEMORY))


@dataclass
class _Stage:
    """A stage at work.

    Attributes:
        output: Its log, after what was read.
        began: By the monotonic clock, in seconds.
        lines: What it has printed, without empty lines; first its command.
    """

    stage: Stage
    process: subprocess.Popen[bytes]
    output: TextIO
    lines: list[str]
    began: float = field(default_factory=time.monotonic)
    rest: str = ""

    def new_lines(self) -> list[str]:
        """The complete lines since the last call."""
        *lines, self.rest = (self.rest + self.output.read()).split("\n")
        self.lines += (line for line in lines if line.strip())
        return lines

    def check(self) -> None:
        """Raise the error of an ended process, with its exit code."""
        code = self.process.returncode
        if code == 0:
            return
        _, _, text = "\n".join(["", *self.lines]).rpartition("\nplmctl: ")
        hint = f"all that it printed: {self.stage.log}"
        if code < 0:
            name = signal.Signals(-code).name
            why = ", perhaps because memory ran out" if -code == signal.SIGKILL else ""
            text, code = f"was killed by {name}{why}", 128 - code
        message, *more = (text or self.lines[-1]).split("\n")
        error = (Preempted if code == Preempted.exit_code else PlmError)(
            f"{self.stage.model} {self.stage.name}: {message}",
            "\n  ".join([*(line.strip() for line in more), hint]),
        )
        error.exit_code = code
        raise error


def _start(stage: Stage, threads: int, *, fresh: bool) -> _Stage:
    # The config of the plan, also where the working directory has one of that name.
    config = configs_folder() / f"{stage.place}.yaml"
    command = [sys.executable, "-m", "plmctl", COMMANDS[stage.kind], str(config), *stage.overrides]
    line = f"$ OMP_NUM_THREADS={threads} {stage.command}"
    with writing(stage.log):
        stage.log.parent.mkdir(parents=True, exist_ok=True)
        log = stage.log.open("a", encoding="utf-8")
    with log:
        print(line, file=log, flush=True)
        output = stage.log.open(encoding="utf-8", errors="replace")
        output.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            [*command, *["--fresh"] * fresh],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": str(threads)},
            process_group=0,  # Ctrl-C reaches only this process, which passes it on
        )
    return _Stage(stage, process, output, [line])


@contextmanager
def _running() -> Iterator[list[_Stage]]:
    """The stages at work; those that are left in it are stopped, and save what they have."""
    running: list[_Stage] = []
    try:
        yield running
    finally:
        try:
            for one in running:
                one.process.terminate()
            for one in running:
                one.process.wait()
        except BaseException:  # a second Ctrl-C
            for one in running:
                one.process.kill()
            raise


def _write_report(models: Sequence[ModelPlan], path: Path) -> None:
    from plmctl.reporting.report import write_report

    runs = [
        stage.config.run
        for stages in zip(*((m.pretrain, m.finetune, m.scratch) for m in models), strict=True)
        for stage in stages
    ]
    with writing(path):
        write_report([Path(run) for run in runs], path)


# --- The results ---


def results_document(
    name: str, demo: Demo, models: Sequence[ModelPlan], *, quick: bool
) -> dict[str, Any]:
    """The results of all models, over their seeds.

    Returns:
        models: for each family tokens, minutes (a mean), rows, majority (None if the task has
            none), and the metric by seed as ``scratch`` and ``pretrained``, with ``gain``, their
            differences; ``eval``, the results of the measures by seed. samples: of the first seed.
    """
    rows: dict[str, dict[str, Any]] = {}
    for model in models:
        tuned, scratch = _results(model.finetune), _results(model.scratch)
        log = Path(model.pretrain.config.run) / "metrics.jsonl"
        records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        last = [record for record in records if "time" in record][-1]
        row = rows.setdefault(
            model.pretrain.model,
            {
                "model": model.pretrain.model,
                "run": model.pretrain.config.run,
                "tokens": last["tokens"],
                "minutes": [],
                "rows": tuned["rows"],
                "majority": tuned.get("majority"),
                **{key: [] for key in ("scratch", "pretrained", "gain", "eval")},
            },
        )
        values = scratch[demo.metric], tuned[demo.metric]
        row["minutes"].append(last["time"] / 60)
        row["scratch"].append(values[0])
        row["pretrained"].append(values[1])
        row["gain"].append(values[1] - values[0])
        measured = Path(model.evaluate.config.run) / "eval"
        row["eval"].append(
            {path.stem: _read(path)["results"] for path in sorted(measured.glob("*.json"))}
        )
    return {
        "demo": name,
        "quick": quick,
        "metric": demo.metric,
        "seeds": sorted({model.seed for model in models}),
        "models": list(rows.values()),
        "samples": [
            {"model": model.pretrain.model, "kind": kind, **item}
            for model in models
            if model.seed == models[0].seed
            for kind, item in _samples(Path(model.pretrain.config.run))
        ],
    }


def _results(stage: Stage) -> dict[str, Any]:
    return dict(_read(Path(stage.config.run) / "eval" / "valid.json")["results"])


def _read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


_SAMPLES = 2  # of each model


def _samples(run: Path) -> list[tuple[str, dict[str, Any]]]:
    path = run / "eval" / "samples.json"
    samples: dict[str, Any] = _read(path) if path.is_file() else {"kind": "", "items": []}
    return [(samples["kind"], item) for item in samples["items"][:_SAMPLES]]


def results_table(demo: Demo, document: Mapping[str, Any]) -> Table:
    """A row per model; with several seeds means and standard deviations."""
    from plmctl.reporting.tables import rows_table

    has_majority = any(row["majority"] is not None for row in document["models"])
    columns = ["model", "tokens", "minutes", "rows", *["majority"] * has_majority]
    table = rows_table(
        demo.title,
        [*columns, "scratch", "pretrained", "gain"],
        [
            [
                row["model"],
                f"{row['tokens'] / 1e6:.1f} M",
                f"{statistics.fmean(row['minutes']):.1f}",
                str(row["rows"]),
                *([f"{row['majority']:.3f}"] if has_majority else []),
                _spread(row["scratch"]),
                _spread(row["pretrained"]),
                _spread(row["gain"], "+"),
            ]
            for row in document["models"]
        ],
    )
    notes = ["tokens and minutes of pretraining; labelled rows of finetuning"]
    if len(document["seeds"]) > 1:
        notes += [f"mean ± standard deviation of {len(document['seeds'])} seeds"]
    if document["quick"]:
        notes += ["--quick: a few steps of each stage; the numbers say nothing of pretraining"]
    table.caption, table.caption_justify = "\n".join(notes), "left"
    return table


def _spread(values: Sequence[float], sign: str = "") -> str:
    """Without spaces: a table of several seeds has room in 80 columns."""
    mean = f"{statistics.fmean(values):{sign}.3f}"
    return mean if len(values) == 1 else f"{mean}±{statistics.stdev(values):.3f}"


def next_steps(demo: Demo, models: Sequence[ModelPlan]) -> list[str]:
    """Command lines to try, on the models of the first seed."""
    first = [model for model in models if model.seed == models[0].seed]
    places = {
        "pretrain": first[0].pretrain.config.run,
        "pretrain_last": first[-1].pretrain.config.run,
        "finetune": first[0].finetune.config.run,
    }
    return [line.format(**places) for line in demo.next_steps]


def print_rest(document: Mapping[str, Any]) -> None:
    """Print samples of the models, the report's path, and what to try next."""
    from plmctl.reporting.report import unspaced

    for item in document["samples"]:
        if item["kind"] == "fill-mask":
            best = ", ".join(f"{p['token']} {p['score']:.2f}" for p in item["predictions"][:3])
            text = unspaced(item["text"])
            print(printable(f"{text}\n  → {best}  (was: {item['answer']})\n"))
        else:
            print(printable(f"{item['prompt']} …\n  → {item['text']}\n"))
    print(f"curves and details: {document['report']}\n\ntry next:")
    for line in document["next"]:
        print(f"  {line}")
    print("\nyour own text: this looks at a folder of it, and writes configs\n  plmctl init FOLDER")


# --- Text and rows in place of those of the configs: a user's, or a few of a sample's ---


_FILES = ("text.txt", "train.jsonl", "test.jsonl")


@dataclass(frozen=True)
class Rows:
    """Text and labelled rows, which are written to ``data/`` of the demo.

    Attributes:
        name: For the folder of the demo; empty for those of a sample.
        texts: Documents to pretrain on; of a user's file, the texts of the training rows.
        train: Training rows.
        test: Held-out rows.
    """

    name: str
    texts: list[str]
    train: list[dict[str, Any]]
    test: list[dict[str, Any]]

    def shortened(self) -> Rows:
        """The first texts and rows."""
        return Rows(
            self.name,
            self.texts[:_QUICK_TEXTS],
            self.train[:_QUICK_ROWS],
            self.test[:_QUICK_ROWS],
        )

    def overrides(self, base: Path, measures: int) -> dict[Kind, tuple[str, ...]]:
        """The keys of each kind of config that name the files.

        Args:
            base: The folder of the demo.
            measures: Number of measures of the evaluation.
        """
        text, train, test = (
            json.dumps([str(base / "data" / name)], ensure_ascii=False) for name in _FILES
        )
        return {
            "tokenizer": (f"data.train={text}",),
            "pretrain": (f"data.train={text}",),
            "finetune": (f"data.train={train}", f"data.valid={test}"),
            "eval": tuple(f"measures.{number}.data={text}" for number in range(measures)),
        }

    def write(self, base: Path) -> None:
        """Write the files; equal ones are left as they are."""
        contents = ["\n\n".join(self.texts) + "\n"]
        contents += [
            "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in side)
            for side in (self.train, self.test)
        ]
        for name, content in zip(_FILES, contents, strict=True):
            with writing(base / "data" / name) as path:
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.is_file() or path.read_text(encoding="utf-8") != content:
                    write_atomically(path, content)


_QUICK_TEXTS = 600
_QUICK_ROWS = 48


def quick_rows(demo: Demo) -> Rows:
    """A few texts and rows of the samples of a demo."""
    folder = configs_folder() / demo.configs[0]
    data = load("finetune", folder / "finetune.yaml").data
    assert isinstance(data.valid, tuple)  # so are the configs of the demos
    sides = []
    for names in (data.train, data.valid):
        rows = read_rows(names)  # ordered by label, some of them: spread over all
        sides.append([dict(row.values) for row in rows[:: max(1, len(rows) // _QUICK_ROWS)]])
    (text, *_) = load("pretrain", folder / "pretrain.yaml").data.train
    paragraphs: list[str] = []
    for document in sample.documents(text.removeprefix("sample:")):
        paragraphs += (part for part in document.text.split("\n\n") if len(part) > 20)
        if len(paragraphs) >= _QUICK_TEXTS:
            break
    return Rows("", paragraphs, *sides).shortened()


_OWN_COLUMNS = {
    "ner": (("tokens", "tags"), "tokens"),
    "qa": (("question", "context", "answers"), "context"),
}
"""By demo: the columns of its rows, and the one that is text."""

_HELD_OUT = 0.2  # share of the texts
_TEST_ROWS = 1_000  # at most, so that scoring takes seconds


def own_rows(file: str, demo: str) -> Rows:
    """The rows of a user's file; a fifth of the texts, by their hash, are held out with their rows.

    Raises:
        ConfigError: No such file.
        DataError: A malformed row, a missing column, or too few texts.
    """
    path = Path(file)
    if not path.is_file():
        raise ConfigError(f"--data {file}: no such file", "give a file of labelled rows")
    columns, text_column = _OWN_COLUMNS[demo]
    train: list[dict[str, Any]] = []
    test: list[tuple[float, dict[str, Any]]] = []
    texts: dict[str, None] = {}
    rows = read_rows([file])
    for row in rows:
        values = {column: row.cell(column) for column in columns}
        text = _text_of(values[text_column])
        # Another hash than that of the validation split, which would hold out the same texts.
        share = share_of(f"rows of a test: {text}")
        if share < _HELD_OUT:
            test.append((share, values))
        else:
            train.append(values)
            texts[text] = None
    if not train or not test:
        raise DataError(
            f"{file}: {len(texts)} texts: too few to hold a fifth out", "give a file with more rows"
        )
    test.sort(key=lambda pair: pair[0])
    # Another file, or the same one with other rows, has another folder.
    name = f"{path.name.partition('.')[0]}-{rows_digest(rows)[:6]}"
    return Rows(name, list(texts), train, [values for _, values in test[:_TEST_ROWS]])


def _text_of(value: Any) -> str:
    """Words as a text: without spaces if most are single Chinese characters."""
    if not isinstance(value, list):
        return str(value)
    words = [str(word) for word in value]
    chinese = sum(len(word) == 1 and has_chinese(word) for word in words)
    return ("" if 2 * chinese > len(words) else " ").join(words)
