"""Batches of T5's objectives in a few shapes, and how little is added for it."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from plmctl import objectives
from plmctl.corpus.store import TokenStore
from plmctl.modeling.batch import IGNORE, Batch
from plmctl.tokenization.vocab import Vocab
from plmctl.training.data import Slicing, StepBatches
from plmctl.training.shapes import fixed
from tests.training.test_shapes import shapes

VOCAB = Vocab(size=1200, pad=0, unk=2, eos=1, sentinels=tuple(range(1199, 1099, -1)))


@pytest.fixture(scope="module")
def texts() -> TokenStore:
    """Documents of some thousand tokens each, which rows of 512 mostly fill."""
    rng = np.random.default_rng(1)
    documents = [
        [rng.integers(6, 1000, rng.integers(5, 40)).tolist() for _ in range(rng.integers(60, 200))]
        for _ in range(600)
    ]
    return TokenStore.from_lists(documents, vocab_size=1200)


def batches(name: str, texts: TokenStore, rows: int, width: int | None) -> list[Batch]:
    member: Any = objectives.get(name)
    step = member.make(member.Config(name=name), texts, VOCAB, 512, 7)
    source = StepBatches(step, Slicing(rows, rows, width=width), 7)
    return [source[n][0] for n in range(40)]


@pytest.mark.parametrize(
    ("name", "rows", "most", "added"),
    [
        ("prefix_lm", 16, 3, 0.08),
        ("prefix_lm", 128, 2, 0.02),
        ("span_corruption", 16, 2, 0.02),
        ("span_corruption", 128, 1, 0.02),
        ("iid_denoising", 16, 3, 0.03),
        ("deshuffling", 16, 2, 0.01),
    ],
)
def test_few_shapes_and_little_added(
    name: str, rows: int, most: int, added: float, texts: TokenStore
) -> None:
    plain, padded = (batches(name, texts, rows, width) for width in (None, 512))
    assert len(shapes(plain)) >= len(shapes(padded))
    assert len(shapes(padded)) <= most
    assert sum(b.cells for b in padded) <= (1 + added) * sum(b.cells for b in plain)
    listed = [sum(len(b.targets["lm"]) for b in bs) for bs in (plain, padded)]
    assert listed[0] <= listed[1] <= 1.2 * listed[0]
    assert [b.counts() for b in padded] == [b.counts() for b in plain]


def batch_of(lengths: list[int]) -> Batch:
    """Targets of these lengths, each token another id."""
    width = max(lengths)
    there = np.arange(width) < np.array(lengths)[:, None]
    positions = torch.from_numpy(np.flatnonzero(there))
    ids = torch.arange(1, there.size + 1).view(there.shape)
    inputs = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "decoder_input_ids": ids,
        "positions": positions,
    }
    return Batch(inputs, {"lm": positions + 1}, 2 * len(positions), 2 * there.size)


@given(st.lists(st.integers(1, 70), min_size=1, max_size=9), st.integers(8, 70))
@settings(deadline=None)
def test_targets_stay_with_their_cells(lengths: list[int], width: int) -> None:
    """Each target is still that of its cell; a decoder of nearly one length is hardly longer."""
    plain = batch_of(lengths)
    found = fixed(plain, width)
    before = plain.inputs["decoder_input_ids"].shape[1]
    after = found.inputs["decoder_input_ids"].shape[1]
    even = sum(lengths) >= 0.75 * len(lengths) * before
    assert before <= after <= max(width, before + 8 + before // 8)
    assert after <= before + 8 + before // 8 or not even
    seen = found.targets["lm"] != IGNORE
    cells = found.inputs["positions"]
    named = found.inputs["decoder_input_ids"].flatten()[cells[seen]]
    assert torch.equal(named, found.targets["lm"][seen])
    assert sorted(found.targets["lm"][seen].tolist()) == plain.targets["lm"].tolist()
    assert (cells.diff() >= 0).all()
    assert cells[-1] < found.inputs["decoder_input_ids"].numel()
    assert found.cells - plain.cells == sum(
        found.inputs[name].numel() - plain.inputs[name].numel()
        for name in ("input_ids", "decoder_input_ids")
    )
