"""ALBERT as published: shared layers, narrow embeddings, initial weights, heads, Auto classes."""

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import cross_entropy
from transformers import AutoModelForMaskedLM, AutoModelForPreTraining

from plmctl.families.base import get_family
from tests.builders import make_model
from tests.families.test_families import count

LAYER = "albert.encoder.albert_layer_groups"


def inputs(batch: int = 3, length: int = 12) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    real = torch.arange(length) < torch.tensor([length, 9, 5])[:, None]
    return {
        "input_ids": torch.randint(5, 200, (batch, length)) * real,
        "attention_mask": real.long(),
        "token_type_ids": ((torch.arange(length) > 3) * real).long(),
        "positions": torch.tensor([1, 4, 14, 25, 27]),
    }


def test_as_published() -> None:
    config = make_model("albert", 200, ("mlm", "sop"), size="tiny").config
    assert config.hidden_act == "gelu_pytorch_tanh"
    assert config.layer_norm_eps == 1e-12
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0, 0)
    assert (config.type_vocab_size, config.max_position_embeddings) == (2, 512)


def test_layers_are_one_and_embeddings_narrow() -> None:
    shared = make_model("albert", 500, ("mlm", "sop"), size="mini", num_hidden_layers=6)
    once = make_model("albert", 500, ("mlm", "sop"), size="mini", num_hidden_layers=1)
    own = make_model("albert", 500, ("mlm", "sop"), size="mini", num_hidden_groups=4)
    assert count(shared) == count(once)
    layer = 12 * 256**2 + 13 * 256
    assert count(own) == count(shared) + 3 * layer
    assert shared.albert.embeddings.word_embeddings.weight.shape == (500, 128)
    assert {name.split(".")[3] for name in shared.state_dict() if name.startswith(LAYER)} == {"0"}
    with pytest.raises(ValidationError, match="num_hidden_groups: 3 of 2 layers"):
        make_model("albert", 100, ("mlm",), size="tiny", num_hidden_groups=3)


def test_loss_is_transformers_own() -> None:
    """Gathered positions give the loss of AlbertForPreTraining over all of them."""
    model = make_model("albert", 200, ("mlm", "sop"), size="tiny").eval()
    batch = inputs()
    logits = get_family("albert").forward(model, **batch)
    targets, order = torch.tensor([7, 8, 9, 10, 11]), torch.tensor([0, 1, 1])
    ours = cross_entropy(logits["mlm"], targets) + cross_entropy(logits["sop"], order)
    positions = batch.pop("positions")
    labels = torch.full((3 * 12,), -100)
    labels[positions] = targets
    theirs = model(**batch, labels=labels.view(3, 12), sentence_order_label=order).loss
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)


def test_the_order_head_has_no_dropout() -> None:
    """As in the published code; transformers' own forward has finetuning's there."""
    model = make_model("albert", 200, ("mlm", "sop"), size="tiny").train()
    forward = get_family("albert").forward
    first, second = (forward(model, **inputs())["sop"] for _ in range(2))
    assert torch.equal(first, second)


def test_a_saved_folder_loads_with_the_auto_classes(tmp_path: Path) -> None:
    model = make_model("albert", 200, ("mlm", "sop"), size="tiny").eval()
    model.save_pretrained(tmp_path)
    batch = inputs()
    expected = get_family("albert").forward(model, **batch)
    again = get_family("albert")().load(str(tmp_path), ("mlm", "sop")).eval()
    got = get_family("albert").forward(again, **batch)
    assert torch.equal(got["mlm"], expected["mlm"])
    assert torch.equal(got["sop"], expected["sop"])
    positions = batch.pop("positions")
    whole = AutoModelForPreTraining.from_pretrained(tmp_path).eval()(**batch)
    assert torch.allclose(whole.sop_logits, expected["sop"], atol=1e-6)
    for logits in (
        whole.prediction_logits,
        AutoModelForMaskedLM.from_pretrained(tmp_path).eval()(**batch).logits,
    ):
        assert torch.allclose(logits.flatten(0, 1)[positions], expected["mlm"], atol=1e-6)
