"""A run folder as data: its files and its metrics.

A report is often wanted of a run that is not finished or has failed. So a missing file is read as
empty, and a line or a part of a file that has another form than plmctl writes is listed and left
out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from plmctl.addresses import all_shown
from plmctl.arrays import Floats
from plmctl.config.document import read_document as read_config
from plmctl.config.load import kind_of_document
from plmctl.errors import ConfigError, listed
from plmctl.files import is_edited, is_model
from plmctl.formatting import format_duration
from plmctl.hashing import changed, model_hashes


@dataclass(frozen=True)
class Status:
    """The ``status.json`` of a run folder.

    Attributes:
        name: "running", "stopped" (the same command continues), "failed" or "finished"; empty if
            the file cannot be read. A process that was killed leaves "running".
        time: Since when, ISO 8601.
        files: The files of a finished run, relative to its folder; written before they exist.
    """

    name: str = ""
    time: str = ""
    message: str = ""
    files: tuple[str, ...] = ()

    def missing(self, folder: Path) -> list[str]:
        """The files that do not exist; "model" is a model folder."""
        return [
            name
            for name in self.files
            if not (is_model(folder / name) if name == "model" else (folder / name).is_file())
        ]


def read_status(folder: Path) -> Status | None:
    """The status of a run; None if it has no ``status.json``, as in runs of older versions."""
    path = folder / "status.json"
    if not path.is_file():
        return None
    status = _read_json(path, [])
    text = {key: str(status.get(key, "")) for key in ("time", "message")}
    files = status.get("files")
    listed = tuple(map(str, files)) if isinstance(files, list) else ()
    return Status(str(status.get("status", "")), **text, files=listed)


def find_run(folder: Path) -> Path:
    """The run folder that is meant: the folder, or the one that its ``model/`` is in.

    Raises:
        ConfigError: It is no run folder.
    """
    for each in (folder, folder.parent):
        if (each / "config.yaml").is_file() and (each is folder or folder.name == "model"):
            return each
    if not folder.exists():
        raise ConfigError(f"{folder}: no such folder in {Path.cwd()}", "name a run folder")
    runs = sorted(path.parent for path in folder.glob("runs/*/config.yaml"))  # of init's folder
    if (folder.parent / "config.yaml").is_file():  # such as RUN/eval
        runs = [folder.parent]
    hint = f"did you mean {' or '.join(map(str, runs))}?" if runs else "name a run folder"
    raise ConfigError(f"{folder}: no run here (no config.yaml)", hint)


@dataclass(frozen=True)
class Run:
    """The contents of a run folder.

    Attributes:
        name: A short name that no other run of the report has.
        kind: "pretrain", "finetune", "eval" or "tokenizer".
        environment: Versions, hardware, command.
        records: The lines of metrics.jsonl.
        events: The lines of events.
        evaluations: The documents of eval/, by file name.
        unreadable: Lines and files that could not be read.
        status: Its ``status.json``; None: it has none.
        members: The runs in a folder of several runs (``--seeds``, ``--grid``).
        samples_by_step: The lines of samples.jsonl: samples at each validation of a pretraining.
    """

    path: Path
    name: str
    kind: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    records: tuple[Mapping[str, Any], ...]
    events: tuple[Mapping[str, Any], ...]
    evaluations: Mapping[str, Mapping[str, Any]]
    unreadable: tuple[str, ...] = ()
    status: Status | None = None
    members: tuple[Run, ...] = ()
    samples_by_step: tuple[Mapping[str, Any], ...] = ()

    @property
    def finished(self) -> bool:
        """Whether it is finished."""
        if self.status is not None:  # the report itself is the last file of a finished run
            left = set(self.status.missing(self.path)) - {"report.html"}
            at_end = self.status.name in ("running", "finished") and self.status.files
            return bool(at_end and not left)
        if self.members:  # a run of an older version, as below
            return bool(self.protocol) and all(member.finished for member in self.members)
        return is_model(self.path / "model") or any(
            event.get("event") == "finished" for event in self.events
        )

    @property
    def is_protocol(self) -> bool:
        """Whether it is a folder of several runs of one config (``--seeds``, ``--grid``)."""
        return bool(self.members or self.protocol)

    @property
    def protocol(self) -> Mapping[str, Any]:
        """The document of eval/protocol.json: its runs compared; empty without one."""
        return self.evaluations.get("protocol", {})

    @property
    def last(self) -> Mapping[str, Any]:
        """The last training record; empty if there is none yet."""
        return next((r for r in reversed(self.records) if "loss" in r), {})

    @property
    def results(self) -> Mapping[str, Any]:
        """The metrics of the last validation: eval/valid.json, else the last validation record."""
        results = self.evaluations.get("valid", {}).get("results")
        if isinstance(results, Mapping):
            return results
        return next((r for r in reversed(self.records) if "valid/loss" in r), {})

    @property
    def samples(self) -> Mapping[str, Any]:
        """The document of eval/samples.json; empty without one."""
        return self.evaluations.get("samples", {})

    def counted_losses(self, term: str) -> dict[str, float]:
        """The losses that counts give, by what is counted; ``loss`` is that of all terms."""
        losses = counted_levels(self.environment)
        return {name: as_number(one[term]) for name, one in losses.items() if term in one}

    @property
    def comparable(self) -> str:
        """Equal for runs whose metrics can be ranked: a loss is of an objective and a tokenizer."""
        hashes = self.environment.get("hashes")
        hashed = hashes.get("tokenizer") if isinstance(hashes, Mapping) else None
        valid = self.setting("data", "valid")
        held_out_of = None if isinstance(valid, list | dict) else self.setting("data", "train")
        sections: dict[str, tuple[object, ...]] = {
            "pretrain": (self.config.get("objective"), hashed or self.config.get("tokenizer")),
            "finetune": (self.config.get("task"), valid, held_out_of),
        }
        return json.dumps(sections.get(self.kind, ()), sort_keys=True, default=str)

    def keys(self, prefix: str) -> list[str]:
        """The keys of all records that start with a prefix, in order of first appearance."""
        keys = (key for record in self.records for key in record if key.startswith(prefix))
        return list(dict.fromkeys(keys))

    def series(self, key: str) -> tuple[Floats, Floats]:
        """Steps and values of the records that have a key; nan if it is not a finite number."""
        records = [r for r in self.records if key in r]
        steps = np.array([as_number(r.get("step")) for r in records])
        values = np.array([as_number(r[key]) for r in records])
        return steps, np.where(np.isfinite(values), values, math.nan)

    def setting(self, *path: str | int) -> Any:
        """A value of the config; None if it is missing."""
        at: Any = self.config
        for part in path:
            inside = (isinstance(at, Mapping) and part in at) or (
                isinstance(at, Sequence) and isinstance(part, int) and part < len(at)
            )
            if not inside:
                return None
            at = at[part]
        return at


def counted_levels(environment: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The losses of counts, as a run's environment.json has them, by what is counted."""
    alone, more = (environment.get(key) for key in ("frequency_loss", "counted_loss"))
    levels = {"token frequencies alone": alone, **(more if isinstance(more, Mapping) else {})}
    return {str(name): one for name, one in levels.items() if isinstance(one, Mapping)}


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in these folders, each with its own name.

    Raises:
        ConfigError: A folder is no run folder, or its config.yaml is not valid.
    """
    folders = [find_run(folder) for folder in folders]
    return [read_run(f, n) for f, n in zip(folders, short_names(folders), strict=True)]


def read_run(folder: Path, name: str) -> Run:
    """One run; errors as ``read_runs``."""
    folder = find_run(folder)
    document = read_config(folder / "config.yaml")
    unreadable: list[str] = []
    evaluations = {
        path.stem: results
        for path in sorted((folder / "eval").glob("*.json"))
        if (results := _read_evaluation(path, unreadable))
    }
    return Run(
        path=folder,
        name=name,
        kind="eval" if "suite" in document.data else kind_of_document(document),
        config=all_shown(document.data),
        environment=all_shown(_read_json(folder / "environment.json", unreadable)),
        records=_read_json_lines(folder / "metrics.jsonl", "step", unreadable),
        events=_read_json_lines(folder / "events", "event", unreadable),
        evaluations=evaluations,
        samples_by_step=tuple(
            line
            for line in _read_json_lines(folder / "samples.jsonl", "step", unreadable)
            if _are_samples(line.get("items"))
        ),
        unreadable=tuple(unreadable),
        status=read_status(folder),
        members=tuple(
            read_run(path.parent, f"{path.parent.parent.name}/{path.parent.name}")
            for path in sorted(folder.glob("*/seed=*/config.yaml"), key=_in_order)
        ),
    )


def outdated(run: Run) -> list[str]:
    """Lines about results of an evaluation whose model is another one by now."""
    model = run.setting("model")
    if run.kind != "eval" or not isinstance(model, str) or not is_model(Path(model)):
        return []
    now, lines = model_hashes(model), []
    for name, document in run.evaluations.items():
        differ, _ = changed(document.get("hashes"), now)
        if differ and "-step-" not in name:  # those are of checkpoints
            lines.append(f"{run.name}: the {listed(differ)} changed since {name} was measured")
    return lines


def spread(lines: Sequence[Any], most: int = 8) -> list[Any]:
    """The first and the last of some lines, and as many between them as make ``most``."""
    chosen = np.linspace(0, len(lines) - 1, min(most, len(lines))).round().astype(int)
    return [lines[at] for at in chosen]


def each_run(run: Run) -> Sequence[Run]:
    """The runs in a folder of several runs, its name before theirs; else the run itself."""
    if not run.members:
        return [] if run.is_protocol else [run]
    return [replace(member, name=f"{run.name}/{member.name}") for member in run.members]


def _in_order(path: Path) -> tuple[str, int, str]:
    """The sort key of a run: its setting, then its seed as a number (10 after 9)."""
    _, _, seed = path.parent.name.partition("=")
    return path.parent.parent.name, int(seed) if seed.isdecimal() else 0, seed


def short_names(folders: Sequence[Path]) -> list[str]:
    """The last parts of each path, as many as distinguish it from the others."""
    parts = [folder.resolve().parts for folder in folders]
    for count in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(p[-count:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(p[-1:])} ({number})" for number, p in enumerate(parts, 1)]  # a folder twice


def flatten(values: Mapping[str, Any], separator: str = ".") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings, each with the keys that lead to it."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            for inner, leaf in flatten(value, separator):
                yield f"{key}{separator}{inner}", leaf
        else:
            yield str(key), value


_LARGEST = 1e100  # what no measurement reaches; sums and plots of such numbers overflow


def as_number(value: object) -> float:
    """A metric as a float; nan for null, and for what is no number or none of a measurement."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST:
        return float(value)
    return math.nan


