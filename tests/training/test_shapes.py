"""Batches padded to a few shapes: the same losses and gradients, and few shapes indeed."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy
from transformers import AttentionInterface

from plmctl.arrays import IGNORE
from plmctl.corpus.store import TokenStore
from plmctl.models.base import Examples
from plmctl.models.batch import UNPADDED, Batch, TargetList
from plmctl.models.encoder import PartialEncoder
from plmctl.models.fast import UNPADDED_ATTENTION, apply_fast_paths, attention
from plmctl.models.network import Network, RecurrentState
from plmctl.tokenization.load import Vocab
from plmctl.training.data import StepBatches
from plmctl.training.plan import Slicing
from plmctl.training.shapes import capacity, fixed, unpadded
from tests.builders import fitting_pairs, make_examples, random_documents, tiny_world
from tests.training.test_checkpointed_activations import VOCAB, network_of, step_of

# --- Encoders ---

ENCODER = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
STILL = {**ENCODER, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
STUDENT = {"dim": 32, "n_heads": 2, "dropout": 0.0, "attention_dropout": 0.0}
T5 = {"num_layers": 2, "d_model": 32, "num_heads": 2, "d_kv": 16, "d_ff": 64, "dropout_rate": 0.0}
# Options besides the defaults, with which the contract below has every objective of the registry.
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


@pytest.mark.parametrize(
    ("case", "narrowed"),
    [
        *((case, True) for case in CASES),
        ("pairs without a label", False),
        ("distilbert, taught at masks", False),
        ("t5 without the penalty", False),
    ],
)
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
    assert (padded.padded_tokens > plain.padded_tokens) == (objective != "clm")
    assert_padded_is_the_same(step, network, plain, padded)


def outcome(step: Any, network: Any, batch: Batch) -> tuple[dict[str, Tensor], list[Tensor]]:
    network.zero_grad()
    if isinstance(network, Network):
        network.recurrent_state = RecurrentState()  # ELMo's
    sums = step.loss(network, batch)
    torch.stack([sums[part] for part in step.loss_terms]).sum().backward()
    return sums, [p.grad.clone() for p in network.parameters() if p.grad is not None]


def assert_same(
    step: Any,
    actual: tuple[dict[str, Tensor], list[Tensor]],
    expected: tuple[dict[str, Tensor], list[Tensor]],
) -> None:
    (others, other), (sums, gradients) = actual, expected
    for part in step.loss_terms:
        torch.testing.assert_close(others[part], sums[part], rtol=1e-5, atol=1e-6)
    largest = max(float(gradient.abs().max()) for gradient in gradients)
    for one, gradient in zip(other, gradients, strict=True):
        torch.testing.assert_close(one, gradient, rtol=1e-4, atol=2e-6 * largest)


def assert_padded_is_the_same(
    step: Any, network: Any, plain: Batch, padded: Batch, backend: str | None = None
) -> None:
    """The padded batch goes through a network that is compiled, if there is a ``backend``."""
    assert padded.counts() == plain.counts()
    assert padded.tokens == plain.tokens
    expected = outcome(step, network, plain)
    if backend is not None:
        network.compile(backend=backend, dynamic=False)
    assert_same(step, outcome(step, network, padded), expected)


SLOW = [
    pytest.param(family, name, marks=[] if family in ("bert", "gpt2") else pytest.mark.slow)
    for family, name in fitting_pairs()
]


@pytest.mark.parametrize(("family", "objective"), SLOW)
def test_every_objective_says_what_may_be_padded(
    family: str, objective: str, store: TokenStore, tmp_path: Path
) -> None:
    network, step = tiny_world(family, objective, store, tmp_path)
    plain, padded = both(step)
    assert plain.lists is not None
    listed = {name for one in plain.lists for name in (*one.positions, *one.inputs, *one.targets)}
    for name, tensor in {**plain.inputs, **plain.targets}.items():
        assert (tensor.ndim == 1 and len(tensor) != 7) == (name in listed)
    assert (padded.padded_tokens > plain.padded_tokens) == ("attention_mask" in plain.inputs)
    assert_padded_is_the_same(step, network.train(), plain, padded)


FIRST_FAMILY = {objective: family for family, objective in reversed(fitting_pairs())}


@pytest.mark.slow
@pytest.mark.parametrize("objective", FIRST_FAMILY)
def test_every_objective_padded_and_compiled(
    objective: str, store: TokenStore, tmp_path: Path
) -> None:
    torch._dynamo.reset()
    network, step = tiny_world(FIRST_FAMILY[objective], objective, store, tmp_path)
    assert_padded_is_the_same(step, network.train(), *both(step), "aot_eager")


# --- Rows one after the other, without their padding ---

ONE_STACK = ("bert", "pairs without a label", "roberta", "albert", "spanbert", "distilbert")


def sparse(step: Examples) -> tuple[Batch, Batch]:
    """A micro-batch with much padding; and with what is not padding."""
    slicing = Slicing(7, 7, width=56)
    plain, told = (StepBatches(step, replace(slicing, unpadded=u), 7)[1][0] for u in (False, True))
    assert plain.tokens < 0.9 * plain.padded_tokens
    return plain, told


@pytest.mark.parametrize("case", [*ONE_STACK, "electra", "distilbert, taught"])
def test_layers_without_padding(case: str, store: TokenStore, teacher: str, tmp_path: Path) -> None:
    """The losses and gradients of all positions; on a CPU, by the reference of the kernel."""
    if case == "electra":
        network, step = tiny_world("electra", "mlm+rtd", store, tmp_path)
    else:
        family, objective, fields, options = CASES[case]
        options = {**options, "teacher": teacher} if objective == "distillation" else options
        step, network = step_of(objective, options, store), network_of(family, objective, fields)
    network.train()
    plain, told = sparse(step)
    expected = outcome(step, network, plain)
    apply_fast_paths(
        network.model, device="meta", compiled=True, sharded=False, attention="unpadded"
    )
    stacks = [m for m in network.modules() if isinstance(m, PartialEncoder)]
    seen = list[int]()
    for stack in stacks:
        linear = (m for m in stack.modules() if isinstance(m, torch.nn.Linear))
        wide = next(m for m in linear if m.out_features > m.in_features)  # the feed-forward's
        wide.register_forward_hook(lambda module, inputs, out: seen.append(out[..., 0].numel()))
    assert_same(step, outcome(step, network, told), expected)
    assert set(seen) == {len(told.inputs["unpadded_positions"])}
    assert_same(step, outcome(step, network, plain), expected)
    assert {stack.unpadded for stack in stacks} == {None}


def test_layers_without_padding_in_one_graph(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = attention.attend_texts
    # Another test may have imported the file once more.
    AttentionInterface.register(UNPADDED_ATTENTION, attention.unpadded_attention)

    @torch.library.custom_op("reference::texts", mutates_args=())
    def texts(q: Tensor, k: Tensor, v: Tensor, starts: Tensor, longest: int) -> Tensor:
        attended: Tensor = reference(q, k, v, starts, longest, None)
        return attended

    texts.register_fake(lambda q, k, v, starts, longest: torch.empty_like(q))
    texts.register_autograd(
        lambda ctx, *gradient: (*gradient, *gradient, *gradient, None, None),
        setup_context=lambda ctx, inputs, output: None,
    )
    monkeypatch.setattr(attention, "attend_texts", lambda *given: texts(*given[:-1]))
    torch._dynamo.reset()
    family, objective, fields, options = CASES["roberta"]
    step, network = step_of(objective, options, store), network_of(family, objective, fields)
    apply_fast_paths(
        network.model, device="meta", compiled=True, sharded=False, attention="unpadded"
    )
    batches = StepBatches(step, Slicing(7, 7, width=56, unpadded=True), 7)
    plain = [outcome(step, network.train(), batches[n][0])[0]["mlm"] for n in range(3)]
    counter = CompileCounterWithBackend("aot_eager")
    counters.clear()
    network.compile(backend=counter, dynamic=False, fullgraph=True)
    compiled = [outcome(step, network, batches[n][0])[0]["mlm"] for n in range(3)]
    torch.testing.assert_close(compiled, plain)
    assert counters["graph_break"] == {}
    shapes = {tuple(x.shape for x in batches[n][0].inputs.values()) for n in range(3)}
    assert counter.frame_count == len(shapes) < 3
    torch._dynamo.reset()


@given(st.lists(st.integers(1, 40), min_size=1, max_size=80))
def test_what_is_not_padding(lengths: list[int]) -> None:
    mask = (torch.arange(40) < torch.tensor(lengths)[:, None]).long()
    batch = Batch({"input_ids": mask, "attention_mask": mask}, {}, sum(lengths), mask.numel())
    index, starts = (unpadded(batch).inputs[name] for name in UNPADDED)
    count, room = sum(lengths), len(index)
    assert count <= room <= min(count * 17 / 16 + 1, mask.numel())
    assert index.tolist() == list(dict.fromkeys(index.tolist()))
    rows = [index[first:end].tolist() for first, end in pairwise(starts.tolist())]
    assert rows[: len(lengths)] == [[40 * n + i for i in range(k)] for n, k in enumerate(lengths)]
    assert max(map(len, rows)) <= 40
    assert starts[-1] == room
    assert starts.dtype == torch.int32
    assert unpadded(Batch({"input_ids": mask}, {}, 1, 1)).inputs.keys() == {"input_ids"}


TERMS = ("mlm", "pair", "cell")


class Detector(torch.nn.Module):
    """Reads masked rows: one head at the masked positions, one at a pair of any, one everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(120, 8)
        self.heads = torch.nn.ModuleList(torch.nn.Linear(8, n) for n in (120, 3, 2))

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        inputs, targets = batch.inputs, batch.targets
        mask_BL1 = inputs["attention_mask"][..., None]
        rows_B1H = (self.words(inputs["input_ids"]) * mask_BL1).sum(1, keepdim=True)
        states_BLH = (self.words(inputs["input_ids"]) + rows_B1H) * inputs["noise"]
        flat = states_BLH.flatten(0, 1)
        pairs = flat[inputs["one"]] * inputs["factor"][:, None] + flat[inputs["other"]]
        read = (flat[inputs["positions"]] + inputs["drawn"], pairs, states_BLH)
        return {
            term: cross_entropy(
                head(x).flatten(0, -2),
                targets[term].flatten(),
                ignore_index=IGNORE,
                reduction="sum",
            )
            for term, head, x in zip(("mlm", "pair", "cell"), self.heads, read, strict=True)
        }


