"""A pretrained network with a larger vocabulary: rows for new tokens, the old ones untouched."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from plmctl.errors import ConfigError


@torch.no_grad()
def extend(model: PreTrainedModel, new: Mapping[int, Sequence[int]]) -> None:
    """Give new ids their rows: in the embeddings, in an output matrix of its own, in its bias.

    A new row is the mean of the rows it is made from, so that nothing is drawn at random. That
    makes every logit of a new token the mean of the logits of those, where the output has no more
    than a matrix and a bias over the last hidden state.

    Args:
        model: Of any family that reads tokens.
        new: For each new id the old ids that its row is the mean of; none: of all old rows.

    Raises:
        ConfigError: The network has no embeddings of tokens (ELMo).
    """
    if not new:
        return
    try:
        embeddings: Any = model.get_input_embeddings()
        old = int(embeddings.num_embeddings)
    except (AttributeError, NotImplementedError):  # as transformers says that there are none
        raise ConfigError(
            "model.extend_vocab: this network reads characters and has no embeddings of tokens",
            "leave it out",
        ) from None
    size = max(*new, old - 1) + 1
    if size > old:  # transformers draws the new rows at random; they are set below
        with torch.random.fork_rng(devices=[]):
            model.resize_token_embeddings(size, mean_resizing=False)
    known = min(min(new), old)
    for table in _tables(model):
        overall = table[:known].mean(0)
        rows = {id_: table[list(ids)].mean(0) if ids else overall for id_, ids in new.items()}
        for id_, row in rows.items():
            table[id_] = row


def _tables(model: PreTrainedModel) -> list[Tensor]:
    """What has a row a token: [V, H] matrices and the output's bias [V], each once."""
    whole: Any = model  # whose accessors have no types
    output = whole.get_output_embeddings()
    found = [whole.get_input_embeddings().weight]
    if output is not None:
        found += [output.weight] if output.weight is not found[0] else []
        found += [output.bias] if getattr(output, "bias", None) is not None else []
    return found
