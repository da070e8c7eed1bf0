"""Held-out text that is training text, by the stores."""

import time

import numpy as np
import pytest

from plmctl.corpus.overlap import shared_text
from plmctl.corpus.store import TokenStore


def documents(seed: int, *sizes: int) -> list[list[list[int]]]:
    draws = np.random.default_rng(seed)
    return [[draws.integers(0, 500, size).tolist()] for size in sizes]


def store(*texts: list[list[list[int]]]) -> TokenStore:
    return TokenStore.from_lists([document for text in texts for document in text], 500)


def test_copies_and_parts_of_training_text_are_found() -> None:
    train, copies, short = documents(1, 400, 100, 3000), documents(2, 300, 50), documents(3, 12, 20)
    other = documents(4, 500, 64, 15)
    assert shared_text(store(train), store(other)).report() is None
    shared = shared_text(store(train, copies, short), store(other, copies, short))
    assert (shared.documents, shared.shared, shared.whole) == (7, 4, True)
    assert shared.text == pytest.approx((350 + 32) / (579 + 382))
    assert "39.8 % of the validation text is also in the training text (4 of 7" in str(
        shared.report()
    )
    # A document of which a third is in the training text, in another place of a document.
    part = [[[*documents(5, 400)[0][0], *train[2][0][1000:1200]]]]
    assert shared_text(store(train), store(part)).text == pytest.approx(1 / 3, abs=0.1)


def test_documents_that_are_alike_by_chance_do_not_count() -> None:
    train = store([[[1, 2, 3]]] * 50, documents(1, 100))
    assert shared_text(train, store([[[1, 2, 3]]] * 20, documents(2, 90))).report() is None
    assert shared_text(train, store([[[1, 2, 3]]])).text == 0


def test_a_large_text_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plmctl.corpus.overlap._TRAIN", 1 << 20)
    train = documents(1, *[1000] * 4000)
    began = time.process_time()
    shared = shared_text(store(train), store(train[:200]))
    assert time.process_time() - began < 5
    assert not shared.whole
    assert shared.text > 0.9  # the first stretch has them
    assert str(shared.report()).startswith("at least ")
