"""ModernBERT (Warner et al., 2024, arXiv:2412.13663): an encoder with parts of today's decoders.

Rotary positions, a gated feed-forward, norms before the sublayers, no biases, and attention to
near tokens alone in two of three layers. What the paper does not say is in AnswerDotAI/ModernBERT's
yaml files. The small sizes are those of Ettin (Weller et al., 2025, arXiv:2507.11412).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plmctl.families.base import (
    Advice,
    Family,
    Project,
    TokenEmbeddingsConfig,
    project_to_logits,
)
from plmctl.tokenization.layout import with_layout
from plmctl.tokenization.templates import AS_IS, TokenizerTemplate

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


class Config(TokenEmbeddingsConfig):
    """ModernBERT: an encoder with rotary positions and local attention, masked tokens."""

    family: Literal["modernbert"] = "modernbert"
    size: Literal["tiny", "mini", "17m", "32m", "68m", "base", "large"] = "base"
    """A size; every option below overrides it."""
    num_hidden_layers: int | None = Field(default=None, ge=1)
    """Layers."""
    hidden_size: int | None = Field(default=None, ge=1)
    """Hidden size."""
    num_attention_heads: int | None = Field(default=None, ge=1)
    """Attention heads. Default: the size's; with another hidden_size, hidden_size / 64."""
    intermediate_size: int | None = Field(default=None, ge=1)
    """Feed-forward size. Default: the size's; with another hidden_size, 3/2 of it."""
    max_position_embeddings: int = Field(default=8192, ge=8)
    """The longest input."""
    global_attention_every: int = Field(default=3, ge=1)
    """Every so many layers, from the first on, one attends to all tokens; 1: all layers do."""
    local_attention: int = Field(default=128, ge=2)
    """Tokens that the other layers see: half of them on each side."""
    rope_theta: float = Field(default=10_000.0, gt=0)
    """Base of the rotary positions of layers that attend to all. Published: 10,000 at a length of
    1,024, then 160,000 at 8,192."""
    local_rope_theta: float = Field(default=10_000.0, gt=0)
    """The same of the other layers."""
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of attention weights and of what attention gives; published: 0.1 of the latter."""
    mlp_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the feed-forward."""
    embedding_dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of embeddings."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights; of those that add to the residual stream divided
    by sqrt(2 * layers)."""


class ModernBertTemplate(TokenizerTemplate):
    """ModernBERT's tokenizer: byte-level BPE with BERT's special tokens, without segments."""

    ALGORITHM = "byte_bpe"
    CLASS = "RobertaTokenizer"
    KIND = "bytes"
    FIRST = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    RULES = AS_IS
    MASK = "[MASK]"
    MAX_LENGTH = 8192

    def class_options(self) -> tuple[dict[str, Any], bool]:
        """The general class: no other has these tokens around a text."""
        names = ("pad", "unk", "cls", "sep", "mask")
        tokens = {f"{name}_token": token for name, token in zip(names, self.FIRST, strict=True)}
        return {**tokens, "bos_token": "[CLS]", "eos_token": "[SEP]"}, True

    def make(self, model: dict[str, Any]) -> PreTrainedTokenizerFast:
        """See the base class."""
        tokenizer = super().make(model)
        ids = {name: int(tokenizer.vocab[name]) for name in ("[CLS]", "[SEP]")}
        with_layout(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", ids)
        return tokenizer


class ModernBert(Family, config=Config):
    """ModernBERT."""

    TITLE = "ModernBERT"
    OBJECTIVE = "mlm"
    TOKENIZER = ModernBertTemplate
    HEADS = ("mlm",)
    LORA_TARGETS = ("Wqkv",)
    MODEL_TYPE = "modernbert"
    DROPOUT = ("attention_dropout", "mlp_dropout", "embedding_dropout")
    ADVICE = Advice(objective={"rate": 0.4})
    SIZE_FIELDS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    SIZES = {
        "tiny": (2, 128, 2, 192),
        "mini": (4, 256, 4, 384),
        "17m": (7, 256, 4, 384),
        "32m": (10, 384, 6, 576),
        "68m": (19, 512, 8, 768),
        "base": (22, 768, 12, 1152),
        "large": (28, 1024, 16, 2624),
    }
    WIDTH = ("hidden_size", "num_attention_heads", "")
    TOKEN_IDS = ("pad_token_id",)

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """There is one head."""
        from transformers import ModernBertForMaskedLM

        return ModernBertForMaskedLM

    def network_fields(self, *, vocab_size: int, pad_id: int) -> dict[str, Any]:
        """See the base class; ids of transformers' own vocabulary are left out."""
        config: Any = self.config
        fields = super().network_fields(vocab_size=vocab_size, pad_id=pad_id)
        if config.intermediate_size is None:
            width = self.size_fields()["hidden_size"]
            if fields["hidden_size"] != width:
                fields["intermediate_size"] = 3 * fields["hidden_size"] // 2
        every = fields.pop("global_attention_every")
        kinds = ("full_attention", "sliding_attention")
        layers = [kinds[number % every > 0] for number in range(fields["num_hidden_layers"])]
        bases = (fields.pop("rope_theta"), fields.pop("local_rope_theta"))
        rope = {
            k: {"rope_type": "default", "rope_theta": b} for k, b in zip(kinds, bases, strict=True)
        }
        others = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
        return {**fields, "layer_types": layers, "rope_parameters": rope, **others}

    @staticmethod
    def forward(
        model: Any,  # transformers types its submodules as tensors or modules
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        positions: Tensor,
        project: Project = project_to_logits,
    ) -> dict[str, Tensor]:
        """Logits mlm [K, V]; there are no token types, so that ``token_type_ids`` is not used."""
        from plmctl.models.encoder import encode

        hidden_KH, _ = encode(
            model.model, positions, input_ids=input_ids, attention_mask=attention_mask
        )
        return {"mlm": project(model.head(hidden_KH), model.decoder)}
