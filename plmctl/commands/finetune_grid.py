"""``plmctl finetune --seeds`` and ``--grid``: several runs of one config, and one table of them.

The parts in their order: which runs there are, running what is not finished (one after another or
in parallel), and the comparison of their results. ``plmctl suite`` uses all three.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from textwrap import indent
from types import FrameType
from typing import Any

from plmctl.commands.finetune import finetune, larger_is_better, made_from, metric_of
from plmctl.errors import ConfigError, DataError, PlmError, Preempted, listed, nearest
from plmctl.metrics.statistics import spread
from plmctl.run.configs import FinetuneConfig
from plmctl.run.display import say, show_result
from plmctl.run.folder import (
    AtWork,
    changed_since,
    check_run,
    is_finished,
    open_run,
    read_results,
    write_results,
)
from plmctl.run.launch import StartOptions
from plmctl.run.preflight import finetune_preflight


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
        config: What the runs share.
        seeds: Runs of each combination, with the seeds ``config.seed``, that plus 1, and so on.
        grid: Try the combinations of ``config.grid``.
        jobs: Runs at the same time; None: one per CUDA device, or one.
        as_json: Print the results as JSON.
        accept_gap: Resume runs although lines of their metrics.jsonl were lost.

    Raises:
        ConfigError: No grid, or an unknown key or value in it; or as ``finetune_preflight``.
        DataError: As ``refuse_changed``.
        PlmError: Some of the runs failed; the others are finished, and are kept.
    """
    from plmctl.reporting.report import write_report
    from plmctl.reporting.tables import protocol_table

    planned = protocol_runs(config, seeds, grid=grid)
    check_run(config, config.run, fresh=False)
    configs = [member.config for member in planned]
    refuse_changed(configs, "or name another folder with `run=...`")
    check_unfinished(configs)
    folder = open_run(config, config.run, fresh=False)
    with AtWork(folder) as work:
        failed = finish_all(configs, jobs, accept_gap=accept_gap)
        document = compare_settings(config, planned)
        work.promise(["eval/protocol.json", "report.html"])
        write_results(folder, "protocol", {"kind": "protocol", **document})
        title = f"{config.run}: {document['metric']}"
        show_result(document, [protocol_table(title, document)], as_json=as_json)
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
        config: With its own run folder and seed.
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


# --- Running what is not finished, one after another or in parallel ---


def refuse_changed(configs: Sequence[FinetuneConfig], otherwise: str) -> None:
    """Refuse runs that were made from another model or other rows than there are now.

    One table never has both: the old ones and those that are still to be run.

    Args:
        configs: Each with its own run folder.
        otherwise: What to do, if what changed cannot be restored.

    Raises:
        DataError: With the runs, and what changed.
    """
    lines, unknown = [], set[str]()
    for config in configs:
        if is_finished(Path(config.run)):
            differ, cannot = changed_since(Path(config.run), made_from(config))
            if differ:
                lines.append(f"{config.run}: the {listed(differ)} changed since it was trained")
            unknown |= set(cannot)
    if lines:
        raise DataError(
            "finished runs were made from something else than there is now:\n"
            + indent("\n".join(lines), "  "),
            f"restore it; {otherwise}: one table has runs of one model and the same rows",
        )
    if unknown:
        say(
            "finished runs of an older version of plmctl have no hash of the "
            f"{listed(sorted(unknown))}: whether they changed since is unknown"
        )


def check_unfinished(configs: Sequence[FinetuneConfig]) -> None:
    """Check every config that is not finished before the first of them runs, equal ones once.

    Raises:
        ConfigError, DataError, PlmError: As ``finetune_preflight``.
    """
    checked = set()
    for config in configs:
        same = config.model_dump_json(include={"model", "task", "train", "lora", "compute"})
        if same not in checked and _finished_results(config.run) is None:
            finetune_preflight(config)
        checked.add(same)


def finish_all(
    configs: Sequence[FinetuneConfig], jobs: int | None, *, accept_gap: bool = False
) -> dict[str, PlmError]:
    """Run what is not finished.

    Args:
        configs: Each with its own run folder.
        jobs: As ``run_protocol``.
        accept_gap: As ``run_protocol``.

    Returns:
        The runs that failed, with their errors.
    """
    left = [config for config in configs if _finished_results(config.run) is None]
    if len(left) < len(configs):
        say(f"{len(configs) - len(left)} of {len(configs)} runs are finished")
    if not left:
        return {}
    devices = _device_count(left[0].compute.device)
    at_once = min(len(left), jobs or max(1, devices))
    attempt = partial(_attempt, accept_gap=accept_gap)
    if at_once == 1 >= devices:
        tried = _one_by_one(attempt, left)
    else:
        tried = _in_parallel(attempt, left, at_once, devices)
    failed = {}
    for number, (name, error) in enumerate(tried, 1):
        say(f"{number} of {len(left)}: {name}: {error.message if error else 'finished'}")
        if error:
            failed[name] = error
    return failed


