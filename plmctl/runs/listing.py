"""``plmctl config list``: the shipped configs, and what each name can be filled with."""

from pathlib import Path

from plmctl import registry
from plmctl.config.load import KINDS, kind_of
from plmctl.corpus import sample
from plmctl.reporting.tables import rows_table
from plmctl.runs.say import show

_FOLDERS = ("families", "objectives", "tasks", "evaluation.measures")


def run(*, as_json: bool) -> None:
    """Names come from the folders; a member's line is the first of its config's docstring."""
    root = Path("configs")
    files: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for path in sorted(root.rglob("*.yaml")):
        files[kind_of(path)].append(str(path))
    members = {
        folder: {name: _line(folder, name) for name in registry.names(folder)}
        for folder in _FOLDERS
    }
    samples = {"text": sample.text_names(), "labelled": sample.table_names()}
    tables = [
        rows_table("configs", ["for", "file"], [(k, f) for k in KINDS for f in files[k]]),
        *(
            rows_table(folder.rpartition(".")[2], ["name", ""], list(named.items()))
            for folder, named in members.items()
        ),
        rows_table(
            "samples", ["kind", "name"], [(k, f"sample:{n}") for k in samples for n in samples[k]]
        ),
    ]
    show({"configs": files, "members": members, "samples": samples}, tables, as_json=as_json)


def _line(folder: str, name: str) -> str:
    doc = registry.load(folder, name).Config.__doc__ or ""
    return doc.strip().splitlines()[0]
