"""A family: sizes, how to build and load its network, where its heads begin.

One file per family; what GPT-2 and GPT-3 share is in ``_gpt``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, cast

from pydantic import Field

from plmctl import registry
from plmctl.config.base import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from plmctl.models.load import NewHeads


class Family(Protocol):
    """What a file of this folder defines; the module itself is the object."""

    OBJECTIVE: str
    """The objective of the family's paper."""
    TOKENIZER: str
    """The tokenizer algorithm of the family's paper."""
    MODEL_TYPE: str
    """What transformers calls its architecture, where that is not the family's name."""
    HEADS: tuple[str, ...]
    """Parts of a loss that it has heads for."""
    ENCODER_DECODER: bool
    """Whether it reads one text and writes another; left out: no."""
    DROPOUT: tuple[str, ...]
    """Names of the dropout probabilities in transformers' config."""

    def build(
        self, config: ModelConfig, *, vocab_size: int, pad_id: int, loss_terms: tuple[str, ...]
    ) -> PreTrainedModel:
        """A network with fresh weights and the heads for ``loss_terms``."""

    def load(
        self,
        folder: str,
        loss_terms: tuple[str, ...],
        *,
        new_heads: NewHeads | None = None,
        **changes: Any,
    ) -> PreTrainedModel:
        """A pretrained network with the heads for ``loss_terms``.

        Args:
            folder: A model folder or Hub id.
            loss_terms: Of the loss, which decide the heads.
            new_heads: Called with heads that the folder lacks; None: it has to have them all.
            **changes: To its config.

        Raises:
            DataError: See ``models.load.load_network``.
        """

    def begin_as(self, model: PreTrainedModel, teacher: str) -> None:
        """Give a student the weights of alternate layers of a teacher's folder; of students."""

    def positions(self, config: ModelConfig) -> int:
        """The longest input."""

    def forward(self, model: Any, **inputs: Tensor) -> dict[str, Tensor]:
        """Logits of each part."""


def get_family(name: str) -> Family:
    """The family of that name.

    Raises:
        ConfigError: There is none; the message has the nearest.
    """
    return cast(Family, registry.load("families", name))


def family_fits(family: str, loss_terms: tuple[str, ...], *, encoder_decoder: bool) -> bool:
    """Whether a family's networks can learn from an objective, or be measured by it.

    Args:
        family: Its name.
        loss_terms: The objective's, each of which requires a head.
        encoder_decoder: Whether the objective requires an encoder and a decoder.
    """
    network = registry.load("families", family)
    same_stacks = getattr(network, "ENCODER_DECODER", False) == encoder_decoder
    return set(loss_terms) <= set(network.HEADS) and same_stacks


# --- The output layer: a hook in place of logits ---


Project = Callable[..., Any]
"""From hidden states [..., H] and the output layer to what stands for the logits."""


def project_to_logits(hidden: Tensor, layer: nn.Linear) -> Any:
    """[..., V]."""
    return layer(hidden)


# --- BERT's encoder as RoBERTa and SpanBERT share it ---


ENCODER_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


class EncoderConfig(ModelConfig):
    """Fields over a size."""

    num_hidden_layers: int | None = Field(default=None, ge=1)
    """Layers."""
    hidden_size: int | None = Field(default=None, ge=1)
    """Width."""
    num_attention_heads: int | None = Field(default=None, ge=1)
    """Default: hidden_size / 64."""
    intermediate_size: int | None = Field(default=None, ge=1)
    """Default: 4 * hidden_size."""
    max_position_embeddings: int = Field(default=512, ge=8)
    """Rows of the position table: the longest input."""
    hidden_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of embeddings and sublayers."""
    attention_probs_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of attention weights."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of fresh weights."""


def encoder_fields(
    config: EncoderConfig, size: tuple[int, int], *, vocab_size: int, pad_id: int
) -> dict[str, Any]:
    """Arguments of transformers' configs: BERT's, and those that have its fields.

    Args:
        config: Its fields are over the size.
        size: Layers and width; heads are width / 64 and the feed-forward width is 4 times the
            width.
        vocab_size: Rows of the embedding table.
        pad_id: Id of the padding token.
    """
    layers, width = size
    width = config.hidden_size or width
    return {
        "vocab_size": vocab_size,
        "pad_token_id": pad_id,
        "hidden_size": width,
        "num_hidden_layers": config.num_hidden_layers or layers,
        "num_attention_heads": config.num_attention_heads or max(1, width // 64),
        "intermediate_size": config.intermediate_size or 4 * width,
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "attention_probs_dropout_prob": config.attention_probs_dropout_prob,
        "max_position_embeddings": config.max_position_embeddings,
        "initializer_range": config.initializer_range,
    }
