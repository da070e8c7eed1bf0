"""The causal families: what GPT-1, GPT-2, GPT-3 and Llama share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from plmctl.families.base import (
    Advice,
    Family,
    LearnedPositionsConfig,
    Project,
    project_to_logits,
)
from plmctl.tokenization.layout import encode_texts, require_tokens, with_layout
from plmctl.tokenization.templates import AS_IS, TokenizerTemplate

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import (
        PreTrainedModel,
        PreTrainedTokenizerBase,
    )

    from plmctl.models.load import NewHeads


class DecoderConfig(LearnedPositionsConfig):
    """Options of GPT-2 and GPT-3."""

    n_layer: int | None = Field(default=None, ge=1)
    """Layers."""
    n_embd: int | None = Field(default=None, ge=1)
    """Hidden size."""
    n_head: int | None = Field(default=None, ge=1)
    """Attention heads."""
    n_positions: int = Field(default=1024, ge=8)
    """Number of positions: the longest input."""
    resid_pdrop: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of sublayers."""
    embd_pdrop: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of embeddings."""
    attn_pdrop: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of attention weights."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights."""


class DecoderFamily(Family):
    """A causal decoder; the fields are those of GPT-1's and GPT-2's configs."""

    OBJECTIVE = "clm"
    HEADS = ("lm",)
    DROPOUT: ClassVar[tuple[str, ...]] = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
    SIZE_FIELDS: ClassVar[tuple[str, ...]] = ("n_layer", "n_embd")
    WIDTH = ("n_embd", "n_head", "")
    POSITIONS = "n_positions"
    LORA_TARGETS: ClassVar[tuple[str, ...]] = ("c_attn",)
    POOLS = False  # a text's last token alone has seen all of it
    ADVICE = Advice(lr=5e-3, beta2=0.95)

    @staticmethod
    def forward(
        model: Any,  # transformers types its submodules as tensors or modules
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        positions: Tensor | None = None,
        project: Project = project_to_logits,
        *,
        both_sides: bool | None = None,
        attention_mask: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Logits at every position, or at some.

        Args:
            model: A network with the head ``lm_head``.
            input_ids: [B, T].
            position_ids: [B, T], from 0 at every position that attention shall not look back from;
                None: each sequence is one text.
            positions: [K] of the flattened batch; None: all.
            both_sides: See ``hidden_states``.
            attention_mask: See ``hidden_states``; None: there is no padding.

        Returns:
            lm: [B, T, V], or [K, V] at ``positions``.
        """
        from plmctl.models.decoder import hidden_states

        states = hidden_states(
            model, input_ids, position_ids, both_sides=both_sides, attention_mask=attention_mask
        )
        if positions is not None:
            states = states.flatten(0, 1)[positions]
        return {"lm": project(states, model.lm_head)}

    @classmethod
    def run_layers(cls, model: Any, rows: int, length: int) -> None:
        """See the base class."""
        import torch

        from plmctl.models.decoder import hidden_states

        hidden_states(model, torch.zeros(rows, length, dtype=torch.long, device=model.device))


MASK = "<mask>"
"""The mask token of a decoder that sees both sides, if ``special_tokens`` of its config has it."""


class Gpt2Template(TokenizerTemplate):
    """GPT-2's tokenizer, and a mask token if the config has one: the published one has none."""

    ALGORITHM = "byte_bpe"
    CLASS = "GPT2Tokenizer"
    KIND = "bytes"
    LAST = ("<|endoftext|>",)
    RULES = AS_IS
    MAX_LENGTH = 1024

    def extra_tokens(self) -> dict[str, Any]:
        """See the base class."""
        extra = [token for token in self.config.special_tokens if token != MASK]
        options = {"mask_token": MASK} if MASK in self.config.special_tokens else {}
        return options | ({"extra_special_tokens": extra} if extra else {})


class EndOfTextFamily(DecoderFamily):
    """A decoder of texts that end with a token of the kind of GPT-2's <|endoftext|>."""

    TOKENIZER = Gpt2Template
    BOTH_SIDES = True
    TOKEN_IDS = ("bos_token_id", "eos_token_id")

    def load_start(self, loss_terms: tuple[str, ...], new_heads: NewHeads) -> PreTrainedModel:
        """See the base class; causal, whatever the folder says: the objective says the rest."""
        from plmctl.models.decoder import sees_both_sides

        model = super().load_start(loss_terms, new_heads)
        if sees_both_sides(model.config):
            model.config.is_causal = True
        return model

    @classmethod
    def finetuning_format(cls, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """A line break between the texts of a pair; nothing is published."""
        ids = encode_texts(tokenizer, ["\n"])[0]
        known = {str(tokenizer.convert_ids_to_tokens(id_)): id_ for id_ in ids}
        if len(ids) != 1:  # no token for a line break
            require_tokens(tokenizer, "eos_token")
            known = {str(tokenizer.eos_token): int(tokenizer.eos_token_id)}
        return with_layout(tokenizer, "$A", f"$A {next(iter(known))} $B", known)


class Gpt2Family(EndOfTextFamily):
    """GPT-2's network."""

    NETWORK = {
        # The same function as the published gelu_new, in one fused kernel.
        "activation_function": "gelu_pytorch_tanh",
        "layer_norm_epsilon": 1e-5,
    }
    # The Auto class of multiple choice does not know it.
    HEAD_CLASSES = {
        **DecoderFamily.HEAD_CLASSES,
        "multiple_choice": "GPT2DoubleHeadsModel",
    }

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """One class: there is one head."""
        from transformers import GPT2LMHeadModel

        return GPT2LMHeadModel

    @classmethod
    def initialize(cls, model: Any) -> None:
        """Position embeddings ~ N(0, ``initializer_range`` / 2): 0.01 for the published 0.02.

        The rest is transformers' own: weights and token embeddings ~ N(0, ``initializer_range``);
        the two projections of each layer that add to the residual stream are smaller by
        1/sqrt(2 * layers), as the GPT-2 paper says; versions before 5.15 do not make them so.
        Source: openai/gpt-2, src/model.py.
        """
        import torch
        import transformers
        from packaging.version import Version
        from torch import nn

        nn.init.normal_(model.transformer.wpe.weight, std=model.config.initializer_range / 2)
        if Version(transformers.__version__) < Version("5.15"):
            with torch.no_grad():
                for layer in model.transformer.h:
                    for part in (layer.attn, layer.mlp):
                        part.c_proj.weight /= (2 * model.config.n_layer) ** 0.5

    @classmethod
    def start_local(cls, model: Any, std: float) -> None:
        """See the base class; the first two thirds of a fused matrix are query and key."""
        from plmctl.models.parameters import local_attention_

        size, fused = model.config.n_embd, model.transformer.h[0].attn.c_attn.weight
        local_attention_(
            model.transformer.wpe,
            fused[:, :size].T,
            fused[:, size : 2 * size].T,
            heads=model.config.n_head,
            std=std,
            causal=True,
        )
