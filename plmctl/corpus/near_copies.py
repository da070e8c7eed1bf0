"""Near copies of documents: their sketches, and the held-out documents that are near copies.

Two texts are nearly copies if about 70 % of their runs of 12 characters are the same, also with
sentences in another order; case and white space do not count, and of a long text only its
beginning. A sketch is the 32 smallest hashes of the runs (Broder, 1997, "On the resemblance and
containment of documents").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Bools, Ints
from plmctl.characters import KANA, SYLLABLES
from plmctl.corpus.document import hash_of
from plmctl.corpus.overlap import Hashes, code_points, window_hashes
from plmctl.errors import ConfigError

SKETCH = 32  # hashes of a text

_SHINGLE = 12  # characters

_LOOKED_AT = 2_000  # characters of a text, without white space

_SHORTEST = 60  # characters without white space: shorter texts are alike by chance

_COMMON = 24  # hashes in both sketches: about 60 % of the runs

_NONE = np.uint64(2**64 - 1)  # fills up a sketch

Sketches = NDArray[np.uint64]
"""[D, 33] the ``hash_of`` and the sketch of each document, ascending."""


def plain_opening(text: str) -> str:
    """What is compared of a text; empty: it is too short."""
    plain = "".join(text[: 2 * _LOOKED_AT].casefold().split())[:_LOOKED_AT]
    return plain if len(plain) >= _SHORTEST else ""


def shingles(plain: str) -> Hashes:
    """Hashes of the runs of characters of a text: ascending, each once."""
    return np.unique(window_hashes(code_points(plain), _SHINGLE))


def sketches_of(texts: Iterable[str]) -> Sketches:
    """The sketches of documents."""
    rows = list[Hashes]()
    for text in texts:
        row = np.full(1 + SKETCH, _NONE, dtype="<u8")
        smallest = shingles(plain_opening(text))[:SKETCH]
        row[0], row[1 : 1 + len(smallest)] = hash_of(text), smallest
        rows.append(row)
    return np.stack(rows) if rows else np.zeros((0, 1 + SKETCH), dtype="<u8")


def to_move(read: Callable[[], Iterable[Sketches]], share: float) -> Hashes:
    """The hashes of held-out documents that are near copies of a training document.

    Near copies of these among the held-out documents are moved with them. Only the sketches of
    held-out documents are in memory. Each document is compared with the first held-out ones that
    have a quarter of its hashes.

    Args:
        read: Gives the sketches of all documents, in parts; called twice.
        share: Documents whose hash is below it are held out.
    """
    out = [part[part[:, 0] / 2**64 < share] for part in read()]
    held_out = np.concatenate([np.zeros((0, 1 + SKETCH), "<u8"), *out])
    known, first = np.unique(held_out[:, 1:].ravel(), return_index=True)
    owners = first // SKETCH
    moved: Bools = np.zeros(len(held_out), dtype=np.bool_)
    if not len(held_out):
        return held_out[:, 0]
    for part in read():
        train = part[part[:, 0] / 2**64 >= share]
        moved[_pairs(train, held_out, known, owners)[1]] = True
    one, other = _pairs(held_out, held_out, known, owners)
    while (more := moved[one] | moved[other]).any() and not moved[[*one[more], *other[more]]].all():
        moved[one[more]] = moved[other[more]] = True
    return np.unique(held_out[moved, 0])


def _pairs(texts: Sketches, others: Sketches, known: Hashes, owners: Ints) -> tuple[Ints, Ints]:
    """The rows of texts, and of others that they are near copies of.

    Args:
        known: The hashes in ``others``, ascending; ``owners`` are the first rows that have them.
    """
    hashes = texts[:, 1:].ravel()
    places = np.minimum(np.searchsorted(known, hashes), len(known) - 1)
    hits = np.flatnonzero((known[places] == hashes) & (hashes != _NONE))
    pairs, common = np.unique(
        hits // SKETCH * len(others) + owners[places[hits]], return_counts=True
    )
    one, other = np.divmod(pairs[common >= SKETCH // 4], len(others))
    both = np.sort(np.concatenate([texts[one, 1:], others[other, 1:]], axis=1), axis=1)
    same = ((both[:, 1:] == both[:, :-1]) & (both[:, 1:] != _NONE)).sum(axis=1)
    fewer = np.minimum((texts[one, 1:] != _NONE).sum(1), (others[other, 1:] != _NONE).sum(1))
    near = same >= fewer * _COMMON / SKETCH
    return one[near], other[near]


# --- `data.duplicates: near`: documents that are nearly copies of earlier ones, by datasketch ---


NEAR = 0.5
"""The share of the runs of two documents that both have, from which on they are near copies."""

PERMUTATIONS = 128

_RUN, _RUN_UNSPACED = 8, 3  # characters; in scripts without spaces a word has one or two

_UNSPACED = re.compile(f"[{SYLLABLES}{KANA}\u3400-\u9fff]")

_AT_ONCE = 50_000  # runs whose permutations are in memory together: 50 MB


def check_library() -> None:
    """Refuse `duplicates: near` without the library.

    Raises:
        ConfigError: It is not installed.
    """
    if find_spec("datasketch") is None:
        raise ConfigError(
            "data.duplicates: near: the library datasketch is not installed",
            "pip install 'plmctl[documents]'",
        )


def minhashes_of(texts: Iterable[str]) -> NDArray[np.uint32]:
    """[D, 2 + 128] the hash and the MinHash of each text; of one that is too short, zeros."""
    from datasketch import MinHash

    empty = MinHash(PERMUTATIONS, seed=1, hashfunc=int, scheme="affine32")
    rows = [np.zeros((0, 2 + PERMUTATIONS), dtype="<u4")]
    for text in texts:
        plain = "".join(text.casefold().split())
        unspaced = len(_UNSPACED.findall(plain[:1_000])) > 0.3 * len(plain[:1_000])
        runs = window_hashes(code_points(plain), _RUN_UNSPACED if unspaced else _RUN)
        runs, values = np.unique(runs >> np.uint64(32)), empty.copy()
        for start in range(0, len(runs), _AT_ONCE):
            values.update_batch(runs[start : start + _AT_ONCE])
        row = np.zeros((1, 2 + PERMUTATIONS), dtype="<u4")
        row[0, :2] = np.array([hash_of(text)], dtype="<u8").view("<u4")
        if len(plain) >= _SHORTEST:
            row[0, 2:] = values.hashvalues
        rows.append(row)
    return np.concatenate(rows)


def near_copies(parts: Iterable[NDArray[np.uint32]]) -> Hashes:
    """The hashes of the documents that are nearly copies of an earlier one that is not.

    Args:
        parts: What ``minhashes_of`` says of all documents, in their order.
    """
    from datasketch import MinHash, MinHashLSH

    index, near = MinHashLSH(NEAR, PERMUTATIONS), [np.zeros(0, dtype="<u8")]
    empty = MinHash(PERMUTATIONS, seed=1, scheme="affine32")
    kept = list[NDArray[np.uint32]]()
    for row in (row for part in parts for row in part if row[2:].any()):
        values = empty.copy()
        values.hashvalues = row[2:]
        if any(np.mean(row[2:] == kept[one]) >= NEAR for one in index.query(values)):
            near.append(row[:2].copy().view("<u8"))
        else:
            index.insert(len(kept), values)
            kept.append(row[2:])
    return np.unique(np.concatenate(near))
