"""Each optimizer against its published formula in float64; resumed bit for bit."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from plmctl import registry
from plmctl.config.base import OptimizerConfig
from plmctl.corpus.store import TokenStore
from plmctl.errors import Preempted
from plmctl.optimizers._muon import orthogonal
from plmctl.training.checkpoint import Checkpoints, Trained, restore
from plmctl.training.engine import make_optimizer
from tests.builders import cpu_engine, stopping_at
from tests.training.conftest import Train, tiny_network, tiny_plan, weights

NAMES = registry.names("optimizers")
VARIANTS = [(name, {}) for name in NAMES] + [
    ("adamw", {"bias_correction": False}),
    ("adamw", {"decay": "all"}),
    ("lamb", {"bias_correction": True}),
]
LR = 0.05


def config(name: str, **fields: object) -> OptimizerConfig:
    options: OptimizerConfig = registry.load("optimizers", name).Config(name=name, **fields)
    return options


class Small(nn.Module):
    """A matrix, a vector, and a matrix large enough for Adafactor to factor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.matrix = nn.Parameter(torch.randn(5, 3))
        self.bias = nn.Parameter(torch.randn(4))
        self.large = nn.Parameter(torch.randn(128, 130) * 0.1)


Rule = Callable[[np.ndarray, np.ndarray, dict, int], np.ndarray]


def rms(x: np.ndarray) -> float:
    return float(np.sqrt((x**2).mean()))


def moments(p: np.ndarray, g: np.ndarray, s: dict, t: int, *, correct: bool, lamb: bool):
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
    m, v = s["m"], s["v"]
    if correct:
        m, v = m / (1 - 0.9**t), v / (1 - 0.999**t)
    u = m / (np.sqrt(v) + 1e-6) + (0.1 if p.ndim >= 2 else 0) * p
    ratio = np.linalg.norm(p) / np.linalg.norm(u) if lamb and p.ndim >= 2 else 1
    return p - LR * ratio * u


def gpt1(p: np.ndarray, g: np.ndarray, s: dict, t: int) -> np.ndarray:
    """openai/finetune-transformer-lm, opt.py: the rate is corrected, for the decay too."""
    rate = LR * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
    s["m"] = 0.9 * s.get("m", 0) + (1 - 0.9) * g
    s["v"] = 0.999 * s.get("v", 0) + (1 - 0.999) * g * g
    decay = 0.1 * p if p.ndim > 1 else 0
    return p - rate * (s["m"] / (np.sqrt(s["v"]) + 1e-8) + decay)


def adagrad(p: np.ndarray, g: np.ndarray, s: dict, t: int) -> np.ndarray:
    s["sum"] = s.get("sum", 1.0) + g * g
    return p - LR * g / np.sqrt(s["sum"])


def adafactor(p: np.ndarray, g: np.ndarray, s: dict, t: int) -> np.ndarray:
    beta, square = 1 - t**-0.8, g * g + 1e-30
    if p.ndim == 2 and min(p.shape) >= 128:
        s["r"] = beta * s.get("r", 0) + (1 - beta) * square.mean(1)
        s["c"] = beta * s.get("c", 0) + (1 - beta) * square.mean(0)
        v = np.outer(s["r"], s["c"]) / s["r"].mean()
    else:
        v = s["v"] = beta * s.get("v", 0) + (1 - beta) * square
    u = g / np.sqrt(v)
    return p - LR * max(1e-3, rms(p)) * u / max(1.0, rms(u))


def stable(p: np.ndarray, g: np.ndarray, s: dict, t: int) -> np.ndarray:
    """The paper's algorithm 2; a decay that the rate does not multiply."""
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.98 * s.get("v", 0) + 0.02 * g * g
    m, v = s["m"] / (1 - 0.9**t), s["v"] / (1 - 0.98**t)
    rate = LR / max(1.0, rms(g / np.sqrt(np.maximum(v, 1e-12))))
    return p * (1 - (0.001 if p.ndim >= 2 else 0)) - rate * m / (np.sqrt(v) + 1e-6)


