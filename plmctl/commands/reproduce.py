"""``plmctl reproduce``: does a repetition of a run give the same losses?"""

import json
import shutil
from pathlib import Path
from typing import Any

from plmctl.commands.verify_resume import (
    Check,
    command_of,
    compare_logs,
    import_all,
    records,
    run_whole,
)
from plmctl.config.load import kind_of, parse
from plmctl.errors import ConfigError
from plmctl.files import read_json, reserved
from plmctl.metrics.modules import is_ours
from plmctl.reporting.run_files import find_run
from plmctl.reporting.tables import rows_table
from plmctl.run.budget import copy_decision
from plmctl.run.configs import model_of
from plmctl.run.display import say, show_result

_LINES = 20  # logged losses to compare
# What environment.json has of the machine and the code.
_MACHINE = ("python", "platform", "device", "devices", "threads", "git_commit")


def run(folder: Path, *, lines: int = _LINES, keep: bool, as_json: bool) -> None:
    """Repeat the first steps of a run in a new folder, and compare; exit with 1 if they differ.

    Raises:
        ConfigError: The folder is not that of a training run, or its log has no loss.
        PlmError: The repetition failed.
    """
    folder = find_run(folder)
    config, log, environment = _original(folder)
    losses = [line for line in log if "loss" in line][:lines]
    until = losses[-1]["step"]
    again = reserved(f"{folder}.again", folder=True)
    output = again.with_name(f"{again.name}.log")
    compute = config.compute
    if compute.precision == "auto":  # then it was that machine's, and an earlier version's on a CPU
        precision = environment.get("precision", "auto" if environment.get("devices") else "fp32")
        compute = compute.model_copy(update={"precision": precision})
    repeated = config.model_copy(update={"run": str(again), "compute": compute})
    import_all(repeated)
    say(f"repeating the first {until:,} steps of {folder} in {again}")
    copy_decision(folder, again)  # a measured time would give other steps
    run_whole(command_of(repeated, until), again, output)
    changed = _changes(environment, read_json(again / "environment.json"))
    first, second = (
        [line for line in whole if line["step"] <= until] for whole in (log, records(again))
    )
    checks = compare_logs(first, second)
    equal = not any(check.different for check in checks)
    document = {
        "equal": equal,
        "losses": len(losses),
        "steps": until,
        "first_difference": next((check.first for check in checks if check.different), None),
        "changed": changed,
    }
    show_result(document, _tables(folder, changed, checks, equal=equal), as_json=as_json)
    if not keep:
        shutil.rmtree(again)
        output.unlink()
    if not equal:
        raise SystemExit(1)


def _original(folder: Path) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    """The config, the log and the environment of a run.

    Raises:
        ConfigError: The folder is not that of a training run, or its log has no loss.
    """
    path = folder / "config.yaml"
    kind = kind_of(path)
    if kind not in ("pretrain", "finetune"):
        raise ConfigError(
            f"{folder}: a run of the kind {kind}", "give a pretraining or finetuning run"
        )
    try:
        environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
        log = records(folder)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{folder}: {error}", "start the training of this run first") from error
    if not any("loss" in line for line in log):
        raise ConfigError(
            f"{folder}: metrics.jsonl has no loss yet",
            "wait until log.every steps are done",
        )
    config: Any = parse(model_of(kind), path)
    code = [name for name in config.task.metrics if not is_ours(name)] if kind == "finetune" else []
    if code:
        raise ConfigError(
            f"{path}: its metric {code[0]!r} is code, which a run folder cannot have run",
            f"if you trust it, train from the config yourself: plmctl finetune {path} run=NEW",
        )
    return config, log, environment


def _changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    """The versions, inputs and machine facts that have changed: name to [before, now]."""
    old, new = ({**facts, **facts["versions"], **facts["hashes"]} for facts in (before, now))
    names = [*before["versions"], *before["hashes"], *_MACHINE]
    pairs = {name: [old.get(name), new.get(name)] for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _tables(
    folder: Path, changed: dict[str, list[Any]], checks: list[Check], *, equal: bool
) -> list[Any]:
    verdict = f"{folder} is reproduced" if equal else f"{folder} IS NOT REPRODUCED"
    rows = [(check.name, check.compared, check.different, check.first) for check in checks]
    tables = [rows_table(verdict, ("compared", "lines", "different", "first difference"), rows)]
    if changed:
        values = [(name, str(was), str(now)) for name, (was, now) in changed.items()]
        tables.insert(0, rows_table("changed since the run", ("", "then", "now"), values))
    return tables
