"""Masked models: pseudo-log-likelihood (Salazar et al., 2020, arXiv:1910.14659).

The sum over the tokens of log p(token | the others), one masked copy of the text for each. In a
word of several tokens the others give a token away; ``word_l2r`` also masks the later tokens of its
word (Kauf and Ivanova, 2023, arXiv:2305.10588).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Floats, Ints, batches, lengths_of, padded
from plmctl.evaluation.likelihood.reader import Reader, Tokens
from plmctl.evaluation.likelihood.scores import Scores, token_nll
from plmctl.evaluation.likelihood.windows import pieces

Variant = Literal["original", "word_l2r"]


def score(reader: Reader, texts: Sequence[Tokens], size: int, variant: Variant) -> Scores:
    """Every token of each text masked and scored once; special tokens are not scored.

    Args:
        reader: A masked model.
        texts: N of them.
        size: Tokens of a row, the two special ones included; longer texts are cut into pieces,
            each scored by itself.
        variant: original: one token is masked; word_l2r: and the later ones of its word.

    Returns:
        The sums of each text.
    """
    rows: list[Ints] = []
    places: list[Ints] = []  # [4, n]: row, place, end of what is masked, text
    for number, text in enumerate(texts):
        for start, end in pieces(len(text.ids), size - 2):
            place = np.arange(1, end - start + 1)
            until = masked_until(text.starts[start:end], variant) + 1
            fixed = np.full_like(place, len(rows)), np.full_like(place, number)
            places.append(np.stack([fixed[0], place, until, fixed[1]]))
            rows.append(framed(reader, text.ids[start:end]))
    row, place, until, of = np.concatenate([np.zeros((4, 0), np.int64), *places], axis=1)
    scores = Scores.empty(len(texts))
    for which, nll, _ in scored(reader, Copies(rows, row, place, until)):
        scores.add(of[which], nll)
    return scores


@dataclass(frozen=True)
class Copies:
    """Masked copies of rows, each asking for one token.

    Attributes:
        rows: Ids, special tokens included.
        row: [n] whose copy it is.
        place: [n] the token that is asked for.
        until: [n] where what is masked from there on ends.
    """

    rows: Sequence[Ints]
    row: Ints
    place: Ints
    until: Ints


def framed(reader: Reader, ids: Ints) -> Ints:
    """A row: the ids between the two special tokens."""
    return np.concatenate([[reader.special("cls")], ids, [reader.special("sep")]])


def scored(reader: Reader, copies: Copies) -> Iterator[tuple[Ints, Floats, NDArray[np.bool_]]]:
    """What a model says to every copy, in batches by length.

    Yields:
        Numbers of copies [K], the negative log-likelihood of their tokens in nats [K], and whether
        each is the most probable one [K].
    """
    import torch

    mask, fill = reader.special("mask"), reader.vocab.pad or 0
    lengths = lengths_of(copies.rows)[copies.row]
    with torch.inference_mode():
        for which in batches(lengths, cells=reader.cells, most=reader.predictions):
            place, until = copies.place[which], copies.until[which]
            ids, there = padded([copies.rows[number] for number in copies.row[which]], fill)
            column = np.arange(ids.shape[1])
            at = np.arange(len(which)), place
            targets = ids[at]
            ids[(column >= place[:, None]) & (column < until[:, None])] = mask
            logits = reader.logits(
                input_ids=ids,
                attention_mask=there.astype(np.int64),
                token_type_ids=np.zeros_like(ids),
                positions=at[0] * ids.shape[1] + at[1],
            )["mlm"]
            first = logits.argmax(-1).cpu().numpy() == targets
            yield which, token_nll(logits, targets), first


def masked_until(starts: NDArray[np.bool_], variant: Variant) -> Ints:
    """Where the masked stretch that begins at each token ends.

    Args:
        starts: [n] whether a word starts at each token.
        variant: One token, or the rest of its word.

    Returns:
        [n], each above its own place.
    """
    after = np.arange(1, len(starts) + 1)
    if variant == "original":
        return after
    cuts = np.append(np.flatnonzero(starts), len(starts))
    return cuts[np.searchsorted(cuts, after)]
