"""T5's noise beside the statistics of its own code, and text that input and target give back."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl.examples.keys import fold
from plmctl.examples.noise import (
    Ragged,
    closed,
    compact,
    iid_noise,
    limit_runs,
    real,
    replace_runs,
    replace_tokens,
    runs,
    shuffled,
    span_counts,
    span_lengths,
    span_noise,
)

# random_spans_helper of the T5 code: (inputs, density, mean span) -> (raw, target).
LENGTHS = {
    (512, 0.15, 3): (568, 114),
    (512, 0.15, 2): (552, 126),
    (512, 0.15, 5): (581, 105),
    (512, 0.15, 10): (591, 99),
    (512, 0.25, 3): (614, 206),
    (512, 0.1, 3): (548, 74),
    (512, 0.5, 3): (766, 512),
    (1024, 0.15, 3): (1137, 229),
    (2048, 0.15, 3): (2274, 456),
    (256, 0.15, 3): (284, 58),
    (128, 0.15, 3): (141, 29),
    (64, 0.15, 3): (70, 14),
}
# random_spans_noise_mask of the T5 code over 4,000 sequences of a length: noise rate, spans a
# sequence, mean span, shares of spans of 1..8 tokens, noise rate of the first and last ten tokens.
MASKS = {
    568: (0.149648, 28, 3.0357, (0.3221, 0.2208, 0.1509, 0.102, 0.0695, 0.0452, 0.0302, 0.0209),
          0.1098, 0.3679),
    100: (0.15, 5, 3.0, (0.2889, 0.2205, 0.1597, 0.1184, 0.0852, 0.0549, 0.0375, 0.0207),
          0.0997, 0.3626),
    20: (0.15, 1, 3.0, (0, 0, 1, 0, 0, 0, 0, 0), 0.0, 0.3),
    5: (0.2, 1, 1.0, (1, 0, 0, 0, 0, 0, 0, 0), 0.2, 0.2),
    2: (0.5, 1, 1.0, (1, 0, 0, 0, 0, 0, 0, 0), 0.5, 0.5),
}  # fmt: skip


@pytest.mark.parametrize("options", LENGTHS)
def test_lengths_are_the_published_ones(options: tuple[int, float, float]) -> None:
    lengths = span_lengths(*options)
    assert (lengths.raw, lengths.targets) == LENGTHS[options]
    assert lengths.inputs <= options[0]


@settings(max_examples=100)
@given(st.integers(8, 600), st.floats(0.05, 0.5), st.floats(1, 12))
def test_no_longer_window_fits(seq_len: int, density: float, mean_span: float) -> None:
    lengths = span_lengths(seq_len, density, mean_span)
    assert lengths.inputs <= seq_len
    longer = np.arange(lengths.raw + 1, lengths.raw + 20)
    noise, spans = span_counts(longer, density, mean_span)
    assert density == 0.5 or (longer - noise + spans + 1 > seq_len).all()


@pytest.mark.parametrize("length", MASKS)
def test_spans_are_the_originals(length: int) -> None:
    rate, spans, mean, shares, first, last = MASKS[length]
    rows = 12_000
    noise = span_noise(np.full(rows, length), 0.15, 3.0, fold(1, np.arange(rows)))
    assert noise.mean() == pytest.approx(rate, abs=1e-5)
    assert set(runs(noise).tolist()) == {spans}
    assert noise.sum() / runs(noise).sum() == pytest.approx(mean, abs=1e-3)
    assert not noise[:, 0].any()
    assert noise[:, -1].all()
    tail = min(10, length)
    assert noise[:, :tail].mean() == pytest.approx(first, abs=0.012)
    assert noise[:, -tail:].mean() == pytest.approx(last, abs=0.012)
    edges = np.diff(np.pad(noise, ((0, 0), (1, 1))).astype(int), axis=1)
    sizes = np.nonzero(edges == -1)[1] - np.nonzero(edges == 1)[1]
    seen = np.bincount(sizes, minlength=9)[1:9] / len(sizes)
    assert seen == pytest.approx(shares, abs=0.015)


def test_statistics_are_those_of_the_file(shared_data: Path) -> None:
    """What stands above is what the original code gave."""
    original = json.loads((shared_data / "parity/objectives/t5.json").read_text())
    for (inputs, density, mean_span), lengths in LENGTHS.items():
        assert original[f"helper_{inputs}_{density}_{float(mean_span)}"] == list(lengths)
    for length, (rate, spans, mean, shares, first, last) in MASKS.items():
        statistics = original[f"mask_{length}"]
        assert statistics["noise_rate"] == pytest.approx(rate, abs=1e-5)
        assert statistics["spans_per_seq"] == {str(spans): 4000}
        assert statistics["mean_span"] == pytest.approx(mean, abs=1e-3)
        assert [statistics["p_span"].get(str(n), 0) for n in range(1, 9)] == pytest.approx(shares)
        assert statistics["noise_rate_first10"] == pytest.approx(first, abs=1e-4)
        assert statistics["noise_rate_last10"] == pytest.approx(last, abs=1e-4)


def test_all_compositions_are_equally_likely() -> None:
    """12 tokens, 6 of them noise in 3 spans: 10 ways to cut each of noise and text."""
    rows = 40_000
    noise = span_noise(np.full(rows, 12), 0.5, 2.0, fold(2, np.arange(rows)))
    counts = np.unique(noise @ (1 << np.arange(12)), return_counts=True)[1]
    assert len(counts) == 100
    assert counts == pytest.approx(np.full(100, rows / 100), rel=0.25)
    assert np.square(counts - rows / 100).sum() / (rows / 100) < 149  # chi^2 of 99, 1 in 1,000


def test_the_worked_example_of_the_original() -> None:
    """Tokens 10..19, mask 0011001001: no closing sentinel, the row ends in noise."""
    ids, noise = np.arange(10, 20)[None], np.array([[int(c) for c in "0011001001"]], bool)
    inputs, targets = replace_runs(ids, np.array([10]), noise, np.array([99, 98, 97, 96]))
    assert inputs.ids.tolist() == [[10, 11, 99, 14, 15, 98, 17, 18, 97]]
    assert targets.ids.tolist() == [[99, 12, 13, 98, 16, 97, 19]]


def test_a_row_of_one_token_has_no_noise() -> None:
    assert not span_noise(np.array([1, 4]), 0.15, 3, fold(1, np.arange(2)))[0].any()


def test_noise_does_not_depend_on_the_rest_of_the_batch() -> None:
    lengths, keys = np.array([30, 7, 100, 2]), fold(5, np.arange(4))
    together = span_noise(lengths, 0.3, 3, keys)
    for row, length in enumerate(lengths):
        alone = span_noise(lengths[row : row + 1], 0.3, 3, keys[row : row + 1])
        assert np.array_equal(together[row, :length], alone[0, :length])
        assert not together[row, length:].any()


def rebuilt(inputs: list[int], targets: list[int], sentinels: list[int]) -> list[int]:
    """The text, by taking runs of the input and of the target in turns."""

    def parts(row: list[int]) -> list[list[int]]:
        pieces: list[list[int]] = [[]]
        for id_ in row:
            if id_ in sentinels:
                pieces.append([])
            else:
                pieces[-1].append(id_)
        return pieces

    text, hidden = parts(inputs), parts(targets)
    if inputs and inputs[0] in sentinels:  # noise first: text runs have an empty one before them
        text, hidden = text[1:], hidden
        turns = [run for pair in zip(hidden, [*text, []], strict=False) for run in pair]
    else:
        hidden = hidden[1:]  # the target begins with the sentinel of the first run of text
        turns = [run for pair in zip(text, [*hidden, []], strict=False) for run in pair]
    return [id_ for run in turns for id_ in run]


SENTINELS = np.arange(999, 899, -1)
row_of_text = st.lists(st.integers(3, 800), min_size=1, max_size=60)
rows_of_text = st.lists(row_of_text, min_size=1, max_size=5)


def padded(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.array([len(text) for text in texts])
    ids = np.full((len(texts), max(int(lengths.max()), 2)), 7)
    ids[real(lengths, ids.shape[1])] = np.concatenate(texts)
    return ids, lengths


@settings(max_examples=150)
@given(rows_of_text, st.integers(0, 2**32), st.floats(0.05, 0.6), st.floats(1, 5), st.booleans())
def test_input_and_target_give_the_text_back(
    texts: list[list[int]], seed: int, density: float, mean_span: float, iid: bool
) -> None:
    ids, lengths = padded(texts)
    keys = fold(seed, np.arange(len(texts)))
    noise = (
        iid_noise(lengths, ids.shape[1], density, keys)
        if iid
        else span_noise(lengths, density, mean_span, keys)
    )
    inputs, targets = replace_runs(ids, lengths, noise, SENTINELS)
    for row, text in enumerate(texts):
        source = inputs.ids[row, : inputs.lengths[row]].tolist()
        target = targets.ids[row, : targets.lengths[row]].tolist()
        assert rebuilt(source, target, SENTINELS.tolist()) == text
        used = [id_ for id_ in source if id_ >= 900]
        assert used == SENTINELS[: len(used)].tolist()  # descending, from the first


@settings(max_examples=60)
@given(rows_of_text, st.integers(0, 2**32))
def test_shuffling_keeps_every_token(texts: list[list[int]], seed: int) -> None:
    ids, lengths = padded(texts)
    out = shuffled(ids, lengths, fold(seed, np.arange(len(texts))))
    for row, text in enumerate(texts):
        assert sorted(out[row, : len(text)].tolist()) == sorted(text)
        assert (out[row, len(text) :] == 7).all()


def test_all_orders_are_equally_likely() -> None:
    rows = 24_000
    ids = np.tile(np.arange(4), (rows, 1))
    out = shuffled(ids, np.full(rows, 4), fold(3, np.arange(rows)))
    counts = np.unique(out @ (4 ** np.arange(4)), return_counts=True)[1]
    assert len(counts) == 24
    assert counts == pytest.approx(np.full(24, 1000), rel=0.12)


def test_limited_runs_keep_a_sentinel_for_the_end() -> None:
    noise = np.array([[1, 0, 1, 0, 1, 1, 0, 1, 0]], bool)
    limited = limit_runs(noise, 3)
    assert limited.astype(int).tolist() == [[1, 0, 1, 0, 0, 0, 0, 0, 0]]
    assert np.array_equal(limit_runs(noise, 5), noise)


def test_replaced_tokens() -> None:
    ids = np.full((2_000, 50), 7)
    noise = iid_noise(np.full(2_000, 50), 50, 0.15, fold(1, np.arange(2_000)))
    assert noise.mean() == pytest.approx(0.15, abs=0.004)
    out = replace_tokens(ids, noise, 99, 0.1, (3, 100), fold(1, np.arange(2_000)))
    assert (out[~noise] == 7).all()
    assert (out[noise] == 99).mean() == pytest.approx(0.9 + 0.1 / 97, abs=0.01)
    assert out[noise].min() == 3
    all_hidden = replace_tokens(ids, noise, 99, 0.0, (3, 100), fold(1, np.arange(2_000)))
    assert (all_hidden[noise] == 99).all()


def test_closed_rows_end_and_are_padded() -> None:
    rows = compact(np.array([[5, 6, 7], [8, 9, 4]]), np.array([[1, 0, 1], [0, 0, 0]], bool))
    assert rows.lengths.tolist() == [2, 0]
    ids, inside = closed(rows, end=1, pad=0)
    assert ids.tolist() == [[5, 7, 1], [1, 0, 0]]
    assert inside.tolist() == [[True, True, True], [True, False, False]]
    assert closed(Ragged(np.array([[5]]), np.array([1])), 1, 0)[0].tolist() == [[5, 1]]
