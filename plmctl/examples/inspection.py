"""Training examples for reading, and the statistics of many of them.

An objective shows what it did to the text, token by token, and counts what its paper gives figures
for. Everything here is read off finished batches: it is what the network is given, not what was
meant to be given.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints

Kind = Literal["text", "special", "masked", "random", "kept", "target"]
"""What was done to a token: nothing, put there by the objective, hidden by the mask, replaced by a
random token, chosen but left as it is; or asked for as it stands."""

Tallies = dict[str, tuple[float, int]]
"""A figure's name to the sum over its cases and the number of cases."""


@dataclass(frozen=True)
class Piece:
    """A token of an example.

    Attributes:
        id: What the network reads, or has to say where the kind is "target".
        kind: What was done to it.
        original: What stood there, where that is another token.
    """

    id: int
    kind: Kind
    original: int | None = None


@dataclass(frozen=True)
class Example:
    """One example.

    Attributes:
        rows: Its rows by name, such as "input" and "target".
        note: Its label in words; empty if it has none.
    """

    rows: Mapping[str, tuple[Piece, ...]]
    note: str = ""


def merge(tallies: Iterable[Tallies]) -> Tallies:
    """The sums over several batches, names in the order of their first coming."""
    merged: Tallies = {}
    for tally in tallies:
        for name, (total, cases) in tally.items():
            before = merged.get(name, (0.0, 0))
            merged[name] = (before[0] + total, before[1] + cases)
    return merged


def means(tallies: Tallies) -> dict[str, float]:
    """The mean of each figure that has a case."""
    return {name: total / cases for name, (total, cases) in tallies.items() if cases}


def tally(values: NDArray[np.generic]) -> tuple[float, int]:
    """The tally of an array's values."""
    return float(np.sum(values, dtype=np.float64)), int(values.size)


def masked_tallies(
    ids: Ints, lengths: Ints, positions: Ints, targets: Ints, mask_id: int
) -> Tallies:
    """What a masked batch shows.

    Args:
        ids: [B, L] as the network reads them.
        lengths: [B] tokens that are no padding.
        positions: [K] cells of the flattened batch that are predicted, ascending.
        targets: [K] what stood there.
        mask_id: Of the mask token.

    Returns:
        mean_length; masked_share (of all tokens, special ones included); mask_share, random_share
        and keep_share (of the masked; a random token that is the original counts as kept);
        mean_run (masked tokens in a row).
    """
    shown = ids.reshape(-1)[positions]
    hidden, kept = shown == mask_id, shown == targets
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
    """What the shares of ``masked_tallies`` come to: a random token is the original by chance."""
    chance = random / vocab_size
    return {
        "mask_share": mask,
        "random_share": random - chance,
        "keep_share": 1 - mask - random + chance,
    }


def pair_tallies(
    lengths: Ints, segments: Ints, label: Ints, single: NDArray[np.bool_], name: str
) -> Tallies:
    """What a batch of pairs shows.

    Args:
        lengths: [B] tokens that are no padding.
        segments: [B, L] token types, 1 for B and the [SEP] after it.
        label: [B] 1 where B is random, or the segments are swapped.
        single: [B] the chunk had one sentence, which decides the label.
        name: Of the label: "random_next" or "swapped".

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
) -> tuple[Piece, ...]:
    """One masked row for reading.

    Args:
        ids: [L] without padding.
        positions: [K] places that are predicted.
        targets: [K] what stood there.
        mask_id: Of the mask token.
        specials: Ids that the objective puts between the text; they are never text.
    """
    original = dict(zip(positions.tolist(), targets.tolist(), strict=True))

    def piece(at: int, id_: int) -> Piece:
        if at not in original:
            return Piece(id_, "special" if id_ in specials else "text")
        if id_ == mask_id:
            return Piece(id_, "masked", original[at])
        return Piece(id_, "kept") if id_ == original[at] else Piece(id_, "random", original[at])

    return tuple(piece(at, id_) for at, id_ in enumerate(ids.tolist()))
