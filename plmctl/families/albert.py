"""ALBERT (Lan et al., 2020, arXiv:1909.11942): BERT with shared layers and small embeddings.

Source of what the paper does not say: google-research/albert, modeling.py and the configs of the
released models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from plmctl.families.base import (
    Advice,
    EncoderFamily,
    Project,
    TokenEmbeddingsConfig,
    project_to_logits,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


class Config(TokenEmbeddingsConfig):
    """ALBERT: an encoder of one repeated layer, masked tokens and sentence order.

    tiny and mini have BERT's small sizes.
    """

    family: Literal["albert"] = "albert"
    size: Literal["tiny", "mini", "base", "large", "xlarge", "xxlarge"] = "base"
    """A size; every option below overrides it."""
    num_hidden_layers: int | None = Field(default=None, ge=1)
    """How often the layers are applied."""
    num_hidden_groups: int = Field(default=1, ge=1)
    """Groups of layers with separate weights; as many as layers: nothing is shared."""
    hidden_size: int | None = Field(default=None, ge=1)
    """Hidden size."""
    embedding_size: int = Field(default=128, ge=1)
    """Size of the embeddings, which a matrix projects to hidden_size."""
    num_attention_heads: int | None = Field(default=None, ge=1)
    """Attention heads. Default: the size's; with another hidden_size, hidden_size / 64."""
    intermediate_size: int | None = Field(default=None, ge=1)
    """Feed-forward size. Default: 4 * hidden_size."""
    max_position_embeddings: int = Field(default=512, ge=8)
    """Number of positions: the longest input."""
    hidden_dropout_prob: float = Field(default=0.0, ge=0, lt=1)
    """0 as in the second version and in xxlarge; the first version of the others has 0.1."""
    attention_probs_dropout_prob: float = Field(default=0.0, ge=0, lt=1)
    """As hidden_dropout_prob."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights."""

    @model_validator(mode="after")
    def _groups_are_used(self) -> Self:
        layers = self.num_hidden_layers or Albert.SIZES[self.size][0]
        if self.num_hidden_groups > layers:
            raise ValueError(f"num_hidden_groups: {self.num_hidden_groups} of {layers} layers")
        return self


class Albert(EncoderFamily, config=Config):
    """ALBERT."""

    OBJECTIVE = "mlm+sop"
    TOKENIZER = "unigram"
    HEADS = ("mlm", "sop")
    MODEL_TYPE = "albert"
    PAPER = "ALBERT"
    ADVICE = Advice(objective={"rate": 0.4})
    DROPOUT = (*EncoderFamily.DROPOUT, "classifier_dropout_prob")
    SIZE_FIELDS = ("num_hidden_layers", "hidden_size", "num_attention_heads")
    # xlarge has the 16 heads of the released model; the paper's rule, width / 64, would give 32.
    SIZES = {
        "tiny": (2, 128, 2),
        "mini": (4, 256, 4),
        "base": (12, 768, 12),
        "large": (24, 1024, 16),
        "xlarge": (24, 2048, 16),
        "xxlarge": (12, 4096, 64),
    }
    NETWORK = {
        "inner_group_num": 1,
        "hidden_act": "gelu_pytorch_tanh",  # what the published code computes
        "classifier_dropout_prob": 0.1,  # of the heads of finetuning
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "bos_token_id": None,
        "eos_token_id": None,
    }

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """Without "sop" there is no pooler."""
        from transformers import AlbertForMaskedLM, AlbertForPreTraining

        return AlbertForPreTraining if "sop" in loss_terms else AlbertForMaskedLM

    @classmethod
    def initialize(cls, model: Any) -> None:
        """Weights from a truncated normal distribution, as published."""
        from plmctl.models.parameters import truncated_normal_

        truncated_normal_(model, model.config.initializer_range)

    @staticmethod
    def forward(
        model: Any,  # transformers types its submodules as tensors or modules
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        positions: Tensor,
        project: Project = project_to_logits,
    ) -> dict[str, Tensor]:
        """Logits mlm [K, V], and sop [B, 2] if the network has that head."""
        from plmctl.models.encoder import encode

        hidden_KH, pooled_BH = encode(
            model.albert,
            positions,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
        )
        head = model.predictions
        embedded_KE = head.LayerNorm(head.activation(head.dense(hidden_KH)))
        logits = {"mlm": project(embedded_KE, head.decoder)}
        if pooled_BH is not None:  # AlbertForMaskedLM has no pooler
            # transformers applies finetuning's dropout before this head; the published code does
            # not.
            logits["sop"] = model.sop_classifier.classifier(pooled_BH)
        return logits
