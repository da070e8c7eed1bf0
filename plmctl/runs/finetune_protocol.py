"""``plmctl finetune --seeds`` and ``--grid``: several runs of one config, and one table of them."""

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
from types import FrameType
from typing import Any

from plmctl.config.finetune import FinetuneConfig
from plmctl.errors import ConfigError, PlmError, Preempted, nearest
from plmctl.metrics.statistics import spread
from plmctl.runs import judging
from plmctl.runs.folder import AtWork, check_run, is_finished, open_run, write_results
from plmctl.runs.say import say, show


@dataclass(frozen=True)
class Member:
    """One run of a protocol.

    Attributes:
        setting: The values of the grid that it has, by key.
        config: With its own run folder and seed.
    """

    setting: Mapping[str, Any]
    config: FinetuneConfig


def run(
    config: FinetuneConfig,
    seeds: int,
    *,
    grid: bool,
    jobs: int | None,
    as_json: bool,
    accept_gap: bool = False,
) -> None:
    """Run every combination and seed that is not finished yet; then compare all of them.

    Args:
        config: What the runs share.
        seeds: Runs of each combination, with the seeds ``config.seed``, that plus 1, and so on.
        grid: Try the combinations of ``config.grid``.
        jobs: Runs at once; None: one a CUDA device, or one.
        as_json: Print the result as JSON.
        accept_gap: Continue runs although lines of their metrics.jsonl were lost.

    Raises:
        ConfigError: No grid, or a key or value in it that is none.
        PlmError: Some of the runs failed; the others are finished, and are kept.
    """
    planned = members(config, seeds, grid=grid)
    check_run(config, config.run, fresh=False)
    folder = open_run(config, config.run, fresh=False)
    from plmctl.reporting.report import write
    from plmctl.reporting.tables import protocol_table

    with AtWork(folder) as work:
        failed = finish_all([member.config for member in planned], jobs, accept_gap=accept_gap)
        document = compare(config, planned)
        work.promise(["eval/protocol.json", "report.html"])
        write_results(folder, "protocol", {"kind": "protocol", **document})
        title = f"{config.run}: {document['metric']}"
        show(document, [protocol_table(title, document)], as_json=as_json)
        if failed:
            several = "\n  ".join(f"{name}: {said}" for name, said in failed.items())
            raise PlmError(
                f"{len(failed)} of {len(planned)} runs failed:\n  {several}",
                "the others are kept; the same command tries these again",
            )
        write([folder], folder / "report.html")
        work.finish()


def members(config: FinetuneConfig, seeds: int, *, grid: bool) -> list[Member]:
    """The runs of a protocol, in the order of the grid, each in a folder named for what it is.

    Raises:
        ConfigError: As ``run``.
    """
    if grid and not config.grid:
        raise ConfigError(
            "--grid: the config has no grid", "write one: grid: {optim.lr: [5e-5, 3e-5, 2e-5]}"
        )
    axes = config.grid if grid else {}
    made = []
    for values in product(*axes.values()):
        setting = dict(zip(axes, values, strict=True))
        for seed in range(config.seed, config.seed + seeds):
            name = ",".join(f"{_short(key, axes)}={value}" for key, value in setting.items())
            folder = Path(config.run) / (name.replace("/", "_") or "seeds") / f"seed={seed}"
            made.append(Member(setting, _changed(config, {**setting, "seed": seed}, str(folder))))
    return made


def _changed(config: FinetuneConfig, values: Mapping[str, Any], run: str) -> FinetuneConfig:
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
    # Each run has one device: several at once are faster than one on several.
    document |= {"run": run, "grid": {}}
    document["launch"]["processes"] = 1
    try:
        return FinetuneConfig.model_validate_json(json.dumps(document), strict=True)
    except ValueError as error:
        shown = ", ".join(f"{key}={value}" for key, value in values.items())
        said = str(error).splitlines()[2].strip()
        raise ConfigError(f"grid: {shown}: {said}") from error


