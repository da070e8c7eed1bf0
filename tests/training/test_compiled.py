"""A compiled network: few compilations, no break in the graph, the same losses and checkpoints."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch._dynamo.utils import counters

from plmctl.config.sections import ComputeConfig
from plmctl.corpus.store import TokenStore
from plmctl.errors import Preempted
from plmctl.evaluation.scoring import score
from plmctl.families.base import get_family
from plmctl.models import losses as projection
from plmctl.models.fast import checkpoint_activations
from plmctl.training.data import StepBatches, scoring_batches
from plmctl.training.engine import Engine, compiles
from plmctl.training.judge import COMPILING, COMPUTING
from plmctl.training.loop import take_step
from plmctl.training.peers import Peers
from plmctl.training.plan import Phase, Plan, Slicing
from tests.builders import cpu_engine
from tests.processes import in_two_processes
from tests.training.conftest import Train, weights
from tests.training.test_checkpointed_activations import CASES as DROPPED
from tests.training.test_checkpointed_activations import network_of, step_of
from tests.training.test_shapes import CASES

ROWS, WIDTH = 16, 48


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    limit = torch._dynamo.config.recompile_limit
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = limit


def engine_of(case: str, backend: Any = None, *, dynamic: bool = False, **compute: Any) -> Engine:
    """An engine; compiled by a backend if there is one."""
    family, objective, fields, _ = CASES.get(case) or DROPPED[case]
    network = network_of(family, objective, fields)
    engine = cpu_engine(network, compile=backend is not None, varying=dynamic, **compute)
    if backend is not None:
        assert network.compiled
        network.compile(backend=backend, dynamic=dynamic)  # not C++, which takes a minute
    network.train()
    return engine


def steps_of(
    case: str, engine: Engine, store: TokenStore, count: int, *, width: int | None = WIDTH
) -> list[float]:
    """The losses of some steps in two micro-batches each."""
    _, objective, _, options = CASES.get(case) or DROPPED[case]
    step, slicing = step_of(objective, options, store), Slicing(ROWS, ROWS // 2, width=width)
    source = StepBatches(step, slicing, 7)
    return [take_step(engine, step, source[n], 1.0, n).loss for n in range(count)]


@pytest.mark.parametrize(
    "case", ["gpt2", *(pytest.param(case, marks=pytest.mark.slow) for case in ("roberta", "t5"))]
)
def test_few_compilations_whole_graphs_and_the_same_losses(case: str, store: TokenStore) -> None:
    counter = CompileCounterWithBackend("eager")
    compiled = steps_of(case, engine_of(case, counter), store, 3)
    assert counters["graph_break"] == {}
    assert counter.frame_count <= (2 if case == "roberta" else 1)  # rows so few differ in targets
    before = counter.frame_count
    steps_of(case, engine_of(case), store, 1)
    assert counter.frame_count == before
    torch._dynamo.reset()
    plain = steps_of(case, engine_of(case), store, 3, width=None)
    assert compiled == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize(
    "case", ["gpt2", *(pytest.param(c, marks=pytest.mark.slow) for c in ("bert", "albert", "t5"))]
)
def test_layers_by_themselves(
    case: str, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Layers of one kind share what is compiled, whatever their number."""
    counter = CompileCounterWithBackend("eager")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    family, objective, fields, _ = CASES.get(case) or DROPPED[case]
    network = network_of(family, objective, fields)
    engine = cpu_engine(network, compile="layers", varying=True)
    assert network.compiled
    compiled = steps_of(case, engine, store, 3)
    assert counters["graph_break"] == {}
    assert counter.frame_count <= (4 if case == "t5" else 2)  # of T5's four kinds of layers
    torch._dynamo.reset()
    plain = steps_of(case, engine_of(case), store, 3, width=None)
    assert compiled == pytest.approx(plain, rel=1e-5)


MORE = ("albert", "spanbert", "distilbert", "gpt1", "t5")


@pytest.mark.parametrize("case", ["bert", *(pytest.param(c, marks=pytest.mark.slow) for c in MORE)])
def test_no_break_in_the_graph(case: str, store: TokenStore) -> None:
    """With dropout, and with layers that are computed twice."""
    counter = CompileCounterWithBackend("eager")
    engine = engine_of(case, counter, checkpoint_activations=True)
    steps_of(case, engine, store, 1)
    assert counter.frame_count > 0
    assert counters["graph_break"] == {}


