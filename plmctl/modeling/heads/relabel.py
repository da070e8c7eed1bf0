"""Going on from a finetuned folder: what becomes of a head that was made for other labels.

A head is kept where it was made for the same labels, its rows in their new order; for other labels
its last layer begins anew, as where MNLI's network is finetuned for RTE.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from plmctl.modeling.load import NewHeads, load_network

_DEVIATION = 0.02
_WITH_LABELS = ("ForSequenceClassification", "ForTokenClassification")


def load_over(
    cls: Any, model: str, config: Any, new_heads: NewHeads | None
) -> tuple[Any, list[str]]:
    """A pretrained network with a head for the labels of ``config``, in float32.

    Args:
        cls: Of transformers, with a head.
        model: A model folder or Hub id.
        config: The network's, with ``id2label`` as it is to be.
        new_heads: Called with new heads; None: the folder's own head is used.

    Returns:
        The network, and the modules whose weights the folder does not have, by name.

    Raises:
        DataError: As ``load_network``.
    """
    from plmctl.modeling.auto import config_of

    loaded = load_network(cls, model, config=config, new_heads=new_heads)
    made, below = loaded.network, f"{loaded.network.base_model_prefix}."
    # In an order: they are drawn one after the other, and a set's differs from process to process.
    fresh = sorted({name.rpartition(".")[0] for name in loaded.fresh})
    before: Any = config_of(model)
    had = list((before.id2label or {}).values())
    names = list(config.id2label.values())
    last = _last_layer(made, below)
    same = made_for(before) in ("", type(made).__name__)
    if last is None or last[0] in fresh or config.num_labels == 1 or (same and had == names):
        return made, fresh
    name, layer = last
    if same and set(had) == set(names):
        _reorder(layer, [had.index(label) for label in names])
        return made, fresh
    # Not by the network's own function, which passes over what was loaded.
    nn.init.normal_(layer.weight, std=getattr(config, "initializer_range", _DEVIATION))
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return made, [*fresh, name]


def made_for(config: Any) -> str:
    """The class that a folder's weights were saved from; empty where it does not say."""
    return str((config.architectures or [""])[0])


def new_head(model: str, labels: tuple[str, ...]) -> str | None:
    """What to tell of a finetuned folder whose head does not go on; None: nothing."""
    from plmctl.modeling.auto import config_of

    before: Any = config_of(model)
    if not made_for(before).endswith(_WITH_LABELS):
        return None
    had = list((before.id2label or {}).values())
    if set(had) == set(labels or ("score",)):
        return None
    return f"{model} has a head for {_listed(had)}: a new one begins for {_listed(labels)}"


def _last_layer(made: Any, below: str) -> tuple[str, Any] | None:
    """The linear layer that gives the labels."""
    found = [
        (name, module)
        for name, module in made.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith(below)
    ]
    return found[-1] if found else None


@torch.no_grad()
def _reorder(layer: nn.Linear, order: list[int]) -> None:
    layer.weight.copy_(layer.weight[order].clone())
    if layer.bias is not None:
        layer.bias.copy_(layer.bias[order].clone())


def _listed(labels: Any) -> str:
    shown = list(labels) or ["a number"]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")
