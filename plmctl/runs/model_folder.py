"""The ``model/`` folder of a run: an ordinary Hugging Face model, complete or absent."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def save_model(folder: Path, model: "PreTrainedModel", tokenizer: str, card: str) -> Path:
    """Write weights (safetensors), config, tokenizer and model card to ``<folder>/model``.

    Args:
        folder: The run folder.
        model: The unwrapped model.
        tokenizer: The folder or Hub id of its tokenizer.
        card: The text of README.md.
    """
    from transformers import AutoTokenizer

    beside, target = folder / ".model.writing", folder / "model"
    shutil.rmtree(beside, ignore_errors=True)
    model.save_pretrained(beside)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(beside)
    (beside / "README.md").write_text(card, encoding="utf-8")
    beside.rename(target)
    return target
