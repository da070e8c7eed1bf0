"""The model card: README.md of the ``model/`` folder of a run, of an exported one, on the Hub."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from plmctl.errors import ConfigError, did_you_mean, near_names
from plmctl.formatting import format_value
from plmctl.reporting.run_files import Run, metrics_of, read_run

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
        run: The run folder.
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
        f"# {loaded.name}",
        _summary(loaded),
        whole,
        _table("Results", [(metric.name, metric.value) for metric in metrics_of(loaded)]),
        _table("Evaluation", [row for one in evaluations[1:] for row in one.rows()]),
        _data(loaded),
        _table("Hyperparameters", list(_hyperparameters(loaded))),
        _usage(
            loader,
            purpose,
            ours=architecture.startswith("Elmo"),
            repo=publication.repo if publication else None,
        ),
        _table("Checkpoints", [(f"`{name}`", f"step {at:,}") for name, at in branches.items()]),
        "A checkpoint is loaded with `revision=` and its name." if branches else "",
        _provenance(loaded),
        "## Limits\n\nThe model reproduces errors and biases of its training text. The results "
        "above hold for similar text.",
    ]
    text = "\n\n".join(part for part in parts if part) + "\n"
    return text if publication is None else _without_local_paths(text)


def hub_card(
    folder: Path,
    run: Path | None,
    publication: Publication,
    step: int | None = None,
) -> str:
    """The card of a model folder on the Hub.

    A README.md that somebody has edited keeps its text, and what its front matter says.

    Args:
        folder: The model folder.
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
                f"# {publication.repo.rpartition('/')[2]}",
                f"A model of the class {architecture}. The folder says nothing about its training.",
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
    """
    try:
        names = json.loads(config.read_text(encoding="utf-8")).get("architectures")
    except (ValueError, AttributeError) as error:
        raise ConfigError(
            f"{config}: not a config of a model: {error}", "copy or export the folder again"
        ) from error
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
        sources = [source for several in sources.values() for source in several]
    held_out = not isinstance(sources, list)
    named = (run.setting("data", "train") or ["training text"]) if held_out else sources
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
    for stem, document in run.evaluations.items():
        if re.search(r"-step-\d+$", stem) or not isinstance(document.get("results"), Mapping):
            continue  # of a checkpoint
        measure = document.get("measure")
        sources = measure.get("data") if isinstance(measure, Mapping) else None
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
        and value == value  # not nan
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
    sources = list(run.setting("data", "train") or [])
    for corpus in run.setting("data", "mixture") or []:
        sources += corpus["train"]
    ids = (str(source).split(":")[1] for source in sources if str(source).startswith("hf:"))
    return list(dict.fromkeys(ids))


def _without_local_paths(text: str) -> str:
    """Absolute paths of this machine by their last part."""
    return re.sub(r"(?<![\w.:/~])/(?:[^\s`'\"|,\]/]+/)+([^\s`'\"|,\]/]+)", r"\1", text)


# --- The parts of a card ---


def _loaded_as(architecture: str) -> tuple[str, str | None]:
    known = (loaded for end, loaded in _LOADED_AS.items() if architecture.endswith(end))
    return next(known, ("AutoModel", None))


def _front_matter(run: Run, purpose: str | None) -> dict[str, Any]:
    tags = ["plmctl", run.setting("model", "family"), run.setting("objective", "name")]
    front: dict[str, Any] = {"library_name": "transformers"}
    if purpose:
        front["pipeline_tag"] = purpose
    base = run.setting("model", "init_from") or run.setting("model")
    # Only an id of the Hub: the folder of another run means nothing there.
    if isinstance(base, str) and base.count("/") <= 1 and not Path(base).exists():
        front["base_model"] = base
    front["tags"] = [tag for tag in tags if tag]
    return front


def _summary(run: Run) -> str:
    if run.kind == "finetune":
        start = "random weights of" if run.setting("init") == "random" else "pretrained"
        task = run.setting("task", "name")
        return f"A model for {task}, finetuned with plmctl from {start} `{run.setting('model')}`."
    family, objective = run.setting("model", "family"), run.setting("objective", "name")
    return f"A {family} language model, pretrained with plmctl on the objective `{objective}`."


def _data(run: Run) -> str:
    sources = run.setting("data", "train") or []
    lines = [f"- training: `{source}`" for source in sources]
    for corpus in run.setting("data", "mixture") or []:
        lines.append(f"- training, weight {corpus['weight']:g}: {', '.join(corpus['train'])}")
    valid = run.setting("data", "valid")
    if isinstance(valid, list):
        lines += [f"- validation: `{source}`" for source in valid]
    elif isinstance(valid, dict):
        lines += [f"- validation ({name}): `{s}`" for name, paths in valid.items() for s in paths]
    elif valid:
        lines.append(f"- validation: {float(valid):.1%} of the training documents, held out")
    return "\n".join(["## Data", "", *lines]) if lines else ""


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
        (name, facts[name]) for name in ("python", "device", "git_commit") if facts.get(name)
    ]
    for group in ("versions", "hashes"):
        section = facts.get(group)
        rows += section.items() if isinstance(section, Mapping) else []
    if isinstance(facts.get("command"), list):
        rows.insert(0, ("command", f"`{shlex.join(map(str, facts['command']))}`"))
    return _table("Environment", rows)


def _table(title: str, rows: list[tuple[str, object]]) -> str:
    if not rows:
        return ""
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows]
    return "\n".join([f"## {title}", "", "| | |", "|---|---|", *lines])


def _cell(value: object) -> str:
    text = format_value(value) if isinstance(value, float | int) else str(value)
    return text.replace("|", "\\|").replace("\n", " ")
