"""``plmctl verify-resume``: is a run that is killed at any moment the same run?"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.config.load import kind_of, load
from plmctl.config.pretrain import PretrainConfig
from plmctl.errors import ConfigError
from plmctl.reporting.tables import rows_table
from plmctl.runs import child
from plmctl.runs.exactness import Check, compare, compare_logs, compare_states, records
from plmctl.runs.folder import free
from plmctl.runs.killing import Kill, Moment, missing, moments, run_killed, run_whole
from plmctl.runs.say import say, show
from plmctl.runs.use import RunConfig

if TYPE_CHECKING:
    from plmctl.training.loop import Plan

_ROUNDS = 12  # that the run is begun anew, because it ended or a kill missed its moment
_SAID: dict[Moment, str] = {
    "preparing": "at the start",
    "step": "in steps",
    "saving": "in saves",
}
_MICRO = 3  # examples of the other micro-batches


@dataclass(frozen=True)
class Wanted:
    """What is to be proved.

    Attributes:
        kills: How many.
        steps: Of both runs, at most.
        seed: Decides the moments.
        processes: Another number of them, under which the examples are hashed.
        keep: Leave the folders even where all is equal.
    """

    kills: int
    steps: int
    seed: int
    processes: int
    keep: bool


def run(path: Path, overrides: Sequence[str], wanted: Wanted, *, as_json: bool) -> None:
    """Run a config whole, then killed again and again, and compare; exit with 1 if they differ."""
    kind = kind_of(path, overrides)
    if kind not in ("pretrain", "finetune"):
        raise ConfigError(f"{path}: a config of {kind}", "verify-resume takes a training's config")
    config: Any = load(kind, path, overrides)
    import_all(config)
    base = free(f"{config.run}.verify")
    base.mkdir(parents=True)
    checks, kills = _prove(config, wanted, base)
    equal = not any(check.different for check in checks)
    left = missing(moments(wanted.kills, wanted.seed), kills)
    document = {
        "equal": equal,
        "proved": equal and not left,
        "missed": left,
        "kills": [asdict(kill) for kill in kills],
        "checks": [asdict(check) for check in checks],
    }
    tables = [_kills_table(kills), _checks_table(checks, _verdict(wanted, left, equal=equal))]
    show(document, tables, as_json=as_json)
    if equal and not left and not wanted.keep:
        shutil.rmtree(base)
        return
    say(f"the runs are in {base}")
    if left:
        say("ask for fewer --kills, or for more --steps: the run is over too soon for all of them")
    if left or not equal:
        raise SystemExit(1)


def _verdict(wanted: Wanted, left: list[Moment], *, equal: bool) -> str:
    if not equal:
        return "THE RUNS DIFFER"
    if left:
        return f"NOT PROVED: {len(left)} of {wanted.kills} kills missed their moments"
    return "the killed run is the uninterrupted one"


def _prove(config: RunConfig, wanted: Wanted, base: Path) -> tuple[list[Check], list[Kill]]:
    whole = _changed(config, base / "whole", wanted)
    say(f"the uninterrupted run: {wanted.steps} steps at most")
    pace = run_whole(body_of(whole, wanted.steps), base / "whole", base / "whole.log")
    asked = moments(wanted.kills, wanted.seed)
    todo, kills, checks = asked, list[Kill](), list[Check]()
    for number in range(_ROUNDS):
        folder = base / f"killed-{number + 1}"
        killed = _changed(config, folder, wanted)
        say(f"the same, to be killed {len(todo)} times")
        log, seed = folder.with_suffix(".log"), wanted.seed + number
        made = run_killed(body_of(killed, wanted.steps), folder, log, todo, seed, pace)
        kills += made
        checks += _compared(base / "whole", folder)
        todo = missing(asked, kills)
        if not todo:
            break
    return [*_merged(checks), *_examples(whole, wanted, base)], kills


def _compared(whole: Path, killed: Path) -> list[Check]:
    last = max((whole / "checkpoints").glob("step-*")).name
    states = compare_states(whole / "checkpoints" / last, killed / "checkpoints" / last)
    return [*compare_logs(records(whole), records(killed)), *states]


def _merged(checks: list[Check]) -> list[Check]:
    """One line a kind of thing, over all rounds."""
    found: dict[str, Check] = {}
    for check in checks:
        before = found.get(check.name, Check(check.name, 0))
        found[check.name] = Check(
            check.name,
            before.compared + check.compared,
            before.different + check.different,
            before.first or check.first,
        )
    return list(found.values())


def _examples(config: RunConfig, wanted: Wanted, base: Path) -> list[Check]:
    """The examples of every step, under other processes and other micro-batches."""
    path = base / "examples.json"
    done = child.start(partial(_write_digests, config, wanted, path), base / "examples.log")
    if done.wait():
        raise ConfigError((base / "examples.log").read_text(encoding="utf-8").strip())
    found = json.loads(path.read_text(encoding="utf-8"))
    names = {
        f"examples, {wanted.processes} processes": "processes",
        f"examples, micro-batches of {_MICRO}": "micro",
    }
    return [compare(name, found["whole"], found[key], "step") for name, key in names.items()]


def _write_digests(config: RunConfig, wanted: Wanted, path: Path) -> None:
    from plmctl.training.data import step_digests
    from plmctl.training.engine import make_accelerator

    plan = plan_of(config, make_accelerator(config.compute))
    digests = partial(step_digests, plan, wanted.steps)
    batch = config.train.batch_size
    found = {
        "whole": list(digests(world=1, micro=batch)),
        "processes": list(digests(world=wanted.processes, micro=batch)),
        "micro": list(digests(world=1, micro=_MICRO)),
    }
    path.write_text(json.dumps(found), encoding="utf-8")


def plan_of(config: RunConfig, accelerator: Any) -> "Plan":
    """The steps of a pretraining or finetuning, with its text prepared or its rows read."""
    from plmctl.runs.finetune import make_plan as finetune_plan
    from plmctl.runs.labelled import read_examples
    from plmctl.runs.prepare import prepare
    from plmctl.runs.pretrain import check
    from plmctl.runs.pretrain import make_plan as pretrain_plan

    if isinstance(config, PretrainConfig):
        prepared = prepare(config)
        check(config, prepared)
        return pretrain_plan(config, prepared, accelerator)
    return finetune_plan(config, read_examples(config).train, accelerator)


def _changed(config: RunConfig, folder: Path, wanted: Wanted) -> RunConfig:
    """The config with a folder and a store of its own, every loss logged, and enough checkpoints.

    What a run computes depends on none of these.
    """
    every = max(1, wanted.steps // (2 * max(wanted.kills, 1)))
    changes: dict[str, Any] = {
        "run": str(folder),
        "log": config.log.model_copy(update={"every": 1, "trackers": ()}),
        "checkpoint": config.checkpoint.model_copy(update={"every": every}),
    }
    if isinstance(config, PretrainConfig):
        store = str(folder.with_suffix(".stores"))
        changes["data"] = config.data.model_copy(update={"store": store})
    return config.model_copy(update=changes)


def body_of(config: RunConfig, steps: int) -> Callable[[], None]:
    """What a config's command does, up to a step."""
    from plmctl.runs.finetune import run as run_finetune
    from plmctl.runs.pretrain import run as run_pretrain

    if isinstance(config, PretrainConfig):
        return partial(run_pretrain, config, fresh=False, as_json=True, until=steps)
    return partial(run_finetune, config, fresh=False, as_json=True, until=steps)


