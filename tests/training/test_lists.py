"""Lists of what is no padding: each cell once, rows apart, few lengths."""

from random import Random

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from plmctl import objectives
from plmctl.corpus.store import TokenStore
from plmctl.modeling.batch import Batch
from plmctl.training.data import Slicing, StepBatches
from plmctl.training.shapes import listed
from tests.training.conftest import VOCAB
from tests.training.test_shapes import shapes

LENGTHS = st.lists(st.integers(1, 24), min_size=1, max_size=40)


@given(LENGTHS, st.booleans())
def test_every_cell_is_listed_once_and_every_row_is_apart(lengths: list[int], few: bool) -> None:
    mask = (torch.arange(24) < torch.tensor(lengths)[:, None]).long()
    batch = Batch({"input_ids": mask, "attention_mask": mask}, {}, sum(lengths), mask.numel())
    inputs = listed(batch, few=few).inputs
    padding = mask.numel() - sum(lengths)
    if "cells" not in inputs:
        assert few
        assert 0 < padding < 3
        return
    cells, ends = inputs["cells"].tolist(), inputs["offsets"].tolist()
    rows = [cells[a:b] for a, b in zip(ends, ends[1:], strict=False)]
    assert (ends[0], ends[-1]) == (0, len(cells))
    assert len(set(cells)) == len(cells) <= mask.numel()
    for number, length in enumerate(lengths):
        assert rows[number] == list(range(24 * number, 24 * number + length))
    for row in rows[len(lengths) :]:
        assert 1 <= len(row) <= 24
        assert not mask.flatten()[row].any()
    assert few and padding or len(rows) == len(lengths)


@given(LENGTHS, st.randoms())
def test_lists_of_one_length_have_as_many_rows(lengths: list[int], draws: Random) -> None:
    found: dict[int, set[int]] = {}
    for _ in range(3):
        shorter = torch.tensor([max(1, size - draws.randint(0, 1)) for size in lengths])
        mask = (torch.arange(24) < shorter[:, None]).long()
        inputs = listed(Batch({"attention_mask": mask}, {}, 0, 0), few=True).inputs
        if "cells" in inputs and not mask.all():
            found.setdefault(len(inputs["cells"]), set()).add(len(inputs["offsets"]))
    assert all(len(rows) == 1 for rows in found.values())


def test_hardly_any_lengths_of_lists() -> None:
    """Micro-batches as a GPU has them: 512 rows of sentence pairs."""
    rng = np.random.default_rng(1)
    documents = [
        [rng.integers(6, 100, rng.integers(3, 60)).tolist() for _ in range(rng.integers(5, 40))]
        for _ in range(400)
    ]
    member = objectives.get("mlm+nsp")
    store = TokenStore.from_lists(documents, vocab_size=120)
    step = member.make(member.Config(name="mlm+nsp"), store, VOCAB, 128, 7)
    made = StepBatches(step, Slicing(512, 512, width=128, lists=True), 7)
    batches = [made[number][0] for number in range(8)]
    assert len(shapes(batches)) <= 3
    listed_cells = sum(len(batch.inputs["cells"]) for batch in batches)
    tokens = sum(batch.tokens for batch in batches)
    assert tokens <= listed_cells < 1.05 * tokens < sum(batch.cells for batch in batches)
