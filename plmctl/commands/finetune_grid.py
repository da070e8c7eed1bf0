"""``plmctl finetune --seeds`` and ``--grid``: several runs of one config, and one table of them.

The parts in their order: which runs there are, running what is not finished (``run.several``), and
the comparison of their results. ``plmctl suite`` uses all three.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from plmctl.commands.finetune import finetune, made_from
from plmctl.errors import ConfigError, PlmError, nearest
from plmctl.metrics.deciding import larger_is_better, metric_of
from plmctl.metrics.statistics import spread
from plmctl.run.configs import FinetuneConfig
from plmctl.run.display import say, show_result
from plmctl.run.folder import AtWork, check_run, open_run, write_results
from plmctl.run.launch import StartOptions
from plmctl.run.preflight import finetune_preflight
from plmctl.run.several import finish_all, finished_results, refuse_changed, some_failed


def run_protocol(
    config: FinetuneConfig,
    seeds: int,
    *,
    grid: bool,
    jobs: int | None,
    as_json: bool,
    accept_gap: bool = False,
) -> None:
    """Run every combination and seed that is not finished yet, then compare all of them.

    Args:
        seeds: Runs of each combination, with the seeds ``config.seed``, that plus 1, and so on.
        grid: Try the combinations of ``config.grid``.
        jobs: Runs at the same time; None: one per CUDA device, or one.
        accept_gap: Resume runs although lines of their metrics.jsonl were lost.

    Raises:
        ConfigError: No grid, or an unknown key or value in it; or as ``finetune_preflight``.
        DataError: As ``refuse_changed``.
        PlmError: Some of the runs failed; the others are finished, and are kept.
    """
    from plmctl.reporting.report import write_report
    from plmctl.reporting.run_files import yardstick_sentence
    from plmctl.reporting.tables import protocol_table

    planned = protocol_runs(config, seeds, grid=grid)
    check_run(config, config.run, fresh=False)
    configs = [member.config for member in planned]
    refuse_changed(configs, made_from, "or name another folder with `run=...`")
    check_unfinished(configs)
    folder = open_run(config, config.run, fresh=False)
    with AtWork(folder) as work:
        failed = finetune_all(configs, jobs, accept_gap=accept_gap)
        document = compare_settings(config, planned)
        work.promise(["eval/protocol.json", "report.html"])
        write_results(folder, "protocol", {"kind": "protocol", **document})
        title = f"{config.run}: {document['metric']}"
        show_result(document, [protocol_table(title, document)], as_json=as_json)
        if line := yardstick_sentence(document):
            say(line)
        if failed:
            raise some_failed(failed, len(planned))
        write_report([folder], folder / "report.html")
        work.finish()


# --- The runs of a protocol: every combination of the grid, with every seed ---


@dataclass(frozen=True)
class ProtocolRun:
    """One run of a protocol.

    Attributes:
        setting: The values of the grid that it has, by key.
    """

    setting: Mapping[str, Any]
    config: FinetuneConfig


def protocol_runs(config: FinetuneConfig, seeds: int, *, grid: bool) -> list[ProtocolRun]:
    """The runs of a protocol, in the order of the grid, each in a folder named by its setting.

    Raises:
        ConfigError: As ``run_protocol``.
    """
    if grid and not config.grid:
        raise ConfigError(
            "--grid: the config has no grid", "write one: grid: {optim.lr: [5e-5, 3e-5, 2e-5]}"
        )
    axes = config.grid if grid else {}
    runs = []
    for values in product(*axes.values()):
        setting = dict(zip(axes, values, strict=True))
        for seed in range(config.seed, config.seed + seeds):
            name = ",".join(f"{_short_key(key, axes)}={value}" for key, value in setting.items())
            folder = Path(config.run) / (name.replace("/", "_") or "seeds") / f"seed={seed}"
            own = _with_setting(config, {**setting, "seed": seed}, str(folder))
            runs.append(ProtocolRun(setting, own))
    return runs


def _with_setting(config: FinetuneConfig, values: Mapping[str, Any], run: str) -> FinetuneConfig:
    document = config.model_dump(mode="json")
    for key, value in values.items():
        *path, last = key.split(".")
        at: Any = document
        for part in path:
            at = at.get(part) if isinstance(at, dict) else None
        if not isinstance(at, dict) or last not in at or key in ("run", "grid"):
            known = [f"{'.'.join(path)}.{name}" if path else name for name in at or ()]
            raise ConfigError(f"grid: unknown key {key!r}{nearest(key, known)}")
        at[last] = value
    # Each run has one device: several runs in parallel are faster than one on several devices.
    document |= {"run": run, "grid": {}}
    document["launch"] |= {"processes": 1, "machines": 1}
    try:
        return FinetuneConfig.model_validate_json(json.dumps(document), strict=True)
    except ValueError as error:
        shown = ", ".join(f"{key}={value}" for key, value in values.items())
        reason = str(error).splitlines()[2].strip()  # after the number of mistakes and the key
        raise ConfigError(f"grid: {shown}: {reason}") from error


def _short_key(key: str, axes: Mapping[str, Any]) -> str:
    """The last part of a key, or all of it where two axes end alike."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in axes) == 1 else key


