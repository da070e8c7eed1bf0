import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.examples import packing
from plmctl.examples.packing import (
    CLS,
    PAD,
    SEP,
    DocumentStream,
    block_edges,
    document_edges,
    fill,
    layout,
)


def test_pair_layout_by_hand() -> None:
    rows = layout(
        [np.array([10, 40]), np.array([20, 50])], [np.array([12, 43]), np.array([23, 51])]
    )
    assert rows.source.tolist() == [
        [CLS, 10, 11, SEP, 20, 21, 22, SEP],
        [CLS, 40, 41, 42, SEP, 50, SEP, PAD],
    ]
    assert rows.segments.tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 1, 1, 0]]
    assert rows.lengths.tolist() == [8, 7]


def test_single_layout_and_fill_by_hand() -> None:
    rows = layout([np.array([3])], [np.array([6])], multiple=4)
    assert rows.source.tolist() == [[CLS, 3, 4, 5, SEP, PAD, PAD, PAD]]
    tokens = np.maximum(rows.source, 0) + 100
    ids = fill(rows.source, tokens.astype(np.int32), {PAD: 0, CLS: 2, SEP: 3})
    assert ids.tolist() == [[2, 103, 104, 105, 3, 0, 0, 0]]


lengths = st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=8), min_size=1, max_size=8)


@settings(max_examples=80, deadline=None)
@given(lengths, st.integers(2, 20))
def test_blocks_cover_everything_once_within_documents(
    documents: list[list[int]], block: int
) -> None:
    sentences = np.concatenate([[0], np.cumsum([n for d in documents for n in d])])
    starts_of = np.concatenate([[0], np.cumsum([len(d) for d in documents])])
    edges = np.concatenate(list(block_edges(sentences, starts_of, block)))
    starts, ends = edges[:-1], edges[1:]
    assert starts[0] == 0
    assert ends[-1] == sentences[-1]
    assert (starts[1:] == ends[:-1]).all()
    assert (ends - starts).max() <= block
    bounds = sentences[starts_of]
    assert set(bounds.tolist()) <= {*starts.tolist(), *ends.tolist()}


def test_blocks_are_greedy() -> None:
    # Sentences of 4, 3, 5 and one of 12, blocks of 8: [4 3] [5] [8] [4]
    sentences = np.array([0, 4, 7, 12, 24])
    edges = np.concatenate(list(block_edges(sentences, np.array([0, 4]), 8)))
    assert np.diff(edges).tolist() == [7, 5, 8, 4]


def stream_of(*, separated: bool) -> DocumentStream:
    sentences, documents = np.array([0, 1, 3, 4, 6]), np.array([0, 2, 3, 4])
    starts = np.concatenate(list(document_edges(sentences, documents, separated=separated)))
    return DocumentStream(starts, separated=separated)


def test_stream_has_a_separator_after_every_document() -> None:
    stream = stream_of(separated=True)
    token, separator = stream.locate(np.arange(len(stream)))
    marks = ["|" if s else str(t) for t, s in zip(token, separator, strict=True)]
    assert "".join(marks) == "012|3|45|"
    assert token.max() == 5  # at a separator too, a token that there is
    assert stream.offsets(np.arange(9)).tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2]


def test_stream_without_separators_is_the_tokens() -> None:
    stream = stream_of(separated=False)
    token, separator = stream.locate(np.arange(len(stream)))
    assert token.tolist() == list(range(6))
    assert not separator.any()
    assert stream.offsets(np.arange(6)).tolist() == [0, 1, 2, 0, 0, 1]


def test_stream_does_not_depend_on_how_many_documents_are_looked_at_together() -> None:
    sentences, documents = np.arange(0, 30, 2), np.array([0, 1, 4, 9, 10, 14])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_TOGETHER", 2)
        parts = list(document_edges(sentences, documents, separated=True))
    assert np.concatenate(parts).tolist() == [0, 3, 10, 21, 24, 33]
    assert len(parts) == 3
