"""Cards: README.md of a model folder, in a run, exported or on the Hub; and that of a corpus."""

import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from plmctl.errors import ConfigError, DataError, did_you_mean, near_names, read_error
from plmctl.formatting import format_value, printable, without_local_paths
from plmctl.reporting.run_files import Run, as_number, metrics_of, outdated, read_run

# The end of the class name of a network: its auto class, and its pipeline tag.
_LOADED_AS = {
    "ElmoForPreTraining": ("AutoModelForPreTraining", None),
    "ForPreTraining": ("AutoModelForPreTraining", "fill-mask"),
    "ForMaskedLM": ("AutoModelForMaskedLM", "fill-mask"),
    "ForCausalLM": ("AutoModelForCausalLM", "text-generation"),
    "LMHeadModel": ("AutoModelForCausalLM", "text-generation"),
    "ForConditionalGeneration": ("AutoModelForSeq2SeqLM", "text2text-generation"),
    "ForSequenceClassification": ("AutoModelForSequenceClassification", "text-classification"),
    "ForTokenClassification": ("AutoModelForTokenClassification", "token-classification"),
    "ForQuestionAnswering": ("AutoModelForQuestionAnswering", "question-answering"),
    "ForMultipleChoice": ("AutoModelForMultipleChoice", None),
}
# Tags that transformers 5 has a pipeline for; the Hub knows all of them.
_PIPELINES = ("fill-mask", "text-generation", "text-classification", "token-classification")
_HYPERPARAMETERS = ("seed", "init", "model", "objective", "task", "train", "optim", "schedule")


# Of the Hub's list; `other` for the rest.
_LICENSES = (
    "apache-2.0", "mit", "bsd", "bsd-2-clause", "bsd-3-clause", "isc", "zlib", "unlicense", "wtfpl",
    "artistic-2.0", "afl-3.0", "bsl-1.0", "ecl-2.0", "epl-1.0", "epl-2.0", "eupl-1.1", "eupl-1.2",
    "agpl-3.0", "gpl", "gpl-2.0", "gpl-3.0", "lgpl", "lgpl-2.1", "lgpl-3.0", "lgpl-lr", "mpl-2.0",
    "ms-pl", "ncsa", "osl-3.0", "postgresql", "ofl-1.1", "lppl-1.3c", "gfdl", "etalab-2.0",
    "cc", "cc0-1.0", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-sa-3.0",
    "cc-by-sa-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0", "cc-by-nc-4.0", "cc-by-nd-4.0",
    "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0",
    "cdla-sharing-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0", "c-uda", "odc-by", "odbl",
    "pddl", "openrail", "openrail++", "bigscience-openrail-m", "creativeml-openrail-m",
    "bigscience-bloom-rail-1.0", "bigcode-openrail-m", "openmdw-1.0", "unknown", "other",
)  # fmt: skip


@dataclass(frozen=True)
class Publication:
    """What a card on the Hub says that the run folder does not have.

    Attributes:
        repo: The name of the repository.
        license: One of the Hub's names; None: not said.
        languages: Codes of ISO 639, such as "en" and "zh".
        evaluations: Run folders of ``plmctl eval`` with more results of the model.
        branches: The branches of checkpoints, with their steps.
    """

    repo: str
    license: str | None = None
    languages: tuple[str, ...] = ()
    evaluations: tuple[Path, ...] = ()
    branches: Mapping[str, int] | None = None


