"""What the stages of ``benchmark.py gpu`` run, each a function that returns the facts of a line."""

import argparse
import os
import platform
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch._dynamo
import torch._inductor.config as compiler
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import plmctl
from benchmarks.stepping import one_step, update
from plmctl.config.base import OptimizerConfig
from plmctl.config.sections import ComputeConfig, OptimConfig
from plmctl.corpus.store import TokenStore
from plmctl.families.base import make_family
from plmctl.models.fast import set_up_compiler
from plmctl.models.network import Network
from plmctl.models.parameters import layer_stacks
from plmctl.objectives.base import make_objective
from plmctl.run.configs import PretrainConfig, load
from plmctl.tokenization.load import Vocab
from plmctl.training.checkpoint import Checkpoints, restore
from plmctl.training.data import StepBatches
from plmctl.training.engine import Engine, make_accelerator, make_engine
from plmctl.training.loop import compute_gradient
from plmctl.training.plan import Slicing
from plmctl.versions import installed_version

_ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(_ROOT))

from tests.builders import fitting_pairs, random_documents, tiny_world  # noqa: E402

# bf16 without sparsity, in TFLOP/s: the makers' data sheets.
_PEAKS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "V100": 125.0}

WAYS = ("eager", "layers", "compiled")
_WARM, _MEASURED, _BITS = 4, 10, 6  # steps

Facts = dict[str, Any]


class Training(NamedTuple):
    """A training as it was published.

    Attributes:
        config: Of ``configs/pretrain``: network, objective and optimizer.
        seconds: What a way takes on a GPU, about.
        beside_stock: Whether the stock side measures it without ``--full``.
    """

    title: str
    family: str
    config: str
    rows: int
    length: int
    vocab: int
    seconds: dict[str, float]
    beside_stock: bool = False

    def sizes(self, args: argparse.Namespace) -> tuple[int, int, int]:
        """Rows, their tokens, vocabulary."""
        return (4, 32, 1000) if args.size == "tiny" else (self.rows, self.length, self.vocab)


_SHORT = {"eager": 8, "layers": 20, "compiled": 50}
TRAININGS = (
    Training("BERT-base 256 x 128", "bert", "bert-base", 256, 128, 30_522, _SHORT, True),
    Training("GPT-2 small 32 x 1,024", "gpt2", "gpt2-small", 32, 1024, 50_257, _SHORT, True),
    Training("BERT-base 64 x 512", "bert", "bert-base", 64, 512, 30_522, _SHORT),
    Training("T5-base 64 x 512", "t5", "t5-base", 64, 512, 32_128,
             {"eager": 12, "layers": 40, "compiled": 120}),
)  # fmt: skip


class Option(NamedTuple):
    """A fast BERT, which has no dropout, with and without an option."""

    title: str
    size: str
    rows: int
    ways: tuple[str, ...]


OPTIONS = (
    Option("BERT-mini 32 x 128", "mini", 32, ("eager", "compiled", "recorded")),
    Option("BERT-base 128 x 128", "base", 128, ("eager", "unpadded", "unpadded, compiled")),
)

# Family, size and optimizer; the configs of the network and of the optimizer; vocabulary.
OPTIMIZERS = (
    (("bert", "base", "AdamW without bias correction"), "bert-base", "pretrain/bert-base", 30_522),
    (("albert", "base", "LAMB"), "albert-base", "pretrain/albert-base", 30_000),
    (("t5", "base", "Adafactor"), "t5-base", "pretrain/t5-base", 32_128),
    (("bert", "base", "Muon"), "bert-base", "fast/bert", 30_522),
    (("gpt2", "small", "Muon"), "gpt2-small", "fast/gpt2", 50_257),
    (("elmo", "original", "Adagrad"), "elmo-original", "pretrain/elmo-original", 100_000),
    (("gpt2", "small", "AdamW"), "gpt2-small", "pretrain/gpt2-small", 50_257),
)


# --- Networks, examples, engines ---


