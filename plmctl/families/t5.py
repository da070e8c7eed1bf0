"""T5 (Raffel et al., 2020, arXiv:1910.10683) and T5 1.1 (released with the same code)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from plmctl.families.base import (
    Advice,
    Family,
    Project,
    TokenEmbeddingsConfig,
    project_to_logits,
)
from plmctl.tokenization.templates import Rules, TokenizerTemplate, nmt_nfkc

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from plmctl.models.load import NewHeads

# By version. tiny and mini are not published: layers and hidden sizes are those of BERT's.
_SIZES = {
    "v1.0": {
        "tiny": (2, 128, 2, 64, 512),
        "mini": (4, 256, 4, 64, 1024),
        "small": (6, 512, 8, 64, 2048),
        "base": (12, 768, 12, 64, 3072),
        "large": (24, 1024, 16, 64, 4096),
        "3b": (24, 1024, 32, 128, 16384),
        "11b": (24, 1024, 128, 128, 65536),
    },
    "v1.1": {
        "tiny": (2, 128, 2, 64, 256),
        "mini": (4, 256, 4, 64, 512),
        "small": (8, 512, 6, 64, 1024),
        "base": (12, 768, 12, 64, 2048),
        "large": (24, 1024, 16, 64, 2816),
        "xl": (24, 2048, 32, 64, 5120),
        "xxl": (24, 4096, 64, 64, 10240),
    },
}


class Config(TokenEmbeddingsConfig):
    """T5: an encoder and a decoder, text to text. tiny and mini have BERT's small sizes."""

    family: Literal["t5"] = "t5"
    version: Literal["v1.0", "v1.1"] = "v1.0"
    """v1.0: ReLU, one matrix for embeddings and output; v1.1: gated GELU, a separate output matrix,
    no dropout in pretraining."""
    size: Literal["tiny", "mini", "small", "base", "large", "3b", "11b", "xl", "xxl"] = "small"
    """A size (3b and 11b: v1.0 only, xl and xxl: v1.1 only); every option below overrides it."""
    num_layers: int | None = Field(default=None, ge=1)
    """Layers of the encoder, and of the decoder."""
    d_model: int | None = Field(default=None, ge=1)
    """Hidden size."""
    num_heads: int | None = Field(default=None, ge=1)
    """Attention heads."""
    d_kv: int | None = Field(default=None, ge=1)
    """Size of a head; num_heads * d_kv need not be d_model."""
    d_ff: int | None = Field(default=None, ge=1)
    """Feed-forward size."""
    dropout_rate: float | None = Field(default=None, ge=0, lt=1)
    """Default: 0.1 for v1.0, 0 for v1.1."""
    initializer_factor: float = Field(default=1.0, gt=0)
    """Multiplies the standard deviation of all new weights."""
    vocab_multiple: int = Field(default=128, ge=1)
    """The number of embeddings is a multiple of this (published: 32,128 for 32,100 ids)."""

    @model_validator(mode="after")
    def _size_exists(self) -> Self:
        if self.size not in _SIZES[self.version]:
            known = ", ".join(_SIZES[self.version])
            raise ValueError(f"{self.version} has no size {self.size!r}; one of: {known}")
        return self


class T5Template(TokenizerTemplate):
    """T5's tokenizer."""

    ALGORITHM = "unigram"
    CLASS = "T5Tokenizer"
    KIND = "spaces"
    FIRST = ("<pad>", "</s>", "<unk>")
    RULES = Rules("nmt_nfkc", lowercase=False, strip_accents=False, space_chinese=False)
    OPTIONS = ("sentinels",)

    def class_options(self) -> tuple[dict[str, Any], bool]:
        """The table of the published normalisation."""
        return {"_spm_precompiled_charsmap": nmt_nfkc()}, self.rules != self.RULES

    def sentinels(self) -> list[str]:
        """The sentinels in the order of their ids: the first has the last one."""
        return [f"<extra_id_{number}>" for number in reversed(range(self.config.sentinels))]

    def extra_tokens(self) -> dict[str, Any]:
        """The class counts the sentinels, and wants them listed too."""
        extra = [*self.config.special_tokens, *reversed(self.sentinels())]
        return {"extra_ids": self.config.sentinels, "additional_special_tokens": extra}


