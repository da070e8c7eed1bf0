"""Activations computed twice: the same gradients to the bit, less kept, and what it costs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from plmctl.commands.plan import KeptActivations, Sizes, activation_memory
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError
from plmctl.models.base import Examples
from plmctl.models.fast import checkpoint_activations, use_fused_attention
from plmctl.models.network import Network
from plmctl.objectives.base import get_objective
from plmctl.tokenization.load import Vocab
from plmctl.training.data import StepBatches
from plmctl.training.loop import take_step
from plmctl.training.plan import Slicing
from tests.builders import cpu_engine, make_examples, make_network

SENTINELS = tuple(range(119, 99, -1))
VOCAB = Vocab(size=120, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5, sentinels=SENTINELS)
ENCODER = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 3}
DROPPED = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2}
DECODER = {"n_layer": 3, "n_embd": 32, "n_head": 2, "n_positions": 64}
DECODER_DROPPED = {"resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2}
T5 = {"num_layers": 2, "d_model": 32, "num_heads": 2, "d_kv": 16, "d_ff": 64, "dropout_rate": 0.2}

CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Any]]] = {
    "bert": ("bert", "mlm+nsp", {**ENCODER, **DROPPED}, {}),
    "bert, top layer narrow": ("bert", "mlm", {**ENCODER, **DROPPED}, {"rate": 0.05}),
    "roberta": ("roberta", "mlm", {**ENCODER, **DROPPED}, {"rate": 0.05}),
    "albert": ("albert", "mlm+sop", {**ENCODER, **DROPPED, "num_hidden_groups": 2}, {}),
    "spanbert": ("spanbert", "mlm+sbo", {**ENCODER, **DROPPED}, {}),
    "distilbert": (
        "distilbert",
        "mlm",
        {"dim": 32, "n_heads": 2, "n_layers": 3, "dropout": 0.2, "attention_dropout": 0.2},
        {},
    ),
    "gpt1": ("gpt1", "clm", {**DECODER, **DECODER_DROPPED}, {}),
    "gpt2": ("gpt2", "clm", {**DECODER, **DECODER_DROPPED}, {}),
    "gpt2, within documents": (
        "gpt2",
        "clm",
        {**DECODER, **DECODER_DROPPED},
        {"attention": "within"},
    ),
    "gpt3": ("gpt3", "clm", {**DECODER, **DECODER_DROPPED}, {}),
    "t5": ("t5", "span_corruption", T5, {}),
    "t5 1.1": ("t5", "span_corruption", {**T5, "version": "v1.1"}, {}),
}


def network_of(family: str, objective: str, fields: dict[str, Any]) -> Network:
    terms = get_objective(objective).LOSS_TERMS
    network = make_network(family, VOCAB.size, terms, size="tiny", **fields)
    use_fused_attention(network.model)
    return network


def step_of(objective: str, fields: dict[str, Any], store: TokenStore) -> Examples:
    return make_examples(objective, store, VOCAB, 48, **fields)


def gradients(case: str, store: TokenStore, *, twice: bool) -> tuple[dict[str, Tensor], int]:
    """The gradient of a step in two micro-batches, and the bytes kept for its first backward."""
    family, objective, fields, options = CASES[case]
    network = network_of(family, objective, fields)
    engine = cpu_engine(network, checkpoint_activations=twice)
    engine.network.train()
    grads: dict[str, Tensor] = {}
    for name, parameter in network.named_parameters():
        parameter.register_post_accumulate_grad_hook(
            lambda p, name=name: grads.__setitem__(name, p.grad.clone())
        )
    batches = StepBatches(step_of(objective, options, store), Slicing(16, 8), 7)[0]
    saved_bytes: dict[int, int] = {}
    backwards: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        if not backwards:
            saved_bytes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    def unpack(tensor: Tensor) -> Tensor:
        backwards.append(1)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        take_step(engine, step_of(objective, options, store), batches, None, 1)
    return grads, sum(saved_bytes.values())


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_the_same_and_less_is_kept(case: str, store: TokenStore) -> None:
    once, whole = gradients(case, store, twice=False)
    again, less = gradients(case, store, twice=True)
    assert set(again) == set(once)
    largest = max(float(gradient.abs().max()) for gradient in once.values())
    assert largest > 0.01
    for name, gradient in once.items():
        assert torch.equal(again[name], gradient), name
    assert less < 0.8 * whole  # of what is left, most are weights and the head


def test_another_draw_would_show(store: TokenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draws matter: without the generator put back, gradients differ."""
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    from plmctl.models.fast import recompute as module

    careless = partial(checkpoint, preserve_rng_state=False)
    monkeypatch.setattr(module, "checkpoint", careless)
    once, _ = gradients("albert", store, twice=False)
    again, _ = gradients("albert", store, twice=True)
    assert not all(torch.equal(again[name], gradient) for name, gradient in once.items())


def test_elmo_is_refused() -> None:
    network = network_of("elmo", "bilm", {})
    with pytest.raises(ConfigError, match="not supported for ElmoForPreTraining"):
        cpu_engine(network, checkpoint_activations=True)


def test_evaluation_runs_layers_once(store: TokenStore) -> None:
    """Nothing is computed twice where nothing is trained."""
    network = network_of("albert", "mlm", ENCODER).eval()
    (batch,) = StepBatches(step_of("mlm", {}, store), Slicing(4, 4), 7)[0]
    expected = network(**batch.inputs)["mlm"]
    checkpoint_activations(network.model)
    torch.testing.assert_close(network(**batch.inputs)["mlm"], expected, rtol=0, atol=0)


def test_what_it_saves_is_in_the_estimate() -> None:
    base = Sizes(110_000_000, 110_000_000, 12, 768, 12, 30_522, 768, two_stacks=False)
    whole = activation_memory(base, 32, 512, targets=0.15, kept=KeptActivations(True, False))
    less = activation_memory(base, 32, 512, targets=0.15, kept=KeptActivations(True, False, True))
    layer = 34 * 768 * 32 * 512
    assert whole - less == 12 * layer - (12 * 2 * 768 * 32 * 512 + layer)
    assert less < 0.4 * whole
