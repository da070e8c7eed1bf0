"""What a run has to try its model on: held-out text, validation rows, text to search for a word.

A run folder may come from elsewhere, and the page needs no network: only files of this machine are
read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.config.load import kind_of, parse
from plmctl.corpus.labelled import split_rows
from plmctl.corpus.remote import is_url
from plmctl.errors import ConfigError
from plmctl.reporting.run_state import read_document
from plmctl.run.configs import FinetuneConfig, PretrainConfig
from plmctl.run.named_model import run_of_model

if TYPE_CHECKING:
    from plmctl.evaluation.scoring import FinetunedModel

_MOST = 6


def examples_of(model: str, finetuned: FinetunedModel | None) -> dict[str, list[dict[str, Any]]]:
    """Texts that a model was not trained on, with their right answers, by the way to ask.

    Args:
        model: A model folder; one that is in no run has none.

    Raises:
        PlmError: The rows of a finetuning cannot be read.
    """
    run = run_of_model(model)
    if run is None:
        return {}
    if finetuned is not None:
        return {"task": _validation_rows(run, finetuned)}
    samples = (read_document(run / "eval" / "samples.json") or {}).get("items")
    by_way: dict[str, list[dict[str, Any]]] = {}
    items = [one for one in samples if isinstance(one, dict)] if isinstance(samples, list) else []
    for item in items[:_MOST]:
        text = str(item.get("prompt", item.get("text", "")))
        way = "spans" if "<extra_id_0>" in text else "continue"
        way = "masks" if "predictions" in item else way
        by_way.setdefault(way, []).append({"texts": [text], "right": str(item.get("answer", ""))})
    return by_way


def _validation_rows(run: Path, finetuned: FinetunedModel) -> list[dict[str, Any]]:
    """A few validation rows of a finetuning, spread over all of them."""
    task, config = finetuned.finetuned.task, parse(FinetuneConfig, run / "config.yaml")
    valid = config.data.valid
    if not isinstance(valid, float):
        for names in valid.values() if isinstance(valid, dict) else [valid]:
            _on_this_machine(names)
    _on_this_machine(config.data.train)
    split = split_rows(config.data, config.seed, task.split_columns(), task.is_labelled)
    rows = next(iter(split.valid.values()))
    return [
        {"texts": task.texts_of(row), "right": task.right_answer(row)}
        for row in rows[:: max(1, len(rows) // _MOST)][:_MOST]
    ]


def text_of_run(model: str) -> tuple[str, ...]:
    """The held-out text of a model's pretraining, or else the text that it was trained on.

    Raises:
        ConfigError: The run of the model is not known, or its text is on another machine.
    """
    run = run_of_model(model)
    if run is None:
        raise ConfigError("there is no text to search", "name one: plmctl try MODEL --text FILE")
    if kind_of(run / "config.yaml") == "finetune":
        return text_of_run(parse(FinetuneConfig, run / "config.yaml").model)
    data = parse(PretrainConfig, run / "config.yaml").data
    valid = data.valid if isinstance(data.valid, tuple) else ()
    mixture = tuple(file for source in data.mixture for file in source.train)
    return _on_this_machine(valid or data.train or mixture)


def _on_this_machine(names: tuple[str, ...]) -> tuple[str, ...]:
    """The same names.

    Raises:
        ConfigError: One is elsewhere.
    """
    for name in names:
        if is_url(name) or name.startswith(("hf:", "ms:")):
            raise ConfigError(f"{name}: not on this machine", "name a file: --text FILE")
    return names
