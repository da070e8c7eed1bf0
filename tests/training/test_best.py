"""The best weights so far: written as a checkpoint is, and never used if they are other ones."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from plmctl.errors import DataError
from plmctl.training.checkpoint import MANIFEST, Watch, check_best, take_best
from plmctl.training.journal import Progress


def network(value: float) -> nn.Module:
    made = nn.Linear(4, 3)
    nn.init.constant_(made.weight, value)
    return made


def watch(run: Path) -> Watch:
    run.mkdir(exist_ok=True)
    return Watch("valid/accuracy", larger=True, patience=None, folder=run / "best")


def kept(run: Path, value: float, step: int) -> Progress:
    """The progress of a run that kept its best weights at a step."""
    return Progress(step=step, judged=(0.5, step), kept=watch(run).keep(network(value), step))


def saved(run: Path, progress: Progress) -> None:
    """A checkpoint, as far as the best weights read it."""
    folder = run / "checkpoints" / f"step-{progress.step:06d}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps(progress.saved()))


def test_the_best_weights_are_taken(tmp_path: Path) -> None:
    progress = kept(tmp_path, 1.0, 2)
    names = {path.name for path in (tmp_path / "best").iterdir()}
    assert names == {"model.safetensors", "state.json", MANIFEST}
    other = network(9.0)
    assert take_best(tmp_path / "best", other, progress) == 2
    assert torch.equal(other.weight, network(1.0).weight)
    assert check_best(tmp_path / "best", Progress()) is None  # nothing was judged yet


def flip(folder: Path) -> None:
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[-3] ^= 16
    (folder / "model.safetensors").write_bytes(content)


def cut(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-8])


def of_another_run(folder: Path) -> None:
    kept(folder.parent / "other", 3.0, 2)
    shutil.rmtree(folder)
    shutil.move(folder.parent / "other" / "best", folder)


def of_another_step(folder: Path) -> None:
    kept(folder.parent, 3.0, 4)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (flip, "other bytes than were written"),
        (cut, "model.safetensors is missing or has another size"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b""), "another size"),
        (lambda folder: (folder / "model.safetensors").unlink(), "is missing"),
        (lambda folder: (folder / "state.json").write_text("{"), "damaged"),
        (lambda folder: (folder / MANIFEST).unlink(), "no readable manifest"),
        (shutil.rmtree, "are missing"),
        (of_another_run, "of another run"),
        (of_another_step, "these are of step 4"),
    ],
)
def test_damaged_or_other_best_weights(
    damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    progress = kept(tmp_path, 1.0, 2)
    damage(tmp_path / "best")
    with pytest.raises(DataError, match=message) as caught:
        take_best(tmp_path / "best", network(0.0), progress)
    assert "those of step 2" in caught.value.message
    assert "--fresh" in (caught.value.hint or "")


def test_those_of_the_last_checkpoint_stay_until_the_next(tmp_path: Path) -> None:
    first = kept(tmp_path, 1.0, 2)
    saved(tmp_path, first)
    for step in (4, 6):  # two better validations, then a kill: the checkpoint names the first
        last = kept(tmp_path, float(step), step)
    assert check_best(tmp_path / "best", last) is None
    other = network(9.0)
    assert take_best(tmp_path / "best", other, first) == 2
    assert torch.equal(other.weight, network(1.0).weight)


def test_best_weights_of_an_older_version(tmp_path: Path) -> None:
    progress = kept(tmp_path, 1.0, 2)
    (tmp_path / "best" / MANIFEST).unlink()
    older = Progress.restored({**progress.saved(), "kept": ""})
    assert "from an older version" in str(check_best(tmp_path / "best", older))
    cut(tmp_path / "best")
    with pytest.raises(DataError, match="damaged"):
        check_best(tmp_path / "best", older)
