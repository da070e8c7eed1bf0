"""The engine: device, precision, compilation, and Accelerate's network and optimizer."""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.utils.deterministic
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import (
    DistributedDataParallelKwargs,
    InitProcessGroupKwargs,
    check_cuda_p2p_ib_support,
)
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from plmctl.config.base import OptimizerConfig
from plmctl.config.sections import ComputeConfig
from plmctl.errors import ConfigError
from plmctl.files import read_json
from plmctl.models.batch import Batch
from plmctl.models.fast import (
    apply_fast_paths,
    checkpoint_activations,
    have_any_length,
    set_up_compiler,
)
from plmctl.models.network import Network
from plmctl.models.parameters import layer_stacks
from plmctl.models.sharding import is_sharded
from plmctl.optimizers._gpu import Flagged
from plmctl.optimizers.base import get_optimizer
from plmctl.training.average import Average, Averaging
from plmctl.training.checkpoint import Trained
from plmctl.training.distributed import shard
from plmctl.training.peers import Peers

# --- The engine ---


@dataclass(frozen=True)
class Engine:
    """Accelerate, and the network and optimizer that it has prepared.

    Attributes:
        found_nonfinite: On the device, 1 once a loss or gradient was not finite: the optimizer's
            kernel then skips that update and all later ones. None: it has no such kernel.
        hosts: The process group in which hosts communicate without a GPU; None: the accelerator's.
        peers: The processes of the run, which watch each other.
        average: An average of the weights; None: the last weights are the result.
        any_length: Whether the compiler may make one graph for a batch's lists of any length.
        records: Whether the device replays kernels, and gradients stay where they are.
    """

    accelerator: Accelerator
    network: Network
    optimizer: Optimizer
    found_nonfinite: Tensor | None = None
    hosts: ProcessGroup | None = None
    peers: Peers = field(default_factory=Peers)
    average: Average | None = None
    any_length: bool = False
    records: bool = False

    @property
    def unwrapped(self) -> Network:
        """The network itself, without the wrapper that sums gradients over processes."""
        wrapped: nn.Module = self.network
        bare = wrapped.module if isinstance(wrapped, DistributedDataParallel) else wrapped
        assert isinstance(bare, Network)
        return bare

    def trained(self) -> Trained:
        """What a checkpoint saves: the same objects without their wrappers."""
        return Trained(
            self.unwrapped.model,
            getattr(self.optimizer, "optimizer", self.optimizer),
            self.accelerator.scaler,
            self.unwrapped.recurrent_state,
            self.average,
        )

    def moved(self, batch: Batch) -> Batch:
        """A batch on the device."""
        there = batch.to(self.accelerator.device)
        if self.any_length:
            have_any_length(there.listed())
        return there

    def zero_gradients(self) -> None:
        """Forget gradients; they stay, as zeros, where ``Network.compile`` needs them to."""
        self.optimizer.zero_grad(set_to_none=not self.records)

    def averaged(self, step: int) -> AbstractContextManager[None]:
        """Give the network the average of its weights within the block, if there is one."""
        return nullcontext() if self.average is None else self.average.in_network(step)


# --- Device and precision ---


# glibc's mallopt parameters (malloc.h)
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3

_PRECISION = {"fp32": "no", "tf32": "no", "bf16": "bf16", "fp16": "fp16"}


def make_accelerator(compute: ComputeConfig, peers: Peers | None = None) -> Accelerator:
    """The device and precision of a config, in the process group that the launcher made.

    Args:
        peers: The processes of the run; None: nobody watches them.

    Raises:
        ConfigError: The device is missing, or does not support the precision.
    """
    if compute.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("compute.device: no CUDA device found", "use `compute.device: auto`")
    # Setting the number, also to what it is, keeps MKL from using fewer threads by itself: with
    # another number of threads sums have other bits.
    torch.set_num_threads(compute.threads or torch.get_num_threads())
    cuda = torch.cuda.is_available() and compute.device in ("auto", "cuda")
    if not cuda:
        _keep_freed_memory()
    repeat_bits(on=cuda and compute.deterministic is True)
    if cuda and torch.cuda.device_count() > 1 and not check_cuda_p2p_ib_support():
        # RTX 40 with an old driver: Accelerate refuses them unless told, as its own launcher does.
        for name in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"):
            os.environ.setdefault(name, "1")
    chosen = precision(compute, cuda=cuda)
    _round_to_tf32(on=chosen == "tf32")
    # With a mask its backward has NaN among the gradients of queries at some lengths, since 2.11
    # (github.com/pytorch/pytorch/issues/196678). Probably so a finetuning on an H200 stopped.
    torch.backends.cuda.enable_cudnn_sdp(False)
    if cuda:  # the search for a micro-batch leaves holes of many sizes; read when CUDA starts
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    # Accelerate keeps its state for the whole process, and a second run in one process (a test, a
    # sweep) may want another precision.
    AcceleratorState._reset_state(reset_partial_state=True)
    # Without an accelerator it must be told to use the CPU: by itself it would treat each of
    # several processes as the only one.
    return Accelerator(
        cpu=compute.device == "cpu" or not torch.accelerator.is_available(),
        mixed_precision=_PRECISION[chosen],
        kwargs_handlers=[
            InitProcessGroupKwargs(timeout=(peers or Peers()).group_timeout),
            # Buffers are constants. Gradients stay where they were summed, which saves a copy.
            DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True),
        ],
    )


