"""The ``model/`` folder of a run: an ordinary Hugging Face model, complete or absent."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from plmctl.files import put_in_place, writing

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
    beside, target = folder / ".model.writing", folder / "model"
    with writing(target):
        shutil.rmtree(beside, ignore_errors=True)
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)
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
        put_in_place(beside, target)
    return target
