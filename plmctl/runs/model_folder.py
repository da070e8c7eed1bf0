"""The ``model/`` folder of a run: an ordinary Hugging Face model, complete or absent."""

from pathlib import Path
from typing import TYPE_CHECKING

from plmctl.files import new_folder, writing
from plmctl.tokenization.probe import write_probe

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.tasks import Finetuned


def save_model(
    folder: Path,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    card: str,
    made: "Finetuned | None" = None,
) -> Path:
    """Write weights (safetensors), config, tokenizer and model card to ``<folder>/model``.

    Args:
        folder: The run folder.
        model: The unwrapped model.
        tokenizer: Its tokenizer.
        card: The text of README.md.
        made: The task that it is finetuned for.

    Raises:
        PlmError: The disk refused.
    """
    target = folder / "model"
    with writing(target), new_folder(target) as beside:
        write_model(beside, model, tokenizer)
        (beside / "README.md").write_text(card, encoding="utf-8")
        if made is not None:
            made.write(beside)
        if target.is_dir() and not any(target.iterdir()):
            target.rmdir()
        elif target.exists():  # not all of a model; somebody may look into it
            number = 1
            while (aside := folder / f"model.incomplete-{number}").exists():
                number += 1
            target.rename(aside)
    return target


def write_model(
    folder: Path, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase"
) -> None:
    """Write weights, config and tokenizer, with the tokenizer's probes, into a new folder.

    Args:
        folder: Where to.
        model: The unwrapped model. Of a T5 the config gets to say what the weights are: whether
            embeddings and output are one matrix. transformers' class sets it to yes at each load.
        tokenizer: Its tokenizer.
    """
    from transformers import T5ForConditionalGeneration

    if isinstance(model, T5ForConditionalGeneration):
        model.config.tie_word_embeddings = model.lm_head.weight is model.shared.weight
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    write_probe(folder)