def model_card(
    run: Path,
    architecture: str = "",
    *,
    step: int | None = None,
    publication: Publication | None = None,
) -> str:
    """The text of README.md.

    Args:
        architecture: The class of the network, such as ``BertForPreTraining``.
        step: The step of the weights; None: the model of the finished run.
        publication: For a card on the Hub; None: for the folder.

    Raises:
        ConfigError: ``run`` is no run folder, or an evaluation is of another model.
    """
    loaded = read_run(run, run.resolve().name)
    if step is not None:
        loaded = _until(loaded, step)
    loader, purpose = _loaded_as(architecture)
    front = _front_matter(loaded, purpose)
    evaluations: list[_Evaluation] = []
    if publication is not None:
        if step is None:
            evaluations = _evaluations(loaded, publication.evaluations)
        front = _hub_front_matter(front, loaded, publication, evaluations)
    whole = f"The weights after step {step:,}, before the end of the run." if step else ""
    branches = (publication.branches if publication else None) or {}
    parts = [
        f"---\n{_yaml(front)}---",
        f"# {_text(loaded.name)}",
        _summary(loaded),
        whole,
        _table("Network", _network(loaded)),
        _table("Results", [(metric.name, metric.value) for metric in metrics_of(loaded)]),
        _table("Evaluation", [row for one in evaluations[1:] for row in one.rows()]),
        _data(loaded),
        _table("Compute", list(_compute(loaded))),
        _table("Hyperparameters", list(_hyperparameters(loaded))),
        _usage(
            loader,
            purpose,
            ours=architecture.startswith("Elmo"),
            repo=publication.repo if publication else None,
        ),
        _table("Checkpoints", [(_code(name), f"step {at:,}") for name, at in branches.items()]),
        "A checkpoint is loaded with `revision=` and its name." if branches else "",
        _provenance(loaded),
        _use_and_limits(loaded, purpose),
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    return text if publication is None else without_local_paths(text)


def hub_card(
    folder: Path,
    run: Path | None,
    publication: Publication,
    step: int | None = None,
) -> str:
    """The card of a model folder on the Hub.

    A README.md that somebody has edited keeps its text, and what its front matter says.

    Args:
        run: The run folder that it belongs to; None: it was exported or copied.
        publication: What the run folder does not have.
        step: The step of the weights, if it is a checkpoint's card.

    Raises:
        ConfigError: The front matter of README.md is no YAML, or an evaluation is of another model.
    """
    architecture = architecture_of(folder / "config.json")
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if run is not None and (step is not None or text in ("", model_card(run, architecture))):
        return model_card(run, architecture, step=step, publication=publication)
    before, body = _split(text, path)
    loader, purpose = _loaded_as(architecture)
    front: dict[str, Any] = {"library_name": "transformers", "tags": ["plmctl"]}
    evaluations: list[_Evaluation] = []
    if purpose:
        front["pipeline_tag"] = purpose
    if run is not None:
        loaded = read_run(run, run.resolve().name)
        front = _front_matter(loaded, purpose)
        evaluations = _evaluations(loaded, publication.evaluations)
    elif publication.evaluations:
        evaluations = [one for path in publication.evaluations for one in _measured(path, folder)]
    front = _hub_front_matter(front, None if run is None else loaded, publication, evaluations)
    chosen = {key: front[key] for key in ("license", "language") if key in front}
    if not body:
        body = "\n\n".join(
            [
                f"# {_text(publication.repo.rpartition('/')[2])}",
                f"A model of the class {_text(architecture)}. The folder says nothing about its "
                "training.",
                _table("Evaluation", [row for one in evaluations for row in one.rows()]),
                _usage(
                    loader,
                    purpose,
                    ours=architecture.startswith("Elmo"),
                    repo=publication.repo,
                ),
            ]
        )
    body = body.replace(_FOLDER_LINE, _folder_line(publication.repo))
    return f"---\n{_yaml(front | before | chosen)}---\n\n{body.strip()}\n"


def architecture_of(config: Path) -> str:
    """The class of the network that a config.json names; empty if it names none.

    Raises:
        ConfigError: It is not JSON.
        PlmError: The machine is the reason, such as too many open files.
    """
    try:
        names = json.loads(config.read_text(encoding="utf-8")).get("architectures")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        other = ConfigError(
            f"{config}: not a config of a model: {error}", "copy or export the folder again"
        )
        raise read_error(error, other) from error
    return str(names[0]) if names else ""


def check_publication(publication: Publication) -> None:
    """Refuse licenses and languages that the Hub does not know.

    Raises:
        ConfigError: One of them is unknown.
    """
    name = publication.license
    if name is not None and name not in _LICENSES:
        near = did_you_mean(near_names(name.lower(), _LICENSES))
        raise ConfigError(
            f"--license: the Hub has no license {name!r}{near}",
            "see huggingface.co/docs/hub/repositories-licenses; `other` is for all others",
        )
    for language in publication.languages:
        if not re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*|multilingual|code", language):
            raise ConfigError(
                f"--language: {language!r} is not a code of a language",
                "use those of ISO 639: en, zh, yue ...; several: --language en --language zh",
            )


def _yaml(front: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(front), sort_keys=False, allow_unicode=True)


def _split(text: str, path: Path) -> tuple[dict[str, Any], str]:
    """The front matter and the body of a card."""
    match = re.match(r"---\s*\n(.*?)\n?---\s*(?:\n|$)(.*)", text, re.DOTALL)
    if match is None:
        return {}, text
    try:
        front = yaml.safe_load(match[1])
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: its front matter is not YAML: {reason}", "fix it") from error
    return front if isinstance(front, dict) else {}, match[2]


def _until(run: Run, step: int) -> Run:
    """The run as it was at a step: only a validation of that very step is a result of it."""
    records = [
        record
        for record in run.records
        if record["step"] <= step and ("valid/loss" not in record or record["step"] == step)
    ]
    return replace(run, records=tuple(records), evaluations={})


# --- What the Hub reads: the front matter, with the results as a model-index ---


@dataclass(frozen=True)
class _Evaluation:
    """The results of one measure, task or validation.

    Attributes:
        name: Of the measure or the suite.
        data: A name of its data for readers.
        dataset: The id of its data on the Hub, or a plain name.
        metrics: Its results by name.
    """

    name: str
    data: str
    dataset: str
    metrics: Mapping[str, float]

    def rows(self) -> list[tuple[str, object]]:
        """A row per metric."""
        shown = (f"{key.replace('_', ' ')} ({self.data})" for key in self.metrics)
        return list(zip(shown, self.metrics.values(), strict=True))


def _hub_front_matter(
    front: dict[str, Any],
    run: Run | None,
    publication: Publication,
    evaluations: Sequence[_Evaluation],
) -> dict[str, Any]:
    named: dict[str, Any] = {}
    if publication.languages:
        named["language"] = list(publication.languages)
    if publication.license:
        named["license"] = publication.license
    datasets = [] if run is None else _hub_datasets(run)
    if datasets:
        front["datasets"] = datasets
    results = [one for one in evaluations if one.metrics]
    if results:
        name = publication.repo.rpartition("/")[2]
        front["model-index"] = _model_index(name, front.get("pipeline_tag"), results)
    return named | front


def _model_index(
    name: str, purpose: str | None, evaluations: Sequence[_Evaluation]
) -> list[dict[str, Any]]:
    from huggingface_hub import EvalResult
    from huggingface_hub.repocard_data import eval_results_to_model_index

    return eval_results_to_model_index(
        name,
        [
            EvalResult(
                task_type=purpose or "feature-extraction",
                dataset_type=one.dataset,
                dataset_name=one.data,
                dataset_split="validation" if one.name == "validation" else None,
                metric_type=key,
                metric_name=f"{one.name}: {key.replace('_', ' ')}",
                metric_value=round(value, 6),
            )
            for one in evaluations
            for key, value in one.metrics.items()
        ],
    )


def _evaluations(run: Run, others: Sequence[Path]) -> list[_Evaluation]:
    """The validation of a run, then the measures of other run folders."""
    sources = run.setting("data", "valid")
    if isinstance(sources, dict):
        sources = [source for name in sources for source in _list(sources, name)]
    held_out = not isinstance(sources, list) or not sources
    named = (_sources(run) or ["training text"]) if held_out else sources
    data = f"held out of {_names(named)}" if held_out else _names(named)
    results = run.evaluations.get("valid", {}).get("results", {})
    metrics = {
        "_".join(part for part in key.split("/") if part != "valid"): value
        for key, value in _metrics(results).items()
    }
    own = _Evaluation("validation", data, _dataset(named), metrics)
    folder = run.path / "model"
    return [own, *(one for path in others for one in _measured(path, folder))]


def _measured(evaluation: Path, folder: Path) -> Iterator[_Evaluation]:
    """The results in a run folder of ``plmctl eval``.

    Raises:
        ConfigError: It is no such folder, or of another model.
        DataError: The model is another one by now, or a result was edited: neither is published.
    """
    run = read_run(evaluation, evaluation.name)
    model = run.setting("model")
    if run.kind != "eval":
        raise ConfigError(
            f"--eval: {evaluation} is not a run folder of `plmctl eval`", "name its run folder"
        )
    if not isinstance(model, str) or Path(model).resolve() != folder.resolve():
        raise ConfigError(
            f"--eval: {evaluation} has measured {model}, not {folder}",
            "name an evaluation of this model, from the folder that it was started in",
        )
    wrong = [*outdated(run), *(f"{run.name}: {name} cannot be used" for name in run.unreadable)]
    if wrong:
        raise DataError(f"--eval: {wrong[0]}", "run `plmctl eval` again before you publish it")
    for stem, document in run.evaluations.items():
        if re.search(r"-step-\d+$", stem) or not isinstance(document.get("results"), Mapping):
            continue  # of a checkpoint
        measure = document.get("measure")
        sources = _list(measure, "data") if isinstance(measure, Mapping) else []
        title = str(document.get("title") or stem)
        data = _names(sources) if sources else title
        dataset = _dataset(sources) if sources else stem
        yield _Evaluation(stem, data, dataset, _metrics(document["results"]))


def _metrics(results: Mapping[str, Any]) -> dict[str, float]:
    """The metrics among results: counts are whole numbers, the rest has these endings."""
    return {
        key: value
        for key, value in results.items()
        if isinstance(value, float)
        and math.isfinite(as_number(value))
        and not key.endswith(("_se", "_low", "_high"))
        and key != "majority"
    }


def _names(sources: Sequence[object]) -> str:
    """Sources for readers, without folders."""
    names = [str(source) for source in sources]
    short = [name if ":" in name else name.rpartition("/")[2] for name in names]
    return ", ".join(short[:3]) + (f" and {len(short) - 3} more" if len(short) > 3 else "")


def _dataset(sources: Sequence[object]) -> str:
    """The id of a data set on the Hub, else the plain name of the first source."""
    first = str(sources[0])
    if first.startswith("hf:"):
        return first.split(":")[1]
    return re.sub(r"[^\w-]+", "-", first.rpartition("/")[2].rpartition(":")[2].split(".")[0])


def _hub_datasets(run: Run) -> list[str]:
    sources = _sources(run)
    for corpus in _mixture(run):
        sources += _list(corpus, "train")
    ids = (source.split(":")[1] for source in sources if source.startswith("hf:"))
    return list(dict.fromkeys(ids))


# --- The parts of a card ---


def _loaded_as(architecture: str) -> tuple[str, str | None]:
    known = (loaded for end, loaded in _LOADED_AS.items() if architecture.endswith(end))
    return next(known, ("AutoModel", None))


def _front_matter(run: Run, purpose: str | None) -> dict[str, Any]:
    tags = ["plmctl", run.setting("model", "family"), run.setting("objective", "name")]
    front: dict[str, Any] = {"library_name": "transformers"}
    if purpose:
        front["pipeline_tag"] = purpose
    base = _base_of(run)
    # Only an id of the Hub: the folder of another run means nothing there.
    if isinstance(base, str) and base.count("/") <= 1 and not os.path.exists(base):
        front["base_model"] = base
    front["tags"] = [tag for tag in tags if tag]
    return front


def _base_of(run: Run) -> object:
    """The model that a run starts from; None: from fresh weights."""
    return run.setting("model", "init_from") if run.kind == "pretrain" else run.setting("model")


def _network(run: Run) -> list[tuple[str, object]]:
    """Parameters and sizes of the network, by ``environment.json``, which nobody has checked."""
    facts = run.environment.get("network")
    known = facts.items() if isinstance(facts, Mapping) else ()
    return [(name, int(size)) for name, size in known if math.isfinite(as_number(size))]


def _summary(run: Run) -> str:
    if run.kind == "finetune":
        start = "random weights of" if run.setting("init") == "random" else "pretrained"
        task = run.setting("task", "name")
        model = _code(run.setting("model"))
        return f"A model for {_text(task)}, finetuned with plmctl from {start} {model}."
    family, objective = run.setting("model", "family"), _code(run.setting("objective", "name"))
    if isinstance(base := _base_of(run), str):
        return (
            f"A {_text(family)} language model: it continues the pretraining of {_code(base)} with "
            f"plmctl, on the objective {objective}."
        )
    return f"A {_text(family)} language model, pretrained with plmctl on the objective {objective}."


def _data(run: Run) -> str:
    lines = [f"- training: {_code(source)}" for source in _sources(run)]
    for corpus in _mixture(run):
        weight = format_value(corpus.get("weight"))
        lines.append(f"- training, weight {weight}: {_text(', '.join(_list(corpus, 'train')))}")
    valid = run.setting("data", "valid")
    if isinstance(valid, list):
        lines += [f"- validation: {_code(source)}" for source in valid]
    elif isinstance(valid, dict):
        lines += [
            f"- validation ({_text(name)}): {_code(source)}"
            for name in valid
            for source in _list(valid, name)
        ]
    elif isinstance(valid, float):
        lines.append(f"- validation: {valid:.1%} of the training documents, held out")
    contents = run.environment.get("text")
    if isinstance(contents, Mapping):
        lines += ["", *_contents(contents)]
    return "\n".join(["## Data", "", *lines]) if lines else ""


_FILES = 10  # of the training text, with their hashes


def _contents(text: Mapping[str, Any]) -> Iterator[str]:
    """What is in the text of a pretraining, by ``environment.json``, which nobody has checked."""
    yield "| | training | validation |"
    yield "|---|---|---|"
    sides = [text.get("train"), text.get("valid")]
    for key in ("documents", "words", "tokens", "bytes"):
        counts = [as_number(side.get(key)) if isinstance(side, Mapping) else 0 for side in sides]
        if counts[0] > 0:
            yield f"| {key} | " + " | ".join(f"{c:,.0f}" if c > 0 else "" for c in counts) + " |"
    files = text.get("sources")
    if isinstance(files, Mapping) and files:
        yield ""
        yield "| file | SHA-256, or the server's stamp |"
        yield "|---|---|"
        for name, digest in list(files.items())[:_FILES]:
            yield f"| {_cell(name)} | {_code(digest) if digest else ''} |"
        more = as_number(text.get("files")) - _FILES
        if more > 0:
            yield f"| and {more:,.0f} more | |"


def _compute(run: Run) -> Iterator[tuple[str, object]]:
    """Where it was trained, and for how long."""
    facts, seconds = run.environment, as_number(run.last.get("time"))
    processes, devices = as_number(facts.get("processes")), as_number(facts.get("devices"))
    if not math.isfinite(seconds) or not processes > 0:
        return
    yield "device", facts.get("device")
    yield "GPUs" if devices > 0 else "CPU processes", int(processes)
    threads = as_number(facts.get("threads"))
    if devices == 0 and math.isfinite(threads):
        yield "threads of each", int(threads)
    yield "device hours of training", round(processes * seconds / 3600, 4)


_USES = {
    "fill-mask": "It fills in masked words, and is a start for finetuning (`plmctl finetune`).",
    "text-generation": "It continues text, and is a start for finetuning (`plmctl finetune`).",
    "text2text-generation": "It answers a text with a text.",
    "text-classification": "It gives a text one of the labels of its training rows, or a number.",
    "token-classification": "It gives each word one of the tags of its training rows.",
    "question-answering": "It finds the answer to a question in a given text.",
}


def _use_and_limits(run: Run, purpose: str | None) -> str:
    use = _USES.get(purpose or "", "")
    alone = "" if run.kind == "finetune" else " It was not trained to follow instructions."
    return (
        "## Use and limits\n\n"
        + (f"{use}{alone} " if use else "")
        + "The model reproduces errors and biases of its training text. The results above hold for "
        "similar text."
    )


def _sources(run: Run) -> list[str]:
    """The sources of ``data.train``."""
    data = run.setting("data")
    return _list(data, "train") if isinstance(data, Mapping) else []


def _mixture(run: Run) -> list[Mapping[str, Any]]:
    """The corpora of ``data.mixture``."""
    mixture = run.setting("data", "mixture")
    corpora = mixture if isinstance(mixture, list) else []
    return [corpus for corpus in corpora if isinstance(corpus, Mapping)]


def _list(values: Mapping[str, Any], key: str) -> list[str]:
    """The texts of a list in a config that nobody has checked."""
    value = values.get(key)
    return list(map(str, value)) if isinstance(value, list) else []


def _hyperparameters(run: Run) -> Iterator[tuple[str, object]]:
    for section in _HYPERPARAMETERS:
        value = run.setting(section)
        for key, leaf in value.items() if isinstance(value, Mapping) else [("", value)]:
            if leaf is not None:
                exact = leaf if isinstance(leaf, str) else json.dumps(leaf, ensure_ascii=False)
                yield f"{section}.{key}" if key else section, exact


_FOLDER_LINE = 'folder = "."  # the folder of this file'


def _folder_line(repo: str) -> str:
    return f'folder = "{repo}"'


def _usage(loader: str, purpose: str | None, *, ours: bool, repo: str | None = None) -> str:
    lines = [
        "## How to load it",
        "",
        "```python",
        *(["import plmctl.models.elmo  # transformers has no ELMo"] if ours else []),
        f"from transformers import AutoTokenizer, {loader}",
        "",
        _FOLDER_LINE if repo is None else _folder_line(repo),
        "tokenizer = AutoTokenizer.from_pretrained(folder)",
        f"model = {loader}.from_pretrained(folder)",
        "```",
    ]
    if purpose in _PIPELINES:
        lines += ["", f'`transformers.pipeline("{purpose}", model=folder)` works as well.']
    return "\n".join(lines)


def _provenance(run: Run) -> str:
    """Versions, hashes and the command, to train the model again."""
    facts = run.environment
    rows: list[tuple[str, object]] = [
        (name, facts[name]) for name in ("python", "git_commit") if facts.get(name)
    ]
    for group in ("versions", "hashes"):
        section = facts.get(group)
        rows += section.items() if isinstance(section, Mapping) else []
    if isinstance(facts.get("command"), list):
        rows.insert(0, ("command", _code(shlex.join(map(str, facts["command"])))))
    return _table("Environment", rows)


def _table(title: str, rows: list[tuple[str, object]]) -> str:
    if not rows:
        return ""
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *lines])