CASES: dict[str, tuple[OptimizerConfig, Rule]] = {
    "adamw": (
        config("adamw", lr=LR, weight_decay=0.1),
        lambda *a: moments(*a, correct=True, lamb=False),
    ),
    "bert": (
        config("adamw", lr=LR, weight_decay=0.1, bias_correction=False),
        lambda *a: moments(*a, correct=False, lamb=False),
    ),
    "gpt1": (config("adamw", lr=LR, weight_decay=0.1, bias_correction="rate", eps=1e-8), gpt1),
    "lamb": (
        config("lamb", lr=LR, weight_decay=0.1),
        lambda *a: moments(*a, correct=False, lamb=True),
    ),
    "lamb-paper": (
        config("lamb", lr=LR, weight_decay=0.1, bias_correction=True),
        lambda *a: moments(*a, correct=True, lamb=True),
    ),
    "adagrad": (config("adagrad", lr=LR), adagrad),
    "stable_adamw": (config("stable_adamw", lr=LR, weight_decay=0.001), stable),
    "adafactor": (config("adafactor", lr=LR), adafactor),
}


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_updates_are_those_of_the_formula(case: str, on_gpu: bool) -> None:
    """In float64: three of them closely, and after a hundred by the distance that was covered."""
    settings, rule = CASES[case]
    network, rng = Small(), np.random.default_rng(0)
    optimizer = make_optimizer(settings, network, fused=on_gpu)
    expected = {n: p.detach().double().numpy() for n, p in network.named_parameters()}
    start, states = expected.copy(), {name: dict[str, object]() for name in expected}
    for t in range(1, 101):
        for name, parameter in network.named_parameters():
            gradient = rng.normal(size=parameter.shape)
            if name == "bias":
                gradient *= 30  # what clips Adafactor's update at t > 1
            parameter.grad = torch.tensor(gradient, dtype=torch.float32)
            expected[name] = rule(expected[name], gradient, states[name], t)
        optimizer.step()
        for name, parameter in network.named_parameters():
            now, wanted = parameter.detach().numpy(), expected[name]
            if t <= 3:
                np.testing.assert_allclose(now, wanted, rtol=2e-5, atol=2e-6)
            covered = np.linalg.norm(wanted - start[name])
            assert np.linalg.norm(now - wanted) < 1e-4 * covered


def test_without_bias_correction_the_first_update_is_larger_by_the_known_factor() -> None:
    """(1 - 0.9) / sqrt(1 - 0.999) = 3.16 times Adam's, which is the rate itself."""
    network = nn.Linear(1, 1, bias=False)
    before = network.weight.item()
    settings = config("adamw", lr=1e-2, eps=1e-12, weight_decay=0, bias_correction=False)
    optimizer = make_optimizer(settings, network, fused=False)
    network.weight.grad = torch.tensor([[0.3]])
    optimizer.step()
    assert before - network.weight.item() == pytest.approx(0.0316228, rel=1e-4)


def test_lamb_of_zero_weights_has_ratio_one() -> None:
    network = nn.Linear(2, 2, bias=False)
    nn.init.zeros_(network.weight)
    optimizer = make_optimizer(config("lamb", lr=0.1, eps=1e-12), network, fused=False)
    network.weight.grad = torch.ones(2, 2)
    optimizer.step()
    assert network.weight.tolist() == pytest.approx(np.full((2, 2), -0.316228), rel=1e-4)


def muon_matrices(network: nn.Module) -> set[int]:
    """The parameters that are not left to AdamW."""
    groups = make_optimizer(config("muon"), network, fused=False).param_groups
    return {id(p) for group in groups if "pieces" in group for p in group["params"]}


def test_muon_makes_the_update_orthogonal_with_the_size_of_adamw() -> None:
    """Singular values near 0.2 * sqrt(max side) times the rate; the rest is plain AdamW."""
    network = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 24))
    assert muon_matrices(network) == {id(network[1].weight)}
    before = [p.detach().clone() for p in network.parameters()]
    optimizer = make_optimizer(config("muon", lr=0.01, weight_decay=0), network, fused=False)
    for p in network.parameters():
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(1))
    optimizer.step()
    table, matrix, bias = (
        (b - p.detach()) / 0.01 for b, p in zip(before, network.parameters(), strict=True)
    )
    values = torch.linalg.svdvals(matrix) / (0.2 * 24**0.5)
    assert 0.5 < values.min() <= values.max() < 1.5  # what five Newton-Schulz steps promise
    assert torch.allclose(table.abs(), torch.ones(30, 16), atol=1e-3)  # Adam's first: the sign
    assert torch.allclose(bias.abs(), torch.ones(24), atol=1e-3)


@pytest.mark.parametrize("shape", [(24, 24), (24, 96), (96, 24), (24, 30)])
def test_orthogonal_is_five_newton_schulz_steps(shape: tuple[int, int]) -> None:
    """Each singular value goes five times through the polynomial, whichever way X is multiplied."""
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / matrix.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    expected = (left * values @ right).float()
    torch.testing.assert_close(orthogonal(matrix.float()[None])[0], expected, rtol=0, atol=1e-5)


