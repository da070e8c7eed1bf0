"""The model card: README.md of the ``model/`` folder of a run."""

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

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


def model_card(run: Path, architecture: str = "") -> str:
    """The text of README.md.

    Args:
        run: The run folder.
        architecture: The class of the network, such as ``BertForPreTraining``.

    Raises:
        ConfigError: ``run`` is no run folder.
    """
    loaded = read_run(run, run.resolve().name)
    loader, purpose = _loaded_as(architecture)
    front = yaml.safe_dump(_front_matter(loaded, purpose), sort_keys=False, allow_unicode=True)
    parts = [
        f"---\n{front}---",
        f"# {loaded.name}",
        _summary(loaded),
        _table("Results", [(metric.name, metric.value) for metric in metrics_of(loaded)]),
        _data(loaded),
        _table("Hyperparameters", list(_hyperparameters(loaded))),
        _usage(loader, purpose, ours=architecture.startswith("Elmo")),
        _provenance(loaded),
        "## Limits\n\nThe model reproduces errors and biases of its training text. The results "
        "above hold for similar text.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


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


def _usage(loader: str, purpose: str | None, *, ours: bool) -> str:
    lines = [
        "## How to load it",
        "",
        "```python",
        *(["import plmctl.models.elmo  # transformers has no ELMo"] if ours else []),
        f"from transformers import AutoTokenizer, {loader}",
        "",
        'folder = "."  # the folder of this file',
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
