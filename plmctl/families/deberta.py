"""DeBERTa (He et al., 2020, arXiv:2006.03654): attention to what a token is and how far it is.

The network is that of the second version, which the third one has, too (arXiv:2111.09543). Source
of what the papers do not say: microsoft/DeBERTa.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plmctl.families.base import (
    Advice,
    EncoderConfig,
    EncoderFamily,
    Project,
    project_to_logits,
)
from plmctl.tokenization.templates import Rules, TokenizerTemplate, folding, unicode_form

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from torch import Tensor
    from transformers import PreTrainedModel

    from plmctl.models.load import NewHeads


class Config(EncoderConfig):
    """DeBERTa: an encoder with disentangled attention, masked or replaced tokens.

    tiny and mini have BERT's small sizes. xsmall to large are those of the third version, xlarge
    and xxlarge of the second.
    """

    family: Literal["deberta"] = "deberta"
    size: Literal["tiny", "mini", "xsmall", "small", "base", "large", "xlarge", "xxlarge"] = "base"
    """A size; every option below overrides it."""
    position_buckets: int = Field(default=256, ge=2)
    """Relative positions on each side: near ones have a vector each, far ones share theirs."""
    share_att_key: bool = True
    """Whether relative positions have the queries and keys of tokens; false: separate matrices."""
    conv_kernel_size: int | None = Field(default=None, ge=0)
    """Tokens of the convolution beside the first layer; 0: there is none. Default: the size's."""
    mask_decoder: bool = True
    """Whether masked tokens are predicted by the enhanced mask decoder, which knows absolute
    positions; false: from the last layer, as transformers does."""
    generator_layers: float = Field(default=0.5, gt=0, le=1)
    """With `mlm+rtd`: layers of the generator, as a share of num_hidden_layers."""
    embedding_sharing: Literal["gradient_disentangled", "shared", "none"] = "gradient_disentangled"
    """With `mlm+rtd`: the discriminator's table of tokens. gradient_disentangled: the generator's,
    which learns from masked tokens alone, plus a difference that learns from replaced ones; shared:
    the generator's, which learns from both; none: a separate one."""


class DebertaTemplate(TokenizerTemplate):
    """DeBERTa's tokenizer from its second version on: pieces of words, cased."""

    ALGORITHM = "unigram"
    CLASS = "DebertaV2Tokenizer"
    KIND = "spaces"
    FIRST = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
    LAST = ("[MASK]",)
    RULES = Rules("nfc", lowercase=False, strip_accents=False, space_chinese=False)
    MASK = "[MASK]"

    def class_options(self) -> tuple[dict[str, Any], bool]:
        """The class has a switch for case, and no other."""
        rules = self.rules
        others = Rules("nfc", rules.lowercase, strip_accents=False, space_chinese=False)
        unknown = self.FIRST.index("[UNK]")
        return {"do_lower_case": rules.lowercase, "unk_id": unknown}, rules != others

    def normalizer(self) -> Normalizer:
        """White space becomes one space, and none is left at the end."""
        from tokenizers import Regex, normalizers

        rules = self.rules
        spaces = normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " ")
        last = normalizers.Strip(left=False, right=True)
        return normalizers.Sequence([*folding(rules), spaces, *unicode_form(rules), last])


class Deberta(EncoderFamily, config=Config):
    """DeBERTa, whose initial weights are transformers' own: N(0, 0.02), not truncated."""

    TITLE = "DeBERTa"
    OBJECTIVE = "mlm"
    TOKENIZER = DebertaTemplate
    HEADS = ("mlm", "rtd")
    LORA_TARGETS = ("query_proj", "value_proj")
    MODEL_TYPE = "deberta-v2"
    ADVICE = Advice(objective={"rate": 0.4})
    SIZE_FIELDS = ("num_hidden_layers", "hidden_size", "conv_kernel_size")
    SIZES = {
        "tiny": (2, 128, 0),
        "mini": (4, 256, 0),
        "xsmall": (12, 384, 0),
        "small": (6, 768, 0),
        "base": (12, 768, 0),
        "large": (24, 1024, 0),
        "xlarge": (24, 1536, 3),
        "xxlarge": (48, 1536, 3),
    }
    NETWORK = {
        "hidden_act": "gelu",
        "conv_act": "gelu",
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": True,
        "max_relative_positions": -1,  # max_position_embeddings
        "norm_rel_ebd": "layer_norm",
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
    }
    UNDECLARED = (
        "conv_act",
        "conv_kernel_size",
        "embedding_sharing",
        "generator_layers",
        "mask_decoder",
        "norm_rel_ebd",
        "position_buckets",
        "share_att_key",
    )

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """Both networks, or one for masked tokens."""
        from plmctl.models.deberta import DebertaMaskedLM, DebertaPair

        return DebertaPair if "rtd" in loss_terms else DebertaMaskedLM

    @classmethod
    def initialize(cls, model: Any) -> None:
        """A convolution as PyTorch draws it."""
        for module in model.modules():
            if type(module).__name__ == "ConvLayer":
                module.conv.reset_parameters()

    def load(
        self,
        folder: str,
        loss_terms: tuple[str, ...],
        *,
        new_heads: NewHeads | None = None,
        **changes: Any,
    ) -> PreTrainedModel:
        """Load a folder; the mask decoder is in a separate file of it."""
        from plmctl.models.deberta import DebertaMaskedLM, DebertaPair

        if "rtd" in loss_terms:
            return DebertaPair.from_folder(folder, new_heads=new_heads, **changes)
        masked = self.masked_folder(folder)
        return DebertaMaskedLM.from_folder(masked, new_heads=new_heads, **changes)

    @classmethod
    def masked_folder(cls, folder: str) -> str:
        """The generator's, in the folder of a discriminator that has one."""
        from plmctl.models.pair import generator_folder

        return generator_folder(folder) or folder

    @classmethod
    def run_layers(cls, model: Any, rows: int, length: int) -> None:
        """See the base class; without a mask transformers looks for padding among the tokens."""
        import torch

        ids = torch.zeros(rows, length, dtype=torch.long, device=model.device)
        model.base_model(ids, attention_mask=torch.ones_like(ids))

    @classmethod
    def used_again(cls, model: Any, outputs: int) -> int:
        """The mask decoder applies the last layer twice."""
        from plmctl.models.deberta import DebertaPair

        masked = model.generator if isinstance(model, DebertaPair) else model
        if masked.mask_decoder is None:
            return 0
        return sum(weight.numel() for weight in masked.deberta.encoder.layer[-1].parameters())

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
        """Logits mlm [K, V], and with ``draws`` rtd [B, L]: see ``judged_tokens``.

        Args:
            token_type_ids: Not used: there are no token types.
            original_ids: [B, L] before they were masked; None: masked tokens alone.
            draws: [K] in (0, 1], by which the generator's tokens are drawn; 0: none is.
        """
        from plmctl.models.deberta import DebertaPair
        from plmctl.models.pair import judged_tokens

        masked = model.generator if isinstance(model, DebertaPair) else model
        head = masked.cls.predictions
        transformed_KH = head.transform(masked.states(input_ids, attention_mask, positions))
        if original_ids is None or draws is None:
            return {"mlm": project(transformed_KH, head.decoder)}

        def discriminate(ids_BL: Tensor) -> Any:
            return model.discriminator(ids_BL, attention_mask).logits

        logits_KV = head.decoder(transformed_KH)
        return judged_tokens(discriminate, logits_KV, original_ids, positions, draws)