def made_up(seed: int) -> Batch:
    """Two lists of positions, one of them longer than the rows; targets and numbers [B, L, ...]."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(5, 20, (6, 1), generator=rng)
    mask = (torch.arange(int(lengths.max())) < lengths).long()
    ids = torch.randint(1, 120, mask.shape, generator=rng) * mask
    real = mask.flatten().nonzero().squeeze(1)
    some = real[torch.rand(len(real), generator=rng) < 0.3]
    count = 130 + seed
    one, other = (real[torch.randint(len(real), (count,), generator=rng)] for _ in range(2))
    return Batch(
        {
            "input_ids": ids, "attention_mask": mask, "positions": some, "one": one, "other": other,
            "noise": torch.rand(*mask.shape, 8, generator=rng),
            "drawn": torch.rand(len(some), 8, generator=rng),
            "factor": torch.rand(count, generator=rng),
        },
        {
            "mlm": ids.flatten()[some],
            "pair": torch.randint(3, (count,), generator=rng),
            "cell": torch.where(mask > 0, ids % 2, IGNORE),
        },
        int(mask.sum()), mask.numel(),
        lists=(
            TargetList(("positions",), ("mlm",), ("drawn",)),
            TargetList(("one", "other"), ("pair",), ("factor",)),
        ),
    )  # fmt: skip


def test_an_objective_that_nobody_has_written_yet() -> None:
    network = Detector()
    step = SimpleNamespace(loss=lambda net, batch: net(batch), loss_terms=TERMS)
    plain = [made_up(seed) for seed in range(5)]
    padded = [fixed(batch, 32) for batch in plain]
    for one, other in zip(plain, padded, strict=True):
        assert other.targets["cell"].shape == other.inputs["input_ids"].shape == (6, 32)
        assert_padded_is_the_same(step, network, one, other)
    assert len(shapes(plain)) == 5
    assert len(shapes(padded)) < 5
    torch._dynamo.reset()
    assert_padded_is_the_same(step, network, plain[0], padded[0], "eager")
    unknown = replace(plain[0], lists=None)
    assert fixed(unknown, 32) is unknown


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
    lists = (TargetList(("positions",), ("lm",)),)
    return Batch(inputs, {"lm": positions + 1}, 2 * len(positions), 2 * there.size, lists=lists)


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