def _round_to_tf32(*, on: bool) -> None:
    """Let NVIDIA's GPUs round the factors of float32 products to TF32's 10 bits, or none at all.

    By default PyTorch rounds those of cuDNN alone, ELMo's convolutions and LSTMs: errors near 1e-3.
    """
    torch.set_float32_matmul_precision("high" if on else "highest")
    torch.backends.cudnn.allow_tf32 = on


def repeat_bits(*, on: bool) -> None:
    """Let this process use only kernels of a GPU that give the same bits each time, or all of them.

    Called before CUDA starts, since cuBLAS reads its variable then. A warning instead of the error
    would not do: PyTorch's attention then keeps the kernel whose backward adds in any order.
    Sources: PyTorch, "Reproducibility"; torchtitan, distributed/utils.py.
    """
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")  # no choice of kernels by time
    if torch.are_deterministic_algorithms_enabled() != on:  # it imports the compiler
        torch.use_deterministic_algorithms(on)
    settings: Any = torch.utils.deterministic
    settings.fill_uninitialized_memory = not on  # it would cost time and changes no result
    torch.backends.cudnn.deterministic = on
    torch.backends.cudnn.benchmark = False


def has_other_bits(error: BaseException) -> bool:
    """Whether this is PyTorch's refusal of an operation without a kernel that repeats its bits."""
    return "does not have a deterministic implementation" in str(error)


def _keep_freed_memory() -> None:
    """Let glibc keep large freed blocks for the next step instead of giving them back.

    Logits and their gradients are tens of megabytes, and without this the kernel maps and zeroes
    their pages again in every step: a third of the time of a small causal model on CPU. The price:
    freed blocks of other sizes pile up. A tiny ELMo's memory grows for about a thousand steps, to
    1.3 GB. With another C library nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_MMAP_THRESHOLD, 2**30)


def precision(compute: ComputeConfig, *, cuda: bool) -> str:
    """The precision of a config on this machine.

    Raises:
        ConfigError: The device does not support the precision, or is too slow in it.
    """
    emulated = cuda and not torch.cuda.is_bf16_supported(including_emulation=False)
    if compute.precision == "auto":
        return "bf16" if cuda and not emulated else "fp32"
    if compute.precision == "fp16" and not cuda:
        raise ConfigError("compute.precision: fp16 needs a CUDA device", "use fp32")
    if compute.precision == "tf32" and not (cuda and torch.cuda.get_device_capability() >= (8, 0)):
        raise ConfigError(
            "compute.precision: tf32 needs an NVIDIA GPU since RTX 30 or A100", "use fp32"
        )
    if compute.precision == "bf16" and emulated:
        raise ConfigError(
            f"compute.precision: {torch.cuda.get_device_name()} cannot compute in bf16; it would "
            "be emulated in fp32, which is slower than fp32 itself",
            "use compute.precision=auto, fp16 or fp32",
        )
    mps = compute.device != "cpu" and torch.backends.mps.is_available()
    if compute.precision == "bf16" and mps and not torch.backends.mps.is_macos_or_newer(14, 0):
        raise ConfigError("compute.precision: bf16 needs macOS 14 or newer", "use fp32")
    if compute.precision == "bf16" and not (cuda or mps) and native_bf16() is False:
        raise ConfigError(
            "compute.precision: this CPU has no instructions for bf16 (avx512_bf16, amx_bf16), "
            "and without them a step takes 27 times as long as in fp32",
            "use compute.precision=fp32",
        )
    return compute.precision


def of_training(
    compute: ComputeConfig, folder: Path, peers: Peers | None = None, *, fp16: bool
) -> ComputeConfig:
    """A training's ``compute`` with its precision decided: one for all processes and all starts.

    ``auto`` is bf16 where the device has it, a CPU included; else fp16 on a GPU that is fast in it.
    A resumed run keeps the precision of its checkpoints, which other versions of plmctl always
    computed in float32 on a CPU.

    Args:
        peers: The processes of the run; None: there is one.
        fp16: Whether the network can be trained in fp16, and the run can.

    Raises:
        DataError: The run's environment.json is damaged.
    """
    if compute.precision != "auto":
        return compute
    cuda = torch.cuda.is_available() and compute.device in ("auto", "cuda")
    cpu = compute.device == "cpu" or not torch.accelerator.is_available()
    own = precision(compute, cuda=cuda)
    if any(folder.glob("checkpoints/step-*")):
        own = read_json(folder / "environment.json").get("precision") or own
    elif cpu and native_bf16():
        own = "bf16"
    elif cuda and own == "fp32" and fp16 and fast_fp16(torch.cuda.get_device_capability()):
        own = "fp16"
    each = [facts["name"] for facts in (peers or Peers()).compare("precision", {"name": own})]
    weakest = min(each, key=("fp32", "fp16", "bf16").index)  # what every GPU has
    return compute.model_copy(update={"precision": weakest})


def fast_fp16(capability: tuple[int, int]) -> bool:
    """Whether NVIDIA's GPUs of this compute capability are faster in fp16: P100, and since V100."""
    return capability == (6, 0) or capability >= (7, 0)


