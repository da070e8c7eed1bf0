"""ModernBERT: sizes, initial weights, what its layers see, its tokenizer and its folders."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedModel

from plmctl.families.base import get_family
from plmctl.tokenization.layout import layout_of
from tests.builders import make_model
from tests.tokenization.conftest import TEXTS, config_of, train

# V·H + H + N(4H² + 3·H·I + 2H) - H (layer 0 has no norm before attention) + H; head H² + H + V.
COUNTS = {
    "17m": 16_913_600,
    "32m": 32_081_344,
    "68m": 68_457_664,
    "base": 149_655_232,
    "large": 395_881_664,
}
SMALL = {
    "size": "tiny", "hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1,
    "local_attention": 8, "initializer_range": 0.2,
}  # fmt: skip


def build(vocab_size: int = 120, **fields: object) -> PreTrainedModel:
    return make_model("modernbert", vocab_size, ("mlm",), pad_id=0, seed=1, **fields).eval()


def forward(model: PreTrainedModel, ids: Tensor, mask: Tensor, positions: Tensor) -> Tensor:
    zeros = torch.zeros_like(ids)
    return get_family("modernbert").forward(model, ids, mask, zeros, positions)["mlm"]


@pytest.mark.parametrize("size", COUNTS)
def test_parameter_counts(size: str) -> None:
    with torch.device("meta"):
        model = build(50_368, size=size)
    assert sum(p.numel() for p in model.parameters()) == COUNTS[size]
    assert [name for name, _ in model.named_parameters() if name.endswith("bias")] == [
        "decoder.bias"
    ]


def test_every_third_layer_sees_all() -> None:
    with torch.device("meta"):
        config = build(size="17m").config
    assert [n for n, kind in enumerate(config.layer_types) if kind == "full_attention"] == [0, 3, 6]
    assert config.rope_parameters["full_attention"]["rope_theta"] == 10_000
    assert (config.pad_token_id, config.bos_token_id, config.sep_token_id) == (0, None, None)


def test_initial_weights() -> None:
    """Truncated at two deviations (0.88 of the nominal); outputs by 1/sqrt(2 layers)."""
    model = build(2000, size="17m")
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2:
            smaller = math.sqrt(2 * 7) if "Wo" in name or "head.dense" in name else 1
            expected = 0.8796 * 0.02 / smaller
            assert parameter.std().item() == pytest.approx(expected, rel=0.02), name


@pytest.mark.parametrize(("every", "reach"), [(1, 19), (2, 19)])
def test_a_layer_that_sees_all(every: int, reach: int) -> None:
    assert seen_by_token_ten(build(**SMALL, global_attention_every=every)) == list(range(reach + 1))


def test_a_layer_that_sees_near_tokens() -> None:
    """A window of 8: four tokens on each side."""
    model = build(**SMALL)
    local = {"layer_types": ["sliding_attention"]}
    near = type(model)(type(model.config)(**{**model.config.to_dict(), **local})).eval()
    near.load_state_dict(model.state_dict())
    assert seen_by_token_ten(near) == list(range(6, 15))


def seen_by_token_ten(model: PreTrainedModel) -> list[int]:
    """The tokens of 20 whose change moves the logits of number 10."""
    ids = torch.arange(20)[None] + 20
    mask, ten = torch.ones_like(ids), torch.tensor([10])
    before = forward(model, ids, mask, ten)
    moves = []
    for place in range(20):
        other = ids.clone()
        other[0, place] += 50
        if not torch.allclose(forward(model, other, mask, ten), before, atol=1e-6):
            moves.append(place)
    return moves


def test_padding_changes_nothing_on_either_side() -> None:
    """Positions are relative: padding before a text does not move it."""
    model = build(**{**SMALL, "num_hidden_layers": 4})
    ids = torch.randint(5, 120, (1, 12))
    alone = forward(model, ids, torch.ones_like(ids), torch.arange(12))
    for before, after in ((0, 5), (5, 0)):
        padded = torch.nn.functional.pad(ids, (before, after))
        mask = torch.nn.functional.pad(torch.ones_like(ids), (before, after))
        again = forward(model, padded, mask, torch.arange(12) + before)
        torch.testing.assert_close(again, alone, rtol=1e-4, atol=1e-5)


def test_a_saved_folder_is_transformers_own(tmp_path: Path) -> None:
    model = build(**{**SMALL, "num_hidden_layers": 4})
    model.save_pretrained(tmp_path)
    ids = torch.randint(5, 120, (2, 12))
    auto = AutoModelForMaskedLM.from_pretrained(tmp_path).eval()
    ours = forward(model, ids, torch.ones_like(ids), torch.arange(24))
    torch.testing.assert_close(auto(ids).logits.flatten(0, 1), ours)


def test_its_tokenizer_is_bpe_with_berts_tokens(tmp_path: Path) -> None:
    config = config_of("byte_bpe", family="modernbert", vocab_size=300)
    train(config, TEXTS).tokenizer.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    ids = [tokenizer.convert_tokens_to_ids(f"[{name}]") for name in ("PAD", "UNK", "CLS", "SEP")]
    assert ids == [0, 1, 2, 3]
    assert (tokenizer.mask_token, tokenizer.mask_token_id) == ("[MASK]", 4)
    pair = layout_of(tokenizer, pair=True)
    assert (pair.before, pair.between, pair.after) == ((2,), (3,), (3,))
    assert tokenizer.decode(tokenizer("Über 3 Dinge!").input_ids[1:-1]) == "Über 3 Dinge!"
    masked = tokenizer("a [MASK] b", add_special_tokens=False).input_ids
    assert tokenizer.convert_ids_to_tokens(masked) == ["a", "[MASK]", "Ġ", "b"]
