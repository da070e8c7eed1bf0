"""T5 (Raffel et al., 2020, arXiv:1910.10683) and T5 1.1 (released with the same code)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from plmctl.config.base import ModelConfig
from plmctl.families.base import Project
from plmctl.families.base import project_to_logits as logits_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration

    from plmctl.models.load import NewHeads

OBJECTIVE = "span_corruption"
TOKENIZER = "unigram"
HEADS = ("lm", "z_loss")
ENCODER_DECODER = True

DROPOUT = ("dropout_rate",)

# Layers of each stack, width, heads, width of a head, feed-forward width.
# tiny and mini are not published: layers and widths of BERT's.
SIZES: dict[str, dict[str, tuple[int, int, int, int, int]]] = {
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
_DROPOUT = {"v1.0": 0.1, "v1.1": 0.0}


class Config(ModelConfig):
    """T5: an encoder and a decoder, text to text. tiny and mini have BERT's small sizes."""

    family: Literal["t5"] = "t5"
    version: Literal["v1.0", "v1.1"] = "v1.0"
    """v1.0: ReLU, one matrix for embeddings and output; v1.1: gated GELU, an output matrix of its
    own, no dropout in pretraining."""
    size: Literal["tiny", "mini", "small", "base", "large", "3b", "11b", "xl", "xxl"] = "small"
    """A size (3b and 11b: v1.0 only, xl and xxl: v1.1 only); every field below overrides it."""
    num_layers: int | None = Field(default=None, ge=1)
    """Of the encoder, and of the decoder."""
    d_model: int | None = Field(default=None, ge=1)
    """Width."""
    num_heads: int | None = Field(default=None, ge=1)
    """Heads of attention."""
    d_kv: int | None = Field(default=None, ge=1)
    """Width of a head; heads times it need not be d_model."""
    d_ff: int | None = Field(default=None, ge=1)
    """Width of the feed-forward layers."""
    dropout_rate: float | None = Field(default=None, ge=0, lt=1)
    """Default: 0.1 for v1.0, 0 for v1.1."""
    vocab_multiple: int = Field(default=128, ge=1)
    """The embedding table has rows up to a multiple of this (published: 32,128 for 32,100 ids)."""

    @model_validator(mode="after")
    def _size_exists(self) -> Self:
        if self.size not in SIZES[self.version]:
            known = ", ".join(SIZES[self.version])
            raise ValueError(f"{self.version} has no size {self.size!r}; one of: {known}")
        return self


def build(
    config: Config, *, vocab_size: int, pad_id: int, loss_terms: tuple[str, ...]
) -> PreTrainedModel:
    """A network with fresh weights from the global generator.

    Args:
        config: Version and size.
        vocab_size: Ids of the tokenizer.
        pad_id: Id of the padding token, which also begins every decoder input.
        loss_terms: Loss terms; T5 has the one head.
    """
    from transformers import T5ForConditionalGeneration

    model = T5ForConditionalGeneration(_network(config, vocab_size, pad_id))
    if config.version == "v1.1":
        _untie(model)
    return model


def load(
    folder: str, loss_terms: tuple[str, ...], *, new_heads: NewHeads | None = None, **changes: Any
) -> PreTrainedModel:
    """A pretrained model with its head, in float32, its config changed."""
    from transformers import T5ForConditionalGeneration

    from plmctl.models.load import load_network, tell_or_refuse

    loaded = load_network(T5ForConditionalGeneration, folder, new_heads=new_heads, **changes)
    t5 = loaded.network
    tied = t5.lm_head.weight is t5.shared.weight
    if tied and not t5.config.scale_decoder_outputs:  # 1.1: transformers used one for both
        tell_or_refuse(folder, t5, ["shared.weight or lm_head.weight"], None)
    model: PreTrainedModel = t5
    return model


def anew(folder: str, **changes: Any) -> PreTrainedModel:
    """The network of a folder with every weight drawn anew, tied or not as the folder's is."""
    from transformers import T5Config, T5ForConditionalGeneration

    network = T5Config.from_pretrained(folder, **changes)
    network.dtype = None  # that of the weights in the folder
    model = T5ForConditionalGeneration(network)
    if not network.scale_decoder_outputs:
        _untie(model)
    return model


def positions(config: Config) -> int:
    """The longest input: positions are relative, so that there is no limit."""
    return sys.maxsize


def forward(
    model: T5ForConditionalGeneration,
    input_ids: Tensor,
    attention_mask: Tensor,
    decoder_input_ids: Tensor,
    positions: Tensor,
    project: Project = logits_of,
) -> dict[str, Tensor]:
    """Logits of the target tokens.

    Args:
        model: The network.
        input_ids: [B, L].
        attention_mask: [B, L], 0 at padding.
        decoder_input_ids: [B, T] the targets shifted right; what follows a target's end is seen by
            none of its tokens.
        positions: [K] cells of the flattened targets that are no padding.
        project: What is made of hidden states and output layer: logits.

    Returns:
        lm: [K, V].
    """
    encoded_BLH = model.encoder(input_ids, attention_mask=attention_mask).last_hidden_state
    decoded_BTH = model.decoder(
        decoder_input_ids,
        encoder_hidden_states=encoded_BLH,
        encoder_attention_mask=attention_mask,
        use_cache=False,
    ).last_hidden_state
    hidden_KH = decoded_BTH.flatten(0, 1)[positions]
    if model.config.scale_decoder_outputs:
        hidden_KH = hidden_KH * model.config.d_model**-0.5
    return {"lm": project(hidden_KH, model.lm_head)}


def _network(config: Config, vocab_size: int, pad_id: int) -> T5Config:
    from transformers import T5Config

    layers, width, heads, head, feed = SIZES[config.version][config.size]
    multiple = config.vocab_multiple
    extra: dict[str, Any] = {
        # Only tells whether the decoder's output is scaled: the library ties in any case.
        "tie_word_embeddings": config.version == "v1.0",
        "decoder_start_token_id": pad_id,
    }
    return T5Config(
        vocab_size=-(-vocab_size // multiple) * multiple,
        d_model=config.d_model or width,
        d_kv=config.d_kv or head,
        d_ff=config.d_ff or feed,
        num_layers=config.num_layers or layers,
        num_heads=config.num_heads or heads,
        relative_attention_num_buckets=32,
        relative_attention_max_distance=128,
        dropout_rate=(
            _DROPOUT[config.version] if config.dropout_rate is None else config.dropout_rate
        ),
        layer_norm_epsilon=1e-6,
        feed_forward_proj="relu" if config.version == "v1.0" else "gated-gelu",
        pad_token_id=pad_id,
        **extra,
    )


def _untie(model: T5ForConditionalGeneration) -> None:
    """Give the head a matrix of its own, as published; the library's config cannot ask for it.

    A saved model has both matrices, and loading keeps them apart since they differ.
    """
    import torch

    model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    # As the source's dense layer starts; a deviation of 1 would give logits of sqrt(d_model).
    torch.nn.init.normal_(model.lm_head.weight, std=model.config.d_model**-0.5)
    model.config.tie_word_embeddings = False
