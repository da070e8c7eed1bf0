"""Folders from elsewhere: what a model, a tokenizer or a run may have in it.

Anybody may have made such a folder, so what is in it is data. Its files are regular ones, and no
link in it leads out of it: another file of this machine would be read, published or written to.
A link to a folder as a whole is the user's own and is fine, as is the Hub's cache, whose files are
links into ``blobs`` beside them.
"""

import os
import stat
from pathlib import Path

from plmctl.errors import ConfigError
from plmctl.files import model_of_run
from plmctl.hub import local, refuse_unreachable

_RUN_FILES = (
    ".lock", "status.json", "config.yaml", "environment.json", "budget.json",
    "events", "metrics.jsonl", "samples.jsonl", "report.html",
)  # fmt: skip
_RUN_FOLDERS = ("checkpoints", "best", "model", "eval")


def leads_out(path: Path, folder: Path) -> bool:
    """Whether a file or folder below ``folder`` is outside of it, by a link."""
    whole, target = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    if target.is_relative_to(whole):
        return False
    of_hub = whole.parent.name == "snapshots"
    return not (of_hub and target.is_relative_to(whole.parents[1] / "blobs"))


def refuse_links(folder: Path) -> None:
    """Refuse a model or tokenizer folder with a file that is a link out of it.

    Raises:
        ConfigError: There is one; the message names it.
    """
    for entry in os.scandir(folder) if folder.is_dir() else ():
        if entry.is_symlink() and not entry.is_dir() and leads_out(Path(entry.path), folder):
            raise _out(Path(entry.path))


def check_run_files(folder: Path) -> None:
    """Refuse a run folder in which something has the name of a run's file and is none.

    A pipe would be waited for without an end, and a link written to wherever it leads.

    Raises:
        ConfigError: There is one; the message names it.
    """
    for name in (*_RUN_FILES, *_RUN_FOLDERS):
        path = folder / name
        try:
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                if leads_out(path, folder):
                    raise _out(path)
                mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            continue
        if not (stat.S_ISDIR(mode) if name in _RUN_FOLDERS else stat.S_ISREG(mode)):
            wanted = "folder" if name in _RUN_FOLDERS else "file"
            raise ConfigError(
                f"{path}: no {wanted}, but a {_kind(mode)}",
                "remove it, or name another folder with `run=...`",
            )


def _out(path: Path) -> ConfigError:
    return ConfigError(
        f"{path}: a link that leads out of its folder, to {os.readlink(path)}",
        "put the file itself there if you trust it; a link to the whole folder is fine",
    )


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "folder", stat.S_IFREG: "file", stat.S_IFIFO: "pipe"}
    return kinds.get(stat.S_IFMT(mode), "device or socket")


# --- Is it a model folder? ---


def check_model(model: str) -> str:
    """Refuse a folder that is not a model, before anything is read.

    Returns:
        The same name; of a run folder, its ``model/``.

    Raises:
        ConfigError: The folder has no ``config.json``.
        PlmError: It cannot be downloaded from ModelScope.
    """
    folder = Path(local(model_of_run(model)))
    if folder.exists() and not (folder / "config.json").is_file():
        hint = "pretrain one first"
        if (folder / "checkpoints").is_dir():
            hint = f"the run has no model/ yet; export a checkpoint: plmctl export {model} FOLDER"
        elif configs := sorted(folder.glob("runs/*/model/config.json")):  # the folder of init
            hint = f"did you mean {' or '.join(str(path.parents[1]) for path in configs)}?"
        raise ConfigError(f"{folder} is not a model folder: it has no config.json", hint)
    if not folder.exists() and (model.startswith((".", "/")) or model.count("/") > 1):
        raise ConfigError(
            f"{model}: no such folder in {Path.cwd()}", "pretrain a model first, or give a Hub id"
        )
    if not folder.exists():
        refuse_unreachable(model, "check the path, or connect to the network if it is a Hub id")
    return model_of_run(model)