class Fused(nn.Module):
    """Query, key and value side by side, as GPT-2 has them, or each by itself."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        whole = torch.randn(16, 48)
        if fused:
            self.attn = nn.Module()
            self.attn.c_attn = nn.Module()
            self.attn.c_attn.weight = nn.Parameter(whole)
        else:
            self.each = nn.ParameterList(nn.Parameter(m.clone()) for m in whole.chunk(3, dim=1))
        self.bias = nn.Parameter(torch.randn(4))

    def whole(self) -> torch.Tensor:
        return torch.cat([p.detach() for p in self.parameters() if p.ndim == 2], dim=1)


def muon_steps(network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    draws = torch.Generator().manual_seed(1)
    for _ in range(3):
        gradient = torch.randn(16, 48, generator=draws) * torch.logspace(0, -3, 48)
        matrices = [p for p in network.parameters() if p.ndim == 2]
        for p, g in zip(matrices, gradient.chunk(len(matrices), dim=1), strict=True):
            p.grad = g.clone()
        optimizer.step()


def test_muon_splits_the_fused_matrix_of_query_key_and_value() -> None:
    one, three = Fused(fused=True), Fused(fused=False)
    for network in (one, three):
        muon_steps(network, make_optimizer(config("muon", lr=0.01), network, fused=False))
    torch.testing.assert_close(one.whole(), three.whole())


def test_muon_is_that_of_pytorch_which_computes_in_16_bits() -> None:
    ours, theirs = Fused(fused=False), Fused(fused=False)
    before = ours.whole()
    muon_steps(ours, make_optimizer(config("muon", lr=0.01), ours, fused=False))
    settings = {"lr": 0.01, "momentum": 0.95, "weight_decay": 0.1}
    reference = torch.optim.Muon(theirs.each, adjust_lr_fn="match_rms_adamw", **settings)
    muon_steps(theirs, reference)
    change, expected = ours.whole() - before, theirs.whole() - before
    assert (change - expected).norm() < 0.02 * expected.norm()


def test_muon_has_a_learning_rate_for_the_rest() -> None:
    network = nn.Sequential(nn.Embedding(30, 16), nn.Linear(16, 24))
    optimizer = make_optimizer(config("muon", lr=0.01, adamw_lr=0.002), network, fused=False)
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    scales = {
        id(p): group.get("scale", 1.0) for group in optimizer.param_groups for p in group["params"]
    }
    hidden = id(network[1].weight)
    for p in network.parameters():
        assert rates[id(p)] == pytest.approx(0.01 if id(p) == hidden else 0.002)
        assert scales[id(p)] == pytest.approx(1.0 if id(p) == hidden else 0.2)


@pytest.mark.parametrize("objective", ["mlm+nsp", "clm"])
def test_muon_leaves_embeddings_and_heads_to_adamw(objective: str) -> None:
    network = tiny_network(objective)
    hidden = muon_matrices(network)
    for name, p in network.named_parameters():
        layer = (".layer." in name or ".h." in name or "pooler" in name) and p.ndim == 2
        assert (id(p) in hidden) == layer, name


def test_bert_exclusions_are_those_of_its_names() -> None:
    network = tiny_network("mlm+nsp")
    groups = make_optimizer(config("adamw", weight_decay=0.1), network, fused=False).param_groups
    plain = {id(p) for p in groups[1]["params"]}
    for name, p in network.named_parameters():
        assert (id(p) in plain) == any(w in name for w in ("LayerNorm", "bias")), name
    whole = make_optimizer(config("adamw", decay="all"), network, fused=False).param_groups
    assert [g["weight_decay"] for g in whole] == [0.01]


@pytest.mark.parametrize(("name", "fields"), VARIANTS)
def test_an_interrupted_run_is_the_uninterrupted_one(
    name: str, fields: dict, store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    def engine(seed: int):
        network = tiny_network("mlm", seed=seed, dropout=0.1)
        return cpu_engine(network, optimizer=config(name, **fields))

    whole, first, second = engine(0), engine(0), engine(99)
    run_plan(whole, tiny_plan("mlm", store, steps=(6,), micro=8), tmp_path / "whole")
    plan = tiny_plan("mlm", store, steps=(6,), micro=8)
    with pytest.raises(Preempted):
        run_plan(first, stopping_at(2, plan), tmp_path / "cut")
    assert run_plan(second, plan, tmp_path / "cut").step == 6
    reference = weights(whole)
    for key, value in weights(second).items():
        assert torch.equal(value, reference[key]), key


@pytest.mark.parametrize("name", NAMES)
def test_every_state_comes_back(name: str, tmp_path: Path) -> None:
    """What a parameter's state holds after a save and a restore is what it held before."""

    def trained(seed: int) -> Trained:
        network = Small()
        optimizer = make_optimizer(config(name), network, fused=False)
        for t in range(2):
            torch.manual_seed(seed + t)
            for p in network.parameters():
                p.grad = torch.randn_like(p)
            optimizer.step()
        return Trained(network, optimizer)

    before, after = trained(0), trained(10)
    restore(Checkpoints(tmp_path, 1).save(2, before, {}), after)
    for a, b in zip(before.network.parameters(), after.network.parameters(), strict=True):
        state = {k: v for k, v in before.optimizer.state[a].items() if v is not None}
        assert state.keys() == after.optimizer.state[b].keys()
        for field, value in state.items():
            assert torch.equal(
                torch.as_tensor(value), torch.as_tensor(after.optimizer.state[b][field])
            )
