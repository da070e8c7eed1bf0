"""RoBERTa (Liu et al., 2019, arXiv:1907.11692): BERT's encoder, trained on masked tokens alone.

What the paper does not say is fairseq's (``roberta/model.py``): two positions that are never used,
one token type, weights from N(0, 0.02) with zeros for the padding token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plmctl.errors import ConfigError
from plmctl.families.base import (
    Advice,
    BertConfig,
    EncoderFamily,
    Project,
    positions_after_padding,
    project_to_logits,
)
from plmctl.tokenization.layout import layout_of, require_tokens, with_layout
from plmctl.tokenization.templates import AS_IS, TokenizerTemplate

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import (
        PreTrainedConfig,
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )


class Config(BertConfig):
    """RoBERTa: a bidirectional encoder, masked tokens. tiny and mini have BERT's small sizes."""

    family: Literal["roberta"] = "roberta"
    size: Literal["tiny", "mini", "base", "large"] = "base"
    """A size; every option below overrides it."""
    max_position_embeddings: int = Field(default=514, ge=10)
    """Number of positions; two of them are never used, so that 514 take 512 tokens."""


class RobertaTemplate(TokenizerTemplate):
    """RoBERTa's tokenizer."""

    ALGORITHM = "byte_bpe"
    CLASS = "RobertaTokenizer"
    KIND = "bytes"
    FIRST = ("<s>", "<pad>", "</s>", "<unk>")
    LAST = ("<mask>",)
    RULES = AS_IS
    MASK = "<mask>"


class Roberta(EncoderFamily, config=Config):
    """RoBERTa, whose initial weights are transformers' own."""

    TITLE = "RoBERTa"
    OBJECTIVE = "mlm"
    TOKENIZER = RobertaTemplate
    HEADS = ("mlm",)
    LORA_TARGETS = ("query", "value")
    MODEL_TYPE = "roberta"
    ADVICE = Advice(objective={"packing": "full_sentences", "rate": 0.4})
    SIZES = {  # layers, hidden size
        "tiny": (2, 128),
        "mini": (4, 256),
        "base": (12, 768),
        "large": (24, 1024),
    }
    NETWORK = {"hidden_act": "gelu", "type_vocab_size": 1, "layer_norm_eps": 1e-5}
    # Positions start after the id of the padding token, which is 1 in RoBERTa's vocabularies.
    UNUSED_POSITIONS = 2

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """One class: RoBERTa has one head."""
        from transformers import RobertaForMaskedLM

        return RobertaForMaskedLM

    def network_fields(self, *, vocab_size: int, pad_id: int) -> dict[str, Any]:
        """The fields of the base class, with RoBERTa's unused positions.

        Raises:
            ConfigError: The id of the padding token leaves no room for positions.
        """
        if pad_id >= self.UNUSED_POSITIONS:
            raise ConfigError(
                f"tokenizer: the padding token has id {pad_id:,}, but RoBERTa counts positions "
                "from the id after it, which must be 1 or 2",
                "use a tokenizer with the padding token at 0 or 1, as `family: roberta` trains it",
            )
        return super().network_fields(vocab_size=vocab_size, pad_id=pad_id)

    @classmethod
    def finetuning_format(cls, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """Another family's tokenizer: two separators, no segments."""
        if len(layout_of(tokenizer, pair=True).between) != 1:
            return tokenizer
        require_tokens(tokenizer, "cls_token", "sep_token")
        first, last = str(tokenizer.cls_token), str(tokenizer.sep_token)
        ids = {first: int(tokenizer.cls_token_id), last: int(tokenizer.sep_token_id)}
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
        pair = f"{first} $A:0 {last} {last} $B:0 {last}"
        return with_layout(tokenizer, f"{first} $A {last}", pair, ids)

    @classmethod
    def longest_input(cls, network: PreTrainedConfig) -> int | None:
        """See the base class."""
        return positions_after_padding(network)

    @staticmethod
    def forward(
        model: Any,  # transformers types its submodules as tensors or modules
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        positions: Tensor,
        project: Project = project_to_logits,
    ) -> dict[str, Tensor]:
        """Logits mlm [K, V]; there is one token type, so that ``token_type_ids`` is not used."""
        from torch.nn.functional import gelu

        from plmctl.models.encoder import encode

        # As transformers counts them, but from the mask: a random token may be the padding token.
        position_ids = model.config.pad_token_id + attention_mask.cumsum(1) * attention_mask
        hidden_KH, _ = encode(
            model.roberta,
            positions,
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
        )
        head = model.lm_head
        transformed_KH = head.layer_norm(gelu(head.dense(hidden_KH)))
        return {"mlm": project(transformed_KH, head.decoder)}
