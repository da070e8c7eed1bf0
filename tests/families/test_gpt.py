"""GPT-1, GPT-2 and GPT-3: sizes, initial weights, and what transformers makes of the folders."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, OpenAIGPTLMHeadModel, PreTrainedModel

from plmctl.families.base import get_family
from tests.builders import make_model

# Tied weights once. GPT-3's are the sums of its table's layers and widths at 50,257 ids and 2,048
# positions, 16 heads in XL and width 5,120 in 13B.
COUNTS = {
    ("gpt1", "base", 40_478): 116_534_784,
    ("gpt1", "base", 40_481): 116_537_088,
    ("gpt2", "small", 50_257): 124_439_808,
    ("gpt2", "medium", 50_257): 354_823_168,
    ("gpt2", "large", 50_257): 774_030_080,
    ("gpt2", "xl", 50_257): 1_557_611_200,
    ("gpt3", "small", 50_257): 125_226_240,
    ("gpt3", "medium", 50_257): 355_871_744,
    ("gpt3", "large", 50_257): 760_300_032,
    ("gpt3", "xl", 50_257): 1_315_723_264,
    ("gpt3", "2.7b", 50_257): 2_651_553_280,
    ("gpt3", "6.7b", 50_257): 6_658_404_352,
    ("gpt3", "13b", 50_257): 12_853_386_240,
    ("gpt3", "175b", 50_257): 174_604_259_328,
}
SMALL = {"size": "tiny", "n_embd": 32, "n_head": 2, "n_positions": 48}
NAMES = ("gpt1", "gpt2", "gpt3")


def build(family: str, vocab_size: int = 120, **fields: object) -> PreTrainedModel:
    return make_model(family, vocab_size, ("lm",), pad_id=5, seed=None, **fields)


@pytest.mark.parametrize(("family", "size", "vocab_size"), COUNTS)
def test_parameter_counts(family: str, size: str, vocab_size: int) -> None:
    with torch.device("meta"):
        model = build(family, vocab_size, size=size)
    assert sum(p.numel() for p in model.parameters()) == COUNTS[family, size, vocab_size]


@pytest.mark.parametrize(
    ("size", "heads"),
    [
        ("small", 12),
        ("large", 16),
        ("xl", 16),
        ("2.7b", 32),
        ("6.7b", 32),
        ("13b", 40),
        ("175b", 96),
    ],
)
def test_heads_of_gpt3(size: str, heads: int) -> None:
    with torch.device("meta"):
        config = build("gpt3", size=size).config
    assert (config.n_head, config.n_positions, config.model_type) == (heads, 2048, "gpt2")


def test_another_width_has_heads_of_64() -> None:
    assert build("gpt3", size="tiny", n_embd=192).config.n_head == 3
    assert build("gpt1", size="tiny", n_embd=192).config.n_head == 3


@pytest.mark.parametrize("family", NAMES)
def test_weights_start_as_published(family: str) -> None:
    """GPT-2's code: wte 0.02, wpe 0.01; its paper: residual projections by 1/sqrt(2 layers)."""
    torch.manual_seed(0)
    model = build(family, 2000, size="mini", n_positions=256)
    residual = 0.02 if family == "gpt1" else 0.02 / 8**0.5  # 4 layers
    wpe = 0.02 if family == "gpt1" else 0.01
    expected = {"c_proj": residual, "positions_embed": wpe, "wpe": wpe}
    seen = set()
    for name, parameter in model.named_parameters():
        kind = name.split(".")[-2]
        if parameter.ndim == 2:
            seen.add(kind)
            assert parameter.std().item() == pytest.approx(expected.get(kind, 0.02), rel=0.02), name
            assert abs(parameter.mean().item()) < 4e-4, name
        elif kind.startswith("ln_") and name.endswith("weight"):
            assert (parameter == 1).all(), name
        else:
            assert (parameter == 0).all(), name
    assert {"c_attn", "c_proj", "c_fc"} < seen


@pytest.mark.parametrize("family", NAMES)
def test_initializer_range_rules_all_matrices(family: str) -> None:
    model = build(family, 500, size="mini", initializer_range=0.1)
    assert model.transformer.h[0].attn.c_attn.weight.std().item() == pytest.approx(0.1, rel=0.02)
    assert model.transformer.h[1].mlp.c_fc.weight.std().item() == pytest.approx(0.1, rel=0.02)


