"""How a run is computed, launched, saved and logged: nothing here changes the mathematics."""

from typing import Annotated, Literal

from pydantic import Field

from plmctl.config.base import Model

PositiveOrAuto = Annotated[int, Field(ge=1)] | Literal["auto"]


class ComputeConfig(Model):
    """The device and how it computes."""

    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """auto: CUDA or Apple's GPU if there is one, else the CPU."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 on a CUDA device that has it, else fp32."""
    compile: bool | Literal["auto"] = "auto"
    """Run the network through `torch.compile` while training; auto: in pretraining on a CUDA
    device, but for ELMo."""
    checkpoint_activations: bool = False
    """Compute each layer a second time in the backward pass instead of keeping what is in it: a
    step takes about a third longer, and most of the memory of activations is free. Not for
    ELMo."""
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = "auto"
    """The implementation of attention; auto: the library's choice."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of PyTorch; empty: its own choice."""
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Processes that make batches ahead."""


class LaunchConfig(Model):
    """Processes."""

    processes: PositiveOrAuto = "auto"
    """auto: one a CUDA device, one on CPU."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """How the processes share the work, each with a part of the batch; ddp: each has the whole
    model; fsdp: and a part of the weights, their gradients and the optimizer's state (pretraining
    only)."""

    def shards(self, processes: int) -> bool:
        """Whether so many processes each keep a part of the weights: one has nothing to share."""
        return self.strategy == "fsdp" and processes > 1


class CheckpointConfig(Model):
    """Checkpoints."""

    every: int = Field(default=500, ge=1)
    """Steps between checkpoints."""
    keep: int = Field(default=3, ge=1)
    """How many of the newest to keep."""
    keep_every: int | None = Field(default=None, ge=1)
    """Keep those of steps that this divides as well; empty: no others."""
    keep_best: bool = False
    """Save where the validation loss is the lowest so far, and keep that one as well."""
    background: bool = False
    """Write checkpoints while training goes on; it stands still only for a copy of the state in
    memory: 12 bytes a parameter with AdamW."""


class LogConfig(Model):
    """What is written down while a run goes on."""

    every: int = Field(default=10, ge=1)
    """Steps between lines of metrics.jsonl."""
    validate_every: int | None = Field(default=None, ge=1)
    """Steps between validations; there is always one at the end."""
    validate_samples: int | None = Field(default=2000, ge=1)
    """Sequences of the validation text that are scored; empty: all."""
    trackers: tuple[Literal["tensorboard"], ...] = ()
    """Where else the lines go."""
