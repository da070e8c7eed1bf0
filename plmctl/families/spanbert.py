"""SpanBERT (Joshi et al., 2020, arXiv:1907.10529): BERT trained on spans and their boundaries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from plmctl.families._bert import BertTemplate
from plmctl.families.base import BertConfig, EncoderFamily, Project, project_to_logits

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from plmctl.models.load import NewHeads


class Config(BertConfig):
    """SpanBERT: BERT's encoder, spans of masked tokens and their boundaries.

    The published models are cased. tiny and mini have BERT's small sizes.
    """

    family: Literal["spanbert"] = "spanbert"
    size: Literal["tiny", "mini", "base", "large"] = "base"
    """A size; every option below overrides it."""


class SpanBertFamily(EncoderFamily, config=Config):
    """SpanBERT, whose initial weights are transformers' own: N(0, 0.02), not truncated."""

    TITLE = "SpanBERT"
    OBJECTIVE = "mlm+sbo"
    TOKENIZER = BertTemplate
    HEADS = ("mlm", "sbo")
    SIZES = {  # layers, hidden size
        "tiny": (2, 128),
        "mini": (4, 256),
        "base": (12, 768),
        "large": (24, 1024),
    }
    NETWORK = {
        "hidden_act": "gelu",  # SpanBERT is a PyTorch program: the exact function, not BERT's tanh
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
    }

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """SpanBert; without "sbo", BERT's own class, which has no span-boundary head."""
        from transformers import BertForMaskedLM

        from plmctl.models.spanbert import SpanBert

        return SpanBert if "sbo" in loss_terms else BertForMaskedLM

    def load(
        self,
        folder: str,
        loss_terms: tuple[str, ...],
        *,
        new_heads: NewHeads | None = None,
        **changes: Any,
    ) -> PreTrainedModel:
        """Load a folder; the span-boundary head is in a separate file of it."""
        from plmctl.models.spanbert import SpanBert

        if "sbo" not in loss_terms:
            return super().load(folder, loss_terms, new_heads=new_heads, **changes)
        return SpanBert.from_folder(folder, new_heads=new_heads, **changes)

    @staticmethod
    def forward(
        model: Any,  # transformers types its submodules as tensors or modules
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        positions: Tensor,
        project: Project = project_to_logits,
        **spans: Tensor,
    ) -> dict[str, Tensor]:
        """Logits mlm [K, V], and sbo [T, V] if spans are given.

        Args:
            model: SpanBert, or BertForMaskedLM without spans.
            **spans: left, right, place, all [T]: for each target of the span-boundary head, the
                positions in the flattened batch around its span, and its place in the span.
        """
        encoded = model.bert(
            input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        )
        states = encoded.last_hidden_state.flatten(0, 1)
        head = model.cls.predictions
        logits = {"mlm": project(head.transform(states[positions]), head.decoder)}
        if "left" in spans:
            from torch.nn.functional import embedding

            words = model.bert.embeddings.word_embeddings.weight
            left, right, place = spans["left"], spans["right"], spans["place"]
            # Not states[left]: a boundary belongs to each token of its span, and threads would add
            # up their gradients in any order, with other bits each time.
            left_TH, right_TH = embedding(left, states), embedding(right, states)
            logits["sbo"] = model.sbo(left_TH, right_TH, place, words)
        return logits
