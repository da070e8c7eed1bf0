"""ALBERT (Lan et al., 2020, arXiv:1909.11942): BERT with shared layers and small embeddings.

Source of what the paper does not say: google-research/albert, modeling.py and the configs of the
released models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from plmctl.families.base import (
    Advice,
    EncoderFamily,
    HeadKind,
    Project,
    TokenEmbeddingsConfig,
    project_to_logits,
)
from plmctl.tokenization.templates import (
    Rules,
    TokenizerTemplate,
    folding,
    nmt_nfkc,
    unicode_form,
)

if TYPE_CHECKING:
    from tokenizers.normalizers import Normalizer
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel


class Config(TokenEmbeddingsConfig):
    """ALBERT: an encoder of one repeated layer, masked tokens and sentence order.

    tiny and mini have BERT's small sizes.
    """

    family: Literal["albert"] = "albert"
    size: Literal["tiny", "mini", "base", "large", "xlarge", "xxlarge"] = "base"
    """A size; every option below overrides it."""
    num_hidden_layers: int | None = Field(default=None, ge=1)
    """How often the layers are applied."""
    num_hidden_groups: int = Field(default=1, ge=1)
    """Groups of layers with separate weights; as many as layers: nothing is shared."""
    hidden_size: int | None = Field(default=None, ge=1)
    """Hidden size."""
    embedding_size: int = Field(default=128, ge=1)
    """Size of the embeddings, which a matrix projects to hidden_size."""
    num_attention_heads: int | None = Field(default=None, ge=1)
    """Attention heads. Default: the size's; with another hidden_size, hidden_size / 64."""
    intermediate_size: int | None = Field(default=None, ge=1)
    """Feed-forward size. Default: 4 * hidden_size."""
    max_position_embeddings: int = Field(default=512, ge=8)
    """Number of positions: the longest input."""
    hidden_dropout_prob: float = Field(default=0.0, ge=0, lt=1)
    """0 as in the second version and in xxlarge; the first version of the others has 0.1."""
    attention_probs_dropout_prob: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the attention; published values as for hidden_dropout_prob."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights."""

    @model_validator(mode="after")
    def _groups_are_used(self) -> Self:
        layers = self.num_hidden_layers or Albert.SIZES[self.size][0]
        if self.num_hidden_groups > layers:
            raise ValueError(f"num_hidden_groups: {self.num_hidden_groups} of {layers} layers")
        return self


class AlbertTemplate(TokenizerTemplate):
    """ALBERT's tokenizer."""

    ALGORITHM = "unigram"
    CLASS = "AlbertTokenizer"
    KIND = "spaces"
    FIRST = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    RULES = Rules("nfkd", lowercase=True, strip_accents=True, space_chinese=False)
    MASK = "[MASK]"

    def class_options(self) -> tuple[dict[str, Any], bool]:
        """The class has a switch for case and accents, and leaves the segments out."""
        rules = self.rules
        other_form = rules.normalization != self.RULES.normalization
        return {
            "do_lower_case": rules.lowercase,
            "keep_accents": not rules.strip_accents,
            "_spm_precompiled_charsmap": nmt_nfkc(),
            "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        }, other_form or rules.keep_joiners or rules.space_chinese

    def normalizer(self) -> Normalizer:
        """LaTeX's quotation marks become plain ones; T5's normalisation comes last."""
        from tokenizers import normalizers

        rules = self.rules
        quotes = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
        last = normalizers.Precompiled(nmt_nfkc(keep_joiners=rules.keep_joiners))
        return normalizers.Sequence([*unicode_form(rules), *quotes, *folding(rules), last])


class Albert(EncoderFamily, config=Config):
    """ALBERT."""

    TITLE = "ALBERT"
    OBJECTIVE = "mlm+sop"
    TOKENIZER = AlbertTemplate
    HEADS = ("mlm", "sop")
    LORA_TARGETS = ("query", "value")
    MODEL_TYPE = "albert"
    ADVICE = Advice(objective={"rate": 0.4})
    DROPOUT = (*EncoderFamily.DROPOUT, "classifier_dropout_prob")
    SIZE_FIELDS = ("num_hidden_layers", "hidden_size", "num_attention_heads")
    # xlarge has the 16 heads of the released model; the paper's rule, width / 64, would give 32.
    SIZES = {
        "tiny": (2, 128, 2),
        "mini": (4, 256, 4),
        "base": (12, 768, 12),
        "large": (24, 1024, 16),
        "xlarge": (24, 2048, 16),
        "xxlarge": (12, 4096, 64),
    }
    NETWORK = {
        "inner_group_num": 1,
        "hidden_act": "gelu_pytorch_tanh",  # what the published code computes
        "classifier_dropout_prob": 0.1,  # of the heads of finetuning
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "bos_token_id": None,
        "eos_token_id": None,
    }

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """Without "sop" there is no pooler."""
        from transformers import AlbertForMaskedLM, AlbertForPreTraining

        return AlbertForPreTraining if "sop" in loss_terms else AlbertForMaskedLM

    @classmethod
    def initialize(cls, model: Any) -> None:
        """Weights from a truncated normal distribution, as published."""
        from plmctl.models.parameters import truncated_normal_

        truncated_normal_(model, model.config.initializer_range)

    @classmethod
    def used_again(cls, model: Any, outputs: int) -> int:
        """The layers of a group are applied several times."""
        config = model.config
        shared = sum(p.numel() for n, p in model.named_parameters() if "layer_groups" in n)
        return int(shared * config.num_hidden_layers // config.num_hidden_groups - shared)

    @classmethod
    def initialize_head(cls, head: nn.Module, network: PreTrainedConfig) -> None:
        """Draw a head from a truncated normal distribution, as the published finetuning code."""
        from plmctl.models.parameters import truncated_normal_

        config: Any = network
        truncated_normal_(head, config.initializer_range)

    @classmethod
    def head_class(cls, kind: HeadKind, network: PreTrainedConfig) -> Any:
        """It has its own head for questions that may have no answer."""
        from plmctl.models.heads.question_answering import AlbertForAnswerOrNone

        if kind == "answer_or_none":
            return AlbertForAnswerOrNone
        return super().head_class(kind, network)

    @staticmethod
    def forward(
        model: Any,  # transformers types its submodules as tensors or modules
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        positions: Tensor,
        project: Project = project_to_logits,
    ) -> dict[str, Tensor]:
        """Logits mlm [K, V], and sop [B, 2] if the network has that head."""
        from plmctl.models.encoder import encode

        hidden_KH, pooled_BH = encode(
            model.albert,
            positions,
            input_ids=input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
        )
        head = model.predictions
        embedded_KE = head.LayerNorm(head.activation(head.dense(hidden_KH)))
        logits = {"mlm": project(embedded_KE, head.decoder)}
        if pooled_BH is not None:  # AlbertForMaskedLM has no pooler
            # transformers applies finetuning's dropout before this head; the published code does
            # not.
            logits["sop"] = model.sop_classifier.classifier(pooled_BH)
        return logits
