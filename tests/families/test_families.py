"""Published sizes have the published parameter counts, and weights start as published."""

import pytest
import torch
from transformers import PreTrainedModel

from plmctl import registry
from plmctl.families.base import get_family
from plmctl.objectives.base import get_objective

# Parameters with all pretraining heads, tied weights once (transformers on the meta device).
GPT2 = {
    ("small", 50_257): 124_439_808,
    ("medium", 50_257): 354_823_168,
    ("large", 50_257): 774_030_080,
    ("xl", 50_257): 1_557_611_200,
}


def count(model: PreTrainedModel) -> int:
    return sum(p.numel() for p in model.parameters())


def build(
    family: str, vocab_size: int, loss_terms: tuple[str, ...], **fields: object
) -> PreTrainedModel:
    config = registry.load("families", family).Config(family=family, **fields)
    return get_family(family).build(config, vocab_size=vocab_size, pad_id=0, loss_terms=loss_terms)


@pytest.mark.parametrize(("size", "vocab_size"), GPT2)
def test_gpt2_parameter_counts(size: str, vocab_size: int) -> None:
    with torch.device("meta"):
        model = build("gpt2", vocab_size, ("lm",), size=size)
    assert count(model) == GPT2[size, vocab_size]


def test_bert_starts_as_published() -> None:
    """Truncated at two standard deviations, whose effective deviation is 0.88 of the nominal."""
    torch.manual_seed(0)
    model = build("bert", 2000, ("mlm", "nsp"), size="tiny")
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            assert parameter.abs().max() <= 0.04 + 1e-7, name
            if parameter.numel() > 10_000:
                assert parameter.std().item() == pytest.approx(0.0176, rel=0.03), name
        elif "LayerNorm.weight" in name:
            assert (parameter == 1).all(), name
        else:
            assert (parameter == 0).all(), name
    assert model.config.hidden_act == "gelu_pytorch_tanh"
    assert model.config.layer_norm_eps == 1e-12


def test_gpt2_residual_projections_start_smaller() -> None:
    torch.manual_seed(0)
    model = build("gpt2", 500, ("lm",), size="mini")
    block = model.transformer.h[0]
    assert block.attn.c_attn.weight.std().item() == pytest.approx(0.02, rel=0.03)
    assert block.attn.c_proj.weight.std().item() == pytest.approx(0.02 / 8**0.5, rel=0.03)
    assert block.mlp.c_proj.weight.std().item() == pytest.approx(0.02 / 8**0.5, rel=0.03)


def test_heads_follow_the_objective() -> None:
    assert build("bert", 100, ("mlm",), size="tiny").__class__.__name__ == "BertForMaskedLM"
    both = build("bert", 100, ("mlm", "nsp"), size="tiny")
    assert both.__class__.__name__ == "BertForPreTraining"


@pytest.mark.parametrize("name", registry.names("families"))
def test_every_family_names_an_objective_and_its_positions(name: str) -> None:
    family = get_family(name)
    assert set(get_objective(family.OBJECTIVE).LOSS_TERMS) <= set(family.HEADS)
    assert family.positions(registry.load("families", name).Config(family=name)) > 0


@pytest.mark.parametrize("name", registry.names("families"))
def test_every_option_is_a_field_of_transformers_config(name: str) -> None:
    """In every size: a name that transformers does not know is an error of ``build``."""
    family = get_family(name)
    for size in family.SIZES:
        fields = {"version": "v1.1"} if (name, size[0]) == ("t5", "x") else {}
        config = family.Config.model_validate({"family": name, "size": size, **fields})
        with torch.device("meta"):
            assert family.build(config, vocab_size=100, pad_id=0, loss_terms=family.HEADS).config


def test_an_unknown_field_is_an_error_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_family("bert"), "NETWORK", {"hiden_act": "gelu"})
    with pytest.raises(TypeError, match=r"BertConfig has no field hiden_act.*hidden_act"):
        build("bert", 100, ("mlm",), size="tiny")