# --- Running what is not finished ---


def check_unfinished(configs: Sequence[FinetuneConfig]) -> None:
    """Check every config that is not finished before the first of them runs, equal ones once.

    Raises:
        ConfigError, DataError, PlmError: As ``finetune_preflight``.
    """
    checked = set()
    for config in configs:
        same = config.model_dump_json(include={"model", "task", "train", "lora", "compute"})
        if same not in checked and finished_results(config.run) is None:
            finetune_preflight(config)
        checked.add(same)


def finetune_all(
    configs: Sequence[FinetuneConfig], jobs: int | None, *, accept_gap: bool = False
) -> dict[str, PlmError]:
    """``finish_all`` of finetunings, which have one device each."""
    train = partial(finetune, options=StartOptions(accept_gap=accept_gap))
    return finish_all(configs, train, jobs=jobs, device=configs[0].compute.device)


# --- The comparison of the finished runs ---


def compare_settings(config: FinetuneConfig, planned: Sequence[ProtocolRun]) -> dict[str, Any]:
    """Every setting's median, spread and best over its seeds, by the runs' results on disk.

    Returns:
        metric, settings (in the order of the grid), and the best setting: that with the best
        median, where several seeds were run, and its best run. If it is known what counting gives,
        each setting has it as ``counted``, and the best one's is in ``yardsticks``.
    """
    from plmctl.reporting.run_files import yardstick_list

    finished = [
        (member, results)
        for member in planned
        if (results := finished_results(member.config.run)) is not None
    ]
    if not finished:
        raise PlmError("no run was finished", "see the messages above")
    metric = metric_of(config.train.metric, finished[0][1])
    sign = 1 if larger_is_better(metric) else -1
    settings: dict[str, dict[str, Any]] = {}
    counted: dict[str, list[Mapping[str, Any]]] = {}
    for member, results in finished:
        label = json.dumps(member.setting)
        at = settings.setdefault(label, {"setting": dict(member.setting), "runs": {}})
        at["runs"][member.config.run] = results[metric]
        counted.setdefault(label, []).extend(yardstick_list(results)[:1])
    rows = []
    for label, at in settings.items():
        if beside := counted[label]:
            at["counted"] = _median_of(beside)
        values = list(at["runs"].values())
        best = max(at["runs"], key=lambda run: sign * at["runs"][run])
        rows.append({**at, **spread(values), "best": at["runs"][best], "best_run": best})
    chosen = max(rows, key=lambda row: sign * row["median"])
    document: dict[str, Any] = {"metric": metric, "settings": rows, "chosen": chosen}
    if "counted" in chosen:
        of = finished[0][1]
        document |= {"yardsticks": [chosen["counted"]]}
        document |= {key: of[key] for key in ("rows", "valid_rows") if key in of}
    return document


def _median_of(yardsticks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What counting gives beside several runs, and by how much they differ from it.

    The value differs between runs only if their rows do, as with ``data.max_rows``.
    """
    numbers = ("value", "seconds", "difference", "low", "high")
    medians = {key: median(one[key] for one in yardsticks) for key in numbers}
    return {**{key: yardsticks[0][key] for key in ("name", "metric", "credit")}, **medians}
