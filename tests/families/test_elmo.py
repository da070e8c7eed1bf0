"""The published sizes of ELMo."""

import pytest
import torch

from plmctl.families.base import get_family
from plmctl.objectives.base import get_objective
from tests.builders import make_model

HEADS = get_family("elmo").HEADS
# SPEC of the published models: with the softmax over 793,471 words, and the body alone.
PUBLISHED = {
    "small": (115_951_071, 13_593_312),
    "medium": (231_949_791, 28_027_744),
    "original": (500_651_487, 93_600_864),
    "5.5b": (500_651_487, 93_600_864),
}


@pytest.mark.parametrize("size", PUBLISHED)
def test_parameter_counts(size: str) -> None:
    with torch.device("meta"):
        model = make_model("elmo", 793_471, HEADS, size=size)
    counts = tuple(sum(p.numel() for p in part.parameters()) for part in (model, model.elmo))
    assert counts == PUBLISHED[size]
    assert model.config.dropout == 0.1
    assert (model.config.cell_clip, model.config.projection_clip) == (3.0, 3.0)


def test_fields_override_the_size() -> None:
    fields = {"cell_size": 20, "projection_size": 8, "num_highway_layers": 0}
    model = make_model("elmo", 50, HEADS, size="tiny", **fields)
    assert model.elmo.layers[0].projection.shape == (2, 20, 8)
    assert len(model.elmo.characters.highways) == 0
    assert model.head.weight.shape == (50, 8)


def test_heads_are_the_objectives_parts() -> None:
    assert get_objective(get_family("elmo").OBJECTIVE).LOSS_TERMS == HEADS


def test_the_mean_loss_makes_the_published_updates() -> None:
    """The published code clips and descends 20 times the mean loss, from an accumulator of 1.

    Adagrad on the mean itself, clipped at a twentieth, from 1/400, is the same.
    """
    torch.manual_seed(0)
    start = torch.randn(30)
    theirs, ours = (torch.nn.Parameter(start.clone()) for _ in range(2))
    published = torch.optim.Adagrad([theirs], lr=0.2, initial_accumulator_value=1.0, eps=0)
    shipped = torch.optim.Adagrad([ours], lr=0.2, initial_accumulator_value=0.0025, eps=0)
    for size in (0.01, 0.3, 2.0):  # the last is clipped
        gradient = torch.randn(30) * size
        theirs.grad, ours.grad = 20 * gradient, gradient.clone()
        norm = torch.nn.utils.clip_grad_norm_([theirs], 10.0)
        torch.nn.utils.clip_grad_norm_([ours], 0.5)
        assert (norm > 10.0) == (size > 0.01)
        published.step()
        shipped.step()
        assert torch.allclose(theirs, ours, atol=1e-6)
