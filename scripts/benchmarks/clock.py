"""What a side measures of itself."""

import argparse
import resource
import statistics
import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

# bf16 without sparsity, in TFLOP/s: the makers' data sheets.
_PEAKS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "V100": 125.0}


def peak_mb() -> float:
    """Peak memory of this process; ``ru_maxrss`` would have the parent's from before the start."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines = status.read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def resident_mb() -> float:
    """Memory of this process now; 0 where it is unknown."""
    status = Path("/proc/self/statm")
    if not status.is_file():
        return 0.0
    return int(status.read_text(encoding="utf-8").split()[1]) * resource.getpagesize() / 2**20


class Clock:
    """The ends of steps, in seconds and in CPU seconds of all threads; the first two warm up."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._ends: list[tuple[float, float, float]] = []
        self._first = 0.0
        self._before = resident_mb()
        self._waits = list[str]()
        if args.device == "cuda":
            self._count_waits()

    def tick(self, tokens: float = 0) -> None:
        """A step has ended.

        Args:
            tokens: That it had, without padding.
        """
        if self._args.device == "cuda":
            import torch

            torch.cuda.synchronize()
        self._first = self._first or time.time() - self._args.began
        self._ends.append((time.perf_counter(), time.process_time(), tokens))
        if len(self._ends) == 2:
            self._waits.clear()

    def _count_waits(self) -> None:
        """Remember every call in which the host waits for the device; not those of a tick."""
        import torch

        torch.cuda.set_sync_debug_mode("warn")
        warnings.filterwarnings("always", message=".*synchronizing CUDA operation")
        shown = warnings.showwarning

        def show(message: Any, *where: Any, **more: Any) -> None:
            if "synchronizing CUDA operation" in str(message):
                self._waits.append(str(message))
            else:
                shown(message, *where, **more)

        warnings.showwarning = show

    def results(self, flops_per_token: float = 0) -> dict[str, float]:
        """Results of the median step; where steps differ in tokens, of all of them."""
        steps = list(pairwise(self._ends[1:]))
        tokens = [after[2] for _, after in steps]
        seconds = [after[0] - before[0] for before, after in steps]
        if len(set(tokens)) == 1:
            speed = tokens[0] / statistics.median(seconds)
        else:
            speed = sum(tokens) / sum(seconds)
        results = {
            "tokens_per_second": speed,
            "tokens": statistics.mean(tokens),
            "cpu_seconds": statistics.mean(after[1] - before[1] for before, after in steps),
            "peak_mb": self._peak(),
            "before_mb": self._before,
            "first_step": self._first,
        }
        if self._args.device == "cuda":
            results["waits"] = len(self._waits) / len(steps)
        peak = self._args.peak_tflops or self._known_peak()
        return results | ({"mfu": speed * flops_per_token / peak / 1e12} if peak else {})

    def _peak(self) -> float:
        if self._args.device == "cuda":
            import torch

            return torch.cuda.max_memory_allocated() / 2**20
        return peak_mb()

    def _known_peak(self) -> float | None:
        if self._args.device != "cuda":
            return None
        import torch

        name = torch.cuda.get_device_name()
        return next((peak for part, peak in _PEAKS.items() if part in name), None)


def flops_per_token(model: Any, length: int) -> float:
    """FLOPs of a step: 6 N + 12 layers width length (PaLM's; N has the tied output matrix).

    An encoder-decoder's token passes half of the model.
    """
    config = model.config
    counted = sum(
        p.numel() for name, p in model.named_parameters()
        if not name.endswith(("position_embeddings.weight", "wpe.weight"))
    )  # fmt: skip
    layers, width = config.num_hidden_layers, config.hidden_size
    whole = 6 * counted + 12 * layers * width * length
    return whole / 2 if config.is_encoder_decoder else whole
