"""Published sizes of BERT and ALBERT have their exact parameter counts, on the meta device."""

import pytest
import torch

from plmctl.families.albert import Albert
from plmctl.families.bert import Bert
from tests.families.test_families import build, count

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
        model = build("bert", vocab, ("mlm", "nsp"), size=size)
    assert (count(model), count(model.bert)) == BERT[size, vocab]
    assert (count(model), count(model.bert)) == bert_count(*Bert.SIZES[size], vocab)


@pytest.mark.parametrize(("layers", "width"), GRID)
def test_the_smaller_berts(layers: int, width: int) -> None:
    with torch.device("meta"):
        model = build(
            "bert", 30_522, ("mlm", "nsp"), num_hidden_layers=layers, hidden_size=width
        )  # fmt: skip
    assert (count(model), count(model.bert)) == bert_count(layers, width)
    assert model.config.num_attention_heads == width // 64
    assert model.config.intermediate_size == 4 * width


def test_the_grid_has_the_named_sizes() -> None:
    named = {Bert.SIZES[name] for name in ("tiny", "mini", "small", "medium", "base")}
    assert named <= set(GRID)


@pytest.mark.parametrize("size", ALBERT)
def test_albert(size: str) -> None:
    with torch.device("meta"):
        model = build("albert", 30_000, ("mlm", "sop"), size=size)
    assert (count(model), count(model.albert)) == ALBERT[size]
    layers, width, heads = Albert.SIZES[size]
    shown = model.config
    assert (shown.num_hidden_layers, shown.hidden_size) == (layers, width)
    assert (shown.num_attention_heads, shown.intermediate_size) == (heads, 4 * width)
    assert shown.embedding_size == 128
