"""Masked models: pseudo-log-likelihood (Salazar et al., 2020, arXiv:1910.14659).

The sum over the tokens of log p(token | the others), one masked copy of the text for each. In a
word of several tokens the others give a token away; ``word_l2r`` also masks the later tokens of its
word (Kauf and Ivanova, 2023, arXiv:2305.10588).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from plmctl.evaluation.likelihood.reader import Reader, Tokens
from plmctl.evaluation.likelihood.rows import Ints, batches, padded, pieces, sizes
from plmctl.evaluation.likelihood.scores import Scores, token_nll

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
    import torch

    cls, sep, mask = (reader.special(name) for name in ("cls", "sep", "mask"))
    fill = reader.vocab.pad or 0
    rows: list[Ints] = []
    copies: list[Ints] = []  # [4, n]: row, place, end of what is masked, text
    for number, text in enumerate(texts):
        for start, end in pieces(len(text.ids), size - 2):
            place = np.arange(1, end - start + 1)
            until = masked_until(text.starts[start:end], variant) + 1
            fixed = np.full_like(place, len(rows)), np.full_like(place, number)
            copies.append(np.stack([fixed[0], place, until, fixed[1]]))
            rows.append(np.concatenate([[cls], text.ids[start:end], [sep]]))
    scores, lengths = Scores.empty(len(texts)), sizes(rows)
    row, place, until, of = np.concatenate([np.zeros((4, 0), np.int64), *copies], axis=1)
    with torch.inference_mode():
        for which in batches(lengths[row], reader.cells, most=reader.predictions):
            ids = padded([rows[number] for number in row[which]], fill)
            column = np.arange(ids.shape[1])
            there = column < lengths[row[which], None]
            at = np.arange(len(which)), place[which]
            targets = ids[at]
            ids[(column >= place[which, None]) & (column < until[which, None])] = mask
            logits = reader.logits(
                input_ids=ids,
                attention_mask=there.astype(np.int64),
                token_type_ids=np.zeros_like(ids),
                positions=at[0] * ids.shape[1] + at[1],
            )
            scores.add(of[which], token_nll(logits["mlm"], targets))
    return scores


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
