"""ELECTRA (Clark et al., 2020, arXiv:2003.10555): an encoder that finds replaced tokens.

A small generator predicts masked tokens; the encoder, the discriminator, says of every token
whether it is the original one. Source of what the paper does not say: google-research/electra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plmctl.families._bert import BertTemplate
from plmctl.families.base import (
    Advice,
    EncoderConfig,
    EncoderFamily,
    Project,
    project_to_logits,
)

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from plmctl.models.load import NewHeads


class Config(EncoderConfig):
    """ELECTRA: an encoder that finds the tokens that a small generator has replaced.

    tiny and mini have BERT's small sizes.
    """

    family: Literal["electra"] = "electra"
    size: Literal["tiny", "mini", "small", "base", "large"] = "base"
    """A size; every option below overrides it."""
    embedding_size: int | None = Field(default=None, ge=1)
    """Size of the embeddings, which a matrix projects to hidden_size. Default: the size's."""
    generator_size: float | None = Field(default=None, gt=0, le=1)
    """Hidden size of the generator, as a share of hidden_size. Default: the size's."""


class Electra(EncoderFamily, config=Config):
    """ELECTRA."""

    TITLE = "ELECTRA"
    OBJECTIVE = "mlm+rtd"
    TOKENIZER = BertTemplate
    HEADS = ("mlm", "rtd")
    LORA_TARGETS = ("query", "value")
    MODEL_TYPE = "electra"
    FSDP = False  # a table of embeddings in two networks
    UNDECLARED = ("generator_size",)
    ADVICE = Advice(objective={"rate": 0.4})
    SIZE_FIELDS = ("num_hidden_layers", "hidden_size", "embedding_size", "generator_size")
    SIZES = {
        "tiny": (2, 128, 64, 0.5),
        "mini": (4, 256, 128, 0.25),
        "small": (12, 256, 128, 0.25),
        "base": (12, 768, 768, 1 / 3),
        "large": (24, 1024, 1024, 0.25),
    }
    NETWORK = {"hidden_act": "gelu", "type_vocab_size": 2, "layer_norm_eps": 1e-12}

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """Both networks, or the generator's alone for masked tokens."""
        from transformers import ElectraForMaskedLM

        from plmctl.models.electra import ElectraPair

        return ElectraPair if "rtd" in loss_terms else ElectraForMaskedLM

    @classmethod
    def initialize(cls, model: Any) -> None:
        """Weights from a truncated normal distribution; two layers as TensorFlow draws its own.

        These are the matrix after the embeddings and the last one of the discriminator.
        """
        from torch import nn

        from plmctl.models.parameters import truncated_normal_

        truncated_normal_(model, model.config.initializer_range)
        for name, module in model.named_modules():
            if name.endswith(("embeddings_project", "dense_prediction")):
                nn.init.xavier_uniform_(module.weight)

    def load(
        self,
        folder: str,
        loss_terms: tuple[str, ...],
        *,
        new_heads: NewHeads | None = None,
        **changes: Any,
    ) -> PreTrainedModel:
        """See the base class."""
        from plmctl.models.electra import ElectraPair

        if "rtd" in loss_terms:
            return ElectraPair.from_folder(folder, new_heads=new_heads, **changes)
        masked = self.masked_folder(folder)
        return super().load(masked, loss_terms, new_heads=new_heads, **changes)

    @classmethod
    def masked_folder(cls, folder: str) -> str:
        """The generator's, in the folder of a discriminator that has one."""
        from plmctl.models.pair import generator_folder

        return generator_folder(folder) or folder

    @staticmethod
    def forward(
        model: Any,  # transformers types its submodules as tensors or modules
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        positions: Tensor,
        original_ids: Tensor | None = None,
        draws: Tensor | None = None,
        project: Project = project_to_logits,
    ) -> dict[str, Tensor]:
        """Logits of the generator, and margins of the discriminator: see ``judged_tokens``.

        Args:
            original_ids: [B, L] before they were masked; None: of the generator alone.
            draws: [K] in (0, 1], by which the generator's tokens are drawn; 0: none is.
        """
        from plmctl.models.electra import ElectraPair
        from plmctl.models.encoder import encode
        from plmctl.models.pair import judged_tokens

        generator = model.generator if isinstance(model, ElectraPair) else model
        shared = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
        hidden_KH, _ = encode(generator.electra, positions, input_ids=input_ids, **shared)
        transformed_KH = generator.generator_predictions(hidden_KH)
        if original_ids is None or draws is None:
            return {"mlm": project(transformed_KH, generator.generator_lm_head)}
        logits_KV = generator.generator_lm_head(transformed_KH)

        def discriminate(ids_BL: Tensor) -> Any:
            return model.discriminator(ids_BL, **shared).logits

        return judged_tokens(discriminate, logits_KV, original_ids, positions, draws)
