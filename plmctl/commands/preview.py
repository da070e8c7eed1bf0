"""``plmctl preview``: what a network will be trained on, before it is."""

import hashlib
import json
import sys
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from rich.console import Console

from plmctl.commands.prepare import prepare
from plmctl.commands.pretrain import check_prepared, make_step
from plmctl.config.load import kind_of
from plmctl.errors import ConfigError
from plmctl.examples.inspection import means, merge
from plmctl.reporting.tables import example_legend, example_text, rows_table, statistics_table
from plmctl.run.configs import PretrainConfig, load
from plmctl.run.display import say, show_result
from plmctl.tokenization.load import load_tokenizer, token_texts

if TYPE_CHECKING:
    from plmctl.objectives.base import Inspectable
    from plmctl.training.data import Ints

_BATCH = 64  # examples at once


def run(config: PretrainConfig, *, count: int, examples: int, as_json: bool) -> None:
    """Show the first examples of the first phase, and the statistics of ``count`` of them.

    Args:
        config: Of a pretraining.
        count: Examples that the statistics are of: the first in training order.
        examples: How many are shown.
        as_json: Print the statistics only, as one object of numbers.
    """
    prepared = prepare(config)
    check_prepared(config, prepared)
    say(f"sentences: {prepared.sentences}")
    seq_len = config.train.phases[0].seq_len
    step = cast("Inspectable", make_step(config, prepared.train, prepared, seq_len))
    figures = {"examples": float(count), **_statistics(step, count, config.seed)}
    title = f"{config.objective.name}: {count:,} examples of length {seq_len}"
    table = statistics_table(title, figures, step.expected())
    if not as_json:
        _print_examples(config, step, examples)
    show_result(figures, [table], as_json=as_json)


def run_batch(config: PretrainConfig, *, batch: int, examples: int, as_json: bool) -> None:
    """Show the examples of a step, and their statistics.

    Args:
        config: Of a pretraining.
        batch: Number of the step, from 1, as the log has it.
        examples: How many are shown; the statistics are of all.
        as_json: Print their epochs and sample numbers too, and no example.

    Raises:
        ConfigError: The run has fewer steps.
    """
    from plmctl.examples.keys import fold
    from plmctl.training.data import Slicing, StepBatches
    from plmctl.training.schedule import course

    if batch > config.train.steps:
        raise ConfigError(f"--batch {batch}: the run has {config.train.steps:,} steps")
    prepared, steps = prepare(config), course(config.train)
    check_prepared(config, prepared)
    number = bisect_right(steps.begins, batch - 1) - 1
    seq_len, size = steps.seq_lens[number], config.train.batch_size
    made = make_step(config, prepared.train, prepared, seq_len)
    step = cast("Inspectable", made)
    noted = Path(config.run) / "divergence" / f"step-{batch:06d}.json"
    if noted.is_file():  # the examples that it had, rollbacks before it counted
        document = json.loads(noted.read_text(encoding="utf-8"))
        found = np.array([document["epochs"], document["samples"]])
    else:
        slicing = Slicing(size, size, growth=steps.sizes[number])
        source = StepBatches(made, slicing, int(fold(config.seed, number)))
        found = source.examples(batch - 1 - steps.begins[number])
    figures = {"step": batch, "phase": number, "examples": found.shape[1]}
    statistics = means(step.tally(*found))
    table = statistics_table(
        f"{config.objective.name}: step {batch:,}", {**figures, **statistics}, step.expected()
    )
    ids = dict(zip(("epochs", "samples"), found.tolist(), strict=True))
    if not as_json:
        _print(config, step, found[:, :examples])
    show_result({**figures, **statistics, **ids}, [table], as_json=as_json)


def run_digest(path: Path, overrides: Sequence[str], *, steps: int, as_json: bool) -> None:
    """Print a hash of the examples of each of the first steps, and one of all of them.

    Equal hashes mean equal examples in equal order, whatever the machine, the micro-batches and the
    number of processes.

    Args:
        path: A config of a pretraining or finetuning.
        overrides: ``KEY=VALUE`` each.
        steps: How many.
        as_json: Print one JSON document.

    Raises:
        ConfigError: A config of another kind, or the run has fewer steps.
    """
    from plmctl.commands.verify_resume import plan_of
    from plmctl.training.data import step_digests
    from plmctl.training.engine import make_accelerator

    kind = kind_of(path, overrides)
    if kind not in ("pretrain", "finetune"):
        raise ConfigError(f"{path}: a config of {kind}", "--digest takes a training's config")
    config: Any = load(kind, path, overrides)
    plan = plan_of(config, make_accelerator(config.compute))
    if steps > plan.steps:
        raise ConfigError(f"--digest {steps}: the run has {plan.steps:,} steps")
    digests = list(step_digests(plan, steps, world=1, micro=config.train.batch_size))
    whole = hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()
    rows = [(f"{number:,}", found) for number, found in enumerate(digests, start=1)]
    table = rows_table(f"the examples of {steps:,} steps: {whole}", ("step", "hash"), rows)
    show_result({"steps": steps, "digest": whole, "digests": digests}, [table], as_json=as_json)


def _statistics(step: "Inspectable", count: int, seed: int) -> dict[str, float]:
    from plmctl.training.data import examples_of

    batches = -(-count // _BATCH)
    tallies = []
    for number in range(batches):
        epochs, samples = examples_of(number, len(step), _BATCH, seed)
        size = min(_BATCH, count - number * _BATCH)
        tallies.append(step.tally(epochs[:size], samples[:size]))
    return means(merge(tallies))


def _print_examples(config: PretrainConfig, step: "Inspectable", count: int) -> None:
    from plmctl.training.data import examples_of

    examples = examples_of(0, len(step), max(count, 1), config.seed)
    _print(config, step, examples[:, :count])


def _print(config: PretrainConfig, step: "Inspectable", examples: "Ints") -> None:
    """Print examples [2, N], epochs and sample numbers."""
    made = [step.example(int(epoch), int(sample)) for epoch, sample in examples.T]
    shown, gap = token_texts(load_tokenizer(config.tokenizer))
    console = Console()
    colour = sys.stdout.isatty() and console.color_system is not None
    for example in made:
        console.print(example_text(example, shown, gap, colour=colour))
    key = example_legend(made, colour=colour)
    if key.plain:
        console.print(key, "")
