"""Cards: README.md of a model folder, in a run, exported or on the Hub; and that of a corpus."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from plmctl.config.sections import MANY_DOCUMENTS
from plmctl.errors import ConfigError, DataError, read_error
from plmctl.formatting import format_value, printable, without_local_paths
from plmctl.reporting.run_files import (
    Run,
    as_number,
    metrics_of,
    outdated,
    read_run,
    yardstick_sentence,
)

if TYPE_CHECKING:
    from huggingface_hub import EvalResult, ModelCard

# The end of the class name of a network: its auto class, and its pipeline tag.
_LOADED_AS = {
    "DebertaV2ForMaskedLM": ("AutoModel", None),  # transformers lacks the decoder of its head
    "ElectraForPreTraining": ("AutoModelForPreTraining", None),
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
_HYPERPARAMETERS = (
    "seed", "init", "model", "both_sides", "objective", "task", "train", "optim", "schedule",
)  # fmt: skip


@dataclass(frozen=True)
class Publication:
    """What a card on the Hub says that the run folder does not have.

    Attributes:
        license: A name that the Hub knows, such as "mit"; None: not said.
        evaluations: Run folders of ``plmctl eval`` with more results of the model.
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
        records = [
            record
            for record in loaded.records
            if record["step"] <= step and ("valid/loss" not in record or record["step"] == step)
        ]
        loaded = replace(loaded, records=tuple(records), evaluations={})
    _, purpose = _loaded_as(architecture)
    own: list[EvalResult] = []
    measured: list[EvalResult] = []
    if publication is not None and step is None:
        own = _validation(loaded, purpose)
        measured = _measured(publication.evaluations, run / "model", purpose)
    whole = f"The weights after step {step:,}, before the end of the run." if step else ""
    branches = (publication.branches if publication else None) or {}
    use = _USES.get(purpose or "", "")
    alone = "" if loaded.kind == "finetune" else " It was not trained to follow instructions."
    # Nobody has checked environment.json.
    facts = loaded.environment.get("network")
    known = facts.items() if isinstance(facts, Mapping) else ()
    parts = [
        f"# {_text(loaded.name)}",
        _summary(loaded),
        whole,
        _table(
            "Network", [(name, int(size)) for name, size in known if math.isfinite(as_number(size))]
        ),
        _table("Results", [(metric.name, metric.value) for metric in metrics_of(loaded)]),
        f"{beside}." if (beside := yardstick_sentence(loaded.results)) else "",
        _table("Evaluation", _rows(measured)),
        _data(loaded),
        _table("Compute", list(_compute(loaded))),
        _table("Hyperparameters", list(_hyperparameters(loaded))),
        _usage(architecture, repo=publication.repo if publication else None),
        _table("Checkpoints", [(_code(name), f"step {at:,}") for name, at in branches.items()]),
        "A checkpoint is loaded with `revision=` and its name." if branches else "",
        _provenance(loaded),
        "## Use and limits\n\n"
        + (f"{use}{alone} " if use else "")
        + "The model reproduces errors and biases of its training text. The results above hold for "
        "similar text.",
    ]
    text = _card(_front_matter(loaded, purpose, publication, [*own, *measured]), parts)
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
        step: The step of the weights, if it is a checkpoint's card.

    Raises:
        ConfigError: The front matter of README.md is no YAML, or an evaluation is of another model.
    """
    architecture = architecture_of(folder / "config.json")
    path = folder / "README.md"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if run is not None and (step is not None or text in ("", model_card(run, architecture))):
        return model_card(run, architecture, step=step, publication=publication)
    _, purpose = _loaded_as(architecture)
    results = _measured(publication.evaluations, folder, purpose)
    loaded = None if run is None else read_run(run, run.resolve().name)
    if loaded is not None:
        results = [*_validation(loaded, purpose), *results]
    front = _front_matter(loaded, purpose, publication, results)
    edited = _edited(text, path)
    chosen = {"license": publication.license, "language": list(publication.languages)}
    front |= edited.data.to_dict() | {key: value for key, value in chosen.items() if value}
    body = edited.text.strip().replace(_FOLDER_LINE, f'folder = "{publication.repo}"')
    parts = [
        f"# {_text(publication.repo.rpartition('/')[2])}",
        f"A model of the class {_text(architecture)}. The folder says nothing about its training.",
        _table("Evaluation", _rows(results)),
        _usage(architecture, repo=publication.repo),
    ]
    return _card(front, [body] if body else parts)


def _edited(text: str, path: Path) -> ModelCard:
    """A README.md that plmctl has not written, or has written elsewhere."""
    from huggingface_hub import ModelCard

    try:
        return ModelCard(text if text.startswith("---") else f"---\n{{}}\n---\n{text}")
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path}: its front matter is not YAML: {reason}", "fix it") from error


def _card(front: Mapping[str, Any], parts: Sequence[str]) -> str:
    from huggingface_hub import CardData

    body = "\n\n".join(part for part in parts if part)
    return f"---\n{CardData(**front).to_yaml()}\n---\n\n{body}\n"


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


# --- What the Hub reads: the front matter, with the results as a model-index ---


def _front_matter(
    run: Run | None,
    purpose: str | None,
    publication: Publication | None,
    results: Sequence[EvalResult],
) -> dict[str, Any]:
    """The front matter by its keys; without ``publication`` that of a folder."""
    from huggingface_hub import ModelCardData

    front = ModelCardData(library_name="transformers", pipeline_tag=purpose, tags=["plmctl"])
    if run is not None:
        named = [run.setting("model", "family"), run.setting("objective", "name")]
        front.tags = ["plmctl", *(name for name in named if name)]
        base = _base_of(run)
        # Only an id of the Hub: the folder of another run means nothing there.
        if isinstance(base, str) and base.count("/") <= 1 and not os.path.exists(base):
            front.base_model = base
    if publication is not None:
        front.language = list(publication.languages) or None
        front.license = publication.license
        front.datasets = (None if run is None else _hub_datasets(run)) or None
        if results:
            front.model_name = publication.repo.rpartition("/")[2]
            front.eval_results = list(results)
    return dict(front.to_dict())


def _results(
    purpose: str | None, name: str, data: str, dataset: str, results: Mapping[str, Any]
) -> list[EvalResult]:
    """The metrics among results: counts are whole numbers, the rest has these endings.

    Args:
        name: The validation, a measure or a suite.
        dataset: The id of its data on the Hub, or a plain name.
    """
    from huggingface_hub import EvalResult

    return [
        EvalResult(
            task_type=purpose or "feature-extraction",
            dataset_type=dataset,
            dataset_name=data,
            dataset_split="validation" if name == "validation" else None,
            metric_type=key,
            metric_name=f"{name}: {key.replace('_', ' ')}",
            metric_value=round(value, 6),
        )
        for key, value in results.items()
        if isinstance(value, float)
        and math.isfinite(as_number(value))
        and not key.endswith(("_se", "_low", "_high"))
        and key != "majority"
    ]


def _rows(results: Sequence[EvalResult]) -> list[tuple[str, object]]:
    return [
        (f"{one.metric_type.replace('_', ' ')} ({one.dataset_name})", one.metric_value)
        for one in results
    ]


def _validation(run: Run, purpose: str | None) -> list[EvalResult]:
    sources = run.setting("data", "valid")
    if isinstance(sources, dict):
        sources = [source for name in sources for source in _list(sources, name)]
    held_out = not isinstance(sources, list) or not sources
    named = (_sources(run) or ["training text"]) if held_out else sources
    data = f"held out of {_names(named)}" if held_out else _names(named)
    results = run.evaluations.get("valid", {}).get("results", {})
    short = {key.removeprefix("valid/").replace("/", "_"): value for key, value in results.items()}
    return _results(purpose, "validation", data, _dataset(named), short)


def _measured(evaluations: Sequence[Path], folder: Path, purpose: str | None) -> list[EvalResult]:
    return [one for path in evaluations for one in _of_evaluation(path, folder, purpose)]


def _of_evaluation(evaluation: Path, folder: Path, purpose: str | None) -> Iterator[EvalResult]:
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
        yield from _results(purpose, stem, data, dataset, document["results"])


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


def _base_of(run: Run) -> object:
    """The model that a run starts from; None: from fresh weights."""
    return run.setting("model", "init_from") if run.kind == "pretrain" else run.setting("model")


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
        weight, alpha = corpus.get("weight"), run.setting("data", "mixture_alpha")
        shown = format_value(weight) if alpha is None else f"by size to the power {alpha}"
        lines.append(f"- training, weight {shown}: {_text(', '.join(_list(corpus, 'train')))}")
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
    """The machine that it was trained on, and the time that it took."""
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
        if section == "both_sides" and not value:
            continue
        for key, leaf in value.items() if isinstance(value, Mapping) else [("", value)]:
            if leaf is not None:
                exact = leaf if isinstance(leaf, str) else json.dumps(leaf, ensure_ascii=False)
                yield f"{section}.{key}" if key else section, exact


_FOLDER_LINE = 'folder = "."  # the folder of this file'


def _usage(architecture: str, repo: str | None = None) -> str:
    loader, purpose = _loaded_as(architecture)
    ours = architecture.startswith("Elmo")
    lines = [
        "## How to load it",
        "",
        "```python",
        *(["import plmctl.models.elmo  # transformers has no ELMo"] if ours else []),
        f"from transformers import AutoTokenizer, {loader}",
        "",
        _FOLDER_LINE if repo is None else f'folder = "{repo}"',
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
        sentences: How sentences were found, and why.
        words: How words were counted, or why not.
        overlap: What of the held-out text is known from training; empty: it was not measured.
    """

    corpora: Sequence[tuple[str, float | None, Mapping[str, Any]]]
    sizes: Mapping[str, int]
    settings: Mapping[str, Any]
    tokenizer: str
    digest: str
    sentences: str
    words: str
    overlap: str
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
        license_name: A name that the Hub knows; None: not said.
    """
    from huggingface_hub import DatasetCardData

    title = ", ".join(name for name, weight, _ in data.corpora if weight is not None)
    title = title or f"Text of {_names(_list(data.settings, 'train'))}"
    documents = sum(data.total(side, "documents") or 0 for side in ("train", "valid"))
    front = DatasetCardData(
        pretty_name=title,
        language=list(languages) or None,
        license=license_name or "unknown",
        size_categories=[size_category(documents)],
        task_categories=["text-generation", "fill-mask"],
        tags=["plmctl"],
    )
    terms = (
        f"The license is {_code(license_name)}."
        if license_name
        else "Nobody has said under which terms the text may be used. Find out, and write it here "
        "and in the first lines of this file, before you publish the text."
    )
    parts = [
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
    return without_local_paths(_card(front.to_dict(), parts))


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
    overlap = f" By words: {_text(data.overlap)}." if data.overlap else ""
    return "\n".join(
        [
            *lines,
            "",
            f"Bytes are those of the kept text in UTF-8. {split}{overlap}",
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
    if (copies := data.settings.get("duplicates", "keep")) != "keep":
        count = sum(data.total(side, "duplicates") or 0 for side in ("train", "valid"))
        near = copies == "near"
        lines.append(
            f"- Documents left out because one with {'nearly ' if near else ''}the same text came "
            f"before: {count:,}." + ("" if near else " Documents that are only similar stay.")
        )
    else:
        lines.append("- Duplicates were not looked for.")
    if wanted := data.settings.get("languages"):
        count = sum(data.total(side, "other_languages") or 0 for side in ("train", "valid"))
        lines.append(
            f"- Documents left out because they are clearly in another language than "
            f"{', '.join(wanted)}, as py3langid sees it: {count:,}"
        )
    if (limit := data.settings.get("repeated_lines", "keep")) != "keep":
        count = sum(data.total(side, "repeated_lines") or 0 for side in ("train", "valid"))
        many = MANY_DOCUMENTS if limit == "drop" else limit
        lines.append(f"- Lines left out because more than {many} documents have them: {count:,}")
    if data.settings.get("words") == "marked":
        lines.append("- The marks between words were removed from the text.")
    lines.append("- Nothing else was filtered or changed.")
    return "\n".join(["## Cleaning", "", *lines])


def _data_again(data: PreparedData) -> str:
    settings = {"tokenizer": data.tokenizer, "data": dict(data.settings)}
    written = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    block = "\n".join(map(printable, written.splitlines()))
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