class T5(Family, config=Config):
    """T5, whose positions are relative, so that inputs have any length."""

    OBJECTIVE = "span_corruption"
    TOKENIZER = T5Template
    HEADS = ("lm", "z_loss")
    LORA_TARGETS = ("q", "v")
    HEAD_CLASSES = {}  # it writes text
    POOLS = False
    MODEL_TYPE = "t5"
    TITLE = "T5"
    ADVICE = Advice(objective={"z_loss": 0}, network={"version": "v1.1"})
    ENCODER_DECODER = True
    ANSWERS = ("text",)
    FP16 = False  # feed-forward layers overflow
    DROPOUT = ("dropout_rate",)
    SIZE_FIELDS = ("num_layers", "d_model", "num_heads", "d_kv", "d_ff")
    SIZES = _SIZES["v1.1"] | _SIZES["v1.0"]  # of the default version where both have a size
    NETWORK = {
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "layer_norm_epsilon": 1e-6,
    }
    TOKEN_IDS = ("pad_token_id", "decoder_start_token_id")
    POSITIONS = ""

    config: Config

    def size_fields(self) -> dict[str, Any]:
        """The size fields of the config's version."""
        version = self.config.version
        return {
            **dict(zip(self.SIZE_FIELDS, _SIZES[version][self.config.size], strict=True)),
            "dropout_rate": 0.1 if version == "v1.0" else 0.0,
        }

    def network_fields(self, *, vocab_size: int, pad_id: int) -> dict[str, Any]:
        """The version's activation and output, and embeddings up to a multiple."""
        fields = super().network_fields(vocab_size=vocab_size, pad_id=pad_id)
        first, multiple = fields.pop("version") == "v1.0", fields.pop("vocab_multiple")
        return {
            **fields,
            "vocab_size": -(-vocab_size // multiple) * multiple,
            "feed_forward_proj": "relu" if first else "gated-gelu",
            # Decides only whether the decoder's output is scaled: transformers ties in any case.
            "tie_word_embeddings": first,
        }

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """One class: there is one head."""
        from transformers import T5ForConditionalGeneration

        return T5ForConditionalGeneration

    @classmethod
    def initialize(cls, model: Any) -> None:
        """Give the head of T5 1.1 a separate matrix, as published.

        transformers' config cannot express it. A saved model has both matrices, and loading keeps
        them apart because they differ.
        """
        import torch

        if model.config.scale_decoder_outputs:  # 1.0
            return
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
        # As the source's dense layer starts; a deviation of 1 would give logits of sqrt(d_model).
        factor = model.config.initializer_factor
        torch.nn.init.normal_(model.lm_head.weight, std=factor * model.config.d_model**-0.5)
        model.config.tie_word_embeddings = False

    def load(
        self,
        folder: str,
        loss_terms: tuple[str, ...],
        *,
        new_heads: NewHeads | None = None,
        **changes: Any,
    ) -> PreTrainedModel:
        """Load a folder; one of T5 1.1 must have both matrices."""
        from plmctl.models.load import report_or_refuse

        t5: Any = super().load(folder, loss_terms, new_heads=new_heads, **changes)
        tied = t5.lm_head.weight is t5.shared.weight
        if tied and not t5.config.scale_decoder_outputs:  # 1.1: transformers used one for both
            report_or_refuse(folder, t5, ["shared.weight or lm_head.weight"], None)
        model: PreTrainedModel = t5
        return model

    @staticmethod
    def forward(
        model: Any,  # transformers types its submodules as tensors or modules
        input_ids: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        positions: Tensor,
        decoder_texts: Tensor | None = None,
        project: Project = project_to_logits,
    ) -> dict[str, Tensor]:
        """Logits of the target tokens.

        Args:
            input_ids: [B, L].
            attention_mask: [B, L], 0 at padding; with ``decoder_texts`` the number of each token's
                text within its row, which tokens of the same number alone attend to.
            decoder_input_ids: [B, T] the targets shifted right; no token of a target sees what
                follows the target's end.
            positions: [K] positions of the flattened targets that are not padding.
            decoder_texts: [B, T] the same numbers of the decoder's tokens; None: one text per row.

        Returns:
            lm: [K, V].
        """
        own, crossed = None, attention_mask
        if decoder_texts is not None:
            own = _same(decoder_texts, decoder_texts).tril()
            # Padding sees everything: a query that sees nothing would give nan.
            crossed = _same(decoder_texts, attention_mask) | (decoder_texts == 0)[:, None, :, None]
            attention_mask = _same(attention_mask, attention_mask)
        encoded_BLH = model.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
        decoded_BTH = model.decoder(
            decoder_input_ids,
            attention_mask=own,
            encoder_hidden_states=encoded_BLH,
            encoder_attention_mask=crossed,
            use_cache=False,
        ).last_hidden_state
        hidden_KH = decoded_BTH.flatten(0, 1)[positions]
        if model.config.scale_decoder_outputs:
            hidden_KH = hidden_KH * model.config.d_model**-0.5
        return {"lm": project(hidden_KH, model.lm_head)}


def _same(query_BQ: Tensor, key_BK: Tensor) -> Tensor:
    """[B, 1, Q, K] whether the texts of a query and of a key have the same number."""
    return (query_BQ[:, :, None] == key_BK[:, None, :])[:, None]
