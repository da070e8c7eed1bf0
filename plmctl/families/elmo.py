"""ELMo (Peters et al., 2018, "Deep contextualized word representations", arXiv:1802.05365)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plmctl.config.base import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from plmctl.models.elmo import ElmoForPreTraining
    from plmctl.models.load import NewHeads

OBJECTIVE = "bilm"
TOKENIZER = "word"
HEADS = ("forward", "backward")

DROPOUT = ("dropout",)

# Cell, projection, highway layers. 5.5b is the original network, trained on more text.
SIZES: dict[str, tuple[int, int, int]] = {
    "tiny": (256, 64, 1),
    "small": (1024, 128, 1),
    "medium": (2048, 256, 1),
    "original": (4096, 512, 2),
    "5.5b": (4096, 512, 2),
}
# (characters, features) of the convolutions; tiny has an eighth of the published features.
_FILTERS = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
_TINY_FILTERS = ((1, 16), (2, 16), (3, 32), (4, 64), (5, 128))


class Config(ModelConfig):
    """ELMo: LSTMs over words that are read by their characters, one a direction."""

    family: Literal["elmo"] = "elmo"
    size: Literal["tiny", "small", "medium", "original", "5.5b"] = "original"
    """A published size (tiny is for a CPU); every field below overrides it."""
    cell_size: int | None = Field(default=None, ge=1)
    """Cells of an LSTM layer."""
    projection_size: int | None = Field(default=None, ge=1)
    """Width of a layer's output in each direction."""
    num_hidden_layers: int = Field(default=2, ge=1)
    """LSTM layers of each direction."""
    num_highway_layers: int | None = Field(default=None, ge=0)
    """Highway layers over the character convolutions."""
    char_embedding_size: int = Field(default=16, ge=1)
    """Width of the embeddings of characters."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of the layers' inputs and of the top output."""


def build(
    config: Config, *, vocab_size: int, pad_id: int, loss_terms: tuple[str, ...]
) -> PreTrainedModel:
    """A network with fresh weights from the global generator.

    Args:
        config: Size and dropout.
        vocab_size: Words that are predicted.
        pad_id: Not used: rows have no padding.
        loss_terms: Loss terms; both directions share the one head.
    """
    from plmctl.models.elmo import ElmoConfig, ElmoForPreTraining

    cell, projection, highway = SIZES[config.size]
    filters = _TINY_FILTERS if config.size == "tiny" else _FILTERS
    network = ElmoConfig(
        vocab_size=vocab_size,
        char_embedding_size=config.char_embedding_size,
        filters=[list(pair) for pair in filters],
        num_highway_layers=(
            highway if config.num_highway_layers is None else config.num_highway_layers
        ),
        projection_size=config.projection_size or projection,
        cell_size=config.cell_size or cell,
        num_hidden_layers=config.num_hidden_layers,
        dropout=config.dropout,
    )
    return ElmoForPreTraining(network)


def load(
    folder: str, loss_terms: tuple[str, ...], *, new_heads: NewHeads | None = None, **changes: Any
) -> PreTrainedModel:
    """A pretrained model with its language-model head, in float32, its config changed."""
    from plmctl.models.elmo import ElmoForPreTraining
    from plmctl.models.load import load_network

    loaded = load_network(ElmoForPreTraining, folder, new_heads=new_heads, **changes)
    model: PreTrainedModel = loaded.network
    return model


def positions(config: Config) -> int:
    """The longest input: recurrent networks have no limit."""
    return 2**31 - 1


def forward(
    model: ElmoForPreTraining,
    characters: Tensor,
    words: Tensor,
    state: Tensor | None = None,
    **sampled: Tensor,
) -> dict[str, Tensor]:
    """Logits of each direction, and the state after the window.

    Args:
        model: ElmoForPreTraining.
        characters: [U, C] of distinct words.
        words: [2, B, T], rows of ``characters``: the forward streams, the backward ones.
        state: [B, layers, 2, P + C] before the window; None: zeros.
        **sampled: For a sampled softmax: targets [2, B, T], candidates [2, S], and tries [2], the
            number of draws.

    Returns:
        forward, backward: [B, T, V], or [B, T, 1 + S] with the true word first; state.
    """
    from plmctl.models.losses import sampled_logits

    if not sampled:
        out = model(characters, words, state)
        return {"forward": out.forward_logits, "backward": out.backward_logits, "state": out.state}
    top_DBTP, after = model.top(characters, words, state)
    logits: dict[str, Any] = {"state": after}
    for number, part in enumerate(HEADS):
        targets_BT, hidden_BTP = sampled["targets"][number], top_DBTP[number]
        flat = sampled_logits(
            hidden_BTP.flatten(0, 1),
            model.head,
            targets_BT.flatten(),
            sampled["candidates"][number],
            sampled["tries"][number],
        )
        logits[part] = flat.view(*targets_BT.shape, -1)
    return logits