def _read_json(path: Path, unreadable: list[str]) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_bytes())
        _check_depth(document)
    except (OSError, ValueError, RecursionError):
        unreadable.append(path.name)
        return {}
    if not isinstance(document, dict):
        return {}
    if is_edited(document):
        unreadable.append(f"{path.name} (changed since it was written)")
        return {}
    return document


_DEEPEST = 40


def _check_depth(value: object, depth: int = 0) -> None:
    """Refuse JSON that is nested more deeply than anything that plmctl writes.

    Raises:
        ValueError: It is.
    """
    if not isinstance(value, dict | list):
        return
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    for inner in value.values() if isinstance(value, dict) else value:
        _check_depth(inner, depth + 1)


def _read_evaluation(path: Path, unreadable: list[str]) -> Mapping[str, Any]:
    """A document of eval/ without the parts that have another form than plmctl writes."""
    document = dict(_read_json(path, unreadable))
    if isinstance(document.get("results"), dict):
        results = document["results"] = dict(document["results"])
    else:
        results = {}
    for part, key, is_right in (
        (document, "results", lambda value: isinstance(value, dict)),
        (document, "items", _are_samples),
        (document, "settings", _are_settings),
        (document, "chosen", lambda value: value is None or isinstance(value, dict)),
        (results, "per_class", _are_objects),
        (results, "confusion", _is_confusion),
    ):
        if key in part and not is_right(part[key]):
            del part[key]
            unreadable.append(f"{path.name}: {key}")
    return document


