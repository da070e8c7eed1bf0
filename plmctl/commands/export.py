"""``plmctl export``: a checkpoint of a pretraining in, an ordinary model folder out."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from plmctl.config.load import kind_of, parse
from plmctl.errors import ConfigError
from plmctl.files import new_folder, writing
from plmctl.run.configs import PretrainConfig
from plmctl.run.display import show_result


def run(folder: str, out: str, *, step: int | None, as_json: bool) -> None:
    """Write a checkpoint, the newest unless told, as a model folder.

    Raises:
        ConfigError: No pretraining run, no such checkpoint, or a folder that is there already.
    """
    target = Path(out)
    if target.exists():
        raise ConfigError(f"{target}: this is there already", "name another folder")
    found = checkpoints(Path(folder))
    chosen = max(found) if step is None else step
    if chosen not in found:
        kept = ", ".join(str(number) for number in sorted(found))
        raise ConfigError(f"{folder}: no checkpoint of step {chosen}; there are: {kept}")
    write(Path(folder), found[chosen], target)
    show_result({"model": str(target), "step": chosen}, [], as_json=as_json)
    if not as_json:
        print(f"{target}: the model after step {chosen:,}")


def checkpoints(folder: Path) -> dict[int, Path]:
    """The checkpoints of a pretraining run that are whole, by step.

    Raises:
        ConfigError: No pretraining run, or none is whole.
    """
    from plmctl.training.checkpoint import valid

    if not (folder / "config.yaml").is_file() or kind_of(folder / "config.yaml") != "pretrain":
        raise ConfigError(f"{folder}: no run of `plmctl pretrain` here", "name its run folder")
    found = {int(path.name.removeprefix("step-")): path for path in valid(folder / "checkpoints")}
    if not found:
        raise ConfigError(
            f"{folder}: no checkpoint that is whole",
            "checkpoint.every decides how often one is saved",
        )
    return found


def write(folder: Path, checkpoint: Path, target: Path) -> None:
    """The network of a run with a checkpoint's weights, and its tokenizer, as a model folder."""
    from transformers import AutoTokenizer

    from plmctl.run.folder import write_model
    from plmctl.run.network import make_network
    from plmctl.tokenization.load import Vocab
    from plmctl.training.checkpoint import load_weights

    config = parse(PretrainConfig, folder / "config.yaml")
    vocab = Vocab.from_folder(config.tokenizer)
    # The checkpoint has the weights of every head.
    model = make_network(config, vocab, new_heads=lambda told: None).model
    load_weights(checkpoint, model)
    with writing(target), new_folder(target) as beside:
        write_model(beside, model, AutoTokenizer.from_pretrained(config.tokenizer))


@contextmanager
def exported(folder: Path, checkpoint: Path) -> Iterator[str]:
    """A checkpoint as a model folder for a while."""
    with TemporaryDirectory(prefix="plmctl-") as place:
        target = Path(place) / checkpoint.name
        write(folder, checkpoint, target)
        yield str(target)