def _short(key: str, axes: Mapping[str, Any]) -> str:
    """The last part of a key, or all of it where two axes end alike."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in axes) == 1 else key


def compare(config: FinetuneConfig, planned: Sequence[Member]) -> dict[str, Any]:
    """Every setting's median, spread and best over its seeds, by the runs' results on disk.

    Returns:
        metric, settings (in the order of the grid), and the best setting: that with the best
        median, where several seeds were run, and its best run.
    """
    known = [(member, found) for member in planned if (found := _results(member.config.run))]
    if not known:
        raise PlmError("no run was finished", "see the messages above")
    metric = judging.metric_of(config.train.metric, known[0][1])
    sign = 1 if judging.larger(metric) else -1
    settings: dict[str, dict[str, Any]] = {}
    for member, found in known:
        label = json.dumps(member.setting)
        at = settings.setdefault(label, {"setting": dict(member.setting), "runs": {}})
        at["runs"][member.config.run] = found[metric]
    rows = []
    for at in settings.values():
        values = list(at["runs"].values())
        best = max(at["runs"], key=lambda run: sign * at["runs"][run])
        rows.append({**at, **spread(values), "best": at["runs"][best], "best_run": best})
    chosen = max(rows, key=lambda row: sign * row["median"])
    return {"metric": metric, "settings": rows, "chosen": chosen}


def _results(run: str) -> dict[str, Any] | None:
    path = Path(run) / "eval" / "valid.json"
    if not is_finished(Path(run)) or not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["results"]
    return found


def finish_all(
    configs: Sequence[FinetuneConfig], jobs: int | None, *, accept_gap: bool = False
) -> dict[str, str]:
    """Run what is not finished.

    Args:
        configs: Each with its own run folder.
        jobs: As ``run``.
        accept_gap: As ``run``.

    Returns:
        What failed, with the message.
    """
    left = [config for config in configs if _results(config.run) is None]
    if len(left) < len(configs):
        say(f"{len(configs) - len(left)} of {len(configs)} runs are finished")
    if not left:
        return {}
    devices = _devices(left[0].compute.device)
    at_once = min(len(left), jobs or max(1, devices))
    attempt = partial(_attempt, accept_gap=accept_gap)
    if at_once == 1 >= devices:
        tried = _one_by_one(attempt, left)
    else:
        tried = _at_once(attempt, left, at_once, devices)
    failed = {}
    for number, (name, said) in enumerate(tried, 1):
        say(f"{number} of {len(left)}: {name}: {said or 'finished'}")
        if said:
            failed[name] = said
    return failed


def _one_by_one(
    attempt: Callable[[FinetuneConfig], str | None], configs: Sequence[FinetuneConfig]
) -> Iterator[tuple[str, str | None]]:
    for config in configs:
        yield config.run, attempt(config)


def _at_once(
    attempt: Callable[[FinetuneConfig], str | None],
    configs: Sequence[FinetuneConfig],
    count: int,
    devices: int,
) -> Iterator[tuple[str, str | None]]:
    """Run several in processes of their own, each with one device."""
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    for number in range(count):
        queue.put(number % devices if devices else None)
    pool = ProcessPoolExecutor(count, context, _worker, (queue,))
    with _passing_on() as stopped, pool:
        running = {pool.submit(attempt, config): config.run for config in configs}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BrokenProcessPool as error:
            if stopped:  # a run that had not begun yet, and had nothing to save
                raise Preempted("stopped", "the same command goes on") from error
            raise PlmError(
                "a run's process was ended from outside; was there too little memory?",
                "the same command goes on; fewer --jobs need less memory",
            ) from error
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _attempt(config: FinetuneConfig, *, accept_gap: bool) -> str | None:
    """Finish a run; None, or what went wrong. A stop by a signal stops the protocol."""
    from plmctl.runs.finetune import finetuned

    try:
        finetuned(config, fresh=False, accept_gap=accept_gap)
    except Preempted:
        raise
    except PlmError as error:
        return error.message
    return None


def _worker(queue: Any) -> None:
    """Take a device, before anything asks which there are."""
    import os

    device = queue.get()
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def _devices(device: str) -> int:
    import torch

    return torch.cuda.device_count() if device in ("auto", "cuda") else 0


@contextmanager
def _passing_on() -> Iterator[list[int]]:
    """A signal to this process goes on to the runs, which save a checkpoint and end.

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
