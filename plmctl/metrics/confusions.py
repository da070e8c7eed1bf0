"""Figures of many confusion matrices at once: what the bootstrap of a classifier asks for.

A matrix [C, C] has the truth in rows and the prediction in columns. The figures are those of
``metrics.classification``, undefined ones settled in the same way.
"""

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Floats

Counts = NDArray[np.int64]


def accuracy(matrices: Counts) -> Floats:
    """[R] shares of rows on the diagonal, of [R, C, C]."""
    return _share(_diagonal(matrices), matrices.sum((1, 2)))


def f1(matrices: Counts, positive: int) -> Floats:
    """[R] F1 of the class ``positive``, of [R, C, C]; 0 where it is neither there nor predicted."""
    right = matrices[:, positive, positive]
    said, true = matrices[:, :, positive].sum(1), matrices[:, positive, :].sum(1)
    return _share(2 * right, said + true)


def matthews(matrices: Counts) -> Floats:
    """[R] correlations of truth and prediction, of [R, C, C]; 0 where one side is constant.

    For more than two classes it is R_K (Gorodkin, 2004), as in scikit-learn.
    """
    # In floats: fourth powers of a million rows leave 64 bits.
    cells = matrices.astype(np.float64)
    total, true, said = cells.sum((1, 2)), cells.sum(2), cells.sum(1)
    joint = np.trace(cells, axis1=1, axis2=2) * total - (true * said).sum(1)
    square = total**2
    spread = (square - (true**2).sum(1)) * (square - (said**2).sum(1))
    return _share(joint, np.sqrt(spread))


def _diagonal(matrices: Counts) -> Counts:
    found: Counts = np.trace(matrices, axis1=1, axis2=2)
    return found


def _share(part: NDArray[np.number], whole: NDArray[np.number]) -> Floats:
    """0 of nothing."""
    found: Floats = np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)
    return found