@pytest.mark.slow
@pytest.mark.parametrize("case", ["roberta", "gpt2", "t5"])
def test_the_loss_in_pieces_is_compiled_too(
    case: str, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(projection, "_WORTH_IT", 0)
    monkeypatch.setattr(projection, "_FEWEST_ROWS", 64)
    compiled = steps_of(case, engine_of(case, "aot_eager"), store, 2)
    assert counters["graph_break"] == {}
    plain = steps_of(case, engine_of(case), store, 2, width=None)
    assert compiled == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("twice", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_compiler_keeps_no_more(
    twice: bool, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of layers that are computed twice, and of a loss in pieces."""
    monkeypatch.setattr(projection, "_WORTH_IT", 0)
    monkeypatch.setattr(projection, "_FEWEST_ROWS", 64)
    step, sizes_of = step_of("clm", {}, store), {}
    (batch,) = StepBatches(step, Slicing(16, 16), 7)[0]

    for backend in (None, "aot_eager"):
        network = network_of("gpt2", "clm", CASES["gpt2"][2]).train()
        if twice:
            checkpoint_activations(network.model)
        if backend is not None:
            network.compile(backend=backend, dynamic=False)
        sizes: dict[int, int] = {}

        def pack(tensor: torch.Tensor, sizes: dict[int, int] = sizes) -> torch.Tensor:
            sizes[tensor.data_ptr()] = tensor.nbytes
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            step.loss(network, batch)
        sizes_of[backend] = sum(sizes.values())
    assert sizes_of["aot_eager"] < 1.1 * sizes_of[None]


@pytest.mark.parametrize(("rows", "large"), [(16, 0), (64, 0), (64, 1 << 24)])
def test_lists_of_any_length_are_compiled_once(
    rows: int, large: int, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the loss in one piece, in two, and as a whole."""
    monkeypatch.setattr(projection, "_WORTH_IT", large)
    monkeypatch.setattr(projection, "_FEWEST_ROWS", 64)
    monkeypatch.setattr("plmctl.training.shapes.capacity", lambda count, most: count)
    _, objective, _, options = CASES["roberta"]
    step, slicing = step_of(objective, options, store), Slicing(rows, rows // 2, width=WIDTH)
    source = StepBatches(step, slicing, 7)
    lengths = {len(batch.inputs["positions"]) for n in range(4) for batch in source[n]}
    assert len(lengths) > 2
    counter, losses = CompileCounterWithBackend("aot_eager"), []
    for engine in (engine_of("roberta", counter), engine_of("roberta")):
        losses.append([take_step(engine, step, source[n], 1.0, n).loss for n in range(4)])
    assert counter.frame_count == 1
    assert counters["graph_break"] == {}
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def replayed(module: Any, _: Any) -> Any:
    """A graph whose results are in the same memory in each run, as those that a GPU replays."""
    kept: list[Any] = []

    def run(inputs: list[Any]) -> list[Any]:
        results = module(*inputs)
        if kept:
            for old, new in zip(kept, results, strict=True):
                if isinstance(new, torch.Tensor):
                    old.copy_(new)
        else:
            kept.extend(x.clone() if isinstance(x, torch.Tensor) else x for x in results)
        return [x.view_as(x) if isinstance(x, torch.Tensor) else x for x in kept]

    run._boxed_call = True  # type: ignore[attr-defined]  # as PyTorch calls it
    return run


@pytest.mark.parametrize("records", [True, False])
def test_what_a_replay_overwrites_is_kept(
    records: bool, store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses and gradients of several micro-batches, which without ``records`` are wrong."""
    backend = aot_autograd(fw_compiler=replayed, bw_compiler=replayed)
    asked: list[Any] = []

    def compiled(function: Any, mode: str | None = None, **options: Any) -> Any:
        asked.append(mode)
        return torch._dynamo.optimize(backend, dynamic=options["dynamic"])(function)

    plain = engine_of("gpt2")
    expected = steps_of("gpt2", plain, store, 3, width=None)
    monkeypatch.setattr(torch, "compile", compiled)
    family, objective, fields, _ = CASES["gpt2"]
    network = network_of(family, objective, fields)
    compute = "reduce-overhead" if records else True
    engine = cpu_engine(network, compile=compute, varying=False)
    network.train()
    losses = steps_of("gpt2", engine, store, 3)
    assert asked == ["reduce-overhead" if records else None]
    assert (losses == pytest.approx(expected, rel=1e-5)) is records
    engine.zero_gradients()
    assert all((p.grad is not None) is records for p in network.parameters())


@pytest.mark.slow
def test_any_shapes_with_one_kernel(store: TokenStore) -> None:
    """Where shapes vary, as in finetuning, sizes are no reason to compile again."""
    counter = CompileCounterWithBackend("eager")
    engine = engine_of("roberta", counter, dynamic=True)
    step = step_of("mlm", CASES["roberta"][3], store)
    for number in range(6):
        take_step(engine, step, StepBatches(step, Slicing(3 + number, 8), 7)[number], 1.0, 1)
    assert counter.frame_count <= 2
    assert counters["graph_break"] == {}


def test_validation_compiles_nothing(store: TokenStore) -> None:
    counter = CompileCounterWithBackend("eager")
    engine = engine_of("roberta", counter)
    steps_of("roberta", engine, store, 1)
    before = counter.frame_count
    step = step_of("mlm", CASES["roberta"][3], store)
    bare = engine.accelerator.unwrap_model(engine.network)
    scores = score(engine.accelerator, bare, step, scoring_batches(step, Slicing(5, 5), 12))
    assert counter.frame_count == before
    assert scores["loss"] > 0
    with bare.train().isolated():  # as a trial of how much fits in memory
        step.loss(bare, next(scoring_batches(step, Slicing(3, 3), 3)))
    bare.eval()(**next(scoring_batches(step, Slicing(3, 3), 3)).inputs)  # predicting
    assert counter.frame_count == before
    assert bare.compiled


def plan_of(case: str, store: TokenStore, steps: int = 4, until: int | None = None) -> Plan:
    _, objective, _, options = CASES[case]
    phase = Phase(step_of(objective, options, store), steps, Slicing(ROWS, ROWS, width=WIDTH))
    return Plan((phase,), 7, lambda step: 1e-2, 1.0, 1, None, 1000, until=until)


def test_resumes_between_compiled_and_not(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """The names in a checkpoint are the same, and so is the run, to rounding."""
    results = {}
    for name, backends in {
        "plain": (None, None),
        "a": ("eager", None),
        "b": (None, "eager"),
    }.items():
        first, second = (engine_of("roberta", backend) for backend in backends)
        with pytest.raises(Preempted):
            run_plan(first, plan_of("roberta", store, until=2), tmp_path / name)
        assert not any("_orig_mod" in key for key in first.trained().network.state_dict())
        assert run_plan(second, plan_of("roberta", store), tmp_path / name).step == 4
        results[name] = weights(second)
    for name in ("a", "b"):
        for key, expected in results["plain"].items():
            torch.testing.assert_close(results[name][key], expected, rtol=1e-3, atol=1e-5)


def test_asked_to_stop_while_it_compiles(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """The step is finished, and a checkpoint of it saved."""

    def slow(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return graph.forward

    with pytest.raises(Preempted):
        run_plan(engine_of("gpt2", slow), plan_of("gpt2", store), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()]
    assert run_plan(engine_of("gpt2", "eager"), plan_of("gpt2", store), tmp_path / "run").step == 4


def test_what_auto_is() -> None:
    auto = ComputeConfig()
    assert compiles(auto, "cuda", by_default=True)
    assert not compiles(auto, "cpu", by_default=True)
    assert not compiles(auto, "mps", by_default=True)
    assert not compiles(auto, "cuda", by_default=False)
    assert compiles(ComputeConfig(compile=True), "cpu", by_default=False)
    assert not compiles(ComputeConfig(compile=False), "cuda", by_default=True)


@pytest.mark.parametrize(("capability", "expected"), [((6, 0), False), ((7, 0), True)])
def test_a_gpu_that_triton_does_not_know_is_not_compiled_for(
    capability: tuple[int, int], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert compiles(ComputeConfig(compile="auto"), "cuda", by_default=True) is expected
    assert compiles(ComputeConfig(compile=True), "cuda", by_default=True)
    assert not get_family("elmo").COMPILES


@pytest.mark.sweep
def test_asked_to_stop_while_the_real_compiler_works(
    store: TokenStore, tmp_path: Path, run_plan: Train
) -> None:
    """As PyTorch's default compiler: the step that began is finished, saved, and gone on from."""
    from torch._inductor.compile_fx import compile_fx

    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return compile_fx(graph, inputs)

    with pytest.raises(Preempted):
        run_plan(engine_of("gpt2", backend), plan_of("gpt2", store), tmp_path / "run")
    torch._dynamo.reset()
    engine = engine_of("gpt2", "inductor")
    assert run_plan(engine, plan_of("gpt2", store), tmp_path / "run").step == 4
    plain = engine_of("gpt2")
    run_plan(plain, plan_of("gpt2", store), tmp_path / "plain")
    for key, expected in weights(plain).items():
        torch.testing.assert_close(weights(engine)[key], expected, rtol=1e-3, atol=1e-5)


TWO = """
import sys
import torch.distributed
torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 20_000  # so that a tiny graph is split too
from pathlib import Path
from plmctl.training.plan import Slicing
from plmctl.training.data import StepBatches
from plmctl.training.judge import COMPILING, COMPUTING
from plmctl.training.loop import take_step
from plmctl.training.peers import Peers
from plmctl.corpus.store import TokenStore
from tests.training.test_compiled import engine_of, projection, step_of
projection._WORTH_IT = 0
engine = engine_of("gpt2", "aot_eager" if sys.argv[1] == "yes" else None,
                   checkpoint_activations=sys.argv[1] == "yes")
if engine.accelerator.num_processes > 1:
    engine.network.bucket_bytes_cap = 20_000
rows = [[[6 + (7 * n + 3 * k * k) % 90 for k in range(40)]] for n in range(60)]
step = step_of("clm", {}, TokenStore.from_lists(rows, vocab_size=120))
where = engine.accelerator.process_index, engine.accelerator.num_processes
batches = StepBatches(step, Slicing(16, 4, *where), 7)
losses = [take_step(engine, step, batches[n], 1.0, n).loss for n in range(3)]
Path(f"{sys.argv[1]}-{where[0]}.txt").write_text(" ".join(map(repr, losses)))
"""


@pytest.mark.slow
def test_two_processes_compiled(tmp_path: Path) -> None:
    """PyTorch cuts the graph up, to exchange gradients meanwhile: the losses are the same."""
    (tmp_path / "two.py").write_text(TWO)
    losses = {}
    for compiled in ("no", "yes"):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        done = subprocess.run(
            [*command, "--nproc-per-node", "2", "two.py", compiled],
            cwd=tmp_path,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        texts = {(tmp_path / f"{compiled}-{rank}.txt").read_text() for rank in (0, 1)}
        assert len(texts) == 1
        losses[compiled] = [float(loss) for loss in texts.pop().split()]
    assert losses["yes"] == pytest.approx(losses["no"], rel=1e-5)


def _varying(store: TokenStore, rank: int) -> None:
    torch.distributed._DEFAULT_FIRST_BUCKET_BYTES = 20_000  # a tiny graph would be split too
    projection._WORTH_IT, projection._FEWEST_ROWS = 0, 64
    step, losses = step_of("clm", {}, store), {}
    source = StepBatches(step, Slicing(13, 2, rank, 2), 7)
    assert len(source[0][-1].inputs["input_ids"]) == (2 if rank else 1)
    for backend in (None, "aot_eager"):
        engine = engine_of("gpt2", backend, dynamic=True)
        engine.network.bucket_bytes_cap = 20_000  # type: ignore[assignment]  # DDP's
        losses[backend] = [take_step(engine, step, source[n], 1.0, n).loss for n in range(2)]
    assert losses["aot_eager"] == pytest.approx(losses[None], rel=1e-5)


@pytest.mark.sweep
def test_two_processes_compiled_for_any_shapes(store: TokenStore, tmp_path: Path) -> None:
    """As with a growing batch or a mixture, down to one row."""
    in_two_processes(partial(_varying, store), tmp_path)


def test_a_compilation_counts_as_one() -> None:
    """Also that of a new shape in the middle of a phase, which may take minutes."""
    peers, during = Peers(), []

    def backend(graph: Any, _: Any) -> Any:
        during.append(peers._doing)
        return graph.forward

    double = torch.compile(lambda x: 2 * x, backend=backend, dynamic=False)
    with peers.compilations():
        for size in (3, 3, 4):
            peers.doing(COMPUTING, 7)
            double(torch.ones(size))
            assert peers._doing == (COMPUTING, 7)
    double(torch.ones(5))  # nobody watches
    assert during == [(COMPILING, 7), (COMPILING, 7), (COMPUTING, 7)]