# --- The data card: README.md of the text of a pretraining, as a data set on the Hub ---


@dataclass(frozen=True)
class PreparedData:
    """What a data card says.

    Attributes:
        corpora: For each corpus its name in a mixture, its weight there (None: the only one), and
            the manifest of its store.
        sizes: Bytes of the files of each source; 0: unknown.
        settings: The section ``data`` of the config.
        tokenizer: A folder or a name on the Hub.
        digest: Hash of the token store.
        sentences: How sentences were found, and why.
        words: How words were counted, or why not.
        command: What prepared the text.
        version: Of plmctl.
    """

    corpora: Sequence[tuple[str, float | None, Mapping[str, Any]]]
    sizes: Mapping[str, int]
    settings: Mapping[str, Any]
    tokenizer: str
    digest: str
    sentences: str
    words: str
    command: Sequence[str]
    version: str

    def total(self, side: str, key: str) -> int | None:
        """A count of one side of all corpora; None if one of them does not know it."""
        counts = [_count(manifest, side, key) for _, _, manifest in self.corpora]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


def _count(manifest: Mapping[str, Any], side: str, key: str) -> int | None:
    """A count of one side of a store; without documents it is 0."""
    if key == "words":
        count = manifest.get("words", {}).get(side)
        return 0 if count is None and not manifest[side]["documents"] else count
    return manifest[side].get(key)  # type: ignore[no-any-return]  # plmctl wrote it


