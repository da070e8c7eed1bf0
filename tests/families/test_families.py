"""What all families promise; weights and heads of BERT and ALBERT."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from plmctl import registry
from plmctl.families.base import families, get_family, make_family
from plmctl.objectives.base import get_objective
from tests.builders import make_model

PAIRED = {"bert": ("mlm", "nsp"), "albert": ("mlm", "sop")}


def count(model: PreTrainedModel) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(("family", "loss_terms"), PAIRED.items())
def test_weights_start_as_published(family: str, loss_terms: tuple[str, ...]) -> None:
    """Truncated at two standard deviations, whose effective deviation is 0.88 of the nominal."""
    model = make_model(family, 2000, loss_terms, size="tiny")
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2:
            assert parameter.abs().max() <= 0.04 + 1e-7, name
            if parameter.numel() > 10_000:
                assert parameter.std().item() == pytest.approx(0.0176, rel=0.03), name
        elif "norm" in name.lower() and name.endswith("weight"):
            assert (parameter == 1).all(), name
        else:
            assert (parameter == 0).all(), name
    assert model.config.hidden_act == "gelu_pytorch_tanh"
    assert model.config.layer_norm_eps == 1e-12


@pytest.mark.parametrize(("family", "loss_terms"), PAIRED.items())
def test_heads_follow_the_objective(family: str, loss_terms: tuple[str, ...]) -> None:
    alone, both = (make_model(family, 100, terms, size="tiny") for terms in (("mlm",), loss_terms))
    assert type(alone).__name__.lower() == f"{family}formaskedlm"
    assert type(both).__name__.lower() == f"{family}forpretraining"


@pytest.mark.parametrize("name", [one.name for one in families() if one.SIZES])
def test_every_family_names_an_objective_and_its_positions(name: str) -> None:
    family = get_family(name)
    assert set(get_objective(family.OBJECTIVE).LOSS_TERMS) <= set(family.HEADS)
    with torch.device("meta"):
        network = family().build(vocab_size=100, pad_id=0, loss_terms=family.HEADS).config
    assert family.positions(network) > 0


@pytest.mark.parametrize("name", registry.names("families"))
def test_every_option_is_a_field_of_transformers_config(name: str) -> None:
    """In every size: a name that transformers does not know is an error of ``build``."""
    family = get_family(name)
    for size in family.SIZES:
        fields = {"version": "v1.1"} if (name, size[0]) == ("t5", "x") else {}
        config = family.Config.model_validate({"family": name, "size": size, **fields})
        with torch.device("meta"):
            assert make_family(config).build(vocab_size=100, pad_id=0, loss_terms=family.HEADS)


def test_an_unknown_field_is_an_error_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_family("bert"), "NETWORK", {"hiden_act": "gelu"})
    with pytest.raises(TypeError, match=r"BertConfig has no field hiden_act.*hidden_act"):
        make_model("bert", 100, ("mlm",), size="tiny")


# Published sizes of BERT and ALBERT have their exact parameter counts, on the meta device.


# All pretraining heads, tied weights once; and without them, the body with its pooler.
BERT = {
    ("tiny", 30_522): (4_433_468, 4_385_920),
    ("mini", 30_522): (11_267_900, 11_170_560),
    ("small", 30_522): (29_058_876, 28_763_648),
    ("medium", 30_522): (41_668_412, 41_373_184),
    ("base", 30_522): (110_106_428, 109_482_240),
    ("base", 28_996): (108_932_934, 108_310_272),
    ("large", 30_522): (336_226_108, 335_141_888),
    ("large", 28_996): (334_661_958, 333_579_264),
}
ALBERT = {
    "base": (11_813_810, 11_683_584),
    "large": (17_847_474, 17_683_968),
    "xlarge": (59_021_490, 58_724_864),
    "xxlarge": (223_158_450, 222_595_584),  # the paper's 235M cannot be had
}


# Turc et al. (2019), arXiv:1908.08962: 24 models, of which five have names.
GRID = [(layers, width) for layers in (2, 4, 6, 8, 10, 12) for width in (128, 256, 512, 768)]


def bert_count(layers: int, width: int, vocab: int = 30_522) -> tuple[int, int]:
    """The closed form of BERT's size: with heads, and the body alone."""
    layer = 12 * width**2 + 13 * width
    body = (vocab + 512 + 2 + 2) * width + layers * layer + width**2 + width
    return body + width**2 + 3 * width + vocab + 2 * width + 2, body