def config_of(name: str, *, tiny: bool, dropout: bool = True) -> PretrainConfig:
    """A shipped config, or that of a tiny network, which can do without dropout."""
    path = _ROOT / "configs" / f"{name}.yaml"
    config = load("pretrain", path)
    if not tiny:
        return config
    family = make_family(config.model)
    size = "tiny" if "tiny" in family.SIZES else next(iter(family.SIZES))
    rates = [] if dropout else set(family.DROPOUT) & set(family.Config.model_fields)
    return load("pretrain", path, [f"model.size={size}", *(f"model.{rate}=0" for rate in rates)])


def network_of(config: PretrainConfig, vocab: int, device: str) -> Network:
    """Its network with weights that are drawn on the device, which is faster."""
    torch.manual_seed(0)
    family, objective = make_family(config.model), make_objective(config.objective)
    with torch.device(device):
        model = family.build(vocab_size=vocab, pad_id=0, loss_terms=objective.LOSS_TERMS)
    return Network(model, family.forward)


def engine_of(
    network: Network, device: str, precision: str, *, optim: OptimizerConfig | None = None,
    way: str = "eager", deterministic: bool = False,
) -> Engine:  # fmt: skip
    """An engine that trains; on a CPU "compiled" is traced, and run as it is."""
    unpadded, whole = way.startswith("unpadded"), way.endswith("compiled") or way == "recorded"
    if unpadded and device == "cpu":  # the reference of the kernel asks for values
        whole = False
    compute = ComputeConfig(
        device=device, precision=precision, deterministic=deterministic,
        compile="reduce-overhead" if way == "recorded" else whole,
        attention="unpadded" if unpadded else "auto",
    )  # fmt: skip
    optim = optim or OptimConfig(lr=1e-3)
    engine = make_engine(make_accelerator(compute), network, optim, compute, varying=False)
    options = {"dynamic": False, "backend": "inductor" if device == "cuda" else "eager"}
    if way != "eager":
        set_up_compiler(64, varying=False)
    if whole and device == "cuda":
        network.compile(records=way == "recorded", **options)
    elif whole:
        network.compile(**options)
    elif way == "layers":
        stacks = layer_stacks(network.model).values()
        network.compile_layers((layer for stack in stacks for layer in stack), **options)
    engine.network.train()
    return engine