_DATA_FILES = 100  # listed with their hashes

_SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")  # of 1,000 x 10^n


def size_category(documents: int) -> str:
    """The Hub's name of a number of rows."""
    place = next((n for n in range(len(_SIZES)) if documents < 1000 * 10**n), len(_SIZES))
    if place == 0:
        return "n<1K"
    return "n>1T" if place == len(_SIZES) else f"{_SIZES[place - 1]}<n<{_SIZES[place]}"


def data_card(data: PreparedData, license_name: str | None, languages: Sequence[str]) -> str:
    """The text of README.md of a corpus.

    Args:
        data: What was prepared.
        license_name: One of the Hub's names; None: not said.
        languages: Codes of ISO 639.
    """
    title = ", ".join(name for name, weight, _ in data.corpora if weight is not None)
    title = title or f"Text of {_names(_list(data.settings, 'train'))}"
    documents = sum(data.total(side, "documents") or 0 for side in ("train", "valid"))
    front: dict[str, Any] = {"pretty_name": title}
    if languages:
        front["language"] = list(languages)
    front |= {
        "license": license_name or "unknown",
        "size_categories": [size_category(documents)],
        "task_categories": ["text-generation", "fill-mask"],
        "tags": ["plmctl"],
    }
    terms = (
        f"The license is {_code(license_name)}."
        if license_name
        else "Nobody has said under which terms the text may be used. Find out, and write it here "
        "and in the first lines of this file, before you publish the text."
    )
    parts = [
        f"---\n{_yaml(front)}---",
        f"# {_text(title)}",
        "Text for pretraining language models, prepared with plmctl. A row is a document.",
        _data_counts(data),
        _data_corpora(data),
        _data_sources(data),
        _data_cleaning(data),
        _data_again(data),
        f"## License\n\n{terms}",
        "## Limits\n\n"
        "plmctl has not judged the text: names and other personal data, errors, prejudice and text "
        "under copyright are in it as they are in its sources. It was not compared with test sets. "
        "The counts of words and tokens hold for the rules and the tokenizer named above.",
    ]
    return without_local_paths("\n\n".join(part for part in parts if part) + "\n")


