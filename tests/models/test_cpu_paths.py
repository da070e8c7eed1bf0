"""Faster on a CPU, and the same: dropout, its attention, the top layer, no padding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertForPreTraining,
    AutoModel,
    BertConfig,
    BertForPreTraining,
    DistilBertConfig,
    DistilBertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    OpenAIGPTConfig,
    OpenAIGPTModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
    T5EncoderModel,
    T5ForConditionalGeneration,
)
from transformers.activations import NewGELUActivation

from plmctl.families.base import get_family
from plmctl.models.encoder import first_tokens_only
from plmctl.models.fast import apply_fast_paths, attention, checkpoint_activations
from plmctl.models.fast.attention import (
    CPU_ATTENTION,
    RealPositions,
    attend,
    cpu_attention,
    use_cpu_attention,
)
from plmctl.models.fast.encoder import skip_unused_positions
from plmctl.models.fast.layers import (
    Dropout,
    DropoutAfterReLU,
    drop,
    fuse_gelu,
    use_fast_dropout,
)
from tests import builders

SMALL = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
ENCODER = {**SMALL, "intermediate_size": 64, "hidden_dropout_prob": 0.0}


# Rounds to no dropped element at all, yet is not 0: the path with dropout, without its noise.
NEXT_TO_NONE = 1e-9
IDS = torch.arange(36).reshape(3, 12) % 90 + 5
MASK = torch.ones_like(IDS)
HOLE = range(8, 12)
MASK[0, HOLE] = 0


@pytest.mark.parametrize("probability", [0.1, 0.25, 0.5, 0.9])
def test_dropout_drops_its_share_and_keeps_the_expectation(probability: float) -> None:
    torch.manual_seed(1)
    x = torch.ones(1000, 1000, requires_grad=True)
    out = drop(x, probability)
    # Four standard errors of a million draws.
    slack = 4 * (probability * (1 - probability) / 1e6) ** 0.5
    assert abs(float((out == 0).float().mean()) - probability) < slack + 2**-17
    kept = out[out != 0]
    assert kept.unique().numel() == 1
    assert kept[0].item() == pytest.approx(1 / (1 - probability), rel=1e-4)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, out.detach())  # the same elements, the same scale


def test_dropout_draws_are_independent_between_neighbours_rows_and_calls() -> None:
    torch.manual_seed(2)
    first, second = (drop(torch.ones(512, 512), 0.5) == 0 for _ in range(2))
    for a, b in ((first[:, 1:], first[:, :-1]), (first[1:], first[:-1]), (first, second)):
        both = torch.stack([a.flatten().float(), b.flatten().float()])
        assert abs(float(torch.corrcoef(both)[0, 1])) < 4 / a.numel() ** 0.5


def test_dropout_is_decided_by_the_seed_alone() -> None:
    def draws() -> Tensor:
        torch.manual_seed(3)
        return torch.stack([drop(torch.ones(7, 11), 0.3) for _ in range(3)])

    first = draws()
    drop(torch.ones(100), 0.5)
    assert torch.equal(draws(), first)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("size", [1, 3, 4, 5, 1023])
def test_dropout_of_any_size(size: int) -> None:
    x = torch.rand(size) + 1
    assert torch.equal(drop(x, 0.0), x)


def test_dropout_modules_are_replaced_and_quiet_when_not_training() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.1)))
    names = list(model.state_dict())
    use_fast_dropout(model)
    assert [type(m) for m in model.modules() if isinstance(m, nn.Dropout)] == [Dropout, Dropout]
    assert list(model.state_dict()) == names
    x = torch.rand(3, 4)
    model.eval()
    assert torch.equal(model(x), model[0](x))


def test_dropout_after_a_relu_is_relu_and_then_dropout() -> None:
    x = torch.randn(64, 256, requires_grad=True)
    weight = torch.randn(64, 256)

    def result(module: nn.Module) -> tuple[Tensor, Tensor]:
        torch.manual_seed(4)
        x.grad = None
        out = module(x)
        (out * weight).sum().backward()
        assert x.grad is not None
        return out.detach(), x.grad

    fused = DropoutAfterReLU(0.25)
    for training in (True, False):
        fused.train(training)
        apart = nn.Sequential(nn.ReLU(), Dropout(0.25)).train(training)
        for got, expected in zip(result(fused), result(apart), strict=True):
            assert torch.equal(got, expected)


def test_t5_has_one_where_its_activation_is_a_relu() -> None:
    counts = {"d_model": 32, "d_ff": 64, "num_layers": 1, "num_heads": 2, "d_kv": 16}
    for activation, expected in (("relu", 2), ("gelu", 0)):
        config = T5Config(vocab_size=100, feed_forward_proj=activation, **counts)
        model = T5ForConditionalGeneration(config)
        use_fast_dropout(model)
        assert sum(type(m) is DropoutAfterReLU for m in model.modules()) == expected


MODELS: list[tuple[type[PreTrainedModel], Any, dict[str, Tensor]]] = [
    (
        BertForPreTraining,
        BertConfig(**ENCODER, attention_probs_dropout_prob=NEXT_TO_NONE),
        {"attention_mask": MASK},
    ),
    (
        AlbertForMaskedLM,
        AlbertConfig(**ENCODER, embedding_size=16, attention_probs_dropout_prob=NEXT_TO_NONE),
        {"attention_mask": MASK},
    ),
    (
        DistilBertForMaskedLM,
        DistilBertConfig(
            vocab_size=100, dim=32, n_layers=2, n_heads=2, hidden_dim=64, dropout=0.0,
            attention_dropout=NEXT_TO_NONE,
        ),
        {"attention_mask": MASK},
    ),
    (
        GPT2LMHeadModel,
        GPT2Config(
            vocab_size=100, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=NEXT_TO_NONE, use_cache=False, bos_token_id=1, eos_token_id=1,
        ),
        {},
    ),
    (
        GPT2LMHeadModel,
        GPT2Config(
            vocab_size=100, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=NEXT_TO_NONE, use_cache=False, bos_token_id=1, eos_token_id=1,
        ),
        {"position_ids": torch.arange(12).remainder(5).expand(3, -1)},
    ),
    (
        T5ForConditionalGeneration,
        T5Config(
            vocab_size=100, d_model=32, num_layers=2, num_heads=2, d_kv=16, d_ff=64,
            dropout_rate=NEXT_TO_NONE, decoder_start_token_id=0,
        ),
        {"attention_mask": MASK, "labels": IDS},
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("cls", "config", "inputs"), MODELS, ids=lambda v: getattr(v, "__name__", None)
)
def test_attention_is_transformers_own(cls: Any, config: Any, inputs: dict[str, Tensor]) -> None:
    torch.manual_seed(0)
    model = cls(config).train()
    for weight in model.parameters():
        weight.data.mul_(6)  # sharp attention: a wrong mask shows
    model.set_attn_implementation("eager")
    expected = next(iter(model(input_ids=IDS, **inputs).values()))
    model.set_attn_implementation("sdpa")
    use_cpu_attention(model)
    assert model.config._attn_implementation == CPU_ATTENTION
    logits = next(iter(model(input_ids=IDS, **inputs).values()))
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keys", [40, 300])
@pytest.mark.parametrize("masked", [True, False])
def test_attention_to_few_keys_is_computed_in_float32(keys: int, masked: bool) -> None:
    """In a training in bf16 too; its result is rounded once, and gradients reach the inputs."""
    query, key, value = torch.randn(3, 2, 2, keys, 8, dtype=torch.bfloat16).unbind()
    query.requires_grad_()
    mask = torch.rand(2, 1, keys, keys).gt(0.5) | torch.eye(keys).bool() if masked else None
    with torch.autocast("cpu", torch.bfloat16):
        attended, _ = cpu_attention(nn.Module(), query, key, value, mask, is_causal=False)
    assert attended.dtype == torch.bfloat16
    (gradient,) = torch.autograd.grad(attended.float().sum(), query)
    assert gradient.dtype == torch.bfloat16
    wide = scaled_dot_product_attention(query.float(), key.float(), value.float(), mask)
    torch.testing.assert_close(attended.transpose(1, 2).float(), wide, rtol=8e-3, atol=8e-3)
    if keys <= 256:
        assert torch.equal(attended.transpose(1, 2), wide.bfloat16())


def test_attention_drops_weights() -> None:
    torch.manual_seed(0)
    query = torch.rand(2, 2, 5, 8)
    value = torch.eye(5, 8).expand(2, 2, 5, 8)
    out = attend(query, query, value, None, dropout=0.5, scale=1.0)
    dropped = out[..., :5] == 0
    assert 0.3 < float(dropped.float().mean()) < 0.7


@given(
    rows=st.integers(1, 3),
    heads=st.integers(1, 3),
    lengths=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    causal=st.booleans(),
    masked=st.sampled_from([(), ("rows", "keys"), ("rows", "queries", "keys")]),
    biased=st.sampled_from([(), ("heads", "queries", "keys"), ("rows", "queries", "keys")]),
    at_once=st.tuples(st.integers(1, 200), st.integers(1, 9)),
)
def test_attention_in_pieces_is_attention(
    rows: int,
    heads: int,
    lengths: tuple[int, int],
    causal: bool,
    masked: tuple[str, ...],
    biased: tuple[str, ...],
    at_once: tuple[int, int],
) -> None:
    """Values and gradients are those of the formula, however the work is divided."""
    queries, keys = (lengths[0], lengths[0]) if causal else lengths
    sizes = {"rows": rows, "heads": heads, "queries": queries, "keys": keys}
    q, k, v = (
        torch.randn(rows, length, heads, 4, dtype=torch.float64).transpose(1, 2).requires_grad_()
        for length in (queries, keys, keys)
    )
    shape = [size if name in masked else 1 for name, size in sizes.items()]
    mask = torch.rand(shape) < 0.7 if masked and not causal else None
    if mask is not None:
        mask[..., 0] = True
    shape = [size if name in biased else 1 for name, size in sizes.items()]
    bias = torch.randn(shape, dtype=torch.float64, requires_grad=True) if biased else None
    inputs = [q, k, v] if bias is None else [q, k, v, bias]

    torch.manual_seed(1)
    scores = q @ k.transpose(-1, -2) * 0.5 + (0 if bias is None else bias)
    least = torch.finfo(scores.dtype).min
    if mask is not None:
        scores = scores.masked_fill(~mask, least)
    if causal:
        scores = scores.masked_fill(torch.ones(queries, keys).triu(1) > 0, least)
    expected = drop(scores.softmax(-1), 0.3) @ v
    weights = torch.randn(expected.shape, dtype=torch.float64)
    gradients = torch.autograd.grad(expected, inputs, weights)

    torch.manual_seed(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "_SCORES", at_once[0])
        patch.setattr(attention, "_CAUSAL_QUERIES", at_once[1])
        actual = attend(q, k, v, mask, bias, dropout=0.3, scale=0.5, causal=causal)
    torch.testing.assert_close(actual, expected)
    for one, right in zip(torch.autograd.grad(actual, inputs, weights), gradients, strict=True):
        torch.testing.assert_close(one, right)


def make_model(name: str) -> PreTrainedModel:
    """A network with sharp attention, so that a wrong mask shows."""
    torch.manual_seed(0)
    config = {**ENCODER, "attention_probs_dropout_prob": NEXT_TO_NONE}
    distilled: Any = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "dropout": 0.0}
    distilled |= {"attention_dropout": NEXT_TO_NONE, "vocab_size": 100}
    networks: dict[str, Any] = {
        "bert": lambda: BertForPreTraining(BertConfig(**config)),
        "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**config)),
        "albert": lambda: AlbertForPreTraining(AlbertConfig(**config, embedding_size=16)),
        "distilbert": lambda: DistilBertForMaskedLM(DistilBertConfig(**distilled)),
    }
    model: PreTrainedModel = networks[name]()
    for weight in model.parameters():
        weight.data.mul_(4)
    return model


def outcome(
    name: str, model: PreTrainedModel, cells: list[int]
) -> tuple[dict[str, Tensor], list[Tensor]]:
    """Logits, and the gradients of all weights."""
    model.zero_grad()
    family, kinds = get_family(name), torch.zeros_like(IDS)
    logits = family.forward(model, IDS, MASK, kinds, torch.tensor(cells))
    torch.stack([part.square().sum() for part in logits.values()]).sum().backward()
    return logits, [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_alike(
    actual: tuple[dict[str, Tensor], list[Tensor]], expected: tuple[dict[str, Tensor], list[Tensor]]
) -> None:
    for part, value in expected[0].items():
        torch.testing.assert_close(actual[0][part], value, rtol=1e-4, atol=1e-5)
    largest = max(float(gradient.abs().max()) for gradient in expected[1])
    for gradient, right in zip(actual[1], expected[1], strict=True):
        torch.testing.assert_close(gradient, right, rtol=1e-3, atol=1e-5 * largest)


def reads(model: PreTrainedModel, layer: int) -> list[tuple[int, ...]]:
    """Filled with the shapes that a layer's feed-forward is given."""
    encoder: Any = getattr(model.base_model, "encoder", None) or model.base_model.transformer
    if isinstance(model, AlbertForPreTraining):
        inner = encoder.albert_layer_groups[0].albert_layers[0].ffn
    elif isinstance(model, DistilBertForMaskedLM):
        inner = encoder.layer[layer].ffn.lin1
    else:
        inner = encoder.layer[layer].intermediate
    shapes: list[tuple[int, ...]] = []
    inner.register_forward_hook(lambda m, inputs, out: shapes.append(tuple(out.shape[:2])))
    return shapes


