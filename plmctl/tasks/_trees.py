"""Dependency trees: whether heads are one, and the best one of scores.

Heads are [W] numbers, one per word: 0 is ROOT, n the word n. Exactly one word hangs on ROOT.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints

Scores = NDArray[np.floating[Any]]


def problem_of(heads: Sequence[int]) -> str | None:
    """Why heads are no tree with one root; None: they are one."""
    for word, head in enumerate(heads, 1):
        if not 0 <= head <= len(heads) or head == word:
            return f"the head of word {word} is {head}"
    if (roots := sum(head == 0 for head in heads)) != 1:
        return f"{roots} words hang on ROOT, where one must"
    cycle = _cycle(np.array([0, *heads]))
    return None if cycle is None else f"word {cycle[0]} hangs on itself, through other words"


def best_tree(scores: Scores) -> Ints:
    """The heads of the tree with the highest sum of scores.

    The best head of each word, if these are a tree; else Chu-Liu and Edmonds. One root: arcs from
    ROOT cost more than all others together can give (Stanojević and Cohen, 2021, section 3).

    Args:
        scores: [W, W + 1] of each word and head; what a word scores as its own head is not read.
    """
    words = len(scores)
    square = np.full((words + 1, words + 1), -np.inf)
    square[1:] = scores
    np.fill_diagonal(square, -np.inf)
    heads: Ints = square.argmax(1)[1:]
    if problem_of(heads.tolist()) is None:
        return heads
    known = square[np.isfinite(square)]
    square[1:, 0] -= 1 + words * (known.max() - known.min())
    return _maximum_branching(square)[1:]


def _maximum_branching(scores: Scores) -> Ints:
    """The best heads [N] of nodes 1 and on, all below node 0; what node 0 gets means nothing.

    Args:
        scores: [N, N] of each node (row) and head (column), -inf on the diagonal.
    """
    heads: Ints = scores.argmax(1)
    heads[0] = 0
    cycle = _cycle(heads)
    if cycle is None:
        return heads
    outside = np.setdiff1d(np.arange(len(heads)), cycle)
    leaving = scores[np.ix_(outside, cycle)]
    entering = scores[np.ix_(cycle, outside)] - scores[cycle, heads[cycle]][:, None]
    # The cycle becomes one node, the last.
    smaller = np.full((len(outside) + 1,) * 2, -np.inf)
    smaller[:-1, :-1] = scores[np.ix_(outside, outside)]
    smaller[:-1, -1] = leaving.max(1)
    smaller[-1, :-1] = entering.max(0)
    tree = _maximum_branching(smaller)
    above, before = tree[:-1], tree[-1]
    inside = cycle[leaving.argmax(1)]
    heads[outside] = np.where(above == len(outside), inside, np.append(outside, 0)[above])
    heads[cycle[entering[:, before].argmax()]] = outside[before]
    heads[0] = 0
    return heads


def _cycle(heads: Ints) -> Ints | None:
    """The nodes of a cycle; None: there is none. Node 0 is its own head."""
    state = np.zeros(len(heads), dtype=np.int64)  # the walk that came by; 0: none
    state[0] = -1
    for start in range(1, len(heads)):
        node = start
        while state[node] == 0:
            state[node] = start
            node = int(heads[node])
        if state[node] == start:
            cycle = [node]
            while (node := int(heads[node])) != cycle[0]:
                cycle.append(node)
            return np.array(cycle)
    return None
