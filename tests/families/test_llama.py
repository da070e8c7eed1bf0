"""Llama and Qwen3: sizes, initial weights, their function, and transformers' folders."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM, AutoModelForQuestionAnswering, PreTrainedModel

from plmctl.families.base import get_family
from plmctl.models.fast import apply_fast_paths
from plmctl.models.load import load_network
from tests.builders import make_model

NAMES = ("llama", "qwen3")
# By hand: V·H + N(2H² + 2H·H·kv/heads + 3H·F + 2H) + H; qk-norm adds 2·H/heads·N.
COUNTS = {
    ("5m", 8_192): 5_115_072,
    ("15m", 8_192): 15_735_168,
    ("30m", 16_384): 30_941_696,
    ("60m", 16_384): 58_999_104,
    ("125m", 32_768): 125_077_824,
    ("360m", 49_152): 361_821_120,  # SmolLM2's
}
SMALL = {
    "size": "tiny", "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 64,
}  # fmt: skip


def build(family: str = "llama", vocab_size: int = 120, **fields: object) -> PreTrainedModel:
    return make_model(family, vocab_size, ("lm",), pad_id=5, seed=1, **fields).eval()


def forward(model: PreTrainedModel, *inputs: Tensor) -> Tensor:
    return get_family(model.config.model_type).forward(model, *inputs)["lm"]


def count(model: PreTrainedModel) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("size", "vocab_size"), COUNTS)
def test_parameter_counts(size: str, vocab_size: int) -> None:
    with torch.device("meta"):
        llama, qwen3 = (build(family, vocab_size, size=size) for family in NAMES)
    assert count(llama) == COUNTS[size, vocab_size]
    layers, per_head = qwen3.config.num_hidden_layers, qwen3.config.head_dim
    assert count(qwen3) - count(llama) == 2 * per_head * layers


def test_a_network_of_the_first_stories() -> None:
    """llama2.c's 15M: 6 layers of 288, 32,000 ids."""
    fields = {"hidden_size": 288, "num_hidden_layers": 6, "intermediate_size": 768}
    with torch.device("meta"):
        model = build(vocab_size=32_000, num_attention_heads=6, **fields)
    assert count(model) == 15_191_712


def test_another_width_has_its_own_heads_and_feed_forward() -> None:
    with torch.device("meta"):
        wide = build(size="30m", hidden_size=768).config
        few = build(size="30m", num_attention_heads=4).config
    assert (wide.num_attention_heads, wide.num_key_value_heads) == (12, 12)
    assert wide.intermediate_size == 2048
    assert (few.num_key_value_heads, few.intermediate_size) == (4, 1408)


@pytest.mark.parametrize("family", NAMES)
def test_initial_weights(family: str) -> None:
    """0.02; projections to the residual stream by 1/sqrt(2 layers), as the GPT-2 paper says."""
    for name, parameter in build(family, 2000, size="mini").named_parameters():
        if parameter.ndim == 1:
            assert (parameter == 1).all(), name
        else:
            smaller = "o_proj" in name or "down_proj" in name
            expected = 0.02 / 8**0.5 if smaller else 0.02
            assert parameter.std().item() == pytest.approx(expected, rel=0.02), name


