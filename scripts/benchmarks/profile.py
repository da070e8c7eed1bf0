"""Where the time of a step goes, by family: its matrix products, and what is beside them.

Each family's step runs in a process of its own, as `pretrain` computes it: batches, forward,
backward, clipping, AdamW. Its matrix products are recorded, with their shapes, strides and dtypes,
and run alone; steps and products take turns, and the medians of both are compared. A step that were
nothing but products would take as long as they do alone: the limit on this machine. PyTorch's
profiler then gives the time of the products within a step, and that of the other operators, each
without the operators that it calls.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.duel import Results, measure_each

_WARM, _PROFILED, _TOP = 2, 3, 5


def alone(args: argparse.Namespace) -> Results:
    """The profile of every family."""
    side = "stock" if args.plain else "plmctl"
    results, machine = measure_each(args, [(side, "--family", name) for name in args.families])
    families = dict(zip(args.families, results, strict=True))
    return {"work": "profile", "side": side, "families": families, **machine}


def run(args: argparse.Namespace, side: str) -> Results:
    """The profile of one family."""
    from torch.profiler import ProfilerActivity, profile

    from benchmarks import products

    steps = _steps(args, side, _WARM + 1 + args.steps + _PROFILED)
    for _ in range(_WARM):
        next(steps)
    recorded = products.Products()
    with recorded.recording():
        next(steps)
    flops = recorded.flops()
    times = [(_seconds(lambda: next(steps)), _seconds(recorded.run)) for _ in range(args.steps)]
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(_PROFILED):
            next(steps)
    names = products.names()
    calls = [
        Call(event.name, event.self_cpu_time_total, _of_product(event, names))
        for event in profiler.events()
    ]
    (whole, cpu), (limit, cpu_limit) = (
        [statistics.median(each) for each in zip(*part, strict=True)]
        for part in zip(*times, strict=True)
    )
    return {
        "step_ms": 1e3 * whole,
        "alone_ms": 1e3 * limit,
        "cpu_ratio": cpu / cpu_limit,
        "gflops": flops / limit / 1e9,
        **split(calls, _PROFILED),
    }


class Call(NamedTuple):
    """One call of an operator: microseconds without what it calls, and whether a product's."""

    name: str
    own: float
    of_product: bool


def split(calls: list[Call], steps: int) -> Results:
    """Milliseconds per step of the products and of the costliest other operators.

    Args:
        calls: Of all operators; what a product calls is the product's.
        steps: In which they were made.
    """
    products = 0.0
    others: dict[str, list[float]] = {}
    for call in calls:
        if call.of_product:
            products += call.own
        else:
            others.setdefault(call.name.removeprefix("aten::"), []).append(call.own)
    costliest = sorted(others.items(), key=lambda each: -sum(each[1]))[:_TOP]
    return {
        "products_ms": products / steps / 1e3,
        "share": products / sum(call.own for call in calls),
        "operators": [
            {"name": name, "ms": sum(own) / steps / 1e3, "calls": len(own) / steps}
            for name, own in costliest
        ],
    }


def _of_product(event: Any, products: set[str]) -> bool:
    """Whether a call, or one that it is part of, is a product."""
    while event is not None:
        if event.name in products:
            return True
        event = event.cpu_parent
    return False


_COLUMNS = (
    "family", "step, ms", "products, ms (share)", "products alone, ms", "step / alone",
    "in CPU time", "GFLOP/s alone", "the costliest other operators, ms",
)  # fmt: skip


def rows_of(result: Results) -> list[tuple[str, ...]]:
    """A row of cells per family, under a row of titles."""
    rows: list[tuple[str, ...]] = [_COLUMNS]
    for name, family in result["families"].items():
        operators = (f"{each['name']} {each['ms']:.1f}" for each in family["operators"])
        rows.append((
            name,
            f"{family['step_ms']:,.0f}",
            f"{family['products_ms']:,.0f} ({family['share']:.0%})",
            f"{family['alone_ms']:,.0f}",
            f"{family['step_ms'] / family['alone_ms']:.2f}",
            f"{family['cpu_ratio']:.2f}",
            f"{family['gflops']:,.0f}",
            ", ".join(operators),
        ))  # fmt: skip
    return rows


def _steps(args: argparse.Namespace, side: str, count: int) -> Any:
    """Steps of plmctl, or of a plain loop, each when it is asked for."""
    from benchmarks.pretraining import batches_of, network, objective, plain, stock_batch
    from benchmarks.stepping import plain_steps, plmctl_steps

    model, family = network(args)
    step = objective(args)
    if side == "plmctl":
        return plmctl_steps(args, model, family.forward, step, count)
    batches = [stock_batch(args, batch) for batch in batches_of(args, step, count)]
    return plain_steps(args, plain(args, model), batches)


def _seconds(work: Callable[[], Any]) -> tuple[float, float]:
    """Seconds, and CPU seconds of all threads."""
    began = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - began[0], time.process_time() - began[1]
