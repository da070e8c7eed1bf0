"""Heads of BERT's kind: transformers' own forward, given no more than the network can take."""

from typing import Any

from torch import Tensor


def classify(model: Any, **inputs: Tensor) -> dict[str, Tensor]:
    """Logits of a network ``...ForSequenceClassification``.

    Args:
        model: An encoder with its head.
        **inputs: input_ids, attention_mask and, of some tokenizers, token_type_ids, [B, L].

    Returns:
        label: [B, C].
    """
    return {"label": model(**_known(model, inputs)).logits}


def choose(model: Any, options: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
    """Logits of a network ``...ForMultipleChoice``.

    Args:
        model: An encoder with its head.
        options: [B, O], false where an item has fewer options.
        **inputs: As ``classify``, [B, O, L].

    Returns:
        choice: [B, O], minus infinity where there is no option.
    """
    logits: Tensor = model(**_known(model, inputs)).logits
    return {"choice": logits.masked_fill(~options, float("-inf"))}


def _known(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without segments where the network has one only (RoBERTa) or none (DistilBERT)."""
    if getattr(model.config, "type_vocab_size", None) in (None, 1):
        return {name: value for name, value in inputs.items() if name != "token_type_ids"}
    return inputs