def plain(model: Any, ids: Tensor) -> Tensor:
    """The network as the papers have it, a loop over heads: logits [B, T, V]."""
    c = model.config
    size, length = c.hidden_size // c.num_attention_heads, ids.shape[1]
    frequency = c.rope_parameters["rope_theta"] ** (-torch.arange(0, size, 2) / size)
    angle = torch.arange(length)[:, None] * frequency
    unseen = torch.ones(length, length, dtype=torch.bool).triu(1)

    def norm(x: Tensor, layer: Any) -> Tensor:
        return layer.weight * x / (x.square().mean(-1, keepdim=True) + c.rms_norm_eps).sqrt()

    def turned(x: Tensor) -> Tensor:
        """Pairs (i, i + size / 2) turn by the angle of the position."""
        a, b = x.chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def head(layer: Any, x: Tensor, number: int) -> Tensor:
        shared = number * c.num_key_value_heads // c.num_attention_heads
        attention = layer.self_attn
        rows = [slice(n * size, (n + 1) * size) for n in (number, shared, shared)]
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        query, key, value = (
            x @ one.weight[at].T for one, at in zip(projections, rows, strict=True)
        )
        if hasattr(attention, "q_norm"):
            query, key = norm(query, attention.q_norm), norm(key, attention.k_norm)
        scores = turned(query) @ turned(key).transpose(1, 2) / size**0.5
        seen: Tensor = scores.masked_fill(unseen, -torch.inf).softmax(-1) @ value
        return seen

    states = model.model.embed_tokens.weight[ids]
    for layer in model.model.layers:
        x = norm(states, layer.input_layernorm)
        heads = [head(layer, x, number) for number in range(c.num_attention_heads)]
        states = states + torch.cat(heads, -1) @ layer.self_attn.o_proj.weight.T
        x = norm(states, layer.post_attention_layernorm)
        gate, up = x @ layer.mlp.gate_proj.weight.T, x @ layer.mlp.up_proj.weight.T
        states = states + (silu(gate) * up) @ layer.mlp.down_proj.weight.T
    logits: Tensor = norm(states, model.model.norm) @ model.model.embed_tokens.weight.T
    return logits


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("family", NAMES)
def test_logits_are_those_of_the_papers(family: str, fast: bool) -> None:
    model = build(family, **SMALL, initializer_range=0.2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
    if fast:
        apply_fast_paths(model, device="cpu", compiled=False, sharded=False)
    ids = torch.randint(0, 120, (3, 17))
    torch.testing.assert_close(forward(model, ids), plain(model, ids), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(forward(model, ids), model(ids).logits)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("family", NAMES)
def test_texts_of_a_row_do_not_see_each_other(family: str, fast: bool) -> None:
    model = build(family, **SMALL, initializer_range=0.2)
    if fast:
        apply_fast_paths(model, device="cpu", compiled=False, sharded=False)
    ids = torch.randint(0, 120, (2, 20))
    places = torch.cat([torch.arange(7), torch.arange(13)]).expand(2, -1)
    alone = torch.cat([forward(model, ids[:, :7]), forward(model, ids[:, 7:])], 1)
    torch.testing.assert_close(forward(model, ids, places), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", NAMES)
def test_a_saved_folder_is_transformers_own(family: str, tmp_path: Path) -> None:
    """The Auto class loads it and gives the same logits; with and without a cache the same text."""
    model = build(family, **SMALL, rope_theta=500.0)
    model.save_pretrained(tmp_path)
    ids = torch.randint(0, 120, (2, 9))
    auto = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert auto.config.model_type == family
    assert torch.equal(auto(ids).logits, forward(model, ids))
    again = get_family(family)().load(str(tmp_path), ("lm",)).eval()
    assert torch.equal(forward(again, ids), forward(model, ids))
    written = [
        auto.generate(ids, max_new_tokens=8, do_sample=False, use_cache=cached, pad_token_id=5)
        for cached in (True, False)
    ]
    assert torch.equal(*written)


@pytest.mark.parametrize("family", NAMES)
def test_a_head_for_questions_is_on_the_weights_of_the_folder(family: str, tmp_path: Path) -> None:
    """In its class the body has another name, by which transformers does not look for weights."""
    model, told = build(family, **SMALL), list[str]()
    model.save_pretrained(tmp_path / "causal")
    cls = AutoModelForQuestionAnswering.from_config(model.config).__class__
    loaded = load_network(cls, str(tmp_path / "causal"), new_heads=told.append)
    assert loaded.fresh == ("qa_outputs.bias", "qa_outputs.weight")
    assert told == [f"{tmp_path / 'causal'}: new, with random weights: qa_outputs"]
    ids = torch.randint(0, 120, (2, 9))
    states = model.base_model(ids).last_hidden_state
    assert torch.equal(loaded.network.base_model(ids).last_hidden_state, states)
    loaded.network.save_pretrained(tmp_path / "questions")
    answers = loaded.network.eval()(ids).start_logits
    for again in (
        load_network(cls, str(tmp_path / "questions"), new_heads=told.append).network,
        AutoModelForQuestionAnswering.from_pretrained(tmp_path / "questions"),
    ):
        assert torch.equal(again.eval()(ids).start_logits, answers)
    assert len(told) == 1
