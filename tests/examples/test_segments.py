import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plmctl.examples import packing as module
from plmctl.examples.packing import segment_edges


def cut(documents: list[list[int]], size: int, shortest: int, group: int) -> list[tuple[int, int]]:
    """Segments of a corpus given as sentence lengths."""
    sentences = np.concatenate([[0], np.cumsum([n for document in documents for n in document])])
    bounds = np.concatenate([[0], np.cumsum([len(document) for document in documents])])
    parts = list(segment_edges(sentences.astype(int), bounds.astype(int), size, shortest, group))
    return [tuple(pair) for part in parts for pair in part.reshape(-1, 2).tolist()]


def test_windows_are_cut_from_groups_of_documents() -> None:
    documents = [[4, 6], [15], [1], [13]]
    assert cut(documents, 10, 2, 1) == [(0, 10), (10, 20), (20, 25), (26, 36), (36, 39)]
    assert cut(documents, 100, 2, 2) == [(0, 25), (25, 39)]
    assert cut(documents, 100, 2, 3) == [(0, 26), (26, 39)]
    assert cut(documents, 100, 2, 128) == [(0, 39)]
    assert cut(documents, 13, 1, 3) == [(0, 13), (13, 26), (26, 39)]


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=9),
    st.integers(2, 12),
    st.integers(1, 4),
    st.integers(1, 6),
)
def test_segments_are_those_of_a_plain_loop(
    documents: list[list[int]], size: int, group: int, together: int
) -> None:
    plain, at = [], 0
    for first in range(0, len(documents), group):
        end = at + sum(sum(document) for document in documents[first : first + group])
        cuts = [(start, min(start + size, end)) for start in range(at, end, size)]
        plain += [(start, stop) for start, stop in cuts if stop - start >= 2]
        at = end
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_DOCUMENTS_TOGETHER", together)
        assert cut(documents, size, 2, group) == plain
