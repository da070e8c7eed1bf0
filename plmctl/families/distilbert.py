"""DistilBERT (Sanh et al., 2019, arXiv:1910.01108): half of BERT's layers, taught by BERT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plmctl.config.base import ModelConfig
from plmctl.families.base import Project
from plmctl.families.base import project_to_logits as logits_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import DistilBertForMaskedLM, PreTrainedModel

    from plmctl.models.load import NewHeads

OBJECTIVE = "distillation"
TOKENIZER = "wordpiece"
HEADS = ("mlm", "kl", "cosine")

DROPOUT = ("dropout", "attention_dropout")

# Layers and width: half the layers of BERT's size of that name. Heads are width / 64 and the
# feed-forward width is 4 times the width. The published one is base.
SIZES: dict[str, tuple[int, int]] = {
    "tiny": (1, 128),
    "mini": (2, 256),
    "small": (2, 512),
    "medium": (4, 512),
    "base": (6, 768),
}

# What BERT calls the parts of a student's parameter names.
_IN_BERT = {
    "distilbert.transformer": "bert.encoder",
    "distilbert.embeddings": "bert.embeddings",
    "attention.q_lin": "attention.self.query",
    "attention.k_lin": "attention.self.key",
    "attention.v_lin": "attention.self.value",
    "attention.out_lin": "attention.output.dense",
    "sa_layer_norm": "attention.output.LayerNorm",
    "ffn.lin1": "intermediate.dense",
    "ffn.lin2": "output.dense",
    "output_layer_norm": "output.LayerNorm",
    "vocab_transform": "cls.predictions.transform.dense",
    "vocab_layer_norm": "cls.predictions.transform.LayerNorm",
    "vocab_projector": "cls.predictions",
}


class Config(ModelConfig):
    """DistilBERT: BERT's encoder with half its layers, without token types and pooler."""

    family: Literal["distilbert"] = "distilbert"
    size: Literal["tiny", "mini", "small", "medium", "base"] = "base"
    """Half the layers of BERT's size of that name; every field below overrides it."""
    n_layers: int | None = Field(default=None, ge=1)
    """Layers."""
    dim: int | None = Field(default=None, ge=1)
    """Width."""
    n_heads: int | None = Field(default=None, ge=1)
    """Default: dim / 64."""
    hidden_dim: int | None = Field(default=None, ge=1)
    """Of the feed-forward layers. Default: 4 * dim."""
    max_position_embeddings: int = Field(default=512, ge=8)
    """Rows of the position table: the longest input."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of embeddings and feed-forward layers."""
    attention_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of attention weights."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of fresh weights."""


def build(
    config: Config, *, vocab_size: int, pad_id: int, loss_terms: tuple[str, ...]
) -> PreTrainedModel:
    """A network with fresh weights from the global generator.

    Args:
        config: Size and dropout.
        vocab_size: Rows of the embedding table.
        pad_id: Id of the padding token.
        loss_terms: Loss terms; DistilBERT has the one head.
    """
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    layers, width = SIZES[config.size]
    width = config.dim or width
    network = DistilBertConfig(
        vocab_size=vocab_size,
        dim=width,
        n_layers=config.n_layers or layers,
        n_heads=config.n_heads or max(1, width // 64),
        hidden_dim=config.hidden_dim or 4 * width,
        activation="gelu",
        dropout=config.dropout,
        attention_dropout=config.attention_dropout,
        max_position_embeddings=config.max_position_embeddings,
        sinusoidal_pos_embds=False,  # learned in the release, whatever its config says
        initializer_range=config.initializer_range,
        pad_token_id=pad_id,
    )
    return DistilBertForMaskedLM(network)


def begin_as(model: PreTrainedModel, teacher: str) -> None:
    """Give a student the weights of alternate layers of a BERT folder, its embeddings and head."""
    from transformers import BertForMaskedLM

    from plmctl.models.load import load_network
    from plmctl.models.teacher import begin_as

    begin_as(model, load_network(BertForMaskedLM, teacher).network, _IN_BERT)


def load(
    folder: str, loss_terms: tuple[str, ...], *, new_heads: NewHeads | None = None, **changes: Any
) -> PreTrainedModel:
    """A pretrained model with its masked-token head, in float32, its config changed."""
    from transformers import DistilBertForMaskedLM

    from plmctl.models.load import load_network

    loaded = load_network(DistilBertForMaskedLM, folder, new_heads=new_heads, **changes)
    model: PreTrainedModel = loaded.network
    return model


def positions(config: Config) -> int:
    """The longest input."""
    return config.max_position_embeddings


def forward(
    model: DistilBertForMaskedLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    token_type_ids: Tensor,
    positions: Tensor,
    project: Project = logits_of,
) -> dict[str, Tensor]:
    """Logits of the masked tokens, and the hidden states that they are made from.

    Args:
        model: DistilBertForMaskedLM.
        input_ids: [B, L].
        attention_mask: [B, L], 0 at padding.
        token_type_ids: [B, L], not used: there are no token types.
        positions: [K] cells of the flattened batch where a token is predicted.
        project: What is made of hidden states and output layer: logits.

    Returns:
        mlm: [K, V]; hidden: [K, H].
    """
    from plmctl.models.fast.encoder import encode

    whole: Any = model  # transformers types its submodules as tensors or modules
    hidden_KH, _ = encode(
        whole.distilbert, positions, input_ids=input_ids, attention_mask=attention_mask
    )
    shaped_KH = whole.vocab_layer_norm(whole.activation(whole.vocab_transform(hidden_KH)))
    return {"mlm": project(shaped_KH, whole.vocab_projector), "hidden": hidden_KH}
