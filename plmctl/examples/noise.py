"""T5's noise: which tokens are hidden, and the input and target that result.

Source: google-research/text-to-text-transfer-transformer, t5/data/preprocessors.py
(``random_spans_helper``, ``random_spans_noise_mask``, ``iid_noise_mask``,
``noise_span_to_unique_sentinel``, ``nonnoise_span_to_unique_sentinel``).
"""

from dataclasses import dataclass

import numpy as np

from plmctl.arrays import Bools, Ints
from plmctl.examples.keys import Keys, below, fold, stream, uniform
from plmctl.examples.masking import choose


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: ids [B, W]; the first lengths [B] of each row are real."""

    ids: Ints
    lengths: Ints


@dataclass(frozen=True)
class SpanLengths:
    """Lengths of span corruption, end tokens included in ``inputs`` and ``targets``."""

    raw: int
    """Tokens of text in a window."""
    spans: int
    """Noise spans in a window: sentinels that are needed."""
    inputs: int
    targets: int


def real(lengths: Ints, width: int) -> Bools:
    """[B, width] the positions before each row's end."""
    inside: Bools = np.arange(width)[None, :] < lengths[:, None]
    return inside


def span_counts(lengths: Ints, density: float, mean_span: float) -> tuple[Ints, Ints]:
    """Noise tokens and noise spans of rows of given lengths, halves rounded to even.

    There are at most as many spans as tokens between them. The source has no such limit; it makes a
    difference only at densities above one half.

    Args:
        lengths: [B]; a row of one token counts as two, as in the source.
        mean_span: Mean tokens per span, at least 1.

    Returns:
        noise [B] in 1..length - 1, spans [B] at least 1.
    """
    size = np.maximum(lengths, 2)
    noise = np.clip(np.rint(size * density).astype(np.int64), 1, size - 1)
    spans = np.rint(noise / mean_span).astype(np.int64)
    return noise, np.clip(spans, 1, np.minimum(noise, size - noise))


def span_lengths(seq_len: int, density: float, mean_span: float) -> SpanLengths:
    """The longest window whose corrupted input fits ``seq_len`` (``random_spans_helper``).

    (512, 0.15, 3) gives windows of 568 tokens and targets of 114.

    Args:
        seq_len: Tokens of an input with its sentinels and end token, at least 4.
    """
    most = int(seq_len / (1 - density)) + 2  # without sentinels; no longer window can fit
    raw = np.arange(2, max(most, 4))
    noise, spans = span_counts(raw, density, mean_span)
    inputs, targets = raw - noise + spans + 1, noise + spans + 1
    at = int(np.flatnonzero(inputs <= seq_len)[-1])
    if density == 0.5 and targets[at] > inputs[at]:  # a rule of the source for equal lengths
        at -= 1
    return SpanLengths(int(raw[at]), int(spans[at]), int(inputs[at]), int(targets[at]))