def _are_objects(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


def _are_samples(value: Any) -> bool:
    return _are_objects(value) and all(_are_objects(i.get("predictions", [])) for i in value)


def _are_settings(value: Any) -> bool:
    return _are_objects(value) and all(isinstance(one.get("setting"), dict) for one in value)


def _is_confusion(value: Any) -> bool:
    """Whether it has labels, and a count for each pair of them."""
    if not isinstance(value, dict) or not isinstance(value.get("labels"), list):
        return False
    rows, size = value.get("matrix"), len(value["labels"])
    return (
        isinstance(rows, list)
        and len(rows) == size
        and all(isinstance(row, list) and len(row) == size for row in rows)
        and all(math.isfinite(as_number(count)) for row in rows for count in row)
    )


def _read_json_lines(
    path: Path, needed: str, unreadable: list[str]
) -> tuple[Mapping[str, Any], ...]:
    """The JSON objects of a file, one per line, that have a key; a step is a number."""
    if not path.is_file():
        return ()
    records = []
    for line_number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        known = record.get(needed) if isinstance(record, dict) else None
        if known is not None and (needed != "step" or math.isfinite(as_number(known))):
            records.append(record)
        elif line.strip():
            unreadable.append(f"{path.name}:{line_number}")
    return tuple(records)


# --- The metrics of a run, for tiles, comparisons, cards and the terminal ---


Better = Literal["low", "high"]

_METRIC_NAMES = {"f1_macro": "macro F1", "f1_weighted": "weighted F1", "majority": "majority class"}

_BETTER_END: dict[str, Better] = {
    "loss": "low",
    "perplexity": "low",
    "accuracy": "high",
    "f1": "high",
    "f1_macro": "high",
    "f1_weighted": "high",
    "matthews": "high",
}


@dataclass(frozen=True)
class Metric:
    """A metric.

    Attributes:
        name: With its unit.
        better: Whether low or high is better; None: neither.
    """

    name: str
    value: float | int | str
    better: Better | None = None


def metrics_of(run: Run) -> list[Metric]:
    """The metrics of a run, the most important first; unknown ones are left out."""
    if run.kind in ("eval", "tokenizer"):
        several = len(run.evaluations) > 1
        return [
            replace(metric, name=f"{stem}: {metric.name}") if several else metric
            for stem, document in run.evaluations.items()
            for metric in result_metrics(document)
        ]
    quality = _classifier_metrics(run) if run.kind == "finetune" else _language_model_metrics(run)
    return [metric for metric in (*quality, *_cost_metrics(run)) if not _is_unknown(metric.value)]


def total_steps(run: Run) -> int | None:
    """The steps of the config; None if it has no phases."""
    steps = phase_steps(run)
    return None if steps is None else sum(steps)


def phase_steps(run: Run) -> list[int] | None:
    """The steps of each phase; None if there are no phases, or a budget has no steps yet.

    Those of a budget are in the run's ``budget.json``.
    """
    phases = run.setting("train", "phases")
    if not isinstance(phases, list):
        return None
    if run.setting("train", "budget") is None:
        steps: Any = [
            phase.get("steps", 0) if isinstance(phase, dict) else None for phase in phases
        ]
    else:
        steps = _read_json(run.path / "budget.json", []).get("steps")
    if not isinstance(steps, list) or len(steps) != len(phases):
        return None
    numbers = [as_number(count) for count in steps]
    return list(map(int, numbers)) if all(map(math.isfinite, numbers)) else None


def result_metrics(document: Mapping[str, Any]) -> list[Metric]:
    """The numbers and short texts among the results of an evaluation."""
    results = document.get("results")
    if not isinstance(results, Mapping):
        return []
    metrics = [
        Metric(
            _METRIC_NAMES.get(key, key.replace("_", " ")),
            value if isinstance(value, str) or math.isfinite(as_number(value)) else math.nan,
            _BETTER_END.get(key),
        )
        for key, value in results.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool)
    ]
    return [*metrics, *_counted_metrics(results)]


