"""RoBERTa (Liu et al., 2019, arXiv:1907.11692): BERT's encoder, trained on masked tokens alone.

What the paper does not say is fairseq's (``roberta/model.py``): two positions that are never used,
one token type, weights from N(0, 0.02) with zeros for the padding token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plmctl.errors import ConfigError
from plmctl.families.base import ENCODER_DROPOUT, EncoderConfig, Project, encoder_fields
from plmctl.families.base import project_to_logits as logits_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, RobertaForMaskedLM

    from plmctl.models.load import NewHeads

OBJECTIVE = "mlm"
TOKENIZER = "byte_bpe"
HEADS = ("mlm",)
DROPOUT = ENCODER_DROPOUT

# Layers and width; heads are width / 64 and the feed-forward width is 4 times the width.
SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "base": (12, 768),
    "large": (24, 1024),
}

# Positions begin after the padding token's id, which is 1 in RoBERTa's vocabularies: 514 positions
# take 512 tokens.
_UNUSED = 2


class Config(EncoderConfig):
    """RoBERTa: a bidirectional encoder, masked tokens. tiny and mini have BERT's small sizes."""

    family: Literal["roberta"] = "roberta"
    size: Literal["tiny", "mini", "base", "large"] = "base"
    """A size; every field below overrides it."""
    max_position_embeddings: int = Field(default=514, ge=10)
    """Rows of the position table; two of them are never used, so that 514 take 512 tokens."""


def build(
    config: Config, *, vocab_size: int, pad_id: int, loss_terms: tuple[str, ...]
) -> PreTrainedModel:
    """A network with fresh weights from the global generator.

    Args:
        config: Size and dropout.
        vocab_size: Rows of the embedding table.
        pad_id: Id of the padding token; positions are counted from the id after it.
        loss_terms: Loss terms; RoBERTa has the one head.

    Raises:
        ConfigError: The padding token's id leaves no room for positions.
    """
    from transformers import RobertaConfig, RobertaForMaskedLM

    if pad_id >= _UNUSED:
        raise ConfigError(
            f"tokenizer: its padding token has id {pad_id:,}, and RoBERTa counts positions from "
            "the id after it",
            "use a tokenizer with the padding token at 0 or 1, as `family: roberta` trains it",
        )
    network = RobertaConfig(
        **encoder_fields(config, SIZES[config.size], vocab_size=vocab_size, pad_id=pad_id),
        hidden_act="gelu",
        type_vocab_size=1,
        layer_norm_eps=1e-5,
    )
    return RobertaForMaskedLM(network)  # whose own initial weights are the published ones


def load(
    folder: str, loss_terms: tuple[str, ...], *, new_heads: NewHeads | None = None, **changes: Any
) -> PreTrainedModel:
    """A pretrained model with its masked-token head, in float32, its config changed."""
    from transformers import RobertaForMaskedLM

    from plmctl.models.load import load_network

    loaded = load_network(RobertaForMaskedLM, folder, new_heads=new_heads, **changes)
    model: PreTrainedModel = loaded.network
    return model


def positions(config: Config) -> int:
    """The longest input."""
    return config.max_position_embeddings - _UNUSED


def forward(
    model: RobertaForMaskedLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    token_type_ids: Tensor,
    positions: Tensor,
    project: Project = logits_of,
) -> dict[str, Tensor]:
    """Logits of the masked tokens.

    Args:
        model: RobertaForMaskedLM.
        input_ids: [B, L].
        attention_mask: [B, L], 0 at padding.
        token_type_ids: [B, L], not used: there is one type.
        positions: [K] cells of the flattened batch where a token is predicted.
        project: What is made of hidden states and output layer: logits.

    Returns:
        mlm: [K, V].
    """
    from torch.nn.functional import gelu

    from plmctl.models.fast.encoder import encode

    whole: Any = model  # transformers types its submodules as tensors or modules
    # As transformers counts them, but from the mask: a random token may be the padding token.
    places = whole.config.pad_token_id + attention_mask.cumsum(1) * attention_mask
    hidden_KH, _ = encode(
        whole.roberta,
        positions,
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=places,
    )
    head = whole.lm_head
    shaped_KH = head.layer_norm(gelu(head.dense(hidden_KH)))
    return {"mlm": project(shaped_KH, head.decoder)}
