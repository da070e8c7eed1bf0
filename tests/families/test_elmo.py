"""The published sizes of ELMo."""

import pytest
import torch

from plmctl import families, objectives
from plmctl.families.elmo import HEADS, Config

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
        model = families.get("elmo").build(
            Config(size=size), vocab_size=793_471, pad_id=0, parts=HEADS
        )
    counts = tuple(sum(p.numel() for p in part.parameters()) for part in (model, model.elmo))
    assert counts == PUBLISHED[size]
    assert model.config.dropout == 0.1
    assert (model.config.cell_clip, model.config.projection_clip) == (3.0, 3.0)


def test_fields_override_the_size() -> None:
    config = Config(size="tiny", cell_size=20, projection_size=8, num_highway_layers=0)
    model = families.get("elmo").build(config, vocab_size=50, pad_id=0, parts=HEADS)
    assert model.elmo.layers[0].projection.shape == (2, 20, 8)
    assert len(model.elmo.characters.highways) == 0
    assert model.head.weight.shape == (50, 8)


def test_heads_are_the_objectives_parts() -> None:
    assert objectives.get(families.get("elmo").OBJECTIVE).PARTS == HEADS
