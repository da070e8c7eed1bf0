"""The model that a command is given: a model folder, a run folder or a Hub id."""

from pathlib import Path

from plmctl.errors import ConfigError, listed
from plmctl.files import model_of_run
from plmctl.folders import check_model
from plmctl.reporting.run_state import state_of
from plmctl.run.display import say

_ENDED = ("finished", "incomplete")


def named_model(name: str) -> str:
    """The model folder or Hub id to open; of a run folder its ``model/``, which is said.

    Raises:
        ConfigError: No such folder, or a run that has saved no model yet.
    """
    model, folder = model_of_run(name), Path(name)
    if model == name and _is_run(folder) and not (folder / "config.json").exists():
        raise _no_model(folder)
    model = check_model(name)
    if model != name:
        say(f"using {model}")
    run = Path(model).parent
    if Path(model).name == "model" and _is_run(run) and (now := state_of(run).name) not in _ENDED:
        say(f"{run} has not finished ({now}): this is the model that it saved last")
    return model


def run_of_model(model: str) -> Path | None:
    """The run folder that a model folder is in; None: it is in none."""
    run = Path(model).parent
    return run if Path(model).name == "model" and _is_run(run) else None


def _is_run(folder: Path) -> bool:
    return (folder / "config.yaml").is_file()


def _no_model(folder: Path) -> ConfigError:
    several = [path for depth in ("*", "*/*") for path in folder.glob(f"{depth}/model/config.json")]
    if several:
        names = sorted(str(path.parents[1]) for path in several)
        return ConfigError(f"{folder}: a folder of several runs", f"name one: {listed(names)}")
    hint = "the command that started it continues it"
    if (folder / "checkpoints").is_dir():
        hint = f"{hint}; or export a checkpoint: plmctl export {folder} FOLDER"
    return ConfigError(f"{folder}: the run has no model/ yet ({state_of(folder).name})", hint)