def import_all(config: RunConfig) -> None:
    """Import all that a run needs, and start nothing: no threads, no device.

    Asking CUDA how many devices there are would make it useless in forked processes; NVML is asked.
    """
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    from importlib import import_module

    from plmctl.runs.outline import check_network

    for name in (
        "plmctl.training.loop",
        "plmctl.training.journal",
        "plmctl.evaluation.scoring",
        "plmctl.runs.samples",
    ):
        import_module(name)
    if isinstance(config, PretrainConfig):
        check_network(config)
        return
    from plmctl.modeling.auto import config_of
    from plmctl.runs.finetune import check_model

    check_model(config.model)
    import_module(type(config_of(config.model)).__module__.replace(".configuration_", ".modeling_"))


def _kills_table(kills: list[Kill]) -> Any:
    rows = [
        (kill.moment, number, round(kill.seconds, 2), kill.logged, kill.saved)
        for number, kill in enumerate(kills, start=1)
    ]
    hit = [kill.moment for kill in kills]
    landed = ", ".join(f"{hit.count(moment)} {name}" for moment, name in _SAID.items())
    return rows_table(
        f"{len(kills)} kills (SIGKILL): {landed}",
        ("while", "kill", "seconds after its start", "last logged step", "goes on after step"),
        rows,
    )


def _checks_table(checks: list[Check], verdict: str) -> Any:
    rows = [(check.name, check.compared, check.different, check.first) for check in checks]
    return rows_table(verdict, ("compared", "how many", "different", "first difference"), rows)
