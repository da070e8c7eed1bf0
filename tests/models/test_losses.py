"""The loss of an output layer without all its logits, against PyTorch's and transformers' own."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from plmctl.arrays import IGNORE
from plmctl.corpus.store import TokenStore
from plmctl.families.base import get_family
from plmctl.models import losses as projection
from plmctl.models.fast.attention import use_unread_masks
from plmctl.models.losses import (
    Projection,
    cross_entropy_and_z,
    cross_entropy_sums,
    distilled_sums,
    sums_with_penalty,
)
from plmctl.models.network import Network
from plmctl.training.data import StepBatches
from plmctl.training.plan import Slicing
from tests.training.conftest import store as store
from tests.training.test_checkpointed_activations import CASES, network_of, step_of

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


@pytest.fixture(params=[CLASSES, 64], ids=["as they are", "64 wide"])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The products as they are, and as a GPU has them."""
    monkeypatch.setattr(projection, "_width", lambda *_: request.param)


def test_a_gpu_has_products_whose_rows_are_aligned() -> None:
    assert projection._width(50_257, "cuda", torch.bfloat16) == 50_304
    assert projection._width(32_128, "cuda", torch.bfloat16) == 32_128
    assert projection._width(50_257, "cuda", torch.float32) == 50_257
    assert projection._width(50_257, "cpu", torch.bfloat16) == 50_257


@pytest.mark.usefixtures("in_pieces", "width")
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


@pytest.mark.usefixtures("in_pieces", "width")
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
@pytest.mark.parametrize("rows", [1, 7, 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_divergence_and_its_gradient_are_pytorchs(rows: int, dtype: torch.dtype) -> None:
    """Both terms, each with a factor of its own, as the step divides each by its own count."""
    torch.manual_seed(rows)
    student, teacher = (4 * torch.randn(rows, CLASSES) for _ in range(2))
    student = student.to(dtype).requires_grad_()
    targets = torch.randint(CLASSES, (rows,))
    targets[::4] = IGNORE
    compared = torch.arange(rows) % 3 != 1
    seen: list[int] = []

    def some_rows(some: slice) -> Tensor:
        seen.append(len(teacher[some]))
        return teacher[some]

    ours = distilled_sums(student, some_rows, targets, compared, 2.0)
    expected = (
        cross_entropy(student.float(), targets, ignore_index=IGNORE, reduction="sum"),
        kl_div(
            (student.float()[compared] / 2).log_softmax(-1),
            (teacher[compared] / 2).softmax(-1),
            reduction="sum",
        ),
    )
    assert max(seen) <= 7
    assert sum(seen) == rows
    gradients = []
    for entropy, divergence in (ours, expected):
        gradients += torch.autograd.grad(0.3 * entropy + 7 * divergence, student)
    torch.testing.assert_close(torch.stack(ours), torch.stack(expected))
    torch.testing.assert_close(*gradients)


@pytest.mark.usefixtures("in_pieces", "width")
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
    network = Network(model, get_family("gpt2").forward)

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


# Nothing in a forward, a loss or a backward asks a device what is in a tensor.
#
# On a GPU such a question makes the host wait for all that it has given the device to do. The meta
# device stands in for one: its tensors have no data, so that the question itself is an error, and
# so is a tensor that was left on the CPU.


META = torch.device("meta")


@pytest.fixture
def unseen() -> Iterator[None]:
    use_unread_masks()
    yield
    AttentionMaskInterface.register("sdpa", sdpa_mask)


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("width", [None, 48])
@pytest.mark.parametrize("case", CASES)
def test_a_step_never_waits(case: str, width: int | None, store: TokenStore) -> None:
    family, objective, fields, options = CASES[case]
    network, step = network_of(family, objective, fields), step_of(objective, options, store)
    network.to(META).train()
    batch = StepBatches(step, Slicing(16, 16, width=width), 7)[0][0]
    losses = step.loss(network, batch.to(META))
    torch.stack([losses[part] for part in step.loss_terms]).sum().backward()
    assert set(losses) == set(step.loss_terms)
    # All the way down; moving a model to this device unties what shares its weights.
    assert sum(parameter.grad is None for parameter in network.parameters()) <= 1


def test_the_meta_device_would_tell(store: TokenStore) -> None:
    """transformers' own masks do wait."""
    network, step = network_of("bert", "mlm", CASES["bert"][2]), step_of("mlm", {}, store)
    batch = StepBatches(step, Slicing(16, 16), 7)[0][0]
    with pytest.raises(RuntimeError, match="meta"):
        step.loss(network.to(META), batch.to(META))


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("case", ["bert", "t5"])
def test_masks_without_looking_are_the_same(case: str, store: TokenStore) -> None:
    family, objective, fields, options = CASES[case]
    network, step = network_of(family, objective, fields).eval(), step_of(objective, options, store)
    (batch,) = StepBatches(step, Slicing(16, 16), 7)[0]
    losses = step.loss(network, batch)
    AttentionMaskInterface.register("sdpa", sdpa_mask)
    for part, loss in step.loss(network, batch).items():
        torch.testing.assert_close(losses[part], loss, rtol=1e-6, atol=0)


@pytest.mark.parametrize("attention", ["sdpa", "plmctl_cpu"])
@pytest.mark.parametrize("options", [{}, {"attention": "within"}])
def test_gpt2s_masks_are_transformers_own(
    attention: str, options: dict[str, Any], store: TokenStore
) -> None:
    from transformers import GPT2LMHeadModel

    network, step = (
        network_of("gpt2", "clm", CASES["gpt2"][2]).eval(),
        step_of("clm", options, store),
    )
    (batch,) = StepBatches(step, Slicing(16, 16), 7)[0]
    model = network.model
    assert isinstance(model, GPT2LMHeadModel)
    for weight in model.parameters():
        weight.data.mul_(4)  # sharp attention: a wrong mask shows
    model.set_attn_implementation("eager")
    expected = model(**batch.inputs, use_cache=False).logits
    model.set_attn_implementation(attention)
    torch.testing.assert_close(network(**batch.inputs)["lm"], expected, rtol=1e-4, atol=1e-4)


class _Watched(TorchDispatchMode):
    """Notes what would need data on the host."""

    waits = (
        torch.ops.aten._local_scalar_dense.default,
        torch.ops.aten.nonzero.default,
        torch.ops.aten.masked_select.default,
        torch.ops.aten.bincount.default,
    )

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.waits or (
            func is torch.ops.aten.index.Tensor
            and any(index is not None and index.dtype == torch.bool for index in args[1])
        ):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


def test_the_loss_in_pieces_never_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projection, "_WORTH_IT", 0)
    monkeypatch.setattr(projection, "_FEWEST_ROWS", 7)
    layer, hidden = nn.Linear(8, 20), torch.randn(30, 8, requires_grad=True)
    targets = torch.randint(20, (30,))
    targets[::3] = IGNORE
    with _Watched() as watched:
        cross_entropy_sums({"lm": Projection(hidden, layer)}, {"lm": targets})["lm"].backward()
    assert watched.seen == []
    with _Watched() as watched:  # it would notice
        taken: Tensor = hidden.detach()[targets != IGNORE].sum()
        assert float(taken) != 0
    assert len(watched.seen) == 2