@pytest.mark.parametrize("name", ["bert", "roberta", "albert"])
@pytest.mark.parametrize("cells", [[1, 5, 13, 14, 20, 30], [3], list(range(36))])
def test_the_top_layer_at_requested_positions(name: str, cells: list[int]) -> None:
    model = make_model(name)
    expected = outcome(name, model, cells)
    skip_unused_positions(model)
    shapes = reads(model, -1)
    assert_alike(outcome(name, model, cells), expected)
    most = max((sum(c // 12 == row for c in cells) for row in range(3)), default=0)
    # Not every cell was computed, where it is worth while.
    assert shapes[-1] == (3, 12 if 1 + most > 0.7 * 12 else 1 + most)


# --- Networks in whose stack the wanted columns wait ---

PLAIN = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "deberta": ("deberta", {**PLAIN, "mask_decoder": False}),
    "deberta with a convolution": (
        "deberta", {**PLAIN, "mask_decoder": False, "conv_kernel_size": 3}
    ),
    "modernbert": ("modernbert", {"global_attention_every": 2, "num_hidden_layers": 3}),
    "modernbert, the last layer local": (
        "modernbert", {"global_attention_every": 2, "local_attention": 6}
    ),
}  # fmt: skip


def asked(case: str) -> tuple[str, PreTrainedModel]:
    family, fields = ASKED[case]
    model = builders.make_model(family, 100, ("mlm",), pad_id=0, seed=1, size="tiny", **fields)
    model.set_attn_implementation("sdpa" if family == "modernbert" else "eager")
    for weight in model.parameters():
        weight.data.mul_(2)
    return family, model.train()


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("case", ASKED)
def test_the_wanted_columns_of_the_top_layer(case: str, twice: bool) -> None:
    family, model = asked(case)
    cells = [1, 5, 13, 14, 20, 30]
    expected = outcome(family, model, cells)
    whole = model.base_model(IDS, attention_mask=MASK).last_hidden_state
    apply_fast_paths(model, device="cpu", compiled=False, sharded=False)
    if twice:
        checkpoint_activations(model)
    last = list(model.base_model.encoder.layer if family == "deberta" else model.base_model.layers)
    shapes: list[tuple[int, ...]] = []
    wide = last[-1].intermediate if family == "deberta" else last[-1].mlp
    wide.register_forward_hook(lambda m, inputs, out: shapes.append(tuple(out.shape[:2])))
    assert_alike(outcome(family, model, cells), expected)
    assert set(shapes) == {(3, 4)}
    for _ in range(2):  # a forward for which nothing was asked is whole
        again = model.base_model(IDS, attention_mask=MASK).last_hidden_state
        torch.testing.assert_close(again, whole, rtol=1e-4, atol=1e-5)
    first = model.base_model(IDS, attention_mask=MASK, **first_tokens_only(model.base_model, FIRST))
    assert first.last_hidden_state.shape[1] == 1
    torch.testing.assert_close(first.last_hidden_state[:, 0], whole[:, 0], rtol=1e-4, atol=1e-5)
    first_tokens_only(model.base_model, FIRST)
    other = model.base_model(IDS[:2], attention_mask=MASK[:2]).last_hidden_state
    torch.testing.assert_close(other, whole[:2], rtol=1e-4, atol=1e-5)


FIRST = {"input_ids": IDS, "attention_mask": MASK}


def test_the_mean_of_all_tokens_needs_them_all() -> None:
    _, model = asked("modernbert")
    skip_unused_positions(model)
    model.config.classifier_pooling = "mean"
    options = first_tokens_only(model.base_model, FIRST)
    assert model.base_model(IDS, attention_mask=MASK, **options).last_hidden_state.shape[1] == 12


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("cells", [[1, 5, 13, 14, 20, 30], [c for c in range(36) if c not in HOLE]])
@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "distilbert"])
def test_padding_is_left_out_of_the_layers(name: str, cells: list[int], training: bool) -> None:
    model = make_model(name).train(training)
    model.set_attn_implementation("eager")
    expected = outcome(name, model, cells)
    model.set_attn_implementation("sdpa")
    use_cpu_attention(model)
    skip_unused_positions(model)
    shapes = reads(model, 0)
    assert_alike(outcome(name, model, cells), expected)
    assert shapes[0] == (1, 32)  # in one row, the four cells of padding left out


