import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from plmctl.examples.windows import covering, owners, pieces_over, tightened, windows, words


def test_windows_by_hand():
    spans = windows(10, 4, 3)
    assert spans.starts.tolist() == [0, 3, 6]
    assert spans.sizes.tolist() == [4, 4, 4]
    spans = windows(11, 4, 3)
    assert list(zip(spans.starts, spans.sizes, strict=True)) == [(0, 4), (3, 4), (6, 4), (9, 2)]
    assert windows(4, 4, 1).starts.tolist() == [0]
    assert windows(0, 4, 3).sizes.tolist() == [0]
    assert windows(9, 4, 128).starts.tolist() == [0, 4, 8]  # a stride over the room skips nothing


@given(st.integers(0, 300), st.integers(1, 60), st.integers(1, 80))
def test_windows_are_those_of_the_published_loop(length, room, stride):
    expected, start = [], 0
    while start < length:  # run_squad.py in words: until a window reaches the end
        size = min(length - start, room)
        expected.append((start, size))
        if start + size == length:
            break
        start += min(size, stride)
    spans = windows(length, room, stride)
    pairs = list(zip(spans.starts.tolist(), spans.sizes.tolist(), strict=True))
    assert pairs == (expected or [(0, 0)])


def test_a_piece_counts_where_it_has_most_context():
    # Windows 0..3, 3..6, 6..9. Piece 3 ends one and begins the next: equal, the first wins.
    assert owners(windows(10, 4, 3), 10).tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    # 0..4, 3..5: at 3 both have nothing on their poorer side but one, and the longer one wins.
    assert owners(windows(6, 5, 3), 6).tolist() == [0, 0, 0, 0, 1, 1]


def test_words_are_between_spaces_and_chinese_characters_are_words():
    text = "A  b-c\t由韩国Nexon开发。\u202fd\u00a0e"
    assert [text[a:b] for a, b in words(text)] == [
        *("A", "b-c", "由", "韩", "国", "Nexon", "开", "发", "。"),
        "d\u00a0e",
    ]
    assert words(" \n").shape == (0, 2)


def test_an_answer_must_be_where_it_is_said_to_be():
    text = "born (1895-1943). He"
    spans = words(text)
    assert covering(text, spans, "1895", 6) == (5, 17)
    assert covering(text, spans, "1895", 5) is None
    assert covering(text, spans, "", 6) is None
    assert covering(text, spans, "He", -2) is None
    assert covering(text, spans, "He there", 18) is None
    assert covering("a\nb", words("a\nb"), "a b", 0) == (0, 3)  # other spaces
    assert covering("a b", words("a b"), " b", 1) == (0, 3)  # a space is of the word before it


def test_tightening_takes_the_first_part_that_is_the_answer():
    ids = np.array([9, 5, 6, 5, 6, 9], dtype=np.int32)
    assert tightened(ids, (0, 5), [5, 6]) == (1, 2)
    assert tightened(ids, (2, 5), [5, 6]) == (3, 4)
    assert tightened(ids, (0, 5), [7]) == (0, 5)
    assert tightened(ids, (0, 5), []) == (0, 5)
    assert tightened(ids, (3, 3), [5, 6]) == (3, 3)


def test_pieces_over_characters():
    offsets = np.array([[0, 3], [4, 6], [6, 8], [8, 8], [9, 12]], dtype=np.int32)
    assert pieces_over(offsets, 4, 8) == (1, 2)
    assert pieces_over(offsets, 5, 7) == (1, 2)
    assert pieces_over(offsets, 3, 4) is None  # a space
    assert pieces_over(offsets, 2, 10) == (0, 4)
