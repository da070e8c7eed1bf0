"""Batches padded to a few shapes: the same losses and gradients, and few shapes indeed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from plmctl.corpus.store import TokenStore
from plmctl.models.base import Examples
from plmctl.models.batch import IGNORE, Batch
from plmctl.models.fast import apply_fast_paths
from plmctl.tokenization.load import Vocab
from plmctl.training.data import Slicing, StepBatches
from plmctl.training.shapes import capacity, fixed
from tests.builders import make_examples, random_documents
from tests.training.test_checkpointed_activations import VOCAB, network_of, step_of

# --- Encoders ---

ENCODER = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
STILL = {**ENCODER, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
STUDENT = {"dim": 32, "n_heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
T5 = {"num_layers": 2, "d_model": 32, "num_heads": 2, "d_kv": 16, "d_ff": 64, "dropout_rate": 0.0}
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "bert": ("bert", "mlm+nsp", STILL, {}),
    "pairs without a label": ("bert", "mlm", STILL, {"packing": "segment_pair"}),
    "roberta": ("roberta", "mlm", STILL, {"packing": "full_sentences"}),
    "albert": ("albert", "mlm+sop", STILL, {}),
    "spanbert": ("spanbert", "mlm+sbo", STILL, {}),
    "distilbert": ("distilbert", "mlm", STUDENT, {}),
    "distilbert, taught": ("distilbert", "distillation", STUDENT, {}),
    "distilbert, taught at masks": ("distilbert", "distillation", STUDENT, {"kl_tokens": "masked"}),
    "t5": ("t5", "span_corruption", T5, {}),
    "t5 without the penalty": ("t5", "span_corruption", T5, {"z_loss": 0.0}),
    "t5, independent tokens": ("t5", "iid_denoising", T5, {}),
    "t5, prefixes": ("t5", "prefix_lm", T5, {}),
    "gpt2": ("gpt2", "clm", {"n_embd": 32, "n_head": 2, "n_positions": 64, "resid_pdrop": 0.0,
                             "embd_pdrop": 0.0, "attn_pdrop": 0.0}, {}),
}  # fmt: skip


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("teacher")
    network_of("bert", "mlm", ENCODER).model.save_pretrained(folder)
    return str(folder)


def both(step: Examples, rows: int = 7) -> tuple[Batch, Batch]:
    """A micro-batch as it comes, and padded."""
    return tuple(  # type: ignore[return-value]  # two of them
        StepBatches(step, Slicing(rows, rows, width=width), 7)[1][0] for width in (None, 56)
    )


@pytest.mark.parametrize("narrowed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_padding_changes_neither_losses_nor_gradients(
    case: str, narrowed: bool, store: TokenStore, teacher: str
) -> None:
    family, objective, fields, options = CASES[case]
    if objective == "distillation":
        options = {**options, "teacher": teacher}
    step, network = step_of(objective, options, store), network_of(family, objective, fields)
    if narrowed:  # it asks for its cells in order
        apply_fast_paths(network.model, device="cpu", compiled=False, sharded=False)
    network.train()
    plain, padded = both(step)
    assert padded.counts() == plain.counts()
    assert padded.tokens == plain.tokens
    assert (padded.padded_tokens > plain.padded_tokens) == (objective != "clm")

    def outcome(batch: Batch) -> tuple[dict[str, Tensor], list[Tensor]]:
        network.zero_grad()
        sums = step.loss(network, batch)
        torch.stack([sums[part] for part in step.loss_terms]).sum().backward()
        return sums, [p.grad.clone() for p in network.parameters() if p.grad is not None]

    (sums, gradients), (padded_sums, others) = outcome(plain), outcome(padded)
    for part in step.loss_terms:
        torch.testing.assert_close(padded_sums[part], sums[part], rtol=1e-6, atol=1e-6)
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    for other, gradient in zip(others, gradients, strict=True):
        torch.testing.assert_close(other, gradient, rtol=1e-4, atol=1e-6 * largest)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_capacity(count: int, more: int) -> None:
    most = count + more
    size = capacity(count, most)
    assert count <= size <= most
    assert size - count < max(1, count / 4)
    assert capacity(size, most) == size


def shapes(batches: list[Batch]) -> set[tuple[object, ...]]:
    return {
        tuple((name, tuple(t.shape)) for name, t in {**b.inputs, **b.targets}.items())
        for b in batches
    }


def test_nearly_always_one_shape(tmp_path: Path) -> None:
    """Micro-batches as a GPU has them: 512 rows of sentence pairs."""
    documents = random_documents(1, (6, 100), documents=400, sentences=(5, 40), tokens=(3, 30))
    store = TokenStore.from_lists(documents, vocab_size=120)
    step = make_examples("mlm+nsp", store, VOCAB, 128)
    plain, padded = (
        [StepBatches(step, Slicing(512, 512, width=width), 7)[n][0] for n in range(12)]
        for width in (None, 128)
    )
    assert len(shapes(plain)) > 6
    assert len(shapes(padded)) <= 2
    longer = [len(b.inputs["positions"]) for b in padded]
    shorter = [len(b.inputs["positions"]) for b in plain]
    assert sum(longer) < 1.25 * sum(shorter)


# --- Batches of T5's objectives in a few shapes, and how little is added for it ---

T5_VOCAB = Vocab(size=1200, pad=0, unk=2, eos=1, sentinels=tuple(range(1199, 1099, -1)))


@pytest.fixture(scope="module")
def texts() -> TokenStore:
    """Documents of some thousand tokens each, which rows of 512 mostly fill."""
    documents = random_documents(1, (6, 1000), documents=600, sentences=(60, 200), tokens=(5, 40))
    return TokenStore.from_lists(documents, vocab_size=1200)


def batches(name: str, texts: TokenStore, rows: int, width: int | None) -> list[Batch]:
    step = make_examples(name, texts, T5_VOCAB, 512)
    source = StepBatches(step, Slicing(rows, rows, width=width), 7)
    return [source[n][0] for n in range(40)]


@pytest.mark.parametrize(
    ("name", "rows", "most", "added"),
    [
        ("prefix_lm", 16, 4, 0.08),
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
    assert sum(b.padded_tokens for b in padded) <= (1 + added) * sum(b.padded_tokens for b in plain)
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
    padded = fixed(plain, width)
    before = plain.inputs["decoder_input_ids"].shape[1]
    after = padded.inputs["decoder_input_ids"].shape[1]
    even = sum(lengths) >= 0.75 * len(lengths) * before
    assert before <= after <= max(width, before + 8 + before // 8)
    assert after <= before + 8 + before // 8 or not even
    seen = padded.targets["lm"] != IGNORE
    cells = padded.inputs["positions"]
    named = padded.inputs["decoder_input_ids"].flatten()[cells[seen]]
    assert torch.equal(named, padded.targets["lm"][seen])
    assert sorted(padded.targets["lm"][seen].tolist()) == plain.targets["lm"].tolist()
    assert (cells.diff() >= 0).all()
    assert cells[-1] < padded.inputs["decoder_input_ids"].numel()
    assert padded.padded_tokens - plain.padded_tokens == sum(
        padded.inputs[name].numel() - plain.inputs[name].numel()
        for name in ("input_ids", "decoder_input_ids")
    )
