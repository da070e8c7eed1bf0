"""``plmctl demo``: what does pretraining on raw text buy, where labelled rows are few?

For each model of a demo: train a tokenizer, pretrain, finetune on a few labelled rows from the
pretrained and from random weights, evaluate. Then one table. The configs are those of
``configs/demo``; ``demos.yml`` beside them lists the commands, which a user could type.

From top to bottom: the demos, the plan of one, running the stages, the results, a user's own rows.
"""

from __future__ import annotations

import itertools
import json
import shlex
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import yaml

from plmctl.config.load import COMMANDS, Kind, configs_folder
from plmctl.corpus import sample
from plmctl.corpus.document import share_of
from plmctl.corpus.labelled import read_rows, rows_digest
from plmctl.cpus import usable_cpus, usable_memory
from plmctl.errors import ConfigError, DataError, Preempted, nearest
from plmctl.files import write_atomically, writing
from plmctl.formatting import printable
from plmctl.run.configs import load
from plmctl.run.display import say, show_result
from plmctl.run.folder import check_run, read_results
from plmctl.run.stages import Stage, StageConfig, StageProcess, ending
from plmctl.run.stop import StopRequest, stopping_at_once
from plmctl.run.yardsticks import NGRAMS
from plmctl.tokenization.words import has_chinese

if TYPE_CHECKING:
    from rich.table import Table


# --- The demos ---


_ABOUT = {
    "tokenizer": "learns a vocabulary from the text",
    "pretraining": "learns from the text, without labels",
    "finetuning": "learns from the labelled rows",
    "from scratch": "the same, from random weights",
    "evaluation": "measures the pretrained model on held-out text",
}
"""The stages of a model, in their order."""


@dataclass(frozen=True)
class Demo:
    """A demo of ``configs/demo/demos.yml``, which says what the fields are."""

    title: str
    base: str
    sample: str | None
    metric: str
    models: Mapping[str, Mapping[str, str]]
    next: Sequence[str]


def demos() -> dict[str, Demo]:
    """The demos by name."""
    text = (configs_folder() / "demo/demos.yml").read_text(encoding="utf-8")
    return {name: Demo(**fields) for name, fields in yaml.safe_load(text).items()}


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
        plan_model(demo, model, number, quick=quick, rows=rows)
        for number in range(seed, seed + seeds)
        for model in demo.models
    ]
    stages = list({stage.config.run: stage for model in models for stage in model.all}.values())
    base, root = models[0].base, models[0].root
    report = root / "report.html" if seeds == 1 else base / f"report-{seeds}-seeds.html"
    try:
        for stage in stages:
            check_run(stage.config, stage.config.run, fresh=fresh)
    except ConfigError as error:
        raise ConfigError(
            error.message, f"`{again} --fresh` moves the old runs aside and starts from scratch"
        ) from error
    if fresh or not report.is_file() or not all(stage.is_finished() for stage in stages):
        if rows is not None:
            rows.write(base)
        try:
            with stopping_at_once():
                run_models(models, fresh=fresh, verbose=verbose)
                _write_report(models, report)
        except Preempted as error:
            raise Preempted(error.message, f"to continue: {again}") from error
    document = results_document(name, demo, models, quick=quick) | {"report": str(report)}
    document["next"] = [line.format(root=root) for line in demo.next]
    show_result(document, [results_table(demo, document)], as_json=as_json)
    if not as_json:
        print_rest(document)


def find_demo(name: str, data: str | None) -> Demo:
    """The demo of a name, if what it needs is there.

    Raises:
        ConfigError: There is no such demo, its package is not installed, or it needs rows.
    """
    known = demos()
    if name not in known:
        raise ConfigError(f"no demo {name!r}{nearest(name, known)}", "try `plmctl demo en`")
    demo = known[name]
    if data is not None:
        if name not in _OWN_COLUMNS:
            raise ConfigError(
                f"demo {name} takes no --data",
                "for your own text: `plmctl init FOLDER`",
            )
    elif demo.sample is None:
        raise ConfigError(
            f"demo {name} needs your rows: no package carries questions with answers",
            f"plmctl demo {name} --data FILE, a JSON file as SQuAD's (train-v1.1.json), or jsonl "
            "with question, context and answers",
        )
    else:
        sample.files(demo.sample)
    return demo


# --- The plan: the configs of each stage ---


