"""What a finished pretraining leaves: results, the model folder, samples and the report."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plmctl.config.pretrain import PretrainConfig
from plmctl.corpus.mixed import stores_of
from plmctl.errors import PlmError
from plmctl.runs.folder import write_results
from plmctl.runs.prepare import Prepared

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


def finish(
    config: PretrainConfig,
    folder: Path,
    model: Any,
    prepared: Prepared,
    figures: dict[str, Any],
) -> None:
    """Results, the model folder, samples and the report of a finished run."""
    from transformers import AutoTokenizer

    from plmctl.reporting.card import model_card
    from plmctl.reporting.report import write
    from plmctl.runs.model_folder import save_model
    from plmctl.runs.samples import samples

    write_results(folder, "valid", {"kind": "pretrain", "model": str(folder), "results": figures})
    tokenizer = AutoTokenizer.from_pretrained(config.tokenizer)
    saved = save_model(folder, model, tokenizer, model_card(folder, type(model).__name__))
    held_out = stores_of(prepared.valid or prepared.train)[0]
    if prepared.vocab.mask is not None or model.can_generate():
        made = samples(str(saved), held_out, config.seed, config.objective.name)
        write_results(folder, "samples", made)
    write([folder], folder / "report.html")
