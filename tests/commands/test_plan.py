"""``plmctl plan``: against published sizes, PyTorch's own counts, and what a run then writes."""

import json
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from plmctl import registry
from plmctl.commands.plan import costs, state_memory
from plmctl.families.base import get_family
from plmctl.objectives.base import get_objective
from plmctl.run.configs import load
from plmctl.run.costs import Sizes, flops_per_token, sizes_of
from plmctl.run.preflight import check_network, stand_in
from tests.commands.conftest import run_main


def outline(family: str, objective: str, vocab_size: int, **fields: object) -> object:
    config = registry.load("families", family).Config(family=family, **fields)
    parts = get_objective(objective).LOSS_TERMS
    with torch.device("meta"):
        return get_family(family).build(config, vocab_size=vocab_size, pad_id=0, loss_terms=parts)


def test_gpt2_small_is_as_published() -> None:
    sizes = sizes_of(outline("gpt2", "clm", 50257, size="small"), 50257)
    assert sizes.parameters == 124_439_808
    # 6 N = 0.742 GFLOP without the table of positions, and 0.113 of attention at 1,024 positions.
    assert flops_per_token(sizes, 1024) == 6 * (124_439_808 - 1024 * 768) + 12 * 12 * 768 * 1024


def test_layers_that_share_weights_work_all_the_same() -> None:
    sizes = sizes_of(outline("albert", "mlm+sop", 30000, size="base"), 30000)
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
    config = registry.load("families", family).Config(family=family, **fields)
    parts = get_objective(objective).LOSS_TERMS
    model = get_family(family).build(config, vocab_size=1000, pad_id=0, loss_terms=parts)
    model.set_attn_implementation("eager")
    ids = torch.randint(1, 1000, (2, 64))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids).loss.backward()
    expected = flops_per_token(sizes_of(model, 1000), 64) * ids.numel()
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.03)


def test_two_stacks_share_the_tokens() -> None:
    sizes = Sizes(100, 100, 0, 10, 0, 2, two_stacks=True)
    assert flops_per_token(sizes, 8, 0.5) == 6 * 40 + 0.5 * (6 * 40 + 6 * 20)


def test_memory_of_adamw_is_exact() -> None:
    layer = torch.nn.Linear(7, 5)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(7)).sum().backward()
    optimizer.step()
    held = [t for s in optimizer.state.values() for t in s.values() if t.ndim]
    sizes = Sizes(40, 40, 0, 5, 0, 5, two_stacks=False)
    assert state_memory(sizes, "adamw", mixed=False)["optimizer"] == sum(t.nbytes for t in held)


def test_what_a_run_then_has(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    settings = ["run=planned", "train.phases=[{seq_len: 32, steps: 4}]", "checkpoint.every=2"]
    settings += ["train.batch_size=8", "compute.device=cpu", "log.every=1"]
    assert run_main("prepare", "bert.yaml", *settings) == 0
    capfd.readouterr()
    assert run_main("plan", "bert.yaml", *settings, "--measure", "--json") == 0
    figures = json.loads(capfd.readouterr().out)
    assert not Path("planned").exists()
    assert figures["tokens"] == 8 * 32 * 4
    assert figures["seconds"] > 0
    assert run_main("plan", "bert.yaml", *settings) == 0
    assert "add --measure" in capfd.readouterr().out
    assert run_main("plan", "bert.yaml", *settings, "train.average.name=ema", "--json") == 0
    averaged = json.loads(capfd.readouterr().out)
    more = 4 * figures["parameters"]
    assert averaged["checkpoint"] == figures["checkpoint"] + more
    assert averaged["memory"]["total"] == figures["memory"]["total"] + more
    assert run_main("pretrain", "bert.yaml", *settings) == 0
    saved = sum(p.stat().st_size for p in Path("planned/checkpoints/step-000004").iterdir())
    assert figures["checkpoint"] == pytest.approx(saved, rel=0.25)  # of a network of 50 kB
    checkpoints = sum(1 for _ in Path("planned/checkpoints").glob("step-*"))
    assert checkpoints == 2
    assert figures["disk"] == checkpoints * figures["checkpoint"] + 4 * figures["parameters"]


def test_without_a_tokenizer(world: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert run_main("plan", "bert.yaml", "tokenizer=nowhere/here/at/all") == 2
    assert "--vocab-size" in capfd.readouterr().err
    config = load("pretrain", "bert.yaml", ["tokenizer=nowhere/here/at/all"])
    vocab = stand_in(300)
    assert costs(config, vocab, check_network(config, vocab))["passes"] is None
    assert run_main("plan", "bert.yaml", "--vocab-size", "300", "--measure") == 2
