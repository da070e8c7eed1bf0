"""DistilBERT (Sanh et al., 2019, arXiv:1910.01108): half of BERT's layers, taught by BERT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from plmctl.config.base import ModelConfig
from plmctl.families.base import Family, Project, project_to_logits

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


class Config(ModelConfig):
    """DistilBERT: BERT's encoder with half its layers, without token types and pooler."""

    family: Literal["distilbert"] = "distilbert"
    size: Literal["tiny", "mini", "small", "medium", "base"] = "base"
    """Half the layers of BERT's size of that name; every option below overrides it."""
    n_layers: int | None = Field(default=None, ge=1)
    """Layers."""
    dim: int | None = Field(default=None, ge=1)
    """Hidden size."""
    n_heads: int | None = Field(default=None, ge=1)
    """Attention heads. Default: dim / 64."""
    hidden_dim: int | None = Field(default=None, ge=1)
    """Feed-forward size. Default: 4 * dim."""
    max_position_embeddings: int = Field(default=512, ge=8)
    """Number of positions: the longest input."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of embeddings and feed-forward layers."""
    attention_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of attention weights."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights."""


class DistilBert(Family, config=Config):
    """DistilBERT."""

    OBJECTIVE = "distillation"
    TOKENIZER = "wordpiece"
    HEADS = ("mlm", "kl", "cosine")
    MODEL_TYPE = "distilbert"
    PAPER = "DistilBERT"
    DROPOUT = ("dropout", "attention_dropout")
    SIZE_FIELDS = ("n_layers", "dim")
    SIZES = {  # the published one is base
        "tiny": (1, 128),
        "mini": (2, 256),
        "small": (2, 512),
        "medium": (4, 512),
        "base": (6, 768),
    }
    WIDTH = ("dim", "n_heads", "hidden_dim")
    NETWORK = {
        "activation": "gelu",
        "sinusoidal_pos_embds": False,  # learned in the release, whatever its config says
    }
    # Parts of the names of its parameters, and BERT's names for them.
    NAMES_IN_BERT: ClassVar = {
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

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """One class: DistilBERT has one head."""
        from transformers import DistilBertForMaskedLM

        return DistilBertForMaskedLM

    @classmethod
    def init_from_teacher(cls, model: PreTrainedModel, teacher: str) -> None:
        """Copy the embeddings, the head and alternate layers of a BERT folder."""
        from transformers import BertForMaskedLM

        from plmctl.models.load import load_network
        from plmctl.models.teacher import copy_alternate_layers

        bert = load_network(BertForMaskedLM, teacher).network
        copy_alternate_layers(model, bert, cls.NAMES_IN_BERT)

    @staticmethod
    def forward(
        model: Any,  # transformers types its submodules as tensors or modules
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        positions: Tensor,
        project: Project = project_to_logits,
    ) -> dict[str, Tensor]:
        """Logits mlm [K, V], and the hidden states [K, H] that they are computed from.

        There are no token types: ``token_type_ids`` is not used.
        """
        from plmctl.models.encoder import encode

        hidden_KH, _ = encode(
            model.distilbert, positions, input_ids=input_ids, attention_mask=attention_mask
        )
        transformed_KH = model.vocab_layer_norm(model.activation(model.vocab_transform(hidden_KH)))
        return {"mlm": project(transformed_KH, model.vocab_projector), "hidden": hidden_KH}