def test_a_batch_with_hardly_any_padding_stays_as_it_is() -> None:
    mask = torch.ones(10, 10)
    mask[3, 8:] = 0
    assert RealPositions.of(mask) is None
    mask[4, 5:] = 0
    assert RealPositions.of(mask) is not None


def test_bf16_takes_a_round_number_of_positions() -> None:
    mask = torch.ones(10, 30)
    mask[:, 17:] = 0
    mask[4, 5:] = 0  # 158 are real
    with torch.autocast("cpu", torch.bfloat16):
        cells = RealPositions.of(mask)
    assert cells is not None
    assert len(cells.index) == 192
    assert set(mask.flatten().nonzero().squeeze(1).tolist()) <= set(cells.index.tolist())
    assert len(cells.index.unique()) == 192
    mask[:2] = 1
    mask[2:, 19:] = 1
    with torch.autocast("cpu", torch.bfloat16):  # 267, and no 320 cells
        cells = RealPositions.of(mask)
    assert cells is not None
    assert len(cells.index) == 300


@given(st.lists(st.booleans(), min_size=24, max_size=24).filter(lambda real: sum(real) < 20))
def test_there_and_back(real: list[bool]) -> None:
    mask = torch.tensor(real).view(4, 6)
    cells = RealPositions.of(mask)
    assert cells is not None
    x = torch.rand(4, 6, 3, dtype=torch.float64, requires_grad=True)
    back = cells.padded(cells.flat(x))
    assert torch.equal(back, x * mask[..., None])
    back.backward(weights := torch.rand_like(back))
    assert x.grad is not None
    assert torch.equal(x.grad, weights * mask[..., None])


