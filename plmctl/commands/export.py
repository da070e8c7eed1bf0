"""``plmctl export``: a checkpoint of a pretraining in, an ordinary model folder out."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from plmctl.config.load import kind_of, parse
from plmctl.errors import ConfigError
from plmctl.files import new_folder, read_json, writing
from plmctl.formatting import printable
from plmctl.hub import local, refuse_unreachable
from plmctl.reporting.card import model_card
from plmctl.reporting.run_files import find_run
from plmctl.run.configs import PretrainConfig
from plmctl.run.display import show_result
from plmctl.run.folder import write_model
from plmctl.run.preflight import check_network
from plmctl.run.prepared import make_network
from plmctl.tokenization.load import Vocab, open_tokenizer


def run(folder: str, out: str, *, step: int | None, as_json: bool) -> None:
    """Write a checkpoint, by default the newest, as a model folder.

    Raises:
        ConfigError: No pretraining run, no such checkpoint, or a folder that exists already.
    """
    target = Path(out)
    if target.exists():
        raise ConfigError(f"{target} exists already", "name another folder")
    source = find_run(Path(folder))
    by_step = checkpoints(source)
    chosen = max(by_step) if step is None else step
    if chosen not in by_step:
        available = ", ".join(str(number) for number in sorted(by_step))
        raise ConfigError(f"{folder}: no checkpoint of step {chosen}; there are: {available}")
    write(source, by_step[chosen], target)
    show_result({"model": str(target), "step": chosen}, [], as_json=as_json)
    if not as_json:
        print(printable(str(target)) + f": the model after step {chosen:,}")


def checkpoints(folder: Path) -> dict[int, Path]:
    """The undamaged checkpoints of a pretraining run, by step.

    Raises:
        ConfigError: No pretraining run, or none is undamaged.
    """
    folder = find_run(folder)
    if kind_of(folder / "config.yaml") != "pretrain":
        raise ConfigError(
            f"{folder} is not a run folder of `plmctl pretrain`", "name its run folder"
        )
    from plmctl.training.checkpoint import valid

    by_step = {int(path.name.removeprefix("step-")): path for path in valid(folder / "checkpoints")}
    if not by_step:
        raise ConfigError(
            f"{folder}: no undamaged checkpoint",
            "checkpoint.every decides how often one is saved",
        )
    return by_step


class SavedCheckpoint(NamedTuple):
    """A checkpoint of a pretraining.

    Attributes:
        name: See ``branch_names``.
        words: Words that its network has read; None: they were not counted.
    """

    step: int
    path: Path
    name: str
    words: int | None


def saved_checkpoints(folder: Path) -> list[SavedCheckpoint]:
    """The undamaged checkpoints of a pretraining run, in the order of the steps.

    Raises:
        ConfigError: See ``checkpoints``.
    """
    by_step = dict(sorted(checkpoints(folder).items()))
    words = {step: read_json(path / "state.json").get("words") for step, path in by_step.items()}
    names = branch_names(words)
    return [SavedCheckpoint(step, path, names[step], words[step]) for step, path in by_step.items()]


_MILLION = 1_000_000
_NEAR = 0.05  # share of a million words that a checkpoint may be from it


def branch_names(words: Mapping[int, int | None]) -> dict[int, str]:
    """The branch of each checkpoint.

    One that is within 5 % of a million words of a whole number of them has the name that the BabyLM
    shared tasks use, such as ``chck_10M``; every other one has its step, such as ``step-1000``.

    Args:
        words: Words read, by step; None: unknown.
    """
    names = {step: f"step-{step}" for step in words}
    nearest: dict[int, tuple[int, int]] = {}  # million -> (distance, step)
    for step, read in words.items():
        million = round((read or 0) / _MILLION)
        distance = abs((read or 0) - million * _MILLION)
        if million and distance <= _NEAR * _MILLION:
            nearest[million] = min(nearest.get(million, (distance, step)), (distance, step))
    return names | {step: f"chck_{million}M" for million, (_, step) in nearest.items()}


def write(folder: Path, checkpoint: Path, target: Path) -> None:
    """The network of a run with a checkpoint's weights, its tokenizer and a card, as a folder."""
    from plmctl.training.checkpoint import load_weights

    config = parse(PretrainConfig, folder / "config.yaml")
    if not Path(local(config.tokenizer)).is_dir():
        hint = "give the command where you gave `pretrain`: the paths in config.yaml are relative"
        refuse_unreachable(config.tokenizer, hint)
    tokenizer = open_tokenizer(config.tokenizer)
    # The checkpoint has the weights of every head.
    outline = check_network(config, Vocab.of(tokenizer))
    network = make_network(outline, tokenizer, new_heads=lambda heads: None)
    load_weights(checkpoint, network.model, averaged=True)
    with writing(target), new_folder(target, several_writers=True) as beside:
        write_model(beside, network.model, tokenizer)
        step = int(checkpoint.name.removeprefix("step-"))
        card = model_card(folder, type(network.model).__name__, step=step)
        (beside / "README.md").write_text(card, encoding="utf-8")


@contextmanager
def exported(folder: Path, checkpoint: Path) -> Iterator[str]:
    """A checkpoint as a temporary model folder."""
    with TemporaryDirectory(prefix="plmctl-") as place:
        target = Path(place) / checkpoint.name
        write(folder, checkpoint, target)
        yield str(target)
