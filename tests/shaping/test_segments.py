import numpy as np

from plmctl.shaping.segments import concatenated, segments


def test_windows_are_cut_from_groups_of_documents() -> None:
    documents = np.array([0, 10, 25, 27, 40])
    assert concatenated(documents, 2).tolist() == [0, 25, 40]
    assert concatenated(documents, 3).tolist() == [0, 27, 40]
    assert concatenated(documents).tolist() == [0, 40]
    starts, ends = segments(np.array([0, 25, 26, 40]), 10, 2)
    assert list(zip(starts, ends, strict=True)) == [(0, 10), (10, 20), (20, 25), (26, 36), (36, 40)]
