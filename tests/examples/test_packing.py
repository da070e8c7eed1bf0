"""RoBERTa's rows: held to fairseq's cuts, and to a plain loop over lists."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.examples import packing
from plmctl.examples import packing as module
from plmctl.examples.packing import (
    CLS,
    PAD,
    SEP,
    DocumentStream,
    LineStream,
    block_edges,
    document_edges,
    fill,
    layout,
    line_edges,
    segment_edges,
)

# fairseq's TokenBlockDataset on lines of these sizes, the separator at their ends counted; lines of
# one are the empty ones between documents.
LINES = [100, 200, 150, 1, 60, 400, 1, 700, 30, 1, 5]
COMPLETE = [(0, 511), (511, 912), (912, 1612), (1612, 1648)]
COMPLETE_DOC = [(0, 450), (451, 911), (912, 1612), (1612, 1642), (1643, 1648)]
Documents = list[list[int]]
DOCUMENTS = st.lists(st.lists(st.integers(1, 25), min_size=1, max_size=8), min_size=1, max_size=6)


def offsets(sizes: list[int]) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def stream_of(documents: Documents, *, separated: bool) -> LineStream:
    sentences = offsets([size for document in documents for size in document])
    bounds = offsets([len(document) for document in documents])
    starts, ends = sentences[:-1], sentences[1:]
    lines = np.concatenate(list(line_edges(starts, ends, bounds, separated=separated)))
    return LineStream(lines, starts, bounds, separated=separated)


def bounds_of(chunks: Iterator[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    edges = np.concatenate(list(chunks))
    return edges[:-1], edges[1:]


def as_documents(lines: list[int]) -> Documents:
    """The sentences of fairseq's lines, their separators taken off."""
    documents: Documents = [[]]
    for size in lines:
        if size == 1:
            documents.append([])
        else:
            documents[-1].append(size - 1)
    return documents


def rows(stream: LineStream, bounds: tuple[np.ndarray, np.ndarray]) -> list[list[int]]:
    layout = stream.layout(*bounds)
    return [row[row != PAD].tolist() for row in layout.source]


def plain_rows(documents: Documents, block: int, *, separated: bool) -> list[list[int]]:
    """The same over lists: lines with their separators, packed greedily, long ones cut."""
    groups, at = [], 0
    for number, document in enumerate(documents):
        lines = []
        for size in document:
            lines.append([*range(at, at + size), SEP])
            at += size
        if separated and number < len(documents) - 1:
            lines.append([SEP])
        groups.append([line[i : i + block] for line in lines for i in range(0, len(line), block)])
    if separated:
        groups = [[line for group in groups for line in group]]
    rows = []
    for group in groups:
        row: list[int] = []
        for line in group:
            if row and len(row) + len(line) > block:
                rows.append(row)
                row = []
            row = row + line
        rows.append(row)
    return [[CLS, *row] for row in rows]


def test_lines_are_fairseq_s() -> None:
    stream = stream_of(as_documents(LINES), separated=True)
    assert np.diff(stream.lines).tolist() == LINES


def test_full_sentences_are_cut_where_fairseq_cuts() -> None:
    lines = offsets(LINES)
    starts, ends = bounds_of(block_edges(lines, np.array([0, len(LINES)]), 511, cut=False))
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == COMPLETE


def test_doc_sentences_are_cut_where_fairseq_cuts() -> None:
    """fairseq's positions count the separators between documents, which these rows leave out."""
    documents = as_documents(LINES)
    lines = stream_of(documents, separated=False).lines
    bounds = offsets([len(document) for document in documents])
    starts, ends = bounds_of(block_edges(lines, bounds, 511, cut=False))
    between = offsets([sum(document) + len(document) for document in documents])[1:-1]
    shift = np.searchsorted(between, starts, side="right")
    shifted = zip((starts + shift).tolist(), (ends + shift).tolist(), strict=True)
    assert list(shifted) == COMPLETE_DOC


def test_a_long_sentence_is_cut_and_nothing_is_lost() -> None:
    stream = stream_of(as_documents(LINES), separated=True)
    starts, ends = bounds_of(stream.edges(511))
    assert (ends - starts).max() == 511
    assert starts[1:].tolist() == ends[:-1].tolist()
    assert (starts[0], ends[-1]) == (0, sum(LINES))


@given(DOCUMENTS, st.integers(2, 30), st.booleans())
def test_rows_are_those_of_a_plain_loop(documents: Documents, block: int, separated: bool) -> None:
    stream = stream_of(documents, separated=separated)
    assert rows(stream, bounds_of(stream.edges(block))) == plain_rows(
        documents, block, separated=separated
    )


@given(DOCUMENTS, st.integers(2, 30))
def test_every_token_is_in_one_row(documents: Documents, block: int) -> None:
    total = sum(map(sum, documents))
    for separated in (True, False):
        stream = stream_of(documents, separated=separated)
        layout = stream.layout(*bounds_of(stream.edges(block)))
        assert layout.source[layout.source >= 0].tolist() == list(range(total))
        assert layout.lengths.max() <= block + 1
        assert (layout.segments == 0).all()
        separators = sum(map(len, documents)) + separated * (len(documents) - 1)
        assert (layout.source == SEP).sum() == separators


@pytest.mark.parametrize("block", [3, 10])
def test_documents_never_share_a_row(block: int) -> None:
    documents = [[4, 5], [1], [12, 2]]
    sentences = offsets([size for document in documents for size in document])
    starts, ends = bounds_of(block_edges(sentences, offsets([2, 1, 2]), block))
    edges = {0, 9, 10, 24}
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        assert not any(start < edge < end for edge in edges)
        assert end - start <= block


@given(DOCUMENTS, st.integers(1, 30), st.booleans(), st.integers(1, 5))
def test_rows_do_not_depend_on_how_many_sentences_are_looked_at_together(
    documents: Documents, block: int, cut: bool, together: int
) -> None:
    sentences = offsets([size for document in documents for size in document])
    bounds = offsets([len(document) for document in documents])

    def all_rows() -> list[list[int]]:
        ways = [
            block_edges(sentences, bounds, block, cut=cut),
            block_edges(sentences, np.array([0, len(sentences) - 1]), block, cut=cut),
            line_edges(sentences[:-1], sentences[1:], bounds, separated=True),
            line_edges(sentences[:-1], sentences[1:], bounds, separated=False),
        ]
        return [np.concatenate(list(way)).tolist() for way in ways]

    whole = all_rows()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_TOGETHER", together)
        assert all_rows() == whole


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


def three_documents(*, separated: bool) -> DocumentStream:
    sentences, documents = np.array([0, 1, 3, 4, 6]), np.array([0, 2, 3, 4])
    starts = np.concatenate(list(document_edges(sentences, documents, separated=separated)))
    return DocumentStream(starts, separated=separated)


def test_stream_has_a_separator_after_every_document() -> None:
    stream = three_documents(separated=True)
    token, separator = stream.locate(np.arange(len(stream)))
    marks = ["|" if s else str(t) for t, s in zip(token, separator, strict=True)]
    assert "".join(marks) == "012|3|45|"
    assert token.max() == 5  # at a separator too, a token that there is
    assert stream.offsets(np.arange(9)).tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 2]


def test_stream_without_separators_is_the_tokens() -> None:
    stream = three_documents(separated=False)
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
