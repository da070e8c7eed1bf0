"""What a finished pretraining leaves: results, the model folder, samples and the report.

Each is whole or absent, and they come in this order: the model is the last that needs the network
of the training, so that a run which ends after it is completed without training.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.config.pretrain import PretrainConfig
from plmctl.corpus.mixed import stores_of
from plmctl.errors import PlmError
from plmctl.files import is_model
from plmctl.runs.folder import AtWork, write_results
from plmctl.runs.prepare import Prepared, prepare

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from plmctl.modeling.network import Network
    from plmctl.training.checkpoint import Checkpoints
    from plmctl.training.engine import Engine


def whole_model(
    engine: "Engine", checkpoints: "Checkpoints", fresh: Callable[[], "Network"]
) -> "PreTrainedModel":
    """The model of a run that is over; what processes have parts of is in the last checkpoint.

    Args:
        engine: As the run left it.
        checkpoints: Of the run.
        fresh: Makes the network anew.

    Raises:
        PlmError: The checkpoint was damaged meanwhile.
    """
    from plmctl.training.sharding import is_sharded
    from plmctl.training.state import load_weights

    model: Any = engine.trained().network
    if is_sharded(model):
        folder, damaged = checkpoints.newest()
        if folder is None or damaged:
            raise PlmError(
                f"{damaged[0] if damaged else 'no checkpoint'}: the weights cannot be read",
                "run the same command again: it goes on from the one before it",
            )
        model = fresh().model
        load_weights(folder, model)
    whole: PreTrainedModel = model
    return whole


_SAMPLES = "eval/samples.json"
_REPORT = "report.html"


def save(
    config: PretrainConfig,
    folder: Path,
    work: AtWork,
    model: Any,
    prepared: Prepared,
    figures: dict[str, Any],
) -> None:
    """Write the results, and the model folder unless it is there already."""
    from transformers import AutoTokenizer

    from plmctl.reporting.card import model_card
    from plmctl.runs.model_folder import save_model

    write_results(folder, "valid", {"kind": "pretrain", "model": str(folder), "results": figures})
    has_samples = prepared.vocab.mask is not None or model.can_generate()
    work.promise(["model", "eval/valid.json", *([_SAMPLES] if has_samples else []), _REPORT])
    if not is_model(folder / "model"):
        tokenizer = AutoTokenizer.from_pretrained(config.tokenizer)
        save_model(folder, model, tokenizer, model_card(folder, type(model).__name__))


def complete(
    config: PretrainConfig, folder: Path, work: AtWork, prepared: Prepared | None = None
) -> None:
    """Write what is missing of what follows the model: samples, then the report.

    Args:
        config: Of the run.
        folder: The run folder.
        work: Records that it is finished.
        prepared: The text; None: it is prepared if samples are missing.
    """
    from plmctl.reporting.report import write
    from plmctl.runs.samples import samples

    if _SAMPLES in work.status.missing(folder):
        prepared = prepared or prepare(config)
        held_out = stores_of(prepared.valid or prepared.train)[0]
        name = config.objective.name
        made = samples(str(folder / "model"), held_out, config.seed, name)
        write_results(folder, "samples", made)
    write([folder], folder / _REPORT)
    work.finish()
