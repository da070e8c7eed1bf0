"""The loss of an output layer without all its logits, against PyTorch's and transformers' own."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import GPT2Config, GPT2LMHeadModel

from plmctl.families.gpt2 import Gpt2
from plmctl.models import losses as projection
from plmctl.models.batch import IGNORE
from plmctl.models.losses import (
    Projection,
    cross_entropy_and_z,
    cross_entropy_sums,
    sums_with_penalty,
)
from plmctl.models.network import Network

WIDTH, CLASSES = 12, 50


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never all the logits, and pieces that do not divide the rows."""
    monkeypatch.setattr(projection, "_WORTH_IT", 0)
    monkeypatch.setattr(projection, "_FEWEST_ROWS", 7)


def case(rows: int, *, bias: bool) -> tuple[Tensor, nn.Linear, Tensor]:
    torch.manual_seed(rows)
    layer = nn.Linear(WIDTH, CLASSES, bias=bias).double()
    hidden = (3 * torch.randn(rows, WIDTH, dtype=torch.double)).requires_grad_()
    targets = torch.randint(CLASSES, (rows,))
    targets[::4] = IGNORE
    return hidden, layer, targets


def gradients(loss: Tensor, hidden: Tensor, layer: nn.Linear) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [hidden, *layer.parameters()]))


@pytest.mark.usefixtures("in_pieces")
@pytest.mark.parametrize("rows", [1, 12, 13, 100])
@pytest.mark.parametrize("bias", [True, False])
def test_loss_and_gradients_are_pytorchs(rows: int, bias: bool) -> None:
    hidden, layer, targets = case(rows, bias=bias)
    scale = 0.37  # of the counts that the loop divides by
    sums = cross_entropy_sums({"lm": Projection(hidden, layer)}, {"lm": targets})
    expected = cross_entropy(layer(hidden), targets, reduction="sum", ignore_index=IGNORE)
    torch.testing.assert_close(sums["lm"], expected, rtol=1e-6, atol=0)
    actual = gradients(scale * sums["lm"], hidden, layer)
    for ours, theirs in zip(actual, gradients(scale * expected, hidden, layer), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("in_pieces")
def test_the_penalty_and_its_gradient() -> None:
    hidden, layer, _ = case(40, bias=False)
    targets = torch.randint(CLASSES, (40,))
    sums = sums_with_penalty(Projection(hidden, layer), targets, 0.01)
    expected = cross_entropy_and_z(layer(hidden), targets, 0.01)
    torch.testing.assert_close(sums, expected, rtol=1e-5, atol=0, check_dtype=False)
    ours = gradients(sums[0] + sums[1], hidden, layer)
    for gradient, reference in zip(ours, gradients(sum(expected), hidden, layer), strict=True):
        torch.testing.assert_close(gradient, reference, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("in_pieces")
def test_a_second_backward_is_refused() -> None:
    hidden, layer, targets = case(20, bias=True)
    loss = Projection(hidden, layer).losses(targets)[0]
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace operation"):
        loss.backward()


@pytest.mark.usefixtures("in_pieces")
def test_autocast_is_followed() -> None:
    hidden, layer, targets = case(64, bias=True)
    hidden, layer = hidden.detach().float().requires_grad_(), layer.float()
    with torch.autocast("cpu", torch.bfloat16):
        ours = Projection(hidden, layer).losses(targets)[0]
        theirs = cross_entropy(layer(hidden).float(), targets, reduction="sum", ignore_index=IGNORE)
    exact = cross_entropy(layer(hidden), targets, reduction="sum", ignore_index=IGNORE)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    assert float((ours - exact).detach().abs()) > 1e-5  # it is bf16 indeed
    for gradient, other in zip(
        gradients(ours, hidden, layer), gradients(theirs, hidden, layer), strict=True
    ):
        assert gradient.dtype == torch.float32
        torch.testing.assert_close(gradient, other, rtol=3e-2, atol=3e-2)


def test_a_layer_that_computes_more_keeps_its_logits(in_pieces: None) -> None:
    class Adapted(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) + 1

    hidden = torch.randn(30, WIDTH)
    assert not Projection(hidden, Adapted(WIDTH, CLASSES)).is_large
    assert Projection(hidden, nn.Linear(WIDTH, CLASSES)).is_large


@pytest.mark.usefixtures("in_pieces")
def test_a_network_gives_the_loss_that_transformers_gives() -> None:
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=CLASSES, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=1, eos_token_id=1,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    ids = torch.arange(36).reshape(3, 12) * 7 % CLASSES
    labels = ids.clone()
    labels[1, 5:] = IGNORE
    targets = torch.cat([labels[:, 1:], torch.full((3, 1), IGNORE)], dim=1)
    network = Network(model, Gpt2.forward)

    def outcome(loss: Tensor) -> tuple[Tensor, list[Tensor]]:
        model.zero_grad()
        loss.backward()
        return loss.detach(), [p.grad.clone() for p in model.parameters() if p.grad is not None]

    num_targets = int((targets != IGNORE).sum())
    ours = outcome(network(loss_on={"lm": targets}, input_ids=ids)["lm"] / num_targets)
    whole: Any = model(input_ids=ids, labels=labels)
    torch.testing.assert_close(ours, outcome(whole.loss), rtol=1e-5, atol=1e-7)


@pytest.mark.usefixtures("in_pieces")
def test_the_logits_are_never_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    widest = 0
    library_linear = torch.nn.functional.linear

    def watched(*inputs: Tensor) -> Tensor:
        nonlocal widest
        out = library_linear(*inputs)
        widest = max(widest, out.shape[0])
        return out

    monkeypatch.setattr(projection, "linear", watched)
    hidden, layer, targets = case(100, bias=False)
    Projection(hidden, layer).losses(targets)[0].backward()
    assert widest == WIDTH  # rows at a time: as many as the width
