from hypothesis import given
from hypothesis import strategies as st

from plmctl.evaluation.likelihood import equal_pieces, sliding_windows


@given(st.integers(0, 200), st.integers(1, 40), st.data())
def test_windows_score_every_prediction_once(count: int, size: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, size))
    scored = []
    for number, window in enumerate(sliding_windows(count, size, stride)):
        assert window.begin == number * stride
        assert window.begin <= window.first < window.end <= count
        assert window.end - window.begin <= size
        scored += range(window.first, window.end)
    assert scored == list(range(count))


def test_windows_by_hand() -> None:
    assert list(sliding_windows(7, 4, 4)) == [(0, 0, 4), (4, 4, 7)]
    assert list(sliding_windows(7, 4, 2)) == [(0, 0, 4), (2, 4, 6), (4, 6, 7)]
    assert list(sliding_windows(3, 4, 1)) == [(0, 0, 3)]
    assert list(sliding_windows(0, 4, 1)) == []


@given(st.integers(0, 300), st.integers(1, 50))
def test_pieces_are_whole_and_even(count: int, size: int) -> None:
    pieces = equal_pieces(count, size)
    assert [place for start, end in pieces for place in range(start, end)] == list(range(count))
    lengths = [end - start for start, end in pieces]
    assert max(lengths, default=0) <= size
    assert max(lengths, default=0) - min(lengths, default=0) <= 1