def _data_counts(data: PreparedData) -> str:
    lines = ["## Contents", "", "| | training | validation |", "|---|---|---|"]
    for key in ("documents", "sentences", "words", "tokens", "bytes"):
        counts = [data.total(side, key) for side in ("train", "valid")]
        if key == "sentences" and data.sentences.startswith("none"):
            continue
        shown = ("not counted" if count is None else f"{count:,}" for count in counts)
        lines.append(f"| {key} | {' | '.join(shown)} |")
    valid = data.settings.get("valid")
    split = "There is no validation text."
    if isinstance(valid, float):
        split = f"Validation: {100 * valid:.3g} % of the documents, chosen by a hash of each."
    elif valid:
        split = f"Validation: {', '.join(_code(name) for name in valid)}."
    return "\n".join(
        [
            *lines,
            "",
            f"Bytes are those of the kept text in UTF-8. {split}",
            f"Sentences: {_text(data.sentences)}. Words: {_text(data.words)}. "
            f"Tokens: those of {_code(data.tokenizer)}.",
        ]
    )


def _data_corpora(data: PreparedData) -> str:
    """The parts of a mixture."""
    if all(weight is None for _, weight, _ in data.corpora):
        return ""
    lines = ["## Mixture", "", "| corpus | weight | documents | words | tokens |", "|" + "---|" * 5]
    for name, weight, manifest in data.corpora:
        counts = [_count(manifest, "train", key) for key in ("documents", "words", "tokens")]
        shown = [f"{weight:g}", *("" if count is None else f"{count:,}" for count in counts)]
        lines.append(f"| {_cell(name)} | {' | '.join(shown)} |")
    return "\n".join(lines)


