"""``plmctl reproduce``: does a run come out again as it was?"""

import json
import shutil
from pathlib import Path
from typing import Any

from plmctl.commands.verify_resume import (
    Check,
    body_of,
    compare_logs,
    import_all,
    records,
    run_whole,
)
from plmctl.config.load import kind_of, parse
from plmctl.errors import ConfigError
from plmctl.reporting.tables import rows_table
from plmctl.run.budget import copy_decision
from plmctl.run.configs import model_of
from plmctl.run.display import say, show_result
from plmctl.run.folder import free_name

_LINES = 20  # logged losses that are compared
_MACHINE = ("python", "platform", "device", "devices", "threads", "git_commit")


def run(folder: Path, *, lines: int = _LINES, keep: bool, as_json: bool) -> None:
    """Repeat the beginning of a run beside it, and compare; exit with 1 if it differs.

    Args:
        folder: The run folder.
        lines: How many logged losses are compared.
        keep: Leave the repetition's folder.
        as_json: Print the result as JSON.
    """
    config, before, environment = _original(folder)
    losses = [line for line in before if "loss" in line][:lines]
    until = losses[-1]["step"]
    again = free_name(f"{folder}.again")
    log = again.with_name(f"{again.name}.log")
    repeated = config.model_copy(update={"run": str(again)})
    import_all(repeated)
    say(f"repeating the first {until:,} steps of {folder} in {again}")
    copy_decision(folder, again)  # a measured time would give other steps
    run_whole(body_of(repeated, until), again, log)
    changed = _changes(environment, json.loads((again / "environment.json").read_text("utf-8")))
    ours, theirs = ([r for r in found if r["step"] <= until] for found in (before, records(again)))
    checks = compare_logs(ours, theirs)
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
        log.unlink()
    if not equal:
        raise SystemExit(1)


def _original(folder: Path) -> tuple[Any, list[dict[str, Any]], dict[str, Any]]:
    """The config, the log and the environment of a run.

    Raises:
        ConfigError: It is not a training's run, or it has logged nothing.
    """
    path = folder / "config.yaml"
    if not path.is_file():
        raise ConfigError(f"{folder}: no run here (no config.yaml)", "name a run folder")
    kind = kind_of(path)
    if kind not in ("pretrain", "finetune"):
        raise ConfigError(f"{folder}: a run of {kind}", "reproduce takes a training's run")
    try:
        environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
        log = records(folder)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{folder}: {error}", "the run must have started training") from error
    if not any("loss" in line for line in log):
        raise ConfigError(f"{folder}: no loss is logged yet", "wait for log.every steps")
    return parse(model_of(kind), path), log, environment


def _changes(before: dict[str, Any], now: dict[str, Any]) -> dict[str, list[Any]]:
    """Versions, inputs and machine that are others now, each before and now."""
    ours, theirs = ({**e, **e["versions"], **e["hashes"]} for e in (before, now))
    names = [*before["versions"], *before["hashes"], *_MACHINE]
    pairs = {name: [ours.get(name), theirs.get(name)] for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _tables(
    folder: Path, changed: dict[str, list[Any]], checks: list[Check], *, equal: bool
) -> list[Any]:
    verdict = f"{folder} comes out as it was" if equal else f"{folder} COMES OUT OTHERWISE"
    rows = [(check.name, check.compared, check.different, check.first) for check in checks]
    tables = [rows_table(verdict, ("compared", "lines", "different", "first difference"), rows)]
    if changed:
        others = [(name, str(was), str(is_)) for name, (was, is_) in changed.items()]
        tables.insert(0, rows_table("what is another now", ("", "then", "now"), others))
    return tables
