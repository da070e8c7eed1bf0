"""Training examples for reading, and the statistics of many of them.

An objective shows what it did to the text, token by token, and measures the statistics that its
paper reports. Everything is computed from finished batches: from what the network reads, not from
what it should read.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints

Kind = Literal["text", "special", "masked", "random", "kept", "target"]
"""What was done to a token: text: nothing; special: inserted; masked: replaced by the mask; random:
replaced by a random token; kept: to predict, but not replaced; target: the network predicts it."""

Tallies = dict[str, tuple[float, int]]
"""The sum over the cases of each statistic and the number of its cases, by its name."""


@dataclass(frozen=True)
class ExampleToken:
    """A token of an example.

    Attributes:
        id: What the network reads; what it predicts if the kind is "target".
        original: The token of the text, if it is another one.
    """

    id: int
    kind: Kind
    original: int | None = None


@dataclass(frozen=True)
class Example:
    """One example.

    Attributes:
        rows: Its rows by name, such as "input" and "target".
        note: The meaning of its label; empty without a label.
    """

    rows: Mapping[str, tuple[ExampleToken, ...]]
    note: str = ""


def merge(tallies: Iterable[Tallies]) -> Tallies:
    """The sums over several batches; names in order of appearance."""
    merged: Tallies = {}
    for tally in tallies:
        for name, (total, cases) in tally.items():
            before = merged.get(name, (0.0, 0))
            merged[name] = (before[0] + total, before[1] + cases)
    return merged


def means(tallies: Tallies) -> dict[str, float]:
    """The mean of each statistic that has a case."""
    return {name: total / cases for name, (total, cases) in tallies.items() if cases}


def tally(values: NDArray[np.generic]) -> tuple[float, int]:
    """The tally of an array's values."""
    return float(np.sum(values, dtype=np.float64)), int(values.size)


def masked_tallies(
    ids: Ints, lengths: Ints, positions: Ints, targets: Ints, mask_id: int
) -> Tallies:
    """Statistics of a masked batch.

    Args:
        ids: [B, L] as the network reads them.
        lengths: [B] tokens that are not padding.
        positions: [K] positions of the flattened batch that are predicted, ascending.
        targets: [K] the original tokens.

    Returns:
        mean_length; masked_share (of all tokens, special ones included); mask_share, random_share
        and keep_share (of the masked; a random token that is the original counts as kept);
        mean_run (masked tokens in a row).
    """
    inputs = ids.reshape(-1)[positions]
    hidden, kept = inputs == mask_id, inputs == targets
    # A run is broken by a gap, and by the end of a row.
    gap = (np.diff(positions) != 1) | (positions[1:] % ids.shape[1] == 0)
    return {
        "mean_length": tally(lengths),
        "masked_share": (float(len(positions)), int(lengths.sum())),
        "mask_share": tally(hidden),
        "random_share": tally(~hidden & ~kept),
        "keep_share": tally(kept & ~hidden),
        "mean_run": (float(len(positions)), int(gap.sum()) + (len(positions) > 0)),
    }


def expected_shares(mask: float, random: float, vocab_size: int) -> dict[str, float]:
    """Expected shares of ``masked_tallies``: a random token may be the original by chance."""
    chance = random / vocab_size
    return {
        "mask_share": mask,
        "random_share": random - chance,
        "keep_share": 1 - mask - random + chance,
    }


def pair_tallies(
    lengths: Ints, segments: Ints, label: Ints, single: NDArray[np.bool_], name: str
) -> Tallies:
    """Statistics of a batch of pairs.

    Args:
        lengths: [B] tokens that are not padding.
        segments: [B, L] token types, 1 for B and the [SEP] after it.
        label: [B] 1 where B is random, or the segments are swapped.
        single: [B] the chunk had one sentence, which decides the label.
        name: The name of the label: "random_next" or "swapped".

    Returns:
        <name>_share and <name>_share_multi (among chunks of two or more sentences), mean_length_a
        and mean_length_b (special tokens left out).
    """
    second = segments.sum(axis=1) - 1
    return {
        f"{name}_share": tally(label),
        f"{name}_share_multi": tally(label[~single]),
        "single_share": tally(single),
        "mean_length_a": tally(lengths - second - 3),
        "mean_length_b": tally(second),
    }


def masked_row(
    ids: Ints, positions: Ints, targets: Ints, mask_id: int, specials: Collection[int]
) -> tuple[ExampleToken, ...]:
    """One masked row for reading.

    Args:
        ids: [L] without padding.
        positions: [K] positions that are predicted.
        targets: [K] the original tokens.
        specials: Ids that the objective inserts; they are never text.
    """
    original = dict(zip(positions.tolist(), targets.tolist(), strict=True))

    def piece(at: int, id_: int) -> ExampleToken:
        if at not in original:
            return ExampleToken(id_, "special" if id_ in specials else "text")
        if id_ == mask_id:
            return ExampleToken(id_, "masked", original[at])
        return (
            ExampleToken(id_, "kept")
            if id_ == original[at]
            else ExampleToken(id_, "random", original[at])
        )

    return tuple(piece(at, id_) for at, id_ in enumerate(ids.tolist()))