def _data_sources(data: PreparedData) -> str:
    lines = [
        "## Sources",
        "",
        "| source | bytes | SHA-256, or the server's stamp | a document is |",
        "|" + "---|" * 4,
    ]
    sources = [one for _, _, manifest in data.corpora for one in manifest["sources"]]
    units = {"blank_line": "between blank lines", "file": "the file", "line": "a line"}
    for one in sources[:_DATA_FILES]:
        size = data.sizes.get(one["name"]) or 0
        cells = (
            _cell(one["name"]),
            f"{size:,}" if size else "",
            _code(digest) if (digest := one.get("sha256") or one.get("stamp")) else "",
            units.get(one["documents"], "a row"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    if len(sources) > _DATA_FILES:
        lines.append(f"| and {len(sources) - _DATA_FILES:,} more | | | |")
    return "\n".join(lines)


def _data_cleaning(data: PreparedData) -> str:
    dropped = sum(data.total(side, "dropped") or 0 for side in ("train", "valid"))
    lines = [f"- Documents without any token, which are left out: {dropped:,}"]
    if data.settings.get("duplicates") == "drop":
        count = sum(data.total(side, "duplicates") or 0 for side in ("train", "valid"))
        lines.append(
            f"- Documents left out because one with the same text came before: {count:,}. "
            "Documents that are only similar stay."
        )
    else:
        lines.append("- Duplicates were not looked for.")
    if data.settings.get("words") == "marked":
        lines.append("- The marks between words were removed from the text.")
    lines.append("- Nothing else was filtered or changed.")
    return "\n".join(["## Cleaning", "", *lines])


def _data_again(data: PreparedData) -> str:
    settings = {"tokenizer": data.tokenizer, "data": dict(data.settings)}
    block = "\n".join(map(printable, _yaml(settings).splitlines()))
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", block)), default=0))
    return "\n".join(
        [
            "## How to make it again",
            "",
            f"plmctl {data.version}: {_code(shlex.join(data.command))}, with these settings:",
            "",
            f"{fence}yaml",
            block.rstrip(),
            fence,
            "",
            f"The token store has the hash {_code(data.digest)}: the same files and settings give "
            "it again.",
        ]
    )


# --- Text as Markdown: what it says is shown, and is no markup ---


class _Markdown(str):
    """Markup; any other string is text."""

    __slots__ = ()


_MARKUP = re.compile(
    r"[`*]"  # code, emphasis
    r"|\\(?=[!-/:-@\[-`{-~])"  # a backslash before punctuation
    r"|(?<!\w)_|_(?!\w)"  # emphasis, but not in the middle of a word
    r"|~(?=~)|\](?=[(\[:])"  # text that is crossed out, the target of a link
)
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}


def _text(value: object) -> _Markdown:
    """Text from outside in one line, so that no character of it is markup or HTML."""
    if isinstance(value, _Markdown):
        return value
    text = _MARKUP.sub(lambda match: f"\\{match[0]}", _one_line(str(value)))
    entity = re.compile(r"[<>]|&(?=#|\w+;)")
    return _Markdown(entity.sub(lambda match: _ENTITIES[match[0]], text))


def _code(value: object) -> _Markdown:
    """Text as code, between more backquotes than it has in a row."""
    text = _one_line(str(value))
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    return _Markdown(f"{fence} {text} {fence}" if longest else f"`{text}`")


def _one_line(text: str) -> str:
    return printable(re.sub(r"\s+", " ", text))


def _cell(value: object) -> str:
    text = format_value(value) if isinstance(value, float | int) else value
    return _text(text).replace("|", "\\|")
