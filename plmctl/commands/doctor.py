"""``plmctl doctor``: the machine, the packages, and what a run would use of them."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from plmctl import __version__, hub
from plmctl.cpus import usable_cpus
from plmctl.reporting.tables import metrics_table, rows_table
from plmctl.run.configs import PretrainConfig, RunConfig
from plmctl.run.display import show_result
from plmctl.run.machine import resolve_compute
from plmctl.run.preflight import check_network, finetune_preflight, stand_in
from plmctl.versions import installed_version, requirements, tested_versions

_EXTRAS = {
    "samples": "sample:sotu",
    "samples-zh": "sample:zh-news",
    "zh": "data.words: jieba",
    "documents": "plmctl text, data.languages, data.duplicates: near",
    "elmo": "original ELMo weights",
    "harness": "lm-evaluation-harness",
    "modelscope": "ms: names",
    "peft": "lora",
    "scale": "prepare.executor: slurm, ray",
    "tensorboard": "log.trackers",
    "text": "ROUGE and BLEU",
}
_ANY_SIZE = 1000  # of a vocabulary that only stands in for the tokenizer's


def run(config: RunConfig | None, *, as_json: bool) -> None:
    """Print what the machine and the environment have, and what a run of the config would use.

    Args:
        config: The config of a run; None: the machine only.

    Raises:
        ConfigError: The config requires what this machine does not have.
    """
    facts = machine(Path(config.run) if config else Path())
    packages, extras = _packages(), _extras()
    access = hub_access()
    tables = [metrics_table("machine", _flat(facts))]
    document: dict[str, Any] = {
        "machine": facts,
        "hub": access,
        "packages": packages,
        "extras": extras,
    }
    if config is not None:
        # The tokenizer need not be trained yet.
        checked = (
            check_network(config, stand_in(_ANY_SIZE))
            if isinstance(config, PretrainConfig)
            else finetune_preflight(config)
        )
        document["run"] = use = resolve_compute(config, checked.family, checked.network)
        tables.append(metrics_table(f"{config.run} would use", _flat(use)))
    tables.append(metrics_table("Hugging Face Hub", _flat(access)))
    rows = [
        [p["name"], p["installed"] or "missing", p["tested"] or "-", p["note"]] for p in packages
    ]
    tables.append(rows_table("packages", ["", "installed", "tested", "note"], rows))
    rows = [[e["name"], "yes" if e["present"] else e["install"], e["for"]] for e in extras]
    tables.append(rows_table("extras", ["", "present", "for"], rows))
    show_result(document, tables, as_json=as_json)


def machine(folder: Path) -> dict[str, Any]:
    """Processor, devices, memory and disk.

    Args:
        folder: Where a run would write; it need not exist.
    """
    import torch

    from plmctl.training.engine import native_bf16

    there = next(
        place for place in (folder.absolute(), *folder.absolute().parents) if place.exists()
    )
    native = {
        True: "native, up to twice as fast as fp32: trainings use it",
        False: "emulated, 27 times slower than fp32",
        None: "unknown",
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
        "devices": list(_devices()) or ["only the CPU"],
        "memory_gb": _gigabytes("MemTotal"),
        "memory_free_gb": _gigabytes("MemAvailable"),
        "disk_free_gb": round(shutil.disk_usage(there).free / 1e9, 1),
    }


def hub_access() -> dict[str, Any]:
    """What a name on the Hub would be opened with; the token itself is not shown.

    Raises:
        ConfigError: HF_ENDPOINT is not an address.
    """
    from huggingface_hub import constants

    offline, cache = constants.HF_HUB_OFFLINE, Path(constants.HF_HUB_CACHE)
    if offline:
        state = "offline (HF_HUB_OFFLINE): only its cache is used"
    else:
        state = "answers" if hub.answers() else "cannot be reached: only its cache can be used"
    xet = "off (HF_HUB_DISABLE_XET)" if constants.HF_HUB_DISABLE_XET else "used if installed"
    if hub.is_mirror() and "HF_HUB_DISABLE_XET" not in os.environ:
        xet = "off: it would bypass the mirror of HF_ENDPOINT"
    return {
        "endpoint": hub.endpoint(),
        "state": state,
        "xet": xet,
        "token": "set" if hub.has_token() else "none: `plmctl push` needs one",
        "cache": str(cache),
        "cache_gb": round(_bytes_in(cache) / 1e9, 2),
    }


def _bytes_in(folder: Path) -> int:
    """Bytes of the files in a folder; links are not followed, since the cache links to itself."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # another process may remove one
                size += os.lstat(os.path.join(place, name)).st_size
    return size


_DECIDES = {"torch", "transformers", "tokenizers", "accelerate", "datasets", "numpy", "safetensors"}
"""Packages of which another version may change a result or a speed; the others only need to fit."""


def _packages() -> list[dict[str, Any]]:
    """The required packages, beside the versions that plmctl is tested with."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    tested = tested_versions()
    needed = [Requirement(line) for line in requirements()]
    packages = []
    for one in (one for one in needed if one.marker is None):
        installed, wanted = installed_version(one.name), tested.get(canonicalize_name(one.name))
        note = ""
        if installed is None or not one.specifier.contains(installed, prereleases=True):
            note = f"needs {one.specifier}"
        elif (
            wanted
            and one.name.lower() in _DECIDES
            and installed.partition("+")[0] != wanted  # "+cpu" is the same version
        ):
            note = "not the tested version"
        packages.append({"name": one.name, "installed": installed, "tested": wanted, "note": note})
    return packages


def _extras() -> list[dict[str, Any]]:
    from packaging.requirements import Requirement

    needed = [Requirement(line) for line in requirements()]
    extras = []
    for extra, purpose in _EXTRAS.items():
        of_it = [one.name for one in needed if one.marker and one.marker.evaluate({"extra": extra})]
        missing = [name for name in of_it if installed_version(name) is None]
        present = bool(of_it) and not missing
        install = "" if present else f"pip install 'plmctl[{extra}]'"
        extras.append(
            {
                "name": extra,
                "present": present,
                "missing": missing,
                "for": purpose,
                "install": install,
            }
        )
    return extras


def _devices() -> Iterator[str]:
    import torch

    from plmctl.training.engine import fast_fp16

    for number in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(number)
        with torch.cuda.device(number):
            native = torch.cuda.is_bf16_supported(including_emulation=False)
        narrow = "fp16" if fast_fp16((facts.major, facts.minor)) else "fp32"
        use = "bf16" if native else f"no bf16: trainings use {narrow} (T5 and ELMo: fp32)"
        yield f"cuda:{number} {facts.name}, {facts.total_memory / 1e9:.0f} GB, {use}"
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
    values = (line.split()[1] for line in lines if line.startswith(f"{name}:"))
    kilobytes = next(values, None)
    return None if kilobytes is None else round(int(kilobytes) * 1024 / 1e9, 1)


def _flat(facts: dict[str, Any]) -> dict[str, object]:
    """Facts as the table shows them: a list on one line, an unknown value as a dash."""
    shown: dict[str, object] = {}
    for name, value in facts.items():
        plain = ", ".join(map(str, value)) if isinstance(value, list) else value
        shown[name.replace("_gb", ", GB").replace("_", " ")] = "-" if plain is None else plain
    return shown
