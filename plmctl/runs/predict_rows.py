"""``plmctl predict --input``: a finetuned model's answers to rows, streaming."""

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from plmctl import tasks
from plmctl.config.run import ComputeConfig
from plmctl.corpus.source import Source, resolve
from plmctl.corpus.tables import Row
from plmctl.corpus.tabular import rows
from plmctl.errors import ConfigError, DataError, PlmError
from plmctl.files import new_file
from plmctl.runs.finetune import check_model
from plmctl.runs.say import say

_CHUNK = 1024
"""Rows in memory at once: enough to batch them by length."""


def run(
    model: str, source: str, output: str | None, columns: Sequence[str], *, fresh: bool
) -> None:
    """Answer every row of ``source`` in a line of ``output``: its columns, and the answer's.

    Args:
        model: A finetuned folder.
        source: As ``data.train`` of finetuning, or ``-`` for JSON lines from stdin.
        output: A file, or ``-`` (and None) for stdout; written beside and renamed at the end.
        columns: ``FIELD=COLUMN`` where a field of the task has another column here.
        fresh: Move an output that is there aside.

    Raises:
        ConfigError: The output is there already, or the model is not finetuned.
        DataError: Nothing to read, a missing column, or a row without text.
    """
    check_model(model)
    made = tasks.finetuned(model)
    config = tasks.with_columns(made.config, _fields(columns))
    path = None if output in (None, "-") else Path(str(output))
    if path is not None and path.exists() and not fresh:
        raise ConfigError(
            f"{path}: this is there already", "name another file, or add --fresh to move it aside"
        )
    read = _read(source)
    answer = _answerer(model, tasks.Finetuned(config, made.labels, made.max_length))
    count = 0
    with _writing(path) as file:
        while chunk := list(islice(read, _CHUNK)):
            for row, said in zip(chunk, answer(chunk), strict=True):
                # Parquet has values that JSON has not, such as dates.
                line = json.dumps({**row.values, **said}, ensure_ascii=False, default=str)
                file.write(line + "\n")
            count += len(chunk)
            file.flush()
        if not count:
            raise DataError(f"no rows in {source}", "is the path right?")
    say(f"{count:,} rows answered{'' if path is None else f': {path}'}")


def _answerer(model: str, made: tasks.Finetuned) -> Any:
    """A function from rows to answers, with the network loaded once."""
    from plmctl.corpus.check_rows import refuse_empty
    from plmctl.evaluation.predict import answers
    from plmctl.modeling.network import Network
    from plmctl.training.engine import make_accelerator

    device = make_accelerator(ComputeConfig()).device
    task = tasks.get(made.config.name)
    tokenizer = task.tokenizer(made.config, model)
    loaded = task.load(made.config, model, made.labels, pretrained=True, changes={})
    network = Network(loaded, task.forward).to(device)

    def answer(chunk: list[Row]) -> list[tasks.Answer]:
        refuse_empty(chunk, task.text_columns(made.config))
        examples = task.make(made.config, chunk, tokenizer, made.labels, made.max_length, "predict")
        return answers(network, examples, device)

    return answer


def _fields(columns: Sequence[str]) -> Mapping[str, Any]:
    """``text=a,b`` as columns of a field of the task."""
    fields: dict[str, Any] = {}
    for asked in columns:
        field, equals, column = asked.partition("=")
        if not (field and equals and column):
            raise ConfigError(f"--column {asked}: expected FIELD=COLUMN, as in text=review")
        several = column.split(",")
        fields[field] = tuple(several) if len(several) > 1 else column
    return fields


def _read(source: str) -> Iterator[Row]:
    found = [Source("/dev/stdin", "jsonl")] if source == "-" else resolve((source,))
    return (Row(values, origin) for one in found for values, origin in rows(one))


@contextmanager
def _writing(path: Path | None) -> Iterator[TextIO]:
    """A file that is whole or not there; stdout where there is no path."""
    if path is None:
        yield sys.stdout
        return
    try:
        with new_file(path, several_writers=True) as file:
            yield TextIOWrapper(file, encoding="utf-8", write_through=True)
            if path.exists():
                path.rename(path.with_name(f"{path.name}.old-{time.strftime('%Y%m%d-%H%M%S')}"))
    except OSError as error:
        raise PlmError(f"{path}: cannot be written: {error.strerror}") from error
