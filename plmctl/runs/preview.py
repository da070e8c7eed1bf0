"""``plmctl preview``: what a network will be trained on, before it is."""

import sys
from typing import TYPE_CHECKING, cast

from rich.console import Console

from plmctl.config.pretrain import PretrainConfig
from plmctl.reporting.examples import example_text, legend, statistics_table
from plmctl.runs.prepare import prepare
from plmctl.runs.pretrain import check, make_step
from plmctl.runs.say import show
from plmctl.shaping.examples import means, merge
from plmctl.tokenization.load import load_tokenizer
from plmctl.tokenization.pieces import token_text

if TYPE_CHECKING:
    from plmctl.objectives import Inspectable

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
    check(config, prepared)
    seq_len = config.train.phases[0].seq_len
    step = cast("Inspectable", make_step(config, prepared.train, prepared, seq_len))
    figures = {"examples": float(count), **_statistics(step, count, config.seed)}
    title = f"{config.objective.name}: {count:,} examples of length {seq_len}"
    table = statistics_table(title, figures, step.expected())
    if not as_json:
        _print_examples(config, step, examples)
    show(figures, [table], as_json=as_json)


def _statistics(step: "Inspectable", count: int, seed: int) -> dict[str, float]:
    from plmctl.training.loader import examples_of

    batches = -(-count // _BATCH)
    tallies = []
    for number in range(batches):
        epochs, samples = examples_of(number, len(step), _BATCH, seed)
        size = min(_BATCH, count - number * _BATCH)
        tallies.append(step.tally(epochs[:size], samples[:size]))
    return means(merge(tallies))


def _print_examples(config: PretrainConfig, step: "Inspectable", count: int) -> None:
    from plmctl.training.loader import examples_of

    epochs, samples = examples_of(0, len(step), max(count, 1), config.seed)
    made = [
        step.example(int(epoch), int(sample))
        for epoch, sample in zip(epochs[:count], samples[:count], strict=True)
    ]
    shown, gap = token_text(load_tokenizer(config.tokenizer))
    console = Console()
    colour = sys.stdout.isatty() and console.color_system is not None
    for example in made:
        console.print(example_text(example, shown, gap, colour=colour))
    key = legend(made, colour=colour)
    if key.plain:
        console.print(key, "")
