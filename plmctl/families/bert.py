"""BERT (Devlin et al., 2019, arXiv:1810.04805); small sizes of Turc et al. (arXiv:1908.08962)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from plmctl.families._bert import BertTemplate
from plmctl.families.base import (
    Advice,
    BertConfig,
    EncoderFamily,
    Project,
    project_to_logits,
)

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel


class Config(BertConfig):
    """BERT: a bidirectional encoder, masked tokens and next-sentence prediction."""

    family: Literal["bert"] = "bert"
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = "base"
    """A published size; every option below overrides it."""


class Bert(EncoderFamily, config=Config):
    """BERT."""

    TITLE = "BERT"
    OBJECTIVE = "mlm+nsp"
    TOKENIZER = BertTemplate
    HEADS = ("mlm", "nsp")
    LORA_TARGETS = ("query", "value")
    MODEL_TYPE = "bert"
    ADVICE = Advice(objective={"rate": 0.4})
    SIZES = {  # layers, hidden size
        "tiny": (2, 128),
        "mini": (4, 256),
        "small": (4, 512),
        "medium": (8, 512),
        "base": (12, 768),
        "large": (24, 1024),
    }
    NETWORK = {
        "hidden_act": "gelu_pytorch_tanh",  # what the published code computes
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    }

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """Without "nsp" there is no pooler."""
        from transformers import BertForMaskedLM, BertForPreTraining

        return BertForPreTraining if "nsp" in loss_terms else BertForMaskedLM

    @classmethod
    def initialize(cls, model: Any) -> None:
        """Weights from a truncated normal distribution, as published."""
        from plmctl.models.parameters import truncated_normal_

        truncated_normal_(model, model.config.initializer_range)

    @classmethod
    def initialize_head(cls, head: nn.Module, network: PreTrainedConfig) -> None:
        """Draw a head from a truncated normal distribution, as the published finetuning code."""
        from plmctl.models.parameters import truncated_normal_

        config: Any = network
        truncated_normal_(head, config.initializer_range)

    @staticmethod
    def forward(
        model: Any,  # transformers types its submodules as tensors or modules
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        positions: Tensor,
        project: Project = project_to_logits,
    ) -> dict[str, Tensor]:
        """Logits mlm [K, V], and nsp [B, 2] if the network has that head."""
        from plmctl.models.encoder import encode

        hidden_KH, pooled_BH = encode(
            model.bert,
            positions,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
        )
        head = model.cls.predictions
        logits = {"mlm": project(head.transform(hidden_KH), head.decoder)}
        if pooled_BH is not None:  # BertForMaskedLM has no pooler
            logits["nsp"] = model.cls.seq_relationship(pooled_BH)
        return logits