def emulation_note(compute: ComputeConfig, accelerator: Accelerator) -> str:
    """What the start of a run says where the GPU has no bf16; empty: it has, or was not asked."""
    if compute.precision != "auto" or accelerator.device.type != "cuda":
        return ""
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return ""
    chosen = precision_of(accelerator)
    return f"compute.precision: {chosen}: {torch.cuda.get_device_name()} cannot compute in bf16"


def precision_of(accelerator: Accelerator) -> str:
    """The precision in which it computes: fp32, tf32, bf16 or fp16."""
    if accelerator.mixed_precision == "no":
        return "tf32" if torch.get_float32_matmul_precision() == "high" else "fp32"
    mixed: str = accelerator.mixed_precision
    return mixed


_CPUINFO = Path("/proc/cpuinfo")

# As Linux names them: x86's AVX-512 and tile instructions, and Arm's.
_BF16_FLAGS = {"avx512_bf16", "amx_bf16", "avx10_bf16", "bf16"}


def native_bf16(cpuinfo: Path = _CPUINFO) -> bool | None:
    """Whether the CPU has instructions for products in bf16; None: unknown.

    Without them PyTorch still computes in bf16, element by element.
    """
    if sys.platform != "linux":
        return None
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), None)
    if flags is None:
        return None
    return not _BF16_FLAGS.isdisjoint(flags.lower().partition(":")[2].split())


# --- Network and optimizer ---