@dataclass(frozen=True)
class ModelPlan:
    """The stages of a model and a seed.

    Attributes:
        root: The folder of its seed: the same for seed 1.
    """

    seed: int
    base: Path
    root: Path
    stages: Mapping[str, Stage]

    @property
    def all(self) -> list[Stage]:
        """The stages in their order."""
        return list(self.stages.values())

    def run_of(self, stage: str) -> Path:
        """The run folder of a stage."""
        return Path(self.stages[stage].config.run)


# What makes a demo short: it shows that everything works, and learns nothing.
_QUICK: dict[Kind, tuple[str, ...]] = {
    "pretrain": (
        "train.phases.0.steps=20",
        "schedule.warmup=2",
        "log.validate_every=20",
        "log.validate_samples=32",
    ),
    "finetune": ("train.epochs=1",),
}


def plan_model(
    demo: Demo, model: str, seed: int, *, quick: bool, rows: DemoData | None
) -> ModelPlan:
    """The stages of a model.

    Args:
        seed: Of all stages but the tokenizer: the same text gives the same one.
        quick: Shorten them; they get a folder of their own.
        rows: Text and rows in place of those of the configs.
    """
    base = Path(demo.base + (f"-{rows.name}" if rows and rows.name else "") + "-quick" * quick)
    root = base if seed == 1 else base / f"seed-{seed}"
    stages = {}
    for name, line in demo.models[model].items():
        command, place, *written = shlex.split(line)
        kind = _KINDS[command]
        path = configs_folder() / f"{place}.yaml"
        pairs = (word.format(base=base, root=root).partition("=") for word in written)
        keys = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, _, value in pairs]
        keys += [] if kind == "tokenizer" else [f"seed={seed}"]
        # One process, also with several GPUs: the models are too small to be divided.
        keys += ["launch.processes=1"] if kind in ("pretrain", "finetune") else []
        if rows is not None:
            keys += rows.overrides(base, kind, path)
        keys += _QUICK.get(kind, ()) if quick else ()
        config = cast(StageConfig, load(kind, path, keys))
        stages[name] = Stage(model, name, (command, place, *keys), path, config)
    return ModelPlan(seed, base, root, stages)


_KINDS: dict[str, Kind] = {command: kind for kind, command in COMMANDS.items()}


# --- Running the stages ---


_POLL = 0.1  # seconds
_MEMORY = 2**30  # bytes of a stage