# gelu_new in one kernel: the same function, under the name that was published.


SMALL_GPT = {"vocab_size": 50, "n_embd": 32, "n_layer": 2, "n_head": 2, "resid_pdrop": 0.0}


def models() -> list[PreTrainedModel]:
    torch.manual_seed(0)
    t5 = T5Config(vocab_size=50, d_model=32, num_layers=2, num_heads=2, d_kv=16, d_ff=64,
                  feed_forward_proj="gated-gelu")  # fmt: skip
    ids = {"bos_token_id": 1, "eos_token_id": 1}
    return [
        GPT2Model(GPT2Config(**SMALL_GPT, **ids, activation_function="gelu_new")),
        OpenAIGPTModel(OpenAIGPTConfig(**SMALL_GPT, afn="gelu")),
        T5EncoderModel(t5),
    ]


@pytest.mark.parametrize("number", range(3), ids=["gpt2", "gpt1", "t5"])
def test_the_function_and_its_name_stay(number: int, tmp_path: Path) -> None:
    model = models()[number].eval()
    for weight in model.parameters():
        weight.data.mul_(5)  # away from where the function is a straight line
    ids = torch.arange(24).reshape(2, 12)
    before, config = model(input_ids=ids).last_hidden_state, model.config.to_dict()
    assert any(type(m) is NewGELUActivation for m in model.modules())
    fuse_gelu(model)
    assert not any(type(m) is NewGELUActivation for m in model.modules())
    assert any(type(m) is NewGELUActivation for m in models()[number].modules())  # others keep it
    torch.testing.assert_close(model(input_ids=ids).last_hidden_state, before, rtol=1e-4, atol=1e-5)
    assert model.config.to_dict() == config
    model.save_pretrained(tmp_path)
    again = AutoModel.from_pretrained(tmp_path)
    if number < 2:
        assert [type(m) for m in again.modules()] == [type(m) for m in models()[number].modules()]
