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
    """DeBERTa: an encoder with disentangled attention, masked tokens.

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
    HEADS = ("mlm",)
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
        "mask_decoder",
        "norm_rel_ebd",
        "position_buckets",
        "share_att_key",
    )

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """There is one head."""
        from plmctl.models.deberta import DebertaMaskedLM

        return DebertaMaskedLM

    @classmethod
    def initialize(cls, model: Any) -> None:
        """A convolution as PyTorch draws it."""
        for module in model.modules():
            if type(module).__name__ == "ConvLayer":
                module.conv.reset_parameters()

    @classmethod
    def load(
        cls,
        folder: str,
        loss_terms: tuple[str, ...],
        *,
        new_heads: NewHeads | None = None,
        **changes: Any,
    ) -> PreTrainedModel:
        """Load a folder; the mask decoder is in a separate file of it."""
        from plmctl.models.deberta import DebertaMaskedLM

        return DebertaMaskedLM.from_folder(folder, new_heads=new_heads, **changes)

    @classmethod
    def run_layers(cls, model: Any, rows: int, length: int) -> None:
        """See the base class; without a mask transformers looks for padding among the tokens."""
        import torch

        ids = torch.zeros(rows, length, dtype=torch.long, device=model.device)
        model.base_model(ids, attention_mask=torch.ones_like(ids))

    @classmethod
    def used_again(cls, model: Any, outputs: int) -> int:
        """The mask decoder applies the last layer twice."""
        if model.mask_decoder is None:
            return 0
        return sum(weight.numel() for weight in model.deberta.encoder.layer[-1].parameters())

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
        states_BLH = model.states(input_ids, attention_mask)
        head = model.cls.predictions
        transformed_KH = head.transform(states_BLH.flatten(0, 1)[positions])
        return {"mlm": project(transformed_KH, head.decoder)}