def run_models(models: Sequence[ModelPlan], *, fresh: bool, verbose: bool) -> None:
    """Run the tokenizers, then the stages of each model one after the other, models side by side.

    Each stage is a process of its own. It has one thread, or two if a model is alone: a second
    thread makes these small networks about 1.3 times as fast, a second process doubles the work.

    Args:
        verbose: Print what a stage has printed, at its end.

    Raises:
        PlmError: A stage failed; its message and exit code.
        Preempted: A stage was stopped.
    """
    tokenizers = {str(model.run_of("tokenizer")): model.all[0] for model in models}
    total = len(tokenizers) + sum(len(model.all) - 1 for model in models)
    ended = itertools.count(1)
    at_work: list[StageProcess] = []

    def chain(stages: Sequence[Stage], threads: int) -> Iterator[None]:
        """Run stages; each turn looks once whether the one at work has ended."""
        for stage in stages:
            note = "finished before"
            if fresh or not stage.is_finished():
                process = StageProcess(stage, fresh=fresh, threads=threads)
                at_work.append(process)
                while process.is_running():
                    yield
                at_work.remove(process)
                process.check(verbose=verbose)
                note = f"{process.seconds:5.0f} s"
            title = f"{stage.of:5} {stage.name:12} {_ABOUT[stage.name]:46}"
            say(f"{next(ended):{len(str(total))}}/{total}  {title}  {note}")

    side_by_side = max(1, min(len(models), usable_cpus(), usable_memory() // _MEMORY))
    threads = min(2, max(1, usable_cpus() // side_by_side))
    say(f"what the stages print: {models[0].base / 'logs'}/")
    # A signal is a flag, not an exception, which could come between a stage's start and its entry
    # in `at_work`: nobody would stop that stage.
    with StopRequest() as stop, ending(at_work):
        _take_turns([chain(list(tokenizers.values()), threads)], 1, stop)
        _take_turns([chain(model.all[1:], threads) for model in models], side_by_side, stop)


def _take_turns(chains: list[Iterator[None]], at_once: int, stop: StopRequest) -> None:
    while chains:
        stop.check()
        for one in chains[:at_once]:
            if next(one, chains) is chains:  # it has ended
                chains.remove(one)
        time.sleep(_POLL)


def _write_report(models: Sequence[ModelPlan], path: Path) -> None:
    from plmctl.reporting.report import write_report

    runs = [
        model.run_of(stage)
        for stage in ("pretraining", "finetuning", "from scratch")
        for model in models
    ]
    with writing(path):
        write_report(runs, path)


# --- The results ---


def results_document(
    name: str, demo: Demo, models: Sequence[ModelPlan], *, quick: bool
) -> dict[str, Any]:
    """The results of all models, over their seeds.

    Returns:
        models: for each family tokens, minutes (a mean), rows, majority (None if the task has
            none), and the metric by seed as ``scratch`` and ``pretrained``, with ``gain``, their
            differences; ``counting``, that of the best method that needs no network (None: there is
            none), named in ``counted_by``; ``loss`` and ``loss_counted`` (None but of causal
            models), nats of a held-out token by the network and by n-grams; ``eval``, the results
            of the measures by seed. samples: of the first seed.
    """
    rows: dict[str, dict[str, Any]] = {}
    for model in models:
        run = model.run_of("pretraining")
        tuned, scratch = (
            _read(model.run_of(stage) / "eval" / "valid.json")["results"]
            for stage in ("finetuning", "from scratch")
        )
        log = run / "metrics.jsonl"
        records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        last = [record for record in records if "time" in record][-1]
        name = model.stages["pretraining"].of
        row = rows.setdefault(
            name,
            {
                "model": name,
                "run": str(run),
                "tokens": last["tokens"],
                "minutes": [],
                "rows": tuned["rows"],
                "majority": tuned.get("majority"),
                **{key: [] for key in _BY_SEED},
            },
        )
        values = scratch[demo.metric], tuned[demo.metric]
        row["minutes"].append(last["time"] / 60)
        row["scratch"].append(values[0])
        row["pretrained"].append(values[1])
        row["gain"].append(values[1] - values[0])
        row["counted_by"], counted = _counted(model.run_of("finetuning"), demo.metric)
        row["counting"].append(counted)
        language = _read(run / "eval" / "valid.json")["results"]
        row["loss"].append(language.get("valid/loss"))
        row["loss_counted"].append(language.get(NGRAMS))
        measured = model.run_of("evaluation") / "eval"
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
            {"model": model.stages["pretraining"].of, "kind": kind, **item}
            for model in models
            if model.seed == models[0].seed
            for kind, item in _samples(model.run_of("pretraining"))
        ],
    }


_BY_SEED = ("scratch", "pretrained", "gain", "counting", "loss", "loss_counted", "eval")


def _counted(run: Path, metric: str) -> tuple[str | None, float | None]:
    """The best method of counting on the rows of a finetuning, and its metric."""
    methods: list[dict[str, Any]] = []
    with suppress(DataError):  # without the packages there is no yardstick
        methods = read_results(run / "eval" / "yardstick.json", "methods")["methods"]
    values = [(one["metrics"][metric], one["name"]) for one in methods if metric in one["metrics"]]
    value, name = max(values, default=(None, None))
    return name, value


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

    models = document["models"]
    table = rows_table(
        demo.title,
        ["model", "tokens", "minutes", "rows", "counting", "scratch", "pretrained", "gain"],
        [
            [
                row["model"],
                f"{row['tokens'] / 1e6:.1f} M",
                f"{statistics.fmean(row['minutes']):.1f}",
                str(row["rows"]),
                "-" if None in row["counting"] else _spread(row["counting"]),
                _spread(row["scratch"]),
                _spread(row["pretrained"]),
                _spread(row["gain"], "+"),
            ]
            for row in models
        ],
    )
    notes = ["tokens and minutes of pretraining; labelled rows; gain over scratch"]
    if len(document["seeds"]) > 1:
        notes += [f"mean ± standard deviation of {len(document['seeds'])} seeds"]
    if document["quick"]:
        notes += ["--quick: a few steps of each stage; the numbers say nothing of pretraining"]
    else:
        notes += _beside_counting(models)
    table.caption, table.caption_justify = "\n".join(notes), "left"
    return table


def _beside_counting(models: Sequence[Mapping[str, Any]]) -> list[str]:
    """What else is said of counting: how it was done, where it is as good, and of n-grams."""
    methods = sorted({row["counted_by"] for row in models if row["counted_by"]})
    lines = [f"counting, on the same rows: {', '.join(methods)}"] if methods else []
    for row in models:
        if row["majority"] is not None:
            lines += [f"always the most frequent label: {row['majority']:.3f}"]
            break
    beaten = [
        row["model"]
        for row in models
        if None not in row["counting"]
        and statistics.fmean(row["pretrained"]) <= statistics.fmean(row["counting"])
    ]
    if beaten:
        lines += [f"no better than counting: {', '.join(beaten)}"]
    for row in models:
        if None not in row["loss_counted"]:
            lines += [
                f"{row['model']}: {_spread(row['loss'])} nats per held-out token; "
                f"{NGRAMS}s of the same text: {_spread(row['loss_counted'])}"
            ]
    return lines


def _spread(values: Sequence[float], sign: str = "") -> str:
    """Mean and spread without spaces, so that a table of several seeds has room in 80 columns."""
    mean = f"{statistics.fmean(values):{sign}.3f}"
    return mean if len(values) == 1 else f"{mean}±{statistics.stdev(values):.3f}"


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
    runs = " ".join(row["run"] for row in document["models"])
    print(f"  plmctl try {runs}   # in a browser, until Ctrl-C")
    print("\nyour own text: this looks at a folder of it, and writes configs\n  plmctl init FOLDER")


# --- Text and rows in place of those of the configs: a user's, or a few of a sample's ---


_FILES = ("text.txt", "train.jsonl", "test.jsonl")


@dataclass(frozen=True)
class DemoData:
    """Text and labelled rows, which are written to ``data/`` of the demo.

    Attributes:
        name: For the folder of the demo; empty for those of a sample.
        texts: Documents to pretrain on; of a user's file, the texts of the training rows.
    """

    name: str
    texts: list[str]
    train: list[dict[str, Any]]
    test: list[dict[str, Any]]

    def shortened(self) -> DemoData:
        """The first texts and rows."""
        return DemoData(
            self.name,
            self.texts[:_QUICK_TEXTS],
            self.train[:_QUICK_ROWS],
            self.test[:_QUICK_ROWS],
        )

    def overrides(self, base: Path, kind: Kind, config: Path) -> list[str]:
        """The keys of a config that name the files, which are in the folder of the demo."""
        text, train, test = (
            json.dumps([str(base / "data" / name)], ensure_ascii=False) for name in _FILES
        )
        if kind == "finetune":
            return [f"data.train={train}", f"data.valid={test}"]
        if kind == "eval":
            measures = load("eval", config).measures
            return [f"measures.{number}.data={text}" for number in range(len(measures))]
        return [f"data.train={text}"]

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


def quick_rows(demo: Demo) -> DemoData:
    """A few texts and rows of the samples of a demo."""
    stages = next(iter(demo.models.values()))
    pretrain, finetune = (
        configs_folder() / f"{stages[name].split()[1]}.yaml"
        for name in ("pretraining", "finetuning")
    )
    data = load("finetune", finetune).data
    assert isinstance(data.valid, tuple)  # so are the configs of the demos
    sides = []
    for names in (data.train, data.valid):
        rows = read_rows(names)  # ordered by label, some of them: spread over all
        sides.append([dict(row.values) for row in rows[:: max(1, len(rows) // _QUICK_ROWS)]])
    (text, *_) = load("pretrain", pretrain).data.train
    paragraphs: list[str] = []
    for document in sample.documents(text.removeprefix("sample:")):
        paragraphs += (part for part in document.text.split("\n\n") if len(part) > 20)
        if len(paragraphs) >= _QUICK_TEXTS:
            break
    return DemoData("", paragraphs, *sides).shortened()


_OWN_COLUMNS = {
    "ner": (("tokens", "tags"), "tokens"),
    "qa": (("question", "context", "answers"), "context"),
}
"""By demo: the columns of its rows, and the one that is text."""

_HELD_OUT = 0.2  # share of the texts
_TEST_ROWS = 1_000  # at most, so that scoring takes seconds


def own_rows(file: str, demo: str) -> DemoData:
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
    return DemoData(name, list(texts), train, [values for _, values in test[:_TEST_ROWS]])


def _text_of(value: Any) -> str:
    """Words as a text: without spaces if most are single Chinese characters."""
    if not isinstance(value, list):
        return str(value)
    words = [str(word) for word in value]
    chinese = sum(len(word) == 1 and has_chinese(word) for word in words)
    return ("" if 2 * chinese > len(words) else " ").join(words)