def _language_model_metrics(run: Run) -> Iterator[Metric]:
    results = run.results
    terms = [key.removeprefix("valid/loss/") for key in results if key.startswith("valid/loss/")]
    yield Metric("validation loss", as_number(results.get("valid/loss")), "low")
    both = [term for term in terms if term in ("forward", "backward")]
    for term in both or terms[:1]:  # the other terms classify a whole sequence
        loss = as_number(results[f"valid/loss/{term}"])
        perplexity = math.exp(loss) if loss < 700 else math.nan
        yield Metric(f"perplexity ({term})", perplexity, "low")
    for term in terms:
        accuracy = as_number(results.get(f"valid/accuracy/{term}"))
        yield Metric(f"accuracy ({term})", accuracy, "high")
    for name, counted in run.counted_losses("loss").items():
        yield Metric(name, counted)
    yield Metric("training loss", _recent_loss(run))


def _classifier_metrics(run: Run) -> Iterator[Metric]:
    results = run.results
    yield Metric("accuracy", as_number(results.get("accuracy")), "high")
    yield Metric("F1", as_number(results.get("f1")), "high")
    yield Metric("majority class", as_number(results.get("majority")))
    yield Metric("macro F1", as_number(results.get("f1_macro")), "high")
    yield Metric("Matthews", as_number(results.get("matthews")), "high")
    for name in ("pearson", "spearman"):
        yield Metric(name.capitalize(), as_number(results.get(name)), "high")
    yield from _counted_metrics(results)
    yield Metric("training loss", _recent_loss(run))
    yield Metric("training rows", _whole_number(results.get("rows")))
    yield Metric("validation rows", _whole_number(results.get("valid_rows")))


