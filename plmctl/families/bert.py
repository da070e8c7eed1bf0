"""BERT (Devlin et al., 2019, arXiv:1810.04805); small sizes of Turc et al. (arXiv:1908.08962)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plmctl.config.members import ModelConfig

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import BertForMaskedLM, BertForPreTraining, PreTrainedModel

OBJECTIVE = "mlm+nsp"
TOKENIZER = "wordpiece"
HEADS = ("mlm", "nsp")

DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")

# Layers and width; heads are width / 64 and the feed-forward width is 4 times the width.
SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


class Config(ModelConfig):
    """BERT: a bidirectional encoder, masked tokens and next-sentence prediction."""

    family: Literal["bert"] = "bert"
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "base"
    """A published size; every field below overrides it."""
    num_hidden_layers: int | None = Field(default=None, ge=1)
    hidden_size: int | None = Field(default=None, ge=1)
    num_attention_heads: int | None = Field(default=None, ge=1)
    """Default: hidden_size / 64."""
    intermediate_size: int | None = Field(default=None, ge=1)
    """Default: 4 * hidden_size."""
    max_position_embeddings: int = Field(default=512, ge=8)
    hidden_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    initializer_range: float = Field(default=0.02, gt=0)


def build(
    config: Config, *, vocab_size: int, pad_id: int, parts: tuple[str, ...]
) -> PreTrainedModel:
    """A network with fresh weights from the global generator.

    Args:
        config: Size and dropout.
        vocab_size: Rows of the embedding table.
        pad_id: Id of the padding token.
        parts: Parts of the loss, which decide the heads: without "nsp" there is no pooler.
    """
    from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

    from plmctl.modeling.initialization import truncated_normal_

    layers, hidden = SIZES[config.size]
    hidden = config.hidden_size or hidden
    network = BertConfig(
        vocab_size=vocab_size,
        hidden_size=hidden,
        num_hidden_layers=config.num_hidden_layers or layers,
        num_attention_heads=config.num_attention_heads or max(1, hidden // 64),
        intermediate_size=config.intermediate_size or 4 * hidden,
        hidden_act="gelu_pytorch_tanh",  # what the published code computes
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
        max_position_embeddings=config.max_position_embeddings,
        type_vocab_size=2,
        initializer_range=config.initializer_range,
        layer_norm_eps=1e-12,
        pad_token_id=pad_id,
    )
    model = (BertForPreTraining if "nsp" in parts else BertForMaskedLM)(network)
    truncated_normal_(model, config.initializer_range)
    return model


def load(folder: str, parts: tuple[str, ...]) -> PreTrainedModel:
    """A pretrained model with the heads that ``parts`` ask for, in float32."""
    import torch
    from transformers import BertForMaskedLM, BertForPreTraining

    cls = BertForPreTraining if "nsp" in parts else BertForMaskedLM
    return cls.from_pretrained(folder, dtype=torch.float32)


def positions(config: Config) -> int:
    """The longest input."""
    return config.max_position_embeddings


def forward(
    model: BertForPreTraining | BertForMaskedLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    token_type_ids: Tensor,
    positions: Tensor,
) -> dict[str, Tensor]:
    """Logits of each part.

    Args:
        model: BertForPreTraining or BertForMaskedLM.
        input_ids: [B, L].
        attention_mask: [B, L], 0 at padding.
        token_type_ids: [B, L].
        positions: [K] cells of the flattened batch where a token is predicted.

    Returns:
        mlm: [K, V]; nsp: [B, 2] if the model has that head.
    """
    whole: Any = model  # transformers types its submodules as tensors or modules
    encoded = whole.bert(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
    hidden_KH = encoded.last_hidden_state.flatten(0, 1)[positions]
    logits = {"mlm": whole.cls.predictions(hidden_KH)}
    if encoded.pooler_output is not None:  # BertForMaskedLM has no pooler
        logits["nsp"] = whole.cls.seq_relationship(encoded.pooler_output)
    return logits