@pytest.mark.parametrize(("size", "vocab"), BERT)
def test_bert(size: str, vocab: int) -> None:
    with torch.device("meta"):
        model = make_model("bert", vocab, ("mlm", "nsp"), size=size)
    assert (count(model), count(model.bert)) == BERT[size, vocab]
    assert (count(model), count(model.bert)) == bert_count(*get_family("bert").SIZES[size], vocab)


@pytest.mark.parametrize(("layers", "width"), GRID)
def test_the_smaller_berts(layers: int, width: int) -> None:
    with torch.device("meta"):
        model = make_model(
            "bert", 30_522, ("mlm", "nsp"), num_hidden_layers=layers, hidden_size=width
        )  # fmt: skip
    assert (count(model), count(model.bert)) == bert_count(layers, width)
    assert model.config.num_attention_heads == width // 64
    assert model.config.intermediate_size == 4 * width


def test_the_grid_has_the_named_sizes() -> None:
    sizes = get_family("bert").SIZES
    named = {sizes[name] for name in ("tiny", "mini", "small", "medium", "base")}
    assert named <= set(GRID)


@pytest.mark.parametrize("size", ALBERT)
def test_albert(size: str) -> None:
    with torch.device("meta"):
        model = make_model("albert", 30_000, ("mlm", "sop"), size=size)
    assert (count(model), count(model.albert)) == ALBERT[size]
    layers, width, heads = get_family("albert").SIZES[size]
    shown = model.config
    assert (shown.num_hidden_layers, shown.hidden_size) == (layers, width)
    assert (shown.num_attention_heads, shown.intermediate_size) == (heads, 4 * width)
    assert shown.embedding_size == 128


# --- Two threads give the same bits every time ---


def elmo_gradient() -> list[Tensor]:
    sizes = {"projection_size": 64, "cell_size": 64}
    model = make_model("elmo", 100, ("forward", "backward"), size="tiny", **sizes)
    words, characters = torch.randint(50, (2, 16, 40)), torch.randint(1, 256, (50, 50))
    top, _ = model.top(characters, words, None)
    return gradients(model.elmo.characters, top)


def spanbert_gradient() -> list[Tensor]:
    sizes = {"hidden_size": 32, "num_attention_heads": 2}
    model = make_model("spanbert", 100, ("mlm", "sbo"), size="tiny", **sizes)
    batch = {
        "input_ids": torch.randint(100, (8, 32)),
        "attention_mask": torch.ones(8, 32, dtype=torch.long),
        "token_type_ids": torch.zeros(8, 32, dtype=torch.long),
        "positions": torch.arange(40),
        "left": torch.randint(100, (2048,)),
        "right": torch.randint(100, (2048,)),
        "place": torch.randint(10, (2048,)),
    }
    return gradients(model, get_family("spanbert").forward(model, **batch)["sbo"])


def gradients(weights: torch.nn.Module, output: Tensor) -> list[Tensor]:
    output.mul(torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
    return [p.grad for p in weights.parameters() if p.grad is not None]


@pytest.mark.parametrize("gradient", [elmo_gradient, spanbert_gradient])
def test_rows_that_are_read_often_have_the_same_gradient_every_time(
    gradient: Callable[[], list[Tensor]],
) -> None:
    """An interrupted run would otherwise differ from an uninterrupted one in its last bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        trials = []
        for _ in range(10):
            torch.manual_seed(3)
            trials.append(gradient())
    finally:
        torch.set_num_threads(before)
    assert len(trials[0]) > 10
    for trial in trials[1:]:
        assert all(torch.equal(a, b) for a, b in zip(trials[0], trial, strict=True))