def make_engine(
    accelerator: Accelerator,
    network: Network,
    optim: OptimizerConfig,
    compute: ComputeConfig,
    *,
    varying: bool = True,
    compile_by_default: bool = True,
    sharded: bool = False,
    averaging: Averaging | None = None,
    peers: Peers | None = None,
) -> Engine:
    """The network and a new optimizer, prepared for the device and the processes.

    The schedule is not prepared: Accelerate would step it once per process.

    Args:
        varying: Whether shapes change from step to step; used by compilation.
        compile_by_default: See ``compiles``.
        sharded: Whether each of several processes keeps a part of the weights.
        peers: The processes of the run; None: nobody watches them.
    """
    device = accelerator.device.type
    compiled = compiles(compute, device, by_default=compile_by_default, sharded=sharded)
    attention = compute.attention
    if attention not in ("auto", "unpadded"):
        network.model.set_attn_implementation(attention)
    apply_fast_paths(
        network.model, device=device, compiled=compiled, sharded=sharded, attention=attention
    )
    if compute.checkpoint_activations:
        checkpoint_activations(network.model)
    if sharded:  # a unit at a time, so that no device ever has all weights
        gather = torch.bfloat16 if compute.gather == "bf16" else torch.float32
        shard(network, accelerator.device, accelerator.num_processes, gather)
    else:
        network.to(accelerator.device)
    records = compute.compile == "reduce-overhead"
    if compiled:
        by_layer = sharded or compute.compile == "layers"
        compile_network(network, varying=varying, by_layer=by_layer, records=records)
    optimizer = make_optimizer(optim, network, fused=device == "cuda")
    prepared = accelerator.prepare_model(network, evaluation_mode=sharded)  # then no DDP
    average = None if averaging is None else Average(network.model, averaging)
    # Its state is where it belongs; Accelerate would move counters of the host to the device.
    prepared_optimizer = accelerator.prepare_optimizer(optimizer, device_placement=False)
    engine = Engine(
        accelerator,
        prepared,
        prepared_optimizer,
        average=average,
        peers=peers or Peers(),
        # Between several processes PyTorch cuts the graph up: see ``set_up_compiler``.
        any_length=compiled and not records and accelerator.num_processes == 1,
        records=records,
    )
    return enable_late_reading(engine) if accelerator.device.type == "cuda" else engine


def enable_late_reading(engine: Engine) -> Engine:
    """The same engine, with what lets the host of a GPU work ahead of it.

    An optimizer with a kernel for fp16's scaler can skip updates by a flag, which the scaler uses
    itself if there is one; and so can ours.
    """
    accelerator, optimizer = engine.accelerator, engine.trained().optimizer
    found_nonfinite = hosts = None
    flagged = isinstance(optimizer, Flagged) or getattr(
        optimizer, "_step_supports_amp_scaling", False
    )
    if flagged and accelerator.scaler is None and not is_sharded(engine.network):
        found_nonfinite = torch.zeros((), device=accelerator.device)
        optimizer.found_inf = found_nonfinite  # type: ignore[attr-defined]  # as torch.amp's scaler sets it
    if accelerator.num_processes > 1:
        hosts = torch.distributed.new_group(backend="gloo", timeout=engine.peers.group_timeout)
    return replace(engine, found_nonfinite=found_nonfinite, hosts=hosts)


def make_optimizer(config: OptimizerConfig, network: nn.Module, *, fused: bool) -> Optimizer:
    """A new optimizer over the parameters that require gradients.

    Args:
        fused: The form for a GPU: few kernels for all parameters.
    """
    return get_optimizer(config.name)(config).make(network, fused=fused)


# --- Compilation: ``torch.compile`` of what is between batch and losses ---


_SHAPES = 64
"""Number of shapes before PyTorch stops compiling; its own 8 are too few for several phases, each
with a smaller last micro-batch and two sizes of its lists of targets."""


def compiles(
    compute: ComputeConfig, device: str, *, by_default: bool, sharded: bool = False
) -> bool:
    """Whether a run compiles its network.

    By default not on a CPU, where it is slower; nor on a GPU that its compiler, Triton, does not
    know (P100, GTX 10); nor a sharded network, of which only the layers can be compiled, each by
    itself.

    Args:
        device: "cpu", "cuda" or "mps".
        by_default: Whether auto may compile: not in a finetuning, many of which take less time than
            compiling, nor for a family without ``COMPILES``.
        sharded: Its layers have their weights only while they are called.
    """
    if compute.compile == "auto":
        old = torch.cuda.is_available() and torch.cuda.get_device_capability() < _OLDEST_COMPILED
        return device == "cuda" and by_default and not sharded and not old
    return bool(compute.compile)


_OLDEST_COMPILED = (7, 0)  # compute capability; PyTorch refuses to compile for older ones


def compile_network(
    network: Network, *, varying: bool, by_layer: bool = False, records: bool = False
) -> None:
    """Compile a network, in place, at its first forward: a minute or two for a base size.

    Args:
        network: Its weights and their names stay.
        varying: Shapes change from step to step: one kernel for all sizes. Otherwise one per
            shape, which is faster.
        by_layer: Each layer by itself, which compiles sooner; what is between them is not compiled.
        records: See ``Network.compile``.
    """
    set_up_compiler(_SHAPES, varying=varying)
    if by_layer:
        stacks = layer_stacks(network.model).values()
        network.compile_layers((layer for stack in stacks for layer in stack), dynamic=varying)
    else:
        network.compile(records=records, dynamic=varying)
