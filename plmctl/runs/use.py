"""What a run would use of this machine: device, kernels and processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plmctl.config.finetune import FinetuneConfig
from plmctl.config.pretrain import PretrainConfig

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

RunConfig = PretrainConfig | FinetuneConfig

_STAND_IN = 1000  # ids of a network that is built only to be asked


def would_use(config: RunConfig) -> dict[str, Any]:
    """Device, kernels and processes of a run, by the rules that the run itself goes by.

    Raises:
        ConfigError: The config asks for what this machine has not.
    """
    import torch

    from plmctl.runs.launch import process_count
    from plmctl.training.engine import compiles, for_finetuning, make_accelerator

    processes = process_count(config.launch, config.compute.device)
    accelerator = make_accelerator(config.compute)
    device = accelerator.device.type
    precision = {"no": "fp32"}.get(accelerator.mixed_precision, accelerator.mixed_precision)
    workers = config.compute.workers
    model_type = _model_type(config)
    pretraining = isinstance(config, PretrainConfig)
    compute = config.compute if pretraining else for_finetuning(config.compute)
    sharded = config.launch.shards(processes)
    compiled = compiles(compute, device, model_type, sharded=sharded)
    if config.compute.checkpoint_activations and model_type == "elmo":
        from plmctl.modeling.recompute import refusal

        raise refusal("ELMo")
    return {
        "device": device,
        "precision": precision,
        "compile": compiled,
        "checkpoint_activations": config.compute.checkpoint_activations,
        "attention": _attention(config, device, compiled=compiled),
        "threads": torch.get_num_threads(),
        "processes": processes,
        "strategy": "fsdp" if sharded else "ddp",
        "workers": workers if isinstance(workers, int) else (2 if device == "cuda" else 0),
        "micro_batch_size": _micro_batch(config, processes, device),
    }


def _attention(config: RunConfig, device: str, *, compiled: bool) -> str:
    """The kernel, by its name in transformers and in words."""
    from plmctl.modeling import attention

    name = config.compute.attention
    found = name if name != "auto" else _library_choice(config)
    if name == "auto" and found == "sdpa" and device == "cpu" and not compiled:
        return f"{attention.NAME} (with fast dropout)"
    return found


def _library_choice(config: RunConfig) -> str:
    if _model_type(config) == "elmo":
        return "none (LSTM)"
    if not isinstance(config, PretrainConfig) or config.model.init_from is not None:
        return "sdpa"
    return str(_network(config)._attn_implementation or "eager")


def _network(config: Any) -> PreTrainedConfig:
    import torch

    from plmctl import families, objectives
    from plmctl.modeling.auto import config_of

    if config.model.init_from is not None:
        return config_of(config.model.init_from)
    family = families.get(config.model.family)
    parts = objectives.get(config.objective.name).PARTS
    with torch.device("meta"):
        return family.build(config.model, vocab_size=_STAND_IN, pad_id=0, parts=parts).config


def _model_type(config: RunConfig) -> str:
    """Of a network that is loaded, transformers' name; else the family's, ELMo's being the same."""
    if isinstance(config, PretrainConfig) and config.model.init_from is None:
        return config.model.family
    from plmctl.modeling.auto import config_of
    from plmctl.runs.finetune import check_model

    source = config.model.init_from if isinstance(config, PretrainConfig) else config.model
    check_model(str(source))
    return str(config_of(str(source)).model_type)


def _micro_batch(config: RunConfig, processes: int, device: str) -> int | list[int]:
    """Rows of a forward: of each phase, if they are not the same."""
    from plmctl.training.data import auto_micro_batch

    train = config.train
    if isinstance(config, PretrainConfig):
        lengths = [phase.seq_len for phase in config.train.phases]
    else:
        lengths = [config.train.max_length]
    rows = -(-train.batch_size // processes)
    sizes = [auto_micro_batch(train.micro_batch_size, rows, size, device) for size in lengths]
    return sizes[0] if len(set(sizes)) == 1 else sizes