def span_noise(lengths: Ints, density: float, mean_span: float, keys: Keys) -> Bools:
    """Random noise spans: exact numbers of tokens and spans, text first and noise last in a row.

    Noise and text are each cut into the same number of parts, all compositions equally likely, and
    the parts alternate. A row of one token has no noise.

    Args:
        lengths: [B].
        keys: [B] one key per row.

    Returns:
        [B, W] with W the longest length, at least 2.
    """
    noise, spans = span_counts(lengths, density, mean_span)
    size = np.maximum(lengths, 2)
    text = _composition(size - noise, spans, fold(keys, stream("text")))
    hidden = _composition(noise, spans, fold(keys, stream("noise")))
    parts = np.stack([text, hidden], axis=2).reshape(len(size), -1)
    width = int(size.max())
    mask = np.zeros((len(size), width), dtype=bool)
    turns = np.tile(np.array([False, True]), parts.size // 2)
    mask[real(size, width)] = np.repeat(turns, parts.reshape(-1))
    return mask & real(lengths, width)


def iid_noise(lengths: Ints, width: int, density: float, keys: Keys) -> Bools:
    """Each token noise with probability ``density``, independently. [B], keys [B] -> [B, width]."""
    draws = uniform(fold(keys[:, None], stream("noise"), np.arange(width)))
    return (draws < density) & real(lengths, width)


def limit_runs(noise: Bools, most: int) -> Bools:
    """At most ``most`` - 1 runs of noise per row; later ones stay text.

    Independent noise has any number of runs, but a tokenizer has a fixed number of sentinels. At
    the published lengths and rate one row in ten million loses a run. One sentinel is reserved for
    the text after the last run.
    """
    return noise & (np.cumsum(_first(noise), axis=1) < most)


def replace_runs(ids: Ints, lengths: Ints, noise: Bools, sentinels: Ints) -> tuple[Ragged, Ragged]:
    """Each run of noise becomes one sentinel in the input, each run of text one in the target.

    Sentinel k replaces run number k of its row, in both. If a row starts with text and ends with
    noise, its target is s0 noise0 s1 noise1 ..., without a closing sentinel; if it ends with text,
    the target has one. Noise at the very start has no sentinel before it.

    Args:
        ids: [B, W].
        lengths: [B].
        noise: [B, W], False outside the rows.
        sentinels: Ids in their order, at least one per run of a row.

    Returns:
        Inputs and targets, without end tokens.
    """
    inside = real(lengths, ids.shape[1])
    return (
        _collapse(ids, noise, inside, sentinels),
        _collapse(ids, inside & ~noise, inside, sentinels),
    )


def replace_tokens(
    ids: Ints, noise: Bools, sentinel: int, random_share: float, bounds: tuple[int, int], keys: Keys
) -> Ints:
    """Every noise token becomes the sentinel, or a random token with probability ``random_share``.

    Args:
        ids: [B, W].
        noise: [B, W].
        random_share: 0.1 in the BERT style, 0 in the MASS style.
        bounds: Random tokens are uniform over this range of ids.
        keys: [B] one key per row.

    Returns:
        [B, W] a new array.
    """
    row, column = np.nonzero(noise)
    draws = fold(keys[row], stream("replace"), column)
    random = bounds[0] + below(fold(draws, 1), bounds[1] - bounds[0])
    replaced = ids.copy()
    replaced[row, column] = np.where(uniform(fold(draws, 0)) < random_share, random, sentinel)
    return replaced


def shuffled(ids: Ints, lengths: Ints, keys: Keys) -> Ints:
    """The tokens of each row in random order, all orders equally likely. [B, W] -> [B, W]."""
    draws = fold(keys[:, None], stream("shuffle"), np.arange(ids.shape[1]))
    # The lowest bit is dropped so that padding stays at the end; ties do not happen.
    draws = np.where(real(lengths, ids.shape[1]), draws >> np.uint64(1), np.uint64(2**64 - 1))
    return np.take_along_axis(ids, np.argsort(draws, axis=1, kind="stable"), axis=1)


def compact(ids: Ints, keep: Bools) -> Ragged:
    """The kept tokens of each row, without gaps. Both [B, W]."""
    lengths = keep.sum(axis=1)
    packed = np.zeros((len(ids), int(lengths.max())), dtype=np.int64)
    packed[real(lengths, packed.shape[1])] = ids[keep]
    return Ragged(packed, lengths)


def closed(rows: Ragged, end: int, pad: int) -> tuple[Ints, Bools]:
    """Rows with an end token, padded on the right: ids [B, W + 1], and which are not padding."""
    width = int(rows.lengths.max()) + 1
    ids = np.full((len(rows.lengths), width), pad, dtype=np.int64)
    inside = real(rows.lengths, width)
    ids[inside] = rows.ids[real(rows.lengths, rows.ids.shape[1])]
    ids[np.arange(len(ids)), rows.lengths] = end
    return ids, real(rows.lengths + 1, width)


def runs(noise: Bools) -> Ints:
    """[B] runs of True in each row."""
    return np.asarray(_first(noise).sum(axis=1), dtype=np.int64)


def _composition(totals: Ints, parts: Ints, keys: Keys) -> Ints:
    """Each total cut into non-empty parts, all ways equally likely: [B, P], zeros after the last.

    A total of n has n - 1 places to cut at.
    """
    width, most = int(totals.max()), int(parts.max())
    inside = real(totals, width)
    candidates = inside & (np.arange(width) > 0)
    part = np.cumsum(choose(candidates, parts - 1, keys), axis=1)
    flat = (np.arange(len(totals))[:, None] * most + part)[inside]
    return np.bincount(flat, minlength=len(totals) * most).reshape(len(totals), most)


def _collapse(ids: Ints, hidden: Bools, inside: Bools, sentinels: Ints) -> Ragged:
    first = _first(hidden)
    number = np.cumsum(first, axis=1)
    return compact(
        np.where(first, sentinels[np.maximum(number - 1, 0)], ids), inside & (~hidden | first)
    )


def _first(noise: Bools) -> Bools:
    """The first position of each run."""
    first = noise.copy()
    first[:, 1:] &= ~noise[:, :-1]
    return first
