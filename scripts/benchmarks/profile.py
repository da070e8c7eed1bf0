"""Where the time of a step goes: the costliest operators of both ways, by their own time.

The stock way is a plain loop here, on the batches that plmctl trains on: what its loader costs is
left out.
"""

import argparse
from itertools import islice
from typing import Any

_WARM, _COUNTED, _TOP = 1, 2, 10


def show(args: argparse.Namespace) -> None:
    """Print a table of each side."""
    from benchmarks.pretraining import as_published, batches_of, network, objective, stock_batch
    from benchmarks.stepping import plain_steps, plmctl_steps

    count, step = _WARM + _COUNTED, objective(args)
    model, family = network(args)
    theirs = as_published(model) if args.work == "clm" else network(args)[0]
    batches = [stock_batch(args, batch) for batch in batches_of(args, step, count)]
    _profiled("stock", plain_steps(args, theirs, batches))
    _profiled("plmctl", plmctl_steps(args, model, family.forward, step, count))


def _profiled(side: str, steps: Any) -> None:
    from torch.profiler import ProfilerActivity, profile

    list(islice(steps, _WARM))
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        list(islice(steps, _COUNTED))
    rows = sorted(profiler.key_averages(), key=lambda row: -row.self_cpu_time_total)
    whole = sum(row.self_cpu_time_total for row in rows)
    print(f"{side}: {whole / _COUNTED / 1e3:,.0f} ms a step")
    for row in rows[:_TOP]:
        share, own = row.self_cpu_time_total / whole, row.self_cpu_time_total / _COUNTED / 1e3
        print(f"  {row.key:44}{share:6.1%}{own:9,.1f} ms{row.count / _COUNTED:7,.0f} calls")
