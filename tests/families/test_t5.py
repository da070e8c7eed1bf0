"""T5's published sizes, initial weights, position buckets and folders."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from transformers import AutoModelForSeq2SeqLM, T5Config

from plmctl.families.base import get_family
from tests.builders import make_model

# Parameters, tied weights once; 1.1 has an output matrix of its own.
COUNTS = {
    ("v1.0", "small"): 60_506_624,
    ("v1.0", "base"): 222_903_552,
    ("v1.0", "large"): 737_668_096,
    ("v1.0", "3b"): 2_851_598_336,
    ("v1.0", "11b"): 11_307_321_344,
    ("v1.1", "small"): 76_961_152,
    ("v1.1", "base"): 247_577_856,
    ("v1.1", "large"): 783_150_080,
    ("v1.1", "xl"): 2_849_757_184,
    ("v1.1", "xxl"): 11_135_332_352,
}
VERSIONS = ("v1.0", "v1.1")


def build(vocab_size: int = 500, **fields: object):
    return make_model("t5", vocab_size, ("lm",), **fields)


@pytest.mark.parametrize(("version", "size"), COUNTS)
def test_parameter_counts(version: str, size: str) -> None:
    with torch.device("meta"):
        model = build(32_100, version=version, size=size)
    assert sum(p.numel() for p in model.parameters()) == COUNTS[version, size]
    assert model.config.vocab_size == 32_128


@pytest.mark.parametrize("version", VERSIONS)
def test_weights_start_as_published(version: str) -> None:
    model = build(2000, version=version, size="mini")
    d, heads, d_kv, d_ff = 256, 4, 64, model.config.d_ff
    expected = {
        "SelfAttention.q": (d * d_kv) ** -0.5,
        "SelfAttention.k": d**-0.5,
        "EncDecAttention.v": d**-0.5,
        "SelfAttention.o": (heads * d_kv) ** -0.5,
        "wi": d**-0.5,
        "wi_1": d**-0.5,
        "wo": d_ff**-0.5,
        "shared": 1.0,
    }
    if version == "v1.1":
        expected["lm_head"] = d**-0.5
    seen = set()
    for name, parameter in model.named_parameters():
        for part, std in expected.items():
            if name.endswith(f"{part}.weight"):
                assert parameter.std().item() == pytest.approx(std, rel=0.03), name
                seen.add(part)
        if "layer_norm" in name:
            assert (parameter == 1).all(), name
        assert not name.endswith("bias"), name
    assert len(seen) == len(expected) - 1  # wi or wi_1
    bias = model.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    assert bias.shape == (32, 4)
    assert bias.std().item() == pytest.approx(d**-0.5, rel=0.25)
    assert model.config.dropout_rate == (0.1 if version == "v1.0" else 0.0)
    assert model.config.layer_norm_epsilon == 1e-6
    assert model.config.dense_act_fn == ("relu" if version == "v1.0" else "gelu_new")


@pytest.mark.parametrize("version", ["v1.0", "v1.1"])
def test_a_factor_scales_all_new_weights(version: str) -> None:
    """The same draws, half as large; norms start at their factor."""
    networks = []
    for factor in (1.0, 0.5):
        torch.manual_seed(0)
        networks.append(build(version=version, size="tiny", initializer_factor=factor))
    for (name, one), half in zip(
        networks[0].named_parameters(), networks[1].parameters(), strict=True
    ):
        torch.testing.assert_close(0.5 * one, half, msg=name)


def test_position_buckets_are_the_published_ones() -> None:
    """By hand: 16 buckets a side in the encoder, 8 of them exact, the rest by logarithms to 128."""
    model = build(size="tiny")
    bucket = model.encoder.block[0].layer[0].SelfAttention._relative_position_bucket
    offsets = torch.tensor([0, -1, -7, -8, -15, -16, -127, -128, -500, 1, 7, 8, 127, 500])
    # 8 + floor(8 * ln(n / 8) / ln(16)): 8 -> 8, 15 -> 9, 16 -> 10, 127 -> 15; later ones +16.
    expected = [0, 1, 7, 8, 9, 10, 15, 15, 15, 17, 23, 24, 31, 31]
    assert bucket(offsets, True, 32, 128).tolist() == expected
    # The decoder: 32 for the past, 16 of them exact; what follows is bucket 0 (and masked).
    past = torch.tensor([0, -1, -15, -16, -31, -32, -127, -128, 5])
    expected = [0, 1, 15, 16, 21, 21, 31, 31, 0]
    assert bucket(past, False, 32, 128).tolist() == expected
    for block in [*model.encoder.block, *model.decoder.block][1:2]:
        assert not block.layer[0].SelfAttention.has_relative_attention_bias
    assert not model.decoder.block[0].layer[1].EncDecAttention.has_relative_attention_bias


@pytest.mark.parametrize("version", VERSIONS)
def test_a_saved_model_is_the_same_through_the_auto_class(version: str, tmp_path: Path) -> None:
    model = build(version=version, size="tiny", dropout_rate=0.0).eval()
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    twice = get_family("t5")().load(str(tmp_path), ("lm",)).eval()
    ids, labels = torch.randint(3, 400, (2, 12)), torch.randint(3, 400, (2, 6))
    with torch.inference_mode():
        expected = model(input_ids=ids, labels=labels).logits
        for loaded in (again, twice):
            assert torch.equal(loaded(input_ids=ids, labels=labels).logits, expected)
            own = loaded.lm_head.weight is not loaded.shared.weight
            assert own == (version == "v1.1")
    count = sum(p.numel() for p in model.parameters())
    assert sum(p.numel() for p in again.parameters()) == count


@pytest.mark.parametrize("version", VERSIONS)
def test_the_head_runs_where_there_is_a_target(version: str) -> None:
    """Gathered logits are those of the library's own forward; padding after a target is unseen."""
    model = build(version=version, size="tiny").eval()
    ids, labels = torch.randint(3, 400, (2, 10)), torch.randint(3, 400, (2, 5))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    decoder = torch.cat([torch.zeros(2, 1, dtype=torch.long), labels[:, :-1]], 1)
    at = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7])  # the second row has three targets
    padded = decoder.clone()
    padded[1, 3:] = 0
    with torch.inference_mode():
        got = get_family("t5").forward(model, ids, mask, padded, at)["lm"]
        whole = model(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder).logits
    assert torch.allclose(got, whole.flatten(0, 1)[at], atol=1e-5)


def test_sizes_of_the_other_version_are_refused() -> None:
    with pytest.raises(ValidationError, match="v1.0 has no size 'xxl'; one of: tiny"):
        build(size="xxl")
    with pytest.raises(ValidationError, match="v1.1 has no size '11b'"):
        build(version="v1.1", size="11b")


def test_there_is_no_longest_input() -> None:
    assert get_family("t5").positions(T5Config()) > 10**9
