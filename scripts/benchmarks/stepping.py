"""Steps of plmctl's own loop, and of a plain one around a transformers model."""

import argparse
from collections.abc import Iterator
from typing import Any

CHECKED = 3
"""Steps whose losses are compared."""


def plmctl_steps(
    args: argparse.Namespace, model: Any, forward: Any, step: Any, count: int, lengths: Any = None
) -> Iterator[Any]:
    """What each of ``count`` updates did (``telemetry.Computed``), read where the loop reads it.

    Args:
        args: Batch, device, precision, attention.
        model: The network.
        forward: Of its family or task.
        step: Objective or task.
        count: Updates.
        lengths: [N] of the examples, where those of a step are to be alike.
    """
    from plmctl.config.sections import ComputeConfig, OptimConfig
    from plmctl.models.network import Network
    from plmctl.training.data import StepBatches, training_batches
    from plmctl.training.engine import make_accelerator, make_engine
    from plmctl.training.plan import Slicing

    compute = ComputeConfig(
        device=args.device, precision=args.precision, attention=args.attention,
        checkpoint_activations=args.recompute,
    )  # fmt: skip
    accelerator = make_accelerator(compute)
    optim = OptimConfig(eps=1e-8, weight_decay=0.0)
    varying = lengths is not None
    engine = make_engine(accelerator, Network(model, forward), optim, compute, varying=varying)
    source = StepBatches(step, Slicing(args.batch, args.batch, lengths=lengths), 1)
    engine.network.train()
    for number, batches in enumerate(training_batches(source, 0, count, workers=0)):
        yield one_step(engine, step, batches, number)


def one_step(engine: Any, examples: Any, batches: list[Any], number: int) -> Any:
    """A step as the loop takes it."""
    from plmctl.training.loop import compute_gradient

    done = compute_gradient(engine, examples, batches, 1.0, number, stopping=False)
    update(engine, done)
    return done


def update(engine: Any, done: Any) -> None:
    """As the loop does it, which reads several steps at once where the optimizer allows it."""
    from plmctl.training.loop import apply, apply_if_finite

    if engine.found_nonfinite is None:
        done.read()
        apply(engine)
    else:
        apply_if_finite(engine, done)


def plain_steps(
    args: argparse.Namespace, model: Any, batches: list[tuple[dict[str, Any], int]]
) -> Iterator[tuple[int, float]]:
    """Tokens and loss of each update: forward, backward, clip, AdamW, as the examples do it.

    Args:
        args: Device, precision, and whether to compile.
        model: Of transformers.
        batches: Its arguments, labels among them, and tokens without padding.
    """
    import torch
    from torch.utils._pytree import tree_map

    device, cuda = torch.device(args.device), args.device == "cuda"
    model.to(device).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-4, eps=1e-8, weight_decay=0.0, fused=cuda
    )
    backend = "inductor" if cuda else "eager"
    run = torch.compile(model, backend=backend) if args.compiled else model
    for inputs, tokens in batches:
        there = tree_map(lambda value: value.to(device, non_blocking=True), inputs)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16"):
            loss = run(**there).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        yield tokens, loss.item()
