"""``plmctl preview``: the examples that a network will be trained on, before the training."""

import hashlib
import sys
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from plmctl.arrays import Ints
from plmctl.commands.prepare import prepare
from plmctl.config.load import kind_of
from plmctl.errors import ConfigError
from plmctl.examples.inspection import means, merge
from plmctl.examples.keys import fold
from plmctl.files import read_json
from plmctl.reporting.tables import example_legend, example_text, rows_table, statistics_table
from plmctl.run.budget import with_steps
from plmctl.run.configs import PretrainConfig, load
from plmctl.run.display import FREQUENCIES, counted_in_words, say, show_result
from plmctl.run.frequencies import frequency_losses
from plmctl.run.preflight import preflight
from plmctl.run.pretraining import sample_costs, training_examples, validation_examples
from plmctl.run.yardsticks import yardsticks
from plmctl.tokenization.load import token_texts
from plmctl.training.data import StepBatches, examples_of, step_digests
from plmctl.training.plan import Slicing
from plmctl.training.schedule import course

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from plmctl.models.base import StoreExamples

_BATCH = 64  # examples at once


def run(config: PretrainConfig, *, count: int, examples: int, as_json: bool) -> None:
    """Print the first examples of the first phase, and the statistics of ``count`` of them.

    Args:
        count: Examples that the statistics are of: the first in training order.
        examples: How many are printed.
    """
    prepared = preflight(config)
    text = prepare(config, prepared.encoder)
    source = training_examples(prepared, text)[0]
    say(f"sentences: {text.sentences}")
    kinds = source.alternatives()  # of a mixture of objectives, each
    alone = frequency_losses(
        text.train, source if len(kinds) > 1 else source.at_step(0, 1), None, None
    )
    if alone:
        say(f"loss: {counted_in_words({FREQUENCIES: alone})}; a lower loss is learned from context")
    valid = validation_examples(prepared, text) or (None,)
    if more := yardsticks(prepared, text, valid[0], config.log.validate_samples, alone):
        say(
            f"loss: {counted_in_words(more)}, on the validation text; a lower loss is learned by "
            "more than counting neighbours"
        )
    document: dict[str, Any] = {"examples": count}
    tables = []
    for name, one in kinds.items():
        first = one.at_step(0, 1)
        statistics = _statistics(first, count, config.seed)
        seq_len = config.train.phases[0].seq_len
        title = f"{name or config.objective.name}: {count:,} examples of length {seq_len}"
        tables.append(statistics_table(title, {"examples": count, **statistics}, first.expected()))
        document |= {f"{name}/{key}" if name else key: x for key, x in statistics.items()}
        if not as_json:
            shown = examples_of(0, len(first), max(examples, 1), config.seed)[:, :examples]
            _print(prepared.tokenizer, first, shown)
    show_result(document, tables, as_json=as_json)


def _statistics(source: "StoreExamples", count: int, seed: int) -> dict[str, float]:
    """The statistics of the first examples in training order."""
    tallies = []
    for number in range(-(-count // _BATCH)):
        epochs, samples = examples_of(number, len(source), _BATCH, seed)
        size = min(_BATCH, count - number * _BATCH)
        tallies.append(source.tally(epochs[:size], samples[:size]))
    return means(merge(tallies))


def run_batch(config: PretrainConfig, *, batch: int, examples: int, as_json: bool) -> None:
    """Print the examples of a step, and their statistics.

    Args:
        batch: Number of the step, from 1, as in the log.
        examples: How many are printed; the statistics are of all.
        as_json: Print their epochs and sample numbers too, and no example.

    Raises:
        ConfigError: The run has fewer steps.
    """
    if config.train.budget is None:
        _check_batch(batch, config)
    prepared = preflight(config)
    text = prepare(config, prepared.encoder)
    sources = training_examples(prepared, text)
    config = with_steps(config, partial(sample_costs, prepared, text, sources))
    _check_batch(batch, config)
    steps = course(config.train)
    phase = bisect_right(steps.begins, batch - 1) - 1
    source, size = sources[phase], config.train.batch_sizes[phase]
    within = batch - 1 - steps.begins[phase]
    source = source.at_step(batch - 1, steps.steps)
    noted = Path(config.run) / "divergence" / f"step-{batch:06d}.json"
    if noted.is_file():  # the examples that the run had there, after any rollbacks
        document = read_json(noted, "epochs", "samples")
        ids = np.array([document["epochs"], document["samples"]])
    else:
        slicing = Slicing(size, size, growth=steps.sizes[phase])
        batches = StepBatches(source, slicing, int(fold(config.seed, phase)))
        ids = batches.examples(within)
    head = {"step": batch, "phase": phase, "examples": ids.shape[1]}
    statistics = means(source.tally(*ids))
    title = f"{config.objective.name}: step {batch:,}"
    table = statistics_table(title, {**head, **statistics}, source.expected())
    if not as_json:
        _print(prepared.tokenizer, source, ids[:, :examples])
    named = dict(zip(("epochs", "samples"), ids.tolist(), strict=True))
    show_result({**head, **statistics, **named}, [table], as_json=as_json)


def _check_batch(batch: int, config: PretrainConfig) -> None:
    if batch > config.train.steps:
        raise ConfigError(f"--batch {batch}: the run has {config.train.steps:,} steps")


def run_digest(path: Path, overrides: Sequence[str], *, steps: int, as_json: bool) -> None:
    """Print a hash of the examples of each of the first steps, and one of all of them.

    Equal hashes mean equal examples in equal order, whatever the machine, the micro-batches and the
    number of processes.

    Raises:
        ConfigError: A config of another kind, or the run has fewer steps.
    """
    from plmctl.commands.verify_resume import plan_of
    from plmctl.training.engine import make_accelerator

    kind = kind_of(path, overrides)
    if kind not in ("pretrain", "finetune"):
        raise ConfigError(
            f"{path}: a config of the kind {kind}", "give a pretrain or finetune config"
        )
    config: Any = load(kind, path, overrides)
    plan = plan_of(config, make_accelerator(config.compute))
    if steps > plan.steps:
        raise ConfigError(f"--digest {steps}: the run has {plan.steps:,} steps")
    largest = max(phase.slicing.batch_size for phase in plan.phases)
    digests = list(step_digests(plan, steps, world=1, micro=largest))
    whole = hashlib.blake2b("".join(digests).encode(), digest_size=16).hexdigest()
    rows = [(f"{number:,}", digest) for number, digest in enumerate(digests, start=1)]
    table = rows_table(f"the examples of {steps:,} steps: {whole}", ("step", "hash"), rows)
    show_result({"steps": steps, "digest": whole, "digests": digests}, [table], as_json=as_json)


def _print(tokenizer: "PreTrainedTokenizerBase", source: "StoreExamples", ids: Ints) -> None:
    """Print the examples with ids [2, N]: epochs and sample numbers."""
    examples = [source.example(int(epoch), int(sample)) for epoch, sample in ids.T]
    shown, gap = token_texts(tokenizer)
    console = Console()
    colour = sys.stdout.isatty() and console.color_system is not None
    for example in examples:
        console.print(example_text(example, shown, gap, colour=colour))
    key = example_legend(examples, colour=colour)
    if key.plain:
        console.print(key, "")
