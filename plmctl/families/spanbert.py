"""SpanBERT (Joshi et al., 2020, arXiv:1907.10529): BERT trained on spans and their boundaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from plmctl.families.base import ENCODER_DROPOUT, EncoderConfig, Project, encoder_fields
from plmctl.families.base import project_to_logits as logits_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import BertForMaskedLM, PreTrainedModel

    from plmctl.models.load import NewHeads

OBJECTIVE = "mlm+sbo"
TOKENIZER = "wordpiece"
HEADS = ("mlm", "sbo")
DROPOUT = ENCODER_DROPOUT

# Layers and width; heads are width / 64 and the feed-forward width is 4 times the width.
SIZES: dict[str, tuple[int, int]] = {
    "tiny": (2, 128),
    "mini": (4, 256),
    "base": (12, 768),
    "large": (24, 1024),
}

PLACES = 15
"""Tokens of a span that the span-boundary head can tell apart, as published."""


class Config(EncoderConfig):
    """SpanBERT: BERT's encoder, spans of masked tokens and their boundaries.

    The published models are cased. tiny and mini have BERT's small sizes.
    """

    family: Literal["spanbert"] = "spanbert"
    size: Literal["tiny", "mini", "base", "large"] = "base"
    """A size; every field below overrides it."""


def build(
    config: Config, *, vocab_size: int, pad_id: int, loss_terms: tuple[str, ...]
) -> PreTrainedModel:
    """A network with fresh weights from the global generator: N(0, 0.02), not cut off.

    Args:
        config: Size and dropout.
        vocab_size: Rows of the embedding table.
        pad_id: Id of the padding token.
        loss_terms: Loss terms, which decide the heads.
    """
    from transformers import BertConfig, BertForMaskedLM

    network = BertConfig(
        **encoder_fields(config, SIZES[config.size], vocab_size=vocab_size, pad_id=pad_id),
        hidden_act="gelu",  # SpanBERT is a PyTorch program: the exact function, not BERT's tanh
        type_vocab_size=2,
        layer_norm_eps=1e-12,
    )
    if "sbo" not in loss_terms:
        return BertForMaskedLM(network)
    from plmctl.models.spanbert import SpanBert

    return SpanBert(network, PLACES)


def load(
    folder: str, loss_terms: tuple[str, ...], *, new_heads: NewHeads | None = None, **changes: Any
) -> PreTrainedModel:
    """A pretrained model in float32 with the heads for ``loss_terms``, its config changed."""
    from transformers import BertForMaskedLM

    from plmctl.models.load import load_network

    if "sbo" not in loss_terms:
        loaded = load_network(BertForMaskedLM, folder, new_heads=new_heads, **changes)
        model: PreTrainedModel = loaded.network
        return model
    from plmctl.models.spanbert import SpanBert

    return SpanBert.from_folder(folder, PLACES, new_heads=new_heads, **changes)


def positions(config: Config) -> int:
    """The longest input."""
    return config.max_position_embeddings


def forward(
    model: BertForMaskedLM,
    input_ids: Tensor,
    attention_mask: Tensor,
    token_type_ids: Tensor,
    positions: Tensor,
    project: Project = logits_of,
    **spans: Tensor,
) -> dict[str, Tensor]:
    """Logits of each part.

    Args:
        model: SpanBert, or BertForMaskedLM where no spans are given.
        input_ids: [B, L].
        attention_mask: [B, L], 0 at padding.
        token_type_ids: [B, L].
        positions: [K] cells of the flattened batch where a token is predicted.
        project: What is made of hidden states and output layer: logits.
        **spans: left, right, place, all [T]: for each target of the span-boundary head the cells
            around its span, and its place in it.

    Returns:
        mlm: [K, V]; sbo: [T, V] if spans are given.
    """
    whole: Any = model  # transformers types its submodules as tensors or modules
    encoded = whole.bert(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
    cells = encoded.last_hidden_state.flatten(0, 1)
    head = whole.cls.predictions
    logits = {"mlm": project(head.transform(cells[positions]), head.decoder)}
    if "left" in spans:
        words = whole.bert.embeddings.word_embeddings.weight
        left, right, place = spans["left"], spans["right"], spans["place"]
        logits["sbo"] = whole.sbo(cells[left], cells[right], place, words)
    return logits
