"""Going on from a finetuned folder with other labels, or the same ones in another order."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from plmctl.models.load import new_head_message
from plmctl.tasks.base import get_task
from tests.tasks.conftest import Folder, load_head

NLI = ("contradiction", "entailment", "neutral")
SEEDS = count()
CLASSIFICATION, TAGGING = get_task("classification"), get_task("tagging")


def loaded(model: str, labels: tuple[str, ...], task: Any = CLASSIFICATION, **fields: Any) -> Any:
    torch.manual_seed(next(SEEDS))
    return load_head(task(task.Config(**fields)), model, labels, new_heads=print)


def head(model: Any) -> torch.Tensor:
    """The weights of the last layer, which has a row a label."""
    return [p for _, p in model.named_parameters() if p.dim() == 2][-1].detach().clone()


def saved(model: Any, source: str, place: Path) -> str:
    model.save_pretrained(place)
    for file in Path(source).glob("*token*"):
        (place / file.name).write_bytes(file.read_bytes())
    return str(place)


@pytest.mark.parametrize(("family", "fields"), [("bert", {}), ("roberta", {}), ("distilbert", {}),
    ("gpt2", {}), ("gpt1", {}), ("albert", {}), ("bert", {"pooling": "mean"})])  # fmt: skip
def test_a_head_of_other_labels_starts_from_scratch(
    family: str, fields: dict, folder: Folder, tmp_path: Path
) -> None:
    source = folder(family)
    first = loaded(source, NLI, **fields)
    model = saved(first, source, tmp_path)
    assert new_head_message(source, NLI) is None  # a pretrained folder has none
    same = loaded(model, NLI, **fields)
    assert torch.equal(head(same), head(first))
    assert new_head_message(model, NLI) is None
    for labels in (("entailment", "not_entailment"), ("a", "b", "c"), ("a", "b", "c", "d")):
        other = loaded(model, labels, **fields)
        assert head(other).shape[0] == len(labels)
        assert not any(torch.equal(row, old) for row in head(other) for old in head(first))
        assert 0.001 < float(head(other).std()) < 0.1
        assert list(other.config.id2label.values()) == list(labels)
        assert (
            f"head for contradiction, entailment, neutral; a new one is created for {labels[0]}"
            in (new_head_message(model, labels) or "")
        )
        below = dict(first.base_model.named_parameters())
        assert all(torch.equal(p, below[n]) for n, p in other.base_model.named_parameters())
    number = loaded(model, (), problem="regression", **fields)
    assert head(number).shape[0] == 1
    assert "is created for a number" in (new_head_message(model, ()) or "")


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2"])
def test_the_same_labels_in_another_order_keep_their_rows(
    family: str, folder: Folder, tmp_path: Path
) -> None:
    order = ("entailment", "neutral", "contradiction")  # as the Hub has MNLI's
    first = loaded(folder(family), order)
    model = saved(first, folder(family), tmp_path)
    again = loaded(model, NLI)
    assert torch.equal(head(again), head(first)[[2, 0, 1]])
    assert new_head_message(model, NLI) is None


def test_tags(folder: Folder, tmp_path: Path) -> None:
    first = loaded(folder("bert"), ("O", "B-X", "I-X"), TAGGING)
    model = saved(first, folder("bert"), tmp_path)
    again = loaded(model, ("O", "B-X", "I-X"), TAGGING)
    assert torch.equal(head(again), head(first))
    other = loaded(model, ("O", "B-Y"), TAGGING)
    assert head(other).shape[0] == 2
    # Another task's head has the same names of weights, and means something else.
    classes = loaded(model, ("O", "B-X", "I-X"))
    assert not torch.equal(head(classes), head(first))