def _counted_metrics(results: Mapping[str, Any]) -> Iterator[Metric]:
    for best in yardstick_list(results)[:1]:
        name = _METRIC_NAMES.get(best["metric"], best["metric"].replace("_", " "))
        yield Metric(f"{name} by counting", as_number(best["value"]))
        yield Metric("counted by", best["name"])


def _cost_metrics(run: Run) -> Iterator[Metric]:
    last = run.last
    yield Metric("steps", _whole_number(last.get("step")))
    yield Metric("tokens", _whole_number(last.get("tokens")))
    yield Metric("words", _whole_number(last.get("words")))
    yield Metric("training time", _duration(as_number(last.get("time"))))
    _, speeds = run.series("tokens_per_second")
    known = speeds[np.isfinite(speeds)]
    yield Metric("tokens/s", float(np.median(known)) if known.size else math.nan)
    yield Metric("peak memory (GB)", as_number(last.get("memory_gb")))


def _recent_loss(run: Run) -> float:
    """The mean of the last twentieth of the records: a single batch is noisy."""
    _, values = run.series("loss")
    recent = values[-max(1, len(values) // 20) :]
    return float(recent.mean()) if recent.size else math.nan


def _whole_number(value: object) -> float | int:
    known = as_number(value)
    return int(known) if math.isfinite(known) else math.nan


def _duration(seconds: float) -> str:
    return format_duration(seconds) if math.isfinite(seconds) else ""


def _is_unknown(value: float | int | str) -> bool:
    return value == "" if isinstance(value, str) else not math.isfinite(value)


# --- Tables, for pages and for the terminal ---


CLASS_COLUMNS = ("label", "precision", "recall", "F1", "support")
SETTING_COLUMNS = ("setting", "runs", "median", "std", "min", "max", "best run")
YARDSTICK_COLUMNS = (
    "method",
    "metric",
    "value",
    "seconds",
    "score of a row",
    "network better by",
    "from",
    "to",
)


def class_rows(results: Mapping[str, Any]) -> list[list[object]]:
    """A row per class of a classifier, by ``CLASS_COLUMNS``; empty for other results."""
    keys = [column.lower() for column in CLASS_COLUMNS]
    rows = results.get("per_class")
    rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    return [[row.get(key) for key in keys] for row in rows]


_TEXTS, _NUMBERS = (
    ("name", "metric", "credit"),
    ("seconds", "value", "low", "high"),
)  # of a yardstick


def yardstick_list(results: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What counting gives on the rows of a finetuning, the best method first; empty: unknown."""
    methods = results.get("yardsticks")
    return [
        one
        for one in (methods if isinstance(methods, list) else ())
        if isinstance(one, dict)
        and all(isinstance(one.get(key), str) for key in _TEXTS)
        and all(math.isfinite(as_number(one.get(key))) for key in _NUMBERS)
    ]


def yardstick_rows(results: Mapping[str, Any]) -> list[list[object]]:
    """A row per method of ``yardstick_list``, by ``YARDSTICK_COLUMNS``.

    The difference is that of the mean score of a row, with its 95 % interval.
    """
    keys = ("name", "metric", "value", "seconds", "credit", "difference", "low", "high")
    return [[one.get(key) for key in keys] for one in yardstick_list(results)]


def yardstick_sentence(results: Mapping[str, Any]) -> str:
    """Said where the network is not better than counting within the interval; else empty."""
    best = next(iter(yardstick_list(results)), None)
    if best is None or best["low"] > 0:
        return ""
    how = "is better" if best["high"] < 0 else "is as good"
    # Of an evaluation `rows` are those that were measured.
    rows = as_number(results.get("rows") if "valid_rows" in results else None)
    on = f" on these {rows:,.0f} rows" if math.isfinite(rows) else ""
    by = "" if best["credit"] == best["metric"] else f" (by the {best['credit']} of each row)"
    return (
        f"{best['name']} {how}{on}{by}: more rows, a longer pretraining or a larger model may help"
    )


def counted_around(
    results: Mapping[str, Any], environment: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """What of counting the held-out loss is below, best first, and what is still better."""
    loss = as_number(results.get("valid/loss"))
    levels = sorted(
        (as_number(one["loss"]), name)
        for name, one in counted_levels(environment).items()
        if math.isfinite(as_number(one.get("loss")))
    )
    if not math.isfinite(loss):
        return [], []
    passed = [f"{name} ({level:.3f})" for level, name in levels if loss < level]
    ahead = [f"{name} ({level:.3f})" for level, name in reversed(levels) if loss >= level]
    return passed, ahead


def loss_sentence(results: Mapping[str, Any], environment: Mapping[str, Any]) -> str:
    """Whether the held-out loss of a pretraining is good, by what counting gives; else empty."""
    loss = as_number(results.get("valid/loss"))
    passed, ahead = counted_around(results, environment)
    if not passed and not ahead:
        return ""
    if not ahead:
        return f"the held-out loss {loss:.3f} is below the best that counting gives, {passed[0]}"
    if passed:
        return (
            f"the held-out loss {loss:.3f} is below {passed[0]}, and counting {ahead[0]} is still "
            "better: train longer, or on more text"
        )
    return (
        f"the held-out loss {loss:.3f} is not below {ahead[0]}: the network has learned next to "
        "nothing; train longer, or try another learning rate"
    )


def setting_columns(document: Mapping[str, Any]) -> list[str]:
    """``SETTING_COLUMNS``; before the last one what counting gives, if it is known."""
    metric, counted = document.get("metric"), _counted_settings(document)
    names = dict.fromkeys(str(one.get("name")) for one in counted if one)
    others = dict.fromkeys(str(one.get("metric")) for one in counted if one)
    of = [name for name in others if name != metric]
    column = [", ".join([*names, *of])] if names else []
    return [*SETTING_COLUMNS[:-1], *column, SETTING_COLUMNS[-1]]


def _counted_settings(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What counting gives beside each setting; empty: unknown."""
    each = [row.get("counted") for row in document.get("settings") or ()]
    return [one if isinstance(one, Mapping) else {} for one in each]


def setting_rows(document: Mapping[str, Any]) -> list[list[object]]:
    """A row per setting of a grid, by ``setting_columns``, its metric over the seeds.

    Args:
        document: The content of eval/protocol.json; empty while its runs are not finished.
    """
    rows: list[list[object]] = []
    counted = _counted_settings(document)
    for row, beside in zip(document.get("settings") or (), counted, strict=True):
        name = ", ".join(f"{key}={value}" for key, value in row["setting"].items()) or "as given"
        values = [row.get(column, "") for column in ("n", "median", "std", "min", "max")]
        values += [beside.get("value", "")] if any(counted) else []
        rows.append([name, *values, str(row.get("best_run", ""))])
    return rows


def chosen_setting(document: Mapping[str, Any]) -> int | None:
    """The number of the best setting among ``setting_rows``; None: it is not known yet."""
    settings = [row["setting"] for row in document.get("settings") or ()]
    best = (document.get("chosen") or {}).get("setting")
    return settings.index(best) if best in settings else None
