"""DeBERTa: sizes, attention and mask decoder held to a transcription, its folders."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DebertaV2ForMaskedLM,
)

from plmctl.errors import DataError
from plmctl.families.base import get_family
from plmctl.models.deberta import DECODER_FILE, DebertaMaskedLM
from plmctl.models.fast import apply_fast_paths
from plmctl.models.fast.disentangled import NeededPositions
from plmctl.models.parameters import depths, reinit
from plmctl.tokenization.layout import layout_of
from tests.builders import make_model
from tests.tokenization.conftest import TEXTS, config_of, train

# transformers' class for masked tokens with 128,100 tokens; the hidden size.
COUNTS = {
    "xsmall": (70_958_820, 384),
    "small": (142_024_548, 768),
    "base": (184_551_780, 768),
    "large": (435_191_908, 1024),
    "xlarge": (887_085_156, 1536),
    "xxlarge": (1_567_041_636, 1536),
}
SMALL = {
    "size": "tiny", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 3,
    "position_buckets": 8, "max_position_embeddings": 32, "initializer_range": 0.3,
    "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
}  # fmt: skip
EPS = 1e-7


def build(vocab_size: int = 120, **fields: object) -> DebertaMaskedLM:
    model = make_model("deberta", vocab_size, ("mlm",), pad_id=0, seed=1, **fields).eval()
    assert isinstance(model, DebertaMaskedLM)
    return model


def forward(model: DebertaMaskedLM, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
    zeros = torch.zeros_like(ids)
    return get_family("deberta").forward(model, ids, mask, zeros, positions)["mlm"]


def some_text(rows: int = 2, length: int = 14) -> tuple[Tensor, Tensor]:
    """Ids, and a mask with padding at the end of the last row."""
    ids = torch.randint(5, 120, (rows, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    ids[-1, -4:], mask[-1, -4:] = 0, 0
    return ids, mask


@pytest.mark.parametrize("size", COUNTS)
@pytest.mark.parametrize("decoder", [False, True])
def test_parameter_counts(size: str, decoder: bool) -> None:
    """The decoder adds a table of 512 positions."""
    with torch.device("meta"):
        model = build(128_100, size=size, mask_decoder=decoder)
    published, hidden = COUNTS[size]
    assert sum(p.numel() for p in model.parameters()) == published + 512 * hidden * decoder


def test_initial_weights() -> None:
    """N(0, 0.02); a convolution as PyTorch draws it: uniform, up to 1/sqrt(its inputs)."""
    model = build(2000, size="mini", num_hidden_layers=2, conv_kernel_size=3)
    for name, parameter in model.named_parameters():
        if "conv.conv.weight" in name:
            limit = 1 / math.sqrt(3 * 256)
            assert parameter.std().item() == pytest.approx(limit / math.sqrt(3), rel=0.02)
        elif parameter.ndim == 2:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.03), name
        elif "conv.conv" not in name:
            norm = name.endswith("LayerNorm.weight")
            assert torch.equal(parameter, torch.full_like(parameter, norm)), name


# --- A transcription of microsoft/DeBERTa: disentangled_attention.py, bert.py,
# --- apps/models/masked_language_model.py ---


def bucket(distance: int, half: int, longest: int) -> int:
    """The number of a distance i - j: itself up to half, then its logarithm."""
    if abs(distance) <= half:
        return distance
    share = math.log(abs(distance) / half) / math.log((longest - 1) / half)
    return int(math.copysign(half + math.ceil(share * (half - 1)), distance))


class Transcription:
    """The network by the formulas, with the weights of a model."""

    def __init__(self, model: DebertaMaskedLM) -> None:
        self.weights = {name: p.detach() for name, p in model.named_parameters()}
        self.config: Any = model.config

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self.weights[f"{name}.weight"], self.weights[f"{name}.bias"]
        return layer_norm(x, x.shape[-1:], weight, bias, EPS)

    def layer(self, number: int, queries: Tensor, states: Tensor) -> Tensor:
        """A layer on one text without padding: queries and states [L, H]."""
        name, config = f"deberta.encoder.layer.{number}", self.config
        inner, heads = f"{name}.attention.self", config.num_attention_heads
        positions = self.norm(self.weights["deberta.encoder.rel_embeddings.weight"],
                              "deberta.encoder.LayerNorm")  # fmt: skip
        shared = config.share_att_key
        q, k, v = (
            self.linear(x, f"{inner}.{one}_proj").unflatten(-1, (heads, -1))
            for x, one in ((queries, "query"), (states, "key"), (states, "value"))
        )
        of_query, of_key = (
            self.linear(positions, f"{inner}.{'' if shared else 'pos_'}{one}_proj")
            .unflatten(-1, (heads, -1))
            for one in ("query", "key")
        )  # fmt: skip
        length, size = len(states), q.shape[-1]
        span = config.position_buckets
        out = torch.zeros(length, heads, size)
        for head in range(heads):
            for i in range(length):
                scores = torch.zeros(length)
                for j in range(length):
                    at = bucket(i - j, span // 2, config.max_position_embeddings) + span
                    at = min(max(at, 0), 2 * span - 1)
                    scores[j] = (
                        q[i, head] @ k[j, head]
                        + q[i, head] @ of_key[at, head]
                        + of_query[at, head] @ k[j, head]
                    ) / math.sqrt(3 * size)
                out[i, head] = scores.softmax(0) @ v[:, head]
        x = self.linear(out.flatten(1), f"{name}.attention.output.dense") + queries
        x = self.norm(x, f"{name}.attention.output.LayerNorm")
        inside = gelu(self.linear(x, f"{name}.intermediate.dense"))
        return self.norm(
            self.linear(inside, f"{name}.output.dense") + x, f"{name}.output.LayerNorm"
        )

    def convolution(self, first: Tensor, states: Tensor) -> Tensor:
        name = "deberta.encoder.conv"
        kernel = self.weights[f"{name}.conv.weight"]  # [H, H, 3]
        around = torch.nn.functional.pad(first, (0, 0, 1, 1))
        mixed = sum(around[k : k + len(first)] @ kernel[:, :, k].T for k in range(3))
        mixed = gelu(mixed + self.weights[f"{name}.conv.bias"])
        return self.norm(states + mixed, f"{name}.LayerNorm")

    def logits(self, ids: Tensor, *, decoder: bool) -> Tensor:
        """[L, V] of one text, ids [L]."""
        words = self.weights["deberta.embeddings.word_embeddings.weight"]
        states = first = self.norm(words[ids], "deberta.embeddings.LayerNorm")
        layers = self.config.num_hidden_layers
        for number in range(layers - decoder):
            states = self.layer(number, states, states)
            if number == 0 and self.config.conv_kernel_size:
                states = self.convolution(first, states)
        if decoder:
            queries = states + self.weights["mask_decoder.position_embeddings.weight"][: len(ids)]
            for _ in range(2):
                queries = self.layer(layers - 1, queries, states)
            states = queries
        name = "cls.predictions.transform"
        hidden = self.norm(gelu(self.linear(states, f"{name}.dense")), f"{name}.LayerNorm")
        return hidden @ words.T + self.weights["cls.predictions.bias"]


@pytest.mark.parametrize("fields", [
    {}, {"mask_decoder": False}, {"share_att_key": False}, {"conv_kernel_size": 3},
    {"conv_kernel_size": 3, "mask_decoder": False}, {"num_hidden_layers": 1},
])  # fmt: skip
def test_logits_are_those_of_the_transcription(fields: dict[str, Any]) -> None:
    """Padding changes nothing, and the head is computed at the positions alone."""
    model = build(**(SMALL | fields))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
        ids, mask = some_text()
        positions = torch.tensor([0, 3, 13, 14, 23])
        got = forward(model, ids, mask, positions)
        plain = Transcription(model)
        decoder = model.mask_decoder is not None
        rows = [plain.logits(ids[0], decoder=decoder), plain.logits(ids[1, :10], decoder=decoder)]
        torch.testing.assert_close(got, torch.cat(rows)[positions], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("fields", [
    {}, {"mask_decoder": False}, {"share_att_key": False}, {"conv_kernel_size": 3},
    {"max_position_embeddings": 12, "mask_decoder": False}, {"position_buckets": 64},
])  # fmt: skip
def test_what_is_left_out_on_a_cpu_changes_nothing(fields: dict[str, Any]) -> None:
    """Values, and the gradient of every parameter."""
    ids, mask = some_text()
    positions = torch.tensor([0, 3, 13, 14, 23])
    found: list[dict[str, Tensor]] = []
    for fast in (False, True):
        model = build(**(SMALL | fields))
        if fast:
            apply_fast_paths(model, device="cpu", compiled=False, sharded=False)
            assert any(isinstance(part, NeededPositions) for part in model.modules())
        logits = forward(model, ids, mask, positions)
        torch.nn.functional.cross_entropy(logits, torch.arange(5)).backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found.append({"logits": logits, **gradients})
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=1e-4, atol=1e-5)


def test_buckets() -> None:
    """The published values; a half is exact, the rest is a logarithm; the sign only turns it."""
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    published = {128: 128, 129: 129, 200: 169, 256: 192, 400: 233, 511: 255}
    assert {d: bucket(d, 128, 512) for d in published} == published
    distances = torch.arange(-511, 512)
    numbers = make_log_bucket_position(distances, 256, 512).long()
    assert numbers.tolist() == [bucket(int(d), 128, 512) for d in distances]
    assert torch.equal(numbers, -numbers.flip(0))
    assert (numbers.diff() >= 0).all()


def test_the_plain_head_is_transformers_own_to_the_last_bit(tmp_path: Path) -> None:
    model = build(**SMALL, mask_decoder=False)
    model.save_pretrained(tmp_path)
    auto = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    ids, mask = some_text()
    ours = forward(model, ids, mask, torch.arange(28))
    assert torch.equal(auto(ids, attention_mask=mask).logits.flatten(0, 1), ours)
    assert not (tmp_path / DECODER_FILE).exists()


@pytest.mark.parametrize("decoder", [False, True])
def test_only_the_decoder_knows_where_a_token_is(decoder: bool) -> None:
    """Padding before a text moves it: its layers do not see that, its decoder does."""
    model = build(**SMALL, mask_decoder=decoder)
    ids = torch.randint(5, 120, (1, 12))
    alone = forward(model, ids, torch.ones_like(ids), torch.arange(12))
    for before, after in ((0, 5), (5, 0)):
        padded = torch.nn.functional.pad(ids, (before, after))
        mask = torch.nn.functional.pad(torch.ones_like(ids), (before, after))
        again = forward(model, padded, mask, torch.arange(12) + before)
        same = torch.allclose(again, alone, rtol=1e-4, atol=1e-5)
        assert same == (not (decoder and before))


def test_the_loss_at_the_start_teaches_the_decoder_and_the_last_layer() -> None:
    model = build(size="tiny")
    ids, mask = some_text(rows=8, length=32)
    positions = torch.arange(0, 200, 3)
    logits = forward(model, ids, mask, positions)
    loss = torch.nn.functional.cross_entropy(logits, ids.flatten()[positions])
    assert loss.item() == pytest.approx(math.log(120), rel=0.03)
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_a_folder_is_transformers_own_with_a_decoder_beside_it(tmp_path: Path) -> None:
    model = build(**SMALL)
    model.save_pretrained(tmp_path)
    plain, info = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(plain) is DebertaV2ForMaskedLM
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    for name, weight in plain.state_dict().items():
        assert torch.equal(weight, model.state_dict()[name]), name
    family, ids = get_family("deberta")(), some_text()[0]
    again = family.load(str(tmp_path), ("mlm",)).eval()
    assert torch.equal(again(ids).logits, model(ids).logits)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    for name, weight in classifier.deberta.state_dict().items():
        assert torch.equal(weight, model.deberta.state_dict()[name]), name
    (tmp_path / DECODER_FILE).unlink()
    with pytest.raises(DataError, match=DECODER_FILE):
        family.load(str(tmp_path), ("mlm",))
    said: list[str] = []
    family.load(str(tmp_path), ("mlm",), new_heads=said.append)
    assert said == [f"{tmp_path}: new, with random weights: mask_decoder ({DECODER_FILE})"]


def test_what_the_layers_share_lies_below_them(tmp_path: Path) -> None:
    """The table of distances has the rate of embeddings, and stays when top layers are redrawn."""
    build(**SMALL, conv_kernel_size=3).save_pretrained(tmp_path)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    depth = depths(model)
    shared = [name for name in depth.of if ".rel_" in name or ".conv." in name]
    shared += ["deberta.encoder.LayerNorm.weight"]
    assert {depth.of[name] for name in shared} == {0}
    assert depth.of["deberta.encoder.layer.2.output.dense.weight"] == depth.layers == 3
    assert depth.of["pooler.dense.weight"] == depth.of["classifier.weight"] == 4
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    reinit(model, 1)
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in shared)
    changed = "deberta.encoder.layer.2.output.dense.weight"
    assert not torch.equal(after[changed], before[changed])


def test_a_damaged_decoder_is_refused(tmp_path: Path) -> None:
    build(**SMALL).save_pretrained(tmp_path)
    (tmp_path / DECODER_FILE).write_bytes(b"damaged")
    with pytest.raises(DataError, match="not a part of this model"):
        get_family("deberta")().load(str(tmp_path), ("mlm",))


def test_its_tokenizer_has_the_published_layout(tmp_path: Path) -> None:
    config = config_of("unigram", family="deberta", vocab_size=200)
    train(config, TEXTS).tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert type(tokenizer).__name__ == "DebertaV2Tokenizer"
    names = ("pad", "cls", "sep", "unk", "mask")
    ids = [getattr(tokenizer, f"{name}_token_id") for name in names]
    assert ids == [0, 1, 2, 3, len(tokenizer) - 1]
    pair = layout_of(tokenizer, pair=True)
    assert (pair.before, pair.between, pair.after) == ((1,), (2,), (2,))
    masked = tokenizer("a [MASK] b", add_special_tokens=False).input_ids
    assert masked.count(ids[-1]) == 1
    unknown = tokenizer("\u0e01", add_special_tokens=False).input_ids
    assert unknown[-1] == 3
