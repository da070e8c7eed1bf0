"""What counting gives beside a finetuned model that ``plmctl eval`` measures on labelled rows.

For the validation rows of the finetuning it is what that has kept; for other rows it is counted
again, on the same training rows. Numbers of other rows than these are never shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.corpus.labelled import rows_digest, split_rows
from plmctl.errors import DataError, PlmError
from plmctl.files import read_json
from plmctl.metrics.deciding import counted_metric, larger_is_better
from plmctl.run.configs import FinetuneConfig, load
from plmctl.run.display import say
from plmctl.run.yardstick import Methods, beside_network, count, kept_methods
from plmctl.tasks.base import make_task

if TYPE_CHECKING:
    from plmctl.measures.base import Answered


def counted_beside(
    model: str, answered: Answered, metrics: Mapping[str, Any]
) -> dict[str, list[dict[str, Any]]]:
    """``yardsticks``, as the results of a finetuning have them; a line says why there are none.

    Args:
        model: Its folder.
        metrics: Of its answers.
    """
    run = Path(model).parent
    try:
        if not (run / "config.yaml").is_file():
            raise DataError(f"{model} is not in the folder of its finetuning")
        config = load("finetune", run / "config.yaml")
        metric = counted_metric(config.train.metric, metrics)
        methods = _methods(run, config, answered, metric)
    except PlmError as error:
        say(f"no yardstick: {error.message}")
        return {}
    _, values = answered.examples.per_example_scores(answered.answers)
    beside = beside_network(methods, metric, larger=larger_is_better(metric), values=values)
    return {"yardsticks": beside} if beside else {}


def _methods(run: Path, config: FinetuneConfig, answered: Answered, metric: str) -> Methods:
    """Those that the run has kept for these rows, or new ones.

    Raises:
        DataError: The rows of the run are not there, or are others by now.
    """
    task = make_task(config.task)
    if task.config.baseline == "none":
        return []
    known = read_json(run / "environment.json", "hashes")["hashes"].get("data")
    hashes = {"data": known, "valid": rows_digest(answered.rows)}
    kept = kept_methods(run, task, hashes)
    if any(metric in method["metrics"] for method in kept):
        return kept
    split = split_rows(config.data, config.seed, task.split_columns(), task.is_labelled)
    held_out = [row for rows in split.valid.values() for row in rows]
    if rows_digest([*split.train, *held_out]) != known:
        raise DataError(f"the rows of {run} changed since it was finetuned")
    rows = split.train, answered.rows
    return count(task, task.labels(split.train), rows, answered.examples, metric)
