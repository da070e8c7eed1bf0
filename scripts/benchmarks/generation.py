"""Texts that a GPT-2 continues, 32 at once: prompts of 4 to 64 tokens, and 32 new ones for each.

The other way is transformers' `generate` on the prompts as they come, padded at the left. plmctl
has prompts of similar length in a batch. A step is 64 prompts.
"""

import argparse
from typing import Any

from benchmarks.clock import Clock

_NEW, _BATCH = 32, 32


def run(args: argparse.Namespace, side: str) -> dict[str, float]:
    """The speed of a side, in new tokens."""
    generate, clock = _SIDES[side](args), Clock(args)
    for prompts in _prompts(args.steps + 2):
        generate(prompts)
        clock.tick(_NEW * len(prompts))
    return clock.results()


def check(args: argparse.Namespace, side: str) -> dict[str, list[float]]:
    """The ids that follow a few prompts; 1 is added, since differences are relative."""
    generated = _SIDES[side](args)(_prompts(1)[0][:8])
    return {"losses": [1.0 + id_ for ids in generated for id_ in ids]}


def _prompts(steps: int) -> list[list[list[int]]]:
    import numpy as np

    rng = np.random.default_rng(0)
    return [
        [rng.integers(10, 8000, size).tolist() for size in rng.integers(4, 65, 2 * _BATCH)]
        for _ in range(steps)
    ]


def _network(args: argparse.Namespace) -> Any:
    from benchmarks.pretraining import network

    args.work = "clm"
    model, _ = network(args)
    return model.eval().to(args.device)


def _plmctl(args: argparse.Namespace) -> Any:
    import torch

    from plmctl.models.fast import apply_fast_paths
    from plmctl.models.heads.text_generation import Search, SpecialIds, generate_rows

    model = _network(args)
    apply_fast_paths(model, device=args.device, compiled=False, sharded=False)

    def generate(prompts: list[list[int]]) -> list[list[int]]:
        with torch.inference_mode():
            return generate_rows(model, prompts, Search(_NEW), SpecialIds((), 0), batch_size=_BATCH)

    return generate


def _stock(args: argparse.Namespace) -> Any:
    import torch
    from transformers import GenerationConfig

    model = _network(args)
    settings = GenerationConfig(max_new_tokens=_NEW, do_sample=False, pad_token_id=0)

    @torch.no_grad()
    def generate(prompts: list[list[int]]) -> list[list[int]]:
        texts: list[list[int]] = []
        for start in range(0, len(prompts), _BATCH):
            rows = prompts[start : start + _BATCH]
            width = max(map(len, rows))
            ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
            real = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
            output = model.generate(
                input_ids=ids.to(args.device),
                attention_mask=real.to(args.device),
                generation_config=settings,
            )
            texts += output[:, width:].tolist()
        return texts

    return generate


_SIDES = {"plmctl": _plmctl, "stock": _stock}
