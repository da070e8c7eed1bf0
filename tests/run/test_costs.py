"""What a network costs: against published sizes, PyTorch's own counts, and AdamW's state."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from plmctl.families.base import Sizes, get_family
from plmctl.objectives.base import get_objective
from plmctl.run.costs import flops_per_token, state_memory
from tests.builders import make_model


def outline(family: str, objective: str, vocab_size: int, **fields: object) -> PreTrainedModel:
    with torch.device("meta"):
        return make_model(family, vocab_size, get_objective(objective).LOSS_TERMS, **fields)


def test_gpt2_small_is_as_published() -> None:
    sizes = get_family("gpt2").sizes(outline("gpt2", "clm", 50257, size="small"), 50257)
    assert sizes.parameters == 124_439_808
    # 6 N = 0.742 GFLOP without the table of positions, and 0.113 of attention at 1,024 positions.
    assert flops_per_token(sizes, 1024) == 6 * (124_439_808 - 1024 * 768) + 12 * 12 * 768 * 1024


def test_layers_that_share_weights_work_all_the_same() -> None:
    sizes = get_family("albert").sizes(outline("albert", "mlm+sop", 30000, size="base"), 30000)
    layer = 12 * 768 * 768 + 13 * 768  # attention and feed-forward, with biases and two norms
    assert 12 * layer < sizes.used < 12 * layer + 6_000_000
    assert sizes.parameters < 12_000_000


@pytest.mark.parametrize(
    ("family", "objective", "fields"),
    [
        ("gpt2", "clm", {"size": "mini", "n_positions": 64}),
        ("bert", "mlm", {"size": "mini", "max_position_embeddings": 64}),
    ],
)
def test_arithmetic_is_what_pytorch_counts(
    family: str, objective: str, fields: dict[str, object]
) -> None:
    """Of a whole forward and backward, every head at every position."""
    model = make_model(family, 1000, get_objective(objective).LOSS_TERMS, **fields)
    model.set_attn_implementation("eager")
    ids = torch.randint(1, 1000, (2, 64))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    expected = flops_per_token(get_family(family).sizes(model, 1000), 64) * ids.numel()
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.03)


def test_the_output_matrix_counts_at_targets() -> None:
    """PyTorch's count of BERT's forward and backward with its head at 10 of 64 positions."""
    model = make_model("bert", 1000, ("mlm",), size="mini", max_position_embeddings=64)
    model.set_attn_implementation("eager")
    ids, at = torch.randint(1, 1000, (2, 64)), torch.arange(10)
    with FlopCounterMode(display=False) as counter:
        hidden = model.bert(input_ids=ids).last_hidden_state[:, at]
        model.cls.predictions(hidden).sum().backward()
    sizes = get_family("bert").sizes(model, 1000)
    expected = flops_per_token(sizes, 64, 10 / 64) * ids.numel()
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.03)
    assert expected < 0.95 * flops_per_token(sizes, 64) * ids.numel()


def test_elmo_is_what_pytorch_counts() -> None:
    """Both directions, with every word read once."""
    model = make_model("elmo", 1000, get_objective("bilm").LOSS_TERMS, size="tiny")
    words = torch.arange(64).view(2, 32)
    characters = torch.randint(1, 200, (64, model.config.max_characters))
    with FlopCounterMode(display=False) as counter:
        out = model(characters, torch.stack([words, words.flip(1)]))
        (out.forward_logits.sum() + out.backward_logits.sum()).backward()
    expected = flops_per_token(get_family("elmo").sizes(model, 1000), 32) * words.numel()
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.03)


def test_two_stacks_share_the_tokens() -> None:
    sizes = Sizes(100, 100, 0, 10, 0, 2, 10, two_stacks=True)
    assert flops_per_token(sizes, 8, 0.5) == 6 * 40 + 0.5 * (6 * 40 + 6 * 20)


def test_memory_of_adamw_is_exact() -> None:
    layer = torch.nn.Linear(7, 5)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(7)).sum().backward()
    optimizer.step()
    held = [t for s in optimizer.state.values() for t in s.values() if t.ndim]
    sizes = Sizes(40, 40, 0, 5, 0, 5, 5, two_stacks=False)
    assert state_memory(sizes, "adamw", mixed=False)["optimizer"] == sum(t.nbytes for t in held)
