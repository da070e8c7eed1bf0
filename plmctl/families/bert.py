"""BERT (Devlin et al., 2019, arXiv:1810.04805); small sizes of Turc et al. (arXiv:1908.08962)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from plmctl.families.base import ENCODER_DROPOUT, EncoderConfig, Project, encoder_fields
from plmctl.families.base import project_to_logits as logits_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import BertForMaskedLM, BertForPreTraining, PreTrainedModel

    from plmctl.models.load import NewHeads

OBJECTIVE = "mlm+nsp"
TOKENIZER = "wordpiece"
HEADS = ("mlm", "nsp")
DROPOUT = ENCODER_DROPOUT

# Layers and width; heads are width / 64 and the feed-forward width is 4 times the width.
SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "small": (4, 512),
    "medium": (8, 512),
    "base": (12, 768),
    "large": (24, 1024),
}


class Config(EncoderConfig):
    """BERT: a bidirectional encoder, masked tokens and next-sentence prediction."""

    family: Literal["bert"] = "bert"
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "base"
    """A published size; every field below overrides it."""


def build(
    config: Config, *, vocab_size: int, pad_id: int, loss_terms: tuple[str, ...]
) -> PreTrainedModel:
    """A network with fresh weights from the global generator.

    Args:
        config: Size and dropout.
        vocab_size: Rows of the embedding table.
        pad_id: Id of the padding token.
        loss_terms: Loss terms, which decide the heads: without "nsp" there is no pooler.
    """
    from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

    from plmctl.models.parameters import truncated_normal_

    network = BertConfig(
        **encoder_fields(config, SIZES[config.size], vocab_size=vocab_size, pad_id=pad_id),
        hidden_act="gelu_pytorch_tanh",  # what the published code computes
        type_vocab_size=2,
        layer_norm_eps=1e-12,
    )
    model = (BertForPreTraining if "nsp" in loss_terms else BertForMaskedLM)(network)
    truncated_normal_(model, config.initializer_range)
    return model


def load(
    folder: str, loss_terms: tuple[str, ...], *, new_heads: NewHeads | None = None, **changes: Any
) -> PreTrainedModel:
    """A pretrained model in float32 with the heads for ``loss_terms``, its config changed."""
    from transformers import BertForMaskedLM, BertForPreTraining

    from plmctl.models.load import load_network

    cls = BertForPreTraining if "nsp" in loss_terms else BertForMaskedLM
    model: PreTrainedModel = load_network(cls, folder, new_heads=new_heads, **changes).network
    return model


def positions(config: Config) -> int:
    """The longest input."""
    return config.max_position_embeddings


def forward(
    model: BertForPreTraining | BertForMaskedLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    token_type_ids: Tensor,
    positions: Tensor,
    project: Project = logits_of,
) -> dict[str, Tensor]:
    """Logits of each part.

    Args:
        model: BertForPreTraining or BertForMaskedLM.
        input_ids: [B, L].
        attention_mask: [B, L], 0 at padding.
        token_type_ids: [B, L].
        positions: [K] cells of the flattened batch where a token is predicted.
        project: What is made of hidden states and output layer: logits.

    Returns:
        mlm: [K, V]; nsp: [B, 2] if the model has that head.
    """
    from plmctl.models.fast.encoder import encode

    whole: Any = model  # transformers types its submodules as tensors or modules
    hidden_KH, pooled_BH = encode(
        whole.bert,
        positions,
        input_ids=input_ids,
        attention_mask=attention_mask,
        token_type_ids=token_type_ids,
    )
    head = whole.cls.predictions
    logits = {"mlm": project(head.transform(hidden_KH), head.decoder)}
    if pooled_BH is not None:  # BertForMaskedLM has no pooler
        logits["nsp"] = whole.cls.seq_relationship(pooled_BH)
    return logits