def batches_of(
    config: PretrainConfig, vocab: int, rows: int, length: int, count: int, micro: int = 0,
    *, short: bool = False, unpadded: bool = False,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """The examples of its objective over random sentences, and the micro-batches of steps.

    Args:
        short: Texts of few sentences, with which rows have padding.
    """
    sizes: Any = {"documents": 200, "sentences": (40, 60), "tokens": (5, 40)}
    if short:
        sizes |= {"documents": 4000, "sentences": (2, 3), "tokens": (length // 8, length // 2)}
    documents = random_documents(0, (10, vocab - 110), **sizes)
    ids = Vocab(vocab, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5,
                sentinels=tuple(range(vocab - 1, vocab - 101, -1)))  # fmt: skip
    store = TokenStore.from_lists(documents, vocab)
    examples = make_objective(config.objective).over(store, ids, length, 1)
    slicing = Slicing(rows, micro or rows, width=length, unpadded=unpadded)
    source = StepBatches(examples, slicing, 1)
    return examples, [source[number] for number in range(count)]


# --- machine ---


def machine(args: argparse.Namespace) -> Facts:
    """Versions, the card, and what it does at best."""
    names = ("torch", "transformers", "accelerate", "triton", "numpy")
    versions = {name: installed_version(name) for name in names}
    facts: Facts = {"plmctl": plmctl.__version__, "python": platform.python_version(), **versions}
    cuda = args.device == "cuda"
    facts |= {"cpus": os.cpu_count(), "card": torch.cuda.get_device_name() if cuda else "cpu"}
    width, size = (8192, 2**30) if cuda else (256, 2**20)
    left, right = (torch.randn(width, width, device=args.device).bfloat16() for _ in range(2))
    source = torch.empty(size, device=args.device, dtype=torch.uint8)
    target = torch.empty_like(source)
    facts["tflops"] = 2 * width**3 / 1e9 / _each(lambda: left @ right, cuda, 10)
    facts["copy_tb_s"] = 2 * size / 1e9 / _each(lambda: target.copy_(source), cuda, 10)
    return facts


def _each(work: Callable[[], Any], cuda: bool, count: int) -> float:
    """Milliseconds of a call on the device, the mean of ``count`` after three others."""
    for _ in range(3):
        work()
    start = _mark(cuda)
    for _ in range(count):
        work()
    return _ms(start, _mark(cuda)) / count


def _mark(cuda: bool) -> Any:
    """This moment on the device, without a wait."""
    if not cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _ms(start: Any, end: Any) -> float:
    if isinstance(start, float):
        return 1e3 * float(end - start)
    end.synchronize()
    return float(start.elapsed_time(end))


# --- families, bf16 ---


def pairs(families: list[str]) -> list[tuple[str, str]]:
    """Those of the registry that can pretrain."""
    return [pair for pair in fitting_pairs() if pair[0] in families]


def beside_cpu(family: str, objective: str, device: str, precision: str) -> Facts:
    """The largest relative difference of losses and gradient norms from a CPU's in float32."""
    there, waits = _three_steps(family, objective, device, precision)
    cpu, _ = _three_steps(family, objective, "cpu", "fp32")
    difference = max(abs(a - b) / max(abs(b), 1e-9) for a, b in zip(there, cpu, strict=True))
    facts = {"difference": difference, "loss": there[-2], "waits": dict(waits)}
    return facts | ({"close": difference < 1e-4} if precision == "fp32" else {})


@cache
def _three_steps(family: str, objective: str, device: str, precision: str) -> Any:
    """Loss and gradient norm of each, and where the host waited."""
    store = TokenStore.from_lists(random_documents(0, (6, 100)), 120)
    results: list[float] = []
    waits = Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        network, examples = tiny_world(family, objective, store, Path(folder))
        engine = engine_of(network, device, precision)
        batches = StepBatches(examples, Slicing(16, 8), 7)
        for number in range(3):
            with _counting(waits, device):
                done = one_step(engine, examples, batches[number], number)
            results += [done.read().loss, done.read().grad_norm]
    return results, waits


@contextmanager
def _counting(waits: Counter[str], device: str) -> Iterator[None]:
    """Count the waits of the host, by the line of plmctl that makes it wait."""
    if device != "cuda":
        yield
        return
    ours = str(Path(plmctl.__file__).parent)

    def show(message: Any, *_: Any, **__: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            frames = [f for f in traceback.extract_stack() if f.filename.startswith(ours)]
            place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
            waits[place] += 1

    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=".*synchronizing CUDA operation")
        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


# --- optimizers ---


def update_alone(args: argparse.Namespace, network_name: str, optim: str, vocab: int) -> Facts:
    """An update over random gradients."""
    cuda, tiny = args.device == "cuda", args.size == "tiny"
    vocab = 1000 if tiny else vocab
    network = network_of(config_of(f"pretrain/{network_name}", tiny=tiny), vocab, args.device)
    config = config_of(optim, tiny=tiny).optim
    engine = engine_of(network, args.device, args.precision, optim=config)
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-3
    ms = _each(engine.optimizer.step, cuda, 10)
    began = time.perf_counter()
    for _ in range(3):
        engine.optimizer.step()
    host_ms = 1e3 * (time.perf_counter() - began) / 3
    facts = {"ms": ms, "host_ms": host_ms, "runs_ahead": engine.found_nonfinite is not None}
    return facts | _kernels(engine.optimizer.step, cuda, top=4)


def _kernels(work: Callable[[], Any], cuda: bool, *, top: int) -> Facts:
    """Kernels of a call, the milliseconds in which the device works, and the longest of them."""
    with profile(activities=[ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * cuda]) as profiler:
        work()
        if cuda:
            torch.cuda.synchronize()
    kind = torch.autograd.DeviceType.CUDA if cuda else torch.autograd.DeviceType.CPU
    events = [
        (event.self_device_time_total if cuda else event.self_cpu_time_total, event)
        for event in profiler.key_averages()
        if event.device_type == kind and not event.is_user_annotation
    ]
    events.sort(key=lambda each: -each[0])
    kernels = sum(event.count for _, event in events if not event.key.startswith("Mem"))
    longest = [f"{e.key[:100]} {e.count} x {us / e.count / 1e3:.3f} ms" for us, e in events[:top]]
    return {"kernels": kernels, "busy_ms": sum(us for us, _ in events) / 1e3, "longest": longest}


# --- speed ---


def speed(args: argparse.Namespace, training: Training, way: str, flops: dict[str, float]) -> Facts:
    """A step of a training, by the device's clock, without a wait after each.

    Args:
        flops: Of a step of each training; the eager way counts them.
    """
    rows, length, vocab = training.sizes(args)
    cuda, tiny = args.device == "cuda", args.size == "tiny"
    count = 2 if tiny else _MEASURED
    config = config_of(f"pretrain/{training.config}", tiny=tiny, dropout=not tiny)
    examples, steps = batches_of(config, vocab, rows, length, _WARM)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    began, marks = time.perf_counter(), [_mark(cuda)]
    network = network_of(config, vocab, args.device)
    engine = engine_of(network, args.device, args.precision, optim=config.optim, way=way)
    for number, batches in enumerate(steps):
        one_step(engine, examples, batches, number)
        if number == 0:
            _ms(marks[0], _mark(cuda))  # waits
            first = time.perf_counter() - began
    marks = [_mark(cuda)]
    for number in range(count):
        batches = steps[number % _WARM]
        done = compute_gradient(engine, examples, batches, 1.0, number, stopping=False)
        marks.append(_mark(cuda))
        update(engine, done)
        marks.append(_mark(cuda))
    whole = _ms(marks[0], marks[-1]) / count
    gradient = sum(map(_ms, marks[0::2], marks[1::2])) / count
    facts: Facts = {
        "ms": whole, "gradient_ms": gradient, "update_ms": whole - gradient, "first_step_s": first,
        "tokens_per_second": 1e3 * rows * length / whole,
        "runs_ahead": engine.found_nonfinite is not None,
    }  # fmt: skip
    if cuda:
        facts["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    facts |= _kernels(lambda: one_step(engine, examples, steps[0], 0), cuda, top=10)
    if way == "eager":
        with FlopCounterMode(display=False) as counter:
            one_step(engine, examples, steps[0], 0)
        flops[training.title] = float(counter.get_total_flops())
    peak = _peak(args)
    if peak is not None and training.title in flops:
        facts["tflop"] = flops[training.title] / 1e12
        facts["mfu"] = facts["tflop"] / (whole / 1e3) / peak
    return facts


def _peak(args: argparse.Namespace) -> float | None:
    """The card's, in TFLOP/s."""
    if args.peak_tflops or args.device != "cuda":
        return args.peak_tflops  # type: ignore[no-any-return]
    name = torch.cuda.get_device_name()
    return next((peak for part, peak in _PEAKS.items() if part in name), None)


# --- options ---


def option(
    args: argparse.Namespace, option: Option, way: str, losses: dict[str, list[float]]
) -> Facts:
    """Steps of two micro-batches, and how far their losses are from those of the first way.

    Args:
        losses: Of the first way, by title.
    """
    cuda, tiny = args.device == "cuda", args.size == "tiny"
    vocab, rows, length = (1000, 4, 32) if tiny else (30_522, option.rows, 128)
    config = config_of("fast/bert", tiny=tiny)
    config = (
        config
        if tiny
        else load("pretrain", _ROOT / "configs/fast/bert.yaml", [f"model.size={option.size}"])
    )
    unpadded = way.startswith("unpadded")
    short = "unpadded" in option.ways
    examples, steps = batches_of(
        config, vocab, rows, length, _WARM, rows // 2, short=short, unpadded=unpadded
    )
    network = network_of(config, vocab, args.device)
    engine = engine_of(network, args.device, args.precision, optim=config.optim, way=way)
    done = [one_step(engine, examples, batches, n).read().loss for n, batches in enumerate(steps)]
    expected = losses.setdefault(option.title, done)
    start, count = _mark(cuda), 2 if tiny else _MEASURED
    for number in range(count):
        one_step(engine, examples, steps[number % _WARM], number)
    ms, batches = _ms(start, _mark(cuda)) / count, [each for step in steps for each in step]
    return {
        "difference": max(abs(a - b) / b for a, b in zip(done, expected, strict=True)), "ms": ms,
        "tokens_per_second": 1e3 * rows * length / ms,
        "padding": 1 - sum(b.tokens for b in batches) / sum(b.padded_tokens for b in batches),
    }  # fmt: skip


# --- stock ---


class _Ticks:
    """The seconds of the Trainer's steps: the device is waited for at three of them only."""

    def __init__(self, cuda: bool, count: int) -> None:
        self._cuda, self._last = cuda, _WARM + count
        self._steps = 0
        self._began = time.perf_counter()
        self.ends: list[float] = []

    def tick(self, _: float = 0) -> None:
        """A step has ended."""
        self._steps += 1
        if self._steps in (1, _WARM, self._last):
            if self._cuda:
                torch.cuda.synchronize()
            self.ends.append(time.perf_counter() - self._began)


def stock(args: argparse.Namespace, training: Training, *, compiled: bool) -> Facts:
    """The Trainer, or of T5 a plain loop, on rows of the same size."""
    from benchmarks import pretraining
    from benchmarks.stepping import plain_steps

    rows, length, vocab = training.sizes(args)
    cuda, count = args.device == "cuda", _MEASURED if args.size != "tiny" else 2
    work = {"bert": "mlm", "gpt2": "clm", "t5": "t5"}[training.family]
    config = config_of(f"pretrain/{training.config}", tiny=args.size == "tiny").model
    fields = config.model_dump(exclude_unset=True)
    options = argparse.Namespace(
        work=work, family=fields.pop("family"), size=fields.pop("size"), batch=rows,
        length=length, vocab_size=vocab, fill=1.0, data=None, folder=None,
        device=args.device, precision=args.precision, compiled=compiled,
    )  # fmt: skip
    ticks = _Ticks(cuda, count)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    model, _ = pretraining.network(options, **fields)
    if work == "t5":
        examples = pretraining.objective(options)
        batches = pretraining.batches_of(options, examples, _WARM + count)
        inputs = [pretraining.stock_batch(options, batch) for batch in batches]
        for _ in plain_steps(options, model, inputs):
            ticks.tick()
    else:
        pretraining.train_by_trainer(options, model, ticks, _WARM + count)
    first, start, end = ticks.ends
    whole = 1e3 * (end - start) / count
    facts = {"ms": whole, "tokens_per_second": 1e3 * rows * length / whole, "first_step_s": first}
    return facts | ({"peak_gb": torch.cuda.max_memory_allocated() / 1e9} if cuda else {})


# --- bits, resume ---


def bits(
    args: argparse.Namespace, training: Training, length: int, way: str,
    deterministic: bool, stop: int | None = None,
) -> Facts:  # fmt: skip
    """Whether two runs from one start are equal, of which the second may have a stop."""
    compiler.deterministic = deterministic  # as its variable, which is read at import
    runs = [_tiny_run(args, training, length, way, deterministic, at) for at in (None, stop)]
    (losses, weights), (others, there) = runs
    different = [name for name, weight in weights.items() if not torch.equal(weight, there[name])]
    facts = {"losses": losses == others, "other_weights": len(different), "first": different[:3]}
    return {"equal": losses == others and not different, **facts}


def _tiny_run(
    args: argparse.Namespace, training: Training, length: int, way: str,
    deterministic: bool, stop: int | None,
) -> tuple[list[float], dict[str, torch.Tensor]]:  # fmt: skip
    """The losses and the last weights of a run with dropout, continued from its checkpoint."""
    config = config_of(f"pretrain/{training.config}", tiny=True)
    rows, length = (32, length) if args.device == "cuda" else (4, length // 4)
    examples, steps = batches_of(config, 2000, rows, length, _BITS, micro=rows // 2)
    start = partial(engine_of, device=args.device, precision=args.precision, way=way,
                    deterministic=deterministic)  # fmt: skip
    torch._dynamo.reset()
    engine, done = start(network_of(config, 2000, "cpu")), []
    for number, batches in enumerate(steps):
        if number == stop:
            with tempfile.TemporaryDirectory() as folder:
                saved = Checkpoints(Path(folder) / "all", 1).save(number, engine.trained(), {})
                engine = start(network_of(config, 2000, "cpu"))
                restore(saved, engine.trained())
        done.append(one_step(engine, examples, batches, number))
    weights = engine.trained().network.named_parameters()
    return [each.read().loss for each in done], {n: weight.detach().cpu() for n, weight in weights}
