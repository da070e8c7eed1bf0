"""ALBERT (Lan et al., 2020, arXiv:1909.11942): BERT with shared layers and narrow embeddings.

Source of what the paper does not say: google-research/albert, modeling.py and the configs of the
released models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from plmctl.config.base import ModelConfig
from plmctl.families.base import Project
from plmctl.families.base import project_to_logits as logits_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import AlbertForMaskedLM, AlbertForPreTraining, PreTrainedModel

    from plmctl.models.load import NewHeads

OBJECTIVE = "mlm+sop"
TOKENIZER = "unigram"
HEADS = ("mlm", "sop")

DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob")

# Layers, width and heads; the feed-forward width is 4 times the width. xlarge has the 16 heads of
# the released model; the paper's rule of width / 64 would give 32.
SIZES: dict[str, tuple[int, int, int]] = {
    "tiny": (2, 128, 2),
    "mini": (4, 256, 4),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
    "xlarge": (24, 2048, 16),
    "xxlarge": (12, 4096, 64),
}


class Config(ModelConfig):
    """ALBERT: an encoder of one repeated layer, masked tokens and sentence order.

    tiny and mini have BERT's small sizes.
    """

    family: Literal["albert"] = "albert"
    size: Literal["tiny", "mini", "base", "large", "xlarge", "xxlarge"] = "base"
    """A size; every field below overrides it."""
    num_hidden_layers: int | None = Field(default=None, ge=1)
    """How often the layers are applied."""
    num_hidden_groups: int = Field(default=1, ge=1)
    """Groups of layers with weights of their own; as many as layers: nothing is shared."""
    hidden_size: int | None = Field(default=None, ge=1)
    """Width."""
    embedding_size: int = Field(default=128, ge=1)
    """Width of the embeddings, which a matrix brings to hidden_size."""
    num_attention_heads: int | None = Field(default=None, ge=1)
    """Default: the size's, or hidden_size / 64 if hidden_size is given."""
    intermediate_size: int | None = Field(default=None, ge=1)
    """Default: 4 * hidden_size."""
    max_position_embeddings: int = Field(default=512, ge=8)
    """Rows of the position table: the longest input."""
    hidden_dropout_prob: float = Field(default=0.0, ge=0, lt=1)
    """0 as in the second version and in xxlarge; the first version of the others has 0.1."""
    attention_probs_dropout_prob: float = Field(default=0.0, ge=0, lt=1)
    """As hidden_dropout_prob."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of fresh weights."""

    @model_validator(mode="after")
    def _groups_are_used(self) -> Self:
        layers = self.num_hidden_layers or SIZES[self.size][0]
        if self.num_hidden_groups > layers:
            raise ValueError(f"num_hidden_groups: {self.num_hidden_groups} of {layers} layers")
        return self


def build(
    config: Config, *, vocab_size: int, pad_id: int, loss_terms: tuple[str, ...]
) -> PreTrainedModel:
    """A network with fresh weights from the global generator.

    Args:
        config: Size and dropout.
        vocab_size: Rows of the embedding table.
        pad_id: Id of the padding token.
        loss_terms: Loss terms, which decide the heads: without "sop" there is no pooler.
    """
    from transformers import AlbertConfig

    from plmctl.models.parameters import truncated_normal_

    layers, hidden, heads = SIZES[config.size]
    if config.hidden_size:
        hidden, heads = config.hidden_size, max(1, config.hidden_size // 64)
    network = AlbertConfig(
        vocab_size=vocab_size,
        embedding_size=config.embedding_size,
        hidden_size=hidden,
        num_hidden_layers=config.num_hidden_layers or layers,
        num_hidden_groups=config.num_hidden_groups,
        inner_group_num=1,
        num_attention_heads=config.num_attention_heads or heads,
        intermediate_size=config.intermediate_size or 4 * hidden,
        hidden_act="gelu_pytorch_tanh",  # what the published code computes
        hidden_dropout_prob=config.hidden_dropout_prob,
        attention_probs_dropout_prob=config.attention_probs_dropout_prob,
        classifier_dropout_prob=0.1,  # of finetuning's heads
        max_position_embeddings=config.max_position_embeddings,
        type_vocab_size=2,
        initializer_range=config.initializer_range,
        layer_norm_eps=1e-12,
        pad_token_id=pad_id,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = _class(loss_terms)(network)
    truncated_normal_(model, config.initializer_range)
    return model


def load(
    folder: str, loss_terms: tuple[str, ...], *, new_heads: NewHeads | None = None, **changes: Any
) -> PreTrainedModel:
    """A pretrained model in float32 with the heads for ``loss_terms``, its config changed."""
    from plmctl.models.load import load_network

    loaded = load_network(_class(loss_terms), folder, new_heads=new_heads, **changes)
    model: PreTrainedModel = loaded.network
    return model


def _class(loss_terms: tuple[str, ...]) -> type[AlbertForPreTraining] | type[AlbertForMaskedLM]:
    from transformers import AlbertForMaskedLM, AlbertForPreTraining

    return AlbertForPreTraining if "sop" in loss_terms else AlbertForMaskedLM


def positions(config: Config) -> int:
    """The longest input."""
    return config.max_position_embeddings


def forward(
    model: AlbertForPreTraining | AlbertForMaskedLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    token_type_ids: Tensor,
    positions: Tensor,
    project: Project = logits_of,
) -> dict[str, Tensor]:
    """Logits of each part.

    Args:
        model: AlbertForPreTraining or AlbertForMaskedLM.
        input_ids: [B, L].
        attention_mask: [B, L], 0 at padding.
        token_type_ids: [B, L].
        positions: [K] cells of the flattened batch where a token is predicted.
        project: What is made of hidden states and output layer: logits.

    Returns:
        mlm: [K, V]; sop: [B, 2] if the model has that head.
    """
    from plmctl.models.fast.encoder import encode

    whole: Any = model  # transformers types its submodules as tensors or modules
    hidden_KH, pooled_BH = encode(
        whole.albert,
        positions,
        input_ids=input_ids,
        attention_mask=attention_mask,
        token_type_ids=token_type_ids,
    )
    head = whole.predictions
    shaped_KE = head.LayerNorm(head.activation(head.dense(hidden_KH)))
    logits = {"mlm": project(shaped_KE, head.decoder)}
    if pooled_BH is not None:  # AlbertForMaskedLM has no pooler
        # transformers puts finetuning's dropout before this head; the published code has none.
        logits["sop"] = whole.sop_classifier.classifier(pooled_BH)
    return logits
