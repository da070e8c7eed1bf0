"""A text written by copying: the target of the nearest training row."""

from collections.abc import Callable, Sequence

import numpy as np

from plmctl.counting.texts import Features

_AT_ONCE = 256  # rows: their likeness to all training rows is held at once


def learn_nearest(
    sources: Sequence[str], targets: Sequence[str]
) -> Callable[[Sequence[str]], list[str]]:
    """The target of the row whose source is most alike by TF-IDF; of several the first.

    Raises:
        DataError: As ``Features``.
    """
    features = Features([(text,) for text in sources])
    known = features.tfidf(sources).T.tocsr()

    def write(texts: Sequence[str]) -> list[str]:
        written = []
        for start in range(0, len(texts), _AT_ONCE):
            alike = features.tfidf(texts[start : start + _AT_ONCE]) @ known
            written += [targets[place] for place in np.asarray(alike.argmax(axis=1)).ravel()]
        return written

    return write
