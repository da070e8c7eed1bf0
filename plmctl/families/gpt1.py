"""GPT-1 (Radford et al., 2018, "Improving Language Understanding by Generative Pre-Training").

Post-layer-norm decoder without a final layer norm; token and position embeddings, weights ~ N(0,
0.02), biases zero, and no residual scaling. Source: openai/finetune-transformer-lm, train.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plmctl.families._gpt import DecoderFamily
from plmctl.families.base import TokenEmbeddingsConfig
from plmctl.tokenization.layout import with_layout
from plmctl.tokenization.templates import CLEANED, TokenizerTemplate

if TYPE_CHECKING:
    from transformers import (
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )


class Config(TokenEmbeddingsConfig):
    """GPT-1: a causal decoder, next-token prediction. tiny and mini have BERT's small sizes."""

    family: Literal["gpt1"] = "gpt1"
    size: Literal["tiny", "mini", "base"] = "base"
    """A size; base is the published one. Every option below overrides it."""
    n_layer: int | None = Field(default=None, ge=1)
    """Layers."""
    n_embd: int | None = Field(default=None, ge=1)
    """Hidden size."""
    n_head: int | None = Field(default=None, ge=1)
    """Attention heads. Default: n_embd / 64."""
    n_positions: int = Field(default=512, ge=8)
    """Number of positions: the longest input."""
    resid_pdrop: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of sublayers."""
    embd_pdrop: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of embeddings."""
    attn_pdrop: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of attention weights."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights."""


class Gpt1Template(TokenizerTemplate):
    """GPT-1's tokenizer."""

    ALGORITHM = "bpe"
    CLASS = "OpenAIGPTTokenizer"
    KIND = "marks"
    FIRST = ("<unk>",)
    RULES = CLEANED


class Gpt1(DecoderFamily, config=Config):
    """GPT-1, which has neither a padding token nor an end-of-text token."""

    TITLE = "GPT-1"
    TOKENIZER = Gpt1Template
    MODEL_TYPE = "openai-gpt"
    FORMAT_TOKENS = ("_start_", "_delimiter_", "_classify_")
    ANSWERS = ("labels", "options")
    SIZES = {"tiny": (2, 128), "mini": (4, 256), "base": (12, 768)}  # layers, hidden size
    NETWORK = {
        "afn": "gelu",  # by this name the network has the tanh form, as published
        "layer_norm_epsilon": 1e-5,
    }
    # The Auto class of multiple choice does not know it.
    HEAD_CLASSES = {
        **DecoderFamily.HEAD_CLASSES,
        "multiple_choice": "OpenAIGPTDoubleHeadsModel",
    }
    TOKEN_IDS = ()
    ADVICE = replace(DecoderFamily.ADVICE, objective={"separator": "none"})

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """One class: there is one head."""
        from transformers import OpenAIGPTLMHeadModel

        return OpenAIGPTLMHeadModel

    @classmethod
    def finetuning_format(cls, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """``_start_ A _classify_`` and ``_start_ A _delimiter_ B _classify_``, three new tokens."""
        start, delimiter, classify = cls.FORMAT_TOKENS
        known = tokenizer.get_vocab()
        if not any(token in known for token in cls.FORMAT_TOKENS):
            tokenizer.add_tokens(list(cls.FORMAT_TOKENS), special_tokens=True)
            known = tokenizer.get_vocab()
        if tokenizer.pad_token is None:  # not the last token, by which a text's end is found
            tokenizer.pad_token = tokenizer.unk_token or start
        ids = [known[token] for token in cls.FORMAT_TOKENS if token in known]
        single, pair = f"{start} $A {classify}", f"{start} $A {delimiter} $B {classify}"
        return with_layout(tokenizer, single, pair, dict(zip(cls.FORMAT_TOKENS, ids, strict=True)))

    @classmethod
    def initialize(cls, model: Any) -> None:
        """Transformers leaves these matrices at N(0, 0.02), whatever ``initializer_range`` is."""
        from torch import nn
        from transformers.pytorch_utils import Conv1D

        for module in model.modules():
            if isinstance(module, Conv1D):
                nn.init.normal_(module.weight, std=model.config.initializer_range)