def some_failed(failed: dict[str, PlmError], count: int) -> PlmError:
    """The error of ``count`` runs of which some failed: what is wrong with each, and what to do."""
    messages = indent("\n".join(f"{name}: {error}" for name, error in failed.items()), "  ")
    return PlmError(
        f"{len(failed)} of {count} runs failed:\n{messages}",
        "the others are kept; run the same command again to retry the failed runs",
    )


def _one_by_one(
    attempt: Callable[[FinetuneConfig], PlmError | None], configs: Sequence[FinetuneConfig]
) -> Iterator[tuple[str, PlmError | None]]:
    for config in configs:
        yield config.run, attempt(config)


def _in_parallel(
    attempt: Callable[[FinetuneConfig], PlmError | None],
    configs: Sequence[FinetuneConfig],
    count: int,
    devices: int,
) -> Iterator[tuple[str, PlmError | None]]:
    """Run several in separate processes, each with one device."""
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    for number in range(count):
        queue.put(number % devices if devices else None)
    pool = ProcessPoolExecutor(count, context, _take_device, (queue,))
    with _passing_signals_on() as stopped, pool:
        running = {pool.submit(attempt, config): config.run for config in configs}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool as error:
            if stopped:  # a run that had not started yet, and had nothing to save
                raise Preempted("stopped", "run the same command again to resume") from error
            raise PlmError(
                "a run's process was killed; was there too little memory?",
                "run the same command again to resume; fewer --jobs need less memory",
            ) from error
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _attempt(config: FinetuneConfig, *, accept_gap: bool) -> PlmError | None:
    """Finish a run. Returns None, or the error; a stop by a signal stops the protocol."""
    try:
        finetune(config, StartOptions(accept_gap=accept_gap))
    except Preempted:
        raise
    except PlmError as error:
        return error
    return None


def _take_device(queue: Any) -> None:
    """Take a device, before CUDA is initialised."""
    import os

    device = queue.get()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def _device_count(device: str) -> int:
    import torch

    return torch.cuda.device_count() if device in ("auto", "cuda") else 0


@contextmanager
def _passing_signals_on() -> Iterator[list[int]]:
    """Pass a signal to this process on to the runs, which save a checkpoint and end.

    Yields:
        The signals so far.
    """
    seen: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        for child in multiprocessing.active_children():
            child.terminate()

    before = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGTERM, before)


# --- The comparison of the finished runs ---


def compare_settings(config: FinetuneConfig, planned: Sequence[ProtocolRun]) -> dict[str, Any]:
    """Every setting's median, spread and best over its seeds, by the runs' results on disk.

    Returns:
        metric, settings (in the order of the grid), and the best setting: that with the best
        median, where several seeds were run, and its best run.
    """
    finished = [
        (member, results)
        for member in planned
        if (results := _finished_results(member.config.run)) is not None
    ]
    if not finished:
        raise PlmError("no run was finished", "see the messages above")
    metric = metric_of(config.train.metric, finished[0][1])
    sign = 1 if larger_is_better(metric) else -1
    settings: dict[str, dict[str, Any]] = {}
    for member, results in finished:
        label = json.dumps(member.setting)
        at = settings.setdefault(label, {"setting": dict(member.setting), "runs": {}})
        at["runs"][member.config.run] = results[metric]
    rows = []
    for at in settings.values():
        values = list(at["runs"].values())
        best = max(at["runs"], key=lambda run: sign * at["runs"][run])
        rows.append({**at, **spread(values), "best": at["runs"][best], "best_run": best})
    chosen = max(rows, key=lambda row: sign * row["median"])
    return {"metric": metric, "settings": rows, "chosen": chosen}


def _finished_results(run: str) -> dict[str, Any] | None:
    path = Path(run) / "eval" / "valid.json"
    if not is_finished(Path(run)) or not path.is_file():
        return None
    results: dict[str, Any] = read_results(path)["results"]
    return results
