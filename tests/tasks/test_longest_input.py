"""How long an input a network takes is known before it runs, and is what torch says of it."""

import pytest
import torch

from plmctl.errors import ConfigError
from plmctl.models.load import config_of, longest_input, refuse_longer
from plmctl.tasks.base import get_task
from tests.tasks.conftest import FAMILIES, Folder, load_head, rows_of

TEXT = "a b " * 100


@pytest.mark.parametrize("family", FAMILIES)
def test_the_longest_input_runs_and_a_longer_one_does_not(family: str, folder: Folder) -> None:
    model = folder(family)
    longest = longest_input(config_of(model))
    assert longest == 64
    refuse_longer(model, 64, "train.max_length")
    with pytest.raises(ConfigError, match=r"train.max_length: 65 tokens.*positions for 64"):
        refuse_longer(model, 65, "train.max_length")
    assert runs(model, 64)
    assert not runs(model, 65)


def runs(model: str, length: int) -> bool:
    task = get_task("classification")
    config = task.Config(name="classification")
    rows = rows_of({"text": TEXT, "label": "x"})
    examples = task(config).make(rows, task(config).tokenizer(model), ("x", "y"), length, "score")
    network = load_head(task(config), model, ("x", "y"), new_heads=print).eval()
    batch = examples.collate(*torch.zeros(2, 1, dtype=torch.int64).numpy())
    assert batch.inputs["input_ids"].shape[-1] == length
    try:
        with torch.no_grad():
            task.forward(network, **batch.inputs)
    except (IndexError, RuntimeError):
        return False
    return True


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_networks_around_an_encoder_are_as_long(family: str, folder: Folder) -> None:
    task = get_task("classification")
    config = task.Config(name="classification", pooling="mean")
    network = load_head(task(config), folder(family), ("x", "y"), new_heads=print)
    assert longest_input(network.config) == 64
    task = get_task("tagging")
    mixed = load_head(
        task(task.Config(layers="mix")), folder(family), ("O", "B-X"), new_heads=print
    )
    assert longest_input(mixed.config) == 64


def test_relative_positions_have_no_end() -> None:
    from transformers import T5Config

    from plmctl.models.elmo import ElmoConfig

    assert longest_input(T5Config()) is None
    assert longest_input(ElmoConfig()) is None
