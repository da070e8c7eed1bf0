"""Processes with parts of every tensor do what processes with whole ones do."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from plmctl import registry
from plmctl.config.sections import AverageConfig, ComputeConfig, LaunchConfig
from plmctl.corpus.store import TokenStore
from plmctl.errors import Preempted
from plmctl.models.network import Network
from plmctl.models.sharding import gathered, is_sharded
from plmctl.objectives.base import get_objective
from plmctl.tokenization.load import Vocab
from plmctl.training.average import Averaging
from plmctl.training.checkpoint import Checkpoints, restore, snapshot
from plmctl.training.data import StepBatches
from plmctl.training.distributed import gathered_weights
from plmctl.training.engine import Engine, make_accelerator, make_engine
from plmctl.training.journal import Journal
from plmctl.training.loop import take_step, train
from plmctl.training.plan import Plan, Slicing
from tests.builders import make_examples, make_network, random_documents
from tests.processes import in_two_processes
from tests.tasks.conftest import Folder
from tests.tasks.conftest import folder as model_folder  # noqa: F401  # a fixture
from tests.tasks.test_losses import make_case
from tests.training.conftest import VOCAB, nothing, tiny_network, tiny_plan


def network_of(objective: str, dropout: float = 0.0) -> Network:
    """Tiny; the causal one has matrices that Adafactor factors."""
    if objective != "clm" or dropout:
        return tiny_network(objective, dropout=dropout)
    fields = {"n_layer": 2, "n_embd": 128, "n_head": 2, "n_positions": 64}
    fields |= {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    return make_network("gpt2", VOCAB.size, ("lm",), size="tiny", **fields)


def engine_of(network: Network, optimizer: str, strategy: str, **compute: object) -> Engine:
    config = ComputeConfig(device="cpu", **compute)
    optim = registry.load("optimizers", optimizer).Config(name=optimizer, lr=0.01)
    sharded = strategy == "fsdp"
    averaging = Averaging(AverageConfig(name="ema", decay=0.9, every=1), 6)
    return make_engine(
        make_accelerator(config), network, optim, config, sharded=sharded, averaging=averaging
    )


def plan_of(objective: str, store: TokenStore, rank: int) -> Plan:
    """Seven rows one at a time: four forwards in one process, and three in the other."""
    plan = tiny_plan(objective, store, steps=(6,), batch=7, micro=1, save_every=2)
    (phase,) = plan.phases
    return replace(
        plan, phases=(replace(phase, slicing=replace(phase.slicing, rank=rank, world=2)),)
    )


def _as_whole(
    folder: Path, store: TokenStore, objective: str, optimizer: str, compute: dict, rank: int
) -> None:
    (phase,) = plan_of(objective, store, rank).phases
    batches = StepBatches(phase.examples, phase.slicing, 7)
    assert len(batches[0]) == 4 - rank
    build = partial(engine_of, optimizer=optimizer, **compute)
    alike, parts = (build(network_of(objective), strategy=name) for name in ("ddp", "fsdp"))
    assert is_sharded(parts.network)
    assert not is_sharded(alike.network)
    total = sum(p.numel() for p in parts.network.parameters())
    mine = sum(p.to_local().numel() for p in parts.network.parameters())
    assert mine < 0.55 * total

    def both(number: int, one: Engine, other: Engine) -> None:
        a, b = (
            take_step(engine, phase.examples, batches[number], 1.0, number)
            for engine in (one, other)
        )
        assert a.losses == pytest.approx(b.losses, rel=1e-5)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-5)

    for number in range(3):
        both(number, alike, parts)
        with gathered_weights(parts.network):  # one of them alone: nobody waits for the other
            if rank == 0:
                phase.examples.loss(parts.network, batches[number][0])
    state, expected = (
        snapshot(parts.trained(), 3, {}, kept=rank == 0),
        snapshot(alike.trained(), 3, {}),
    )
    if rank == 0:
        for actual, wanted in (
            (state.model, expected.model),
            (state.optimizer, expected.optimizer),
        ):
            assert actual.keys() == wanted.keys()
            for name, value in wanted.items():
                # The gradient of keys' biases is rounding, which Adafactor makes large.
                torch.testing.assert_close(actual[name], value, rtol=1e-3, atol=1e-4)
        Checkpoints(folder, 3).write(state)
    else:
        assert not state.model
        assert not state.optimizer
    parts.accelerator.wait_for_everyone()

    again, unwrapped = (build(network_of(objective), strategy=name) for name in ("fsdp", "ddp"))
    for engine in (again, unwrapped):
        restore(folder / "step-000003", engine.trained())
    both(3, parts, again)
    for one, other in zip(parts.network.parameters(), again.network.parameters(), strict=True):
        assert torch.equal(gathered(one), gathered(other))
    both(3, unwrapped, alike)


@pytest.mark.parametrize(
    ("objective", "optimizer", "compute"),
    [
        ("mlm+nsp", "adamw", {"checkpoint_activations": True}),
        pytest.param("mlm+sop", "lamb", {}, marks=pytest.mark.slow),
        pytest.param("clm", "adafactor", {}, marks=pytest.mark.slow),
        pytest.param("clm", "adagrad", {}, marks=pytest.mark.slow),
    ],
)
def test_updates_and_checkpoints_are_those_of_whole_weights(
    store: TokenStore, tmp_path: Path, objective: str, optimizer: str, compute: dict
) -> None:
    """Losses, norms, states; and a checkpoint of one goes on as the other, or to the last bit."""
    in_two_processes(partial(_as_whole, tmp_path, store, objective, optimizer, compute), tmp_path)


def _rounded(store: TokenStore, rank: int) -> None:
    (phase,) = plan_of("mlm+nsp", store, rank).phases
    batches = StepBatches(phase.examples, phase.slicing, 7)
    build = partial(engine_of, optimizer="adamw", strategy="fsdp", precision="bf16")
    whole, rounded = (build(network_of("mlm+nsp"), gather=name) for name in ("fp32", "bf16"))
    for number in range(3):
        a, b = (
            take_step(engine, phase.examples, batches[number], 1.0, number)
            for engine in (whole, rounded)
        )
        assert a.losses == pytest.approx(b.losses, rel=2e-3)
        assert a.losses != b.losses
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=2e-2)
    with gathered_weights(rounded.network):
        assert {p.dtype for p in rounded.network.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in rounded.network.parameters()} == {torch.float32}
    assert all(
        p.grad is None or p.grad.dtype == torch.float32 for p in rounded.network.parameters()
    )


def test_gathering_in_bf16_rounds_and_sums_gradients_in_float32(
    store: TokenStore, tmp_path: Path
) -> None:
    in_two_processes(partial(_rounded, store), tmp_path)


def _two_networks(objective: str, fields: dict, rank: int) -> None:
    store = TokenStore.from_lists(random_documents(40), vocab_size=120)
    vocab = Vocab(size=120, pad=0, unk=1, cls=2, sep=3, mask=4)
    examples = make_examples(objective, store, vocab, 32)
    off = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0)
    options = {"size": "tiny", "hidden_size": 64, "num_attention_heads": 2, **off, **fields}
    terms = get_objective(objective).LOSS_TERMS
    engines = [
        engine_of(make_network("deberta", 120, terms, **options), "adamw", strategy)
        for strategy in ("ddp", "fsdp")
    ]
    source = StepBatches(examples, Slicing(7, 1, rank, 2), 7)
    for number in range(3):
        a, b = (take_step(one, examples, source[number], 1.0, number) for one in engines)
        assert a.losses == pytest.approx(b.losses, rel=1e-5)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "fields"),
    [("mlm", {}), ("mlm+rtd", {}), ("mlm+rtd", {"embedding_sharing": "shared"})],
)
def test_layers_that_are_used_twice_and_tables_of_two_networks(
    tmp_path: Path, objective: str, fields: dict
) -> None:
    in_two_processes(partial(_two_networks, objective, fields), tmp_path)


def _mixed(folder: Path, model: str, rank: int) -> None:
    """A head with a parameter without an axis; its checkpoints are those of whole weights."""
    examples, _ = make_case("tagging", {"tokens": "a", "scheme": "pos", "layers": "mix"}, model)
    source = StepBatches(examples, Slicing(8, 2, rank, 2), 7)

    def made(strategy: str) -> Engine:
        _, network = make_case("tagging", {"tokens": "a", "scheme": "pos", "layers": "mix"}, model)
        engine = engine_of(network, "adamw", strategy)
        engine.network.train()
        return engine

    alike, parts = (made(name) for name in ("ddp", "fsdp"))
    for number in range(3):
        a, b = (take_step(e, examples, source[number], 1.0, number) for e in (alike, parts))
        assert a.losses == pytest.approx(b.losses, rel=1e-5)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-5)
    for number, engine in enumerate((alike, parts)):
        state = snapshot(engine.trained(), 3 + number, {}, kept=rank == 0)
        if rank == 0:
            Checkpoints(folder, 3).write(state)
    alike.accelerator.wait_for_everyone()
    expected = take_step(alike, examples, source[3], 1.0, 3).loss
    for one, other in (("ddp", "step-000004"), ("fsdp", "step-000003")):
        engine = made(one)
        restore(folder / other, engine.trained())
        again = take_step(engine, examples, source[3], 1.0, 3)
        assert again.loss == pytest.approx(expected, rel=1e-5)
        assert gathered(engine.trained().network.mix.gamma).item() != 1


@pytest.mark.slow
def test_parameters_that_are_single_numbers(
    tmp_path: Path,
    model_folder: Folder,  # noqa: F811
) -> None:
    """Each kind of run goes on from a checkpoint of the other."""
    in_two_processes(partial(_mixed, tmp_path, model_folder("bert")), tmp_path)


def _compiled(store: TokenStore, objective: str, rank: int) -> None:
    (phase,) = plan_of(objective, store, rank).phases
    batches = StepBatches(phase.examples, phase.slicing, 7)
    alike = engine_of(network_of(objective), "adamw", "ddp")
    parts = engine_of(network_of(objective), "adamw", "fsdp", compile=True)
    assert parts.accelerator.unwrap_model(parts.network).compiled
    before = dict(alike.trained().network.named_parameters()).keys()
    assert dict(parts.trained().network.named_parameters()).keys() == before
    compiled = torch._dynamo.utils.counters["stats"]
    for number in range(2):
        a, b = (
            take_step(engine, phase.examples, batches[number], 1.0, number)
            for engine in (alike, parts)
        )
        assert a.losses == pytest.approx(b.losses, rel=1e-5)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-5)
        assert compiled["unique_graphs"] > 0
    graphs = compiled["unique_graphs"]
    take_step(parts, phase.examples, batches[1], 1.0, 1)
    assert compiled["unique_graphs"] == graphs
    with gathered_weights(parts.network), torch.no_grad():  # validation compiles nothing
        parts.network.eval()
        phase.examples.loss(parts.network, batches[2][0])
    assert compiled["unique_graphs"] == graphs


@pytest.mark.slow
@pytest.mark.parametrize("objective", [pytest.param("mlm+nsp", marks=pytest.mark.sweep), "mlm+sop"])
def test_compiled_layers_have_the_losses_of_whole_weights(
    store: TokenStore, tmp_path: Path, objective: str
) -> None:
    in_two_processes(partial(_compiled, store, objective), tmp_path)


def _in_pieces(folder: Path, store: TokenStore, rank: int) -> None:
    for name, stops in (("once", [None]), ("pieces", [3, None])):
        run = folder / name
        run.mkdir(exist_ok=True)
        for until in stops:
            engine = engine_of(network_of("clm", dropout=0.1), "adamw", "fsdp")
            plan = replace(plan_of("clm", store, rank), until=until, async_save=True)
            with (
                suppress(Preempted),
                Journal(run, title="t", total_steps=6, trackers=(), quiet=rank > 0) as journal,
            ):
                train(engine, plan, Checkpoints(run / "checkpoints", 3), journal, nothing)
    before = [gathered(p.detach()).clone() for p in engine.network.parameters()]
    averages = [gathered(value) for value in engine.trained().average.values.values()]
    with engine.averaged(6), gathered_weights(engine.network):
        for parameter, average in zip(engine.network.parameters(), averages, strict=True):
            assert torch.equal(gathered(parameter.detach()), average)
    for parameter, weights in zip(engine.network.parameters(), before, strict=True):
        assert torch.equal(gathered(parameter.detach()), weights)


def test_an_interrupted_run_is_the_uninterrupted_one(store: TokenStore, tmp_path: Path) -> None:
    in_two_processes(partial(_in_pieces, tmp_path, store), tmp_path)
    once, pieces = (tmp_path / name / "checkpoints" / "step-000006" for name in ("once", "pieces"))
    for name in ("model.safetensors", "optimizer.safetensors", "average.safetensors"):
        assert (once / name).read_bytes() == (pieces / name).read_bytes()
    assert (tmp_path / "pieces" / "checkpoints" / "step-000003").is_dir()


def test_one_process_has_nothing_to_share() -> None:
    assert LaunchConfig(strategy="fsdp").shards(2)
    assert not LaunchConfig(strategy="fsdp").shards(1)
    assert not LaunchConfig().shards(2)