def test_gpt1_as_published() -> None:
    config = build("gpt1").config
    assert (config.n_positions, config.afn, config.layer_norm_epsilon) == (512, "gelu", 1e-5)
    assert {config.resid_pdrop, config.embd_pdrop, config.attn_pdrop} == {0.1}
    names = [name for name, _ in build("gpt1", **SMALL).named_parameters()]
    assert not any("ln_f" in name for name in names)


@pytest.mark.parametrize("family", NAMES)
def test_a_saved_folder_is_transformers_own(family: str, tmp_path: Path) -> None:
    """The Auto class loads it, without plmctl's kernels, and gives the same logits."""
    torch.manual_seed(1)
    model = build(family, **SMALL).eval()
    model.save_pretrained(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(theirs) is type(model)
    ids = torch.randint(0, 120, (3, 40))
    with torch.no_grad():
        ours = get_family(family).forward(model, input_ids=ids)["lm"]
        assert torch.allclose(ours, theirs(ids).logits, atol=1e-6)
        again = get_family(family)().load(str(tmp_path), ("lm",)).eval()
        loaded = get_family(family).forward(again, input_ids=ids)["lm"]
        assert torch.allclose(loaded, ours, atol=1e-6)  # with fused attention


@pytest.mark.parametrize("family", NAMES)
def test_gradients_are_transformers_own(family: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    fields = SMALL | {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    model = build(family, **fields).train()
    model.save_pretrained(tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).train()
    ids = torch.randint(0, 120, (2, 30))
    get_family(family).forward(model, input_ids=ids)["lm"].square().sum().backward()
    theirs(ids).logits.square().sum().backward()
    reference = dict(theirs.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, reference[name].grad, rtol=1e-4, atol=1e-4), name


def test_gpt1_drops_attention_in_training_only() -> None:
    torch.manual_seed(0)
    fields = SMALL | {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0.5}
    model = build("gpt1", **fields).train()
    ids = torch.randint(0, 120, (1, 20))
    first, second = (get_family("gpt1").forward(model, input_ids=ids)["lm"] for _ in range(2))
    assert not torch.allclose(first, second)
    model.eval()
    first, second = (get_family("gpt1").forward(model, input_ids=ids)["lm"] for _ in range(2))
    assert torch.equal(first, second)


def test_fused_gpt1_still_takes_transformers_padding() -> None:
    model = build("gpt1", **SMALL).eval()
    plain = OpenAIGPTLMHeadModel(model.config).eval()
    plain.load_state_dict(model.state_dict())
    ids = torch.randint(0, 120, (2, 12))
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[0, :5] = 0
    with torch.no_grad():
        ours = model(ids, attention_mask=mask, output_attentions=True)
        theirs = plain(ids, attention_mask=mask, output_attentions=True)
    assert torch.equal(ours.logits, theirs.logits)
    assert torch.equal(ours.attentions[0], theirs.attentions[0])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", NAMES)
def test_attention_within_documents_is_each_document_alone(family: str, attention: str) -> None:
    """Packed rows with positions that begin again, against one forward a document."""
    torch.manual_seed(2)
    model = build(family, **SMALL).eval()
    if family != "gpt1":
        model.set_attn_implementation(attention)
    forward = get_family(family).forward
    lengths = [[7, 1, 12, 20], [40], [1, 1, 38], [25, 15]]
    ids = torch.randint(0, 120, (4, 40))
    positions = torch.tensor([[p for n in row for p in range(n)] for row in lengths])
    with torch.no_grad():
        packed = forward(model, input_ids=ids, position_ids=positions)["lm"]
        for row, sizes in enumerate(lengths):
            at = 0
            for size in sizes:
                alone = forward(model, input_ids=ids[row : row + 1, at : at + size])["lm"][0]
                assert torch.allclose(packed[row, at : at + size], alone, atol=2e-6)
                at += size
        across = forward(model, input_ids=ids)["lm"]
    assert torch.allclose(across[1], packed[1], atol=2e-6)
    assert not torch.allclose(across[0], packed[0], atol=1e-3)
