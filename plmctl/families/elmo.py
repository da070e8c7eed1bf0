"""ELMo (Peters et al., 2018, "Deep contextualized word representations", arXiv:1802.05365)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from plmctl.config.base import ModelConfig
from plmctl.families.base import NO_LIMIT, Advice, Family, Project
from plmctl.tokenization.templates import Rules, TokenizerTemplate

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

    from plmctl.models.elmo import ElmoForPreTraining

# (characters, features) of the convolutions; tiny has an eighth of the published features.
_FILTERS = [[1, 32], [2, 32], [3, 64], [4, 128], [5, 256], [6, 512], [7, 1024]]
_TINY_FILTERS = [[1, 16], [2, 16], [3, 32], [4, 64], [5, 128]]


class Config(ModelConfig):
    """ELMo: LSTMs in both directions over words, which are read by their characters."""

    family: Literal["elmo"] = "elmo"
    size: Literal["tiny", "small", "medium", "original", "5.5b"] = "original"
    """A published size (tiny is for a CPU); every option below overrides it."""
    cell_size: int | None = Field(default=None, ge=1)
    """Size of an LSTM layer's cell state."""
    projection_size: int | None = Field(default=None, ge=1)
    """Size of a layer's output per direction."""
    num_hidden_layers: int = Field(default=2, ge=1)
    """LSTM layers per direction."""
    num_highway_layers: int | None = Field(default=None, ge=0)
    """Highway layers over the character convolutions."""
    char_embedding_size: int = Field(default=16, ge=1)
    """Size of the character embeddings."""
    dropout: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of the layers' inputs and of the top output."""


class ElmoTemplate(TokenizerTemplate):
    """Whole words, for which transformers has no class."""

    ALGORITHM = "word"
    KIND = "marks"
    FIRST = ("<S>", "</S>", "<UNK>")
    RULES = Rules("none", lowercase=False, strip_accents=False, space_chinese=True)
    MAX_LENGTH = NO_LIMIT
    OPTIONS = ("pretokenized",)

    def make(self, model: dict[str, Any]) -> PreTrainedTokenizerFast:
        """See the base class; the special tokens are the first three."""
        from tokenizers import Tokenizer, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        begin, end, unknown = self.FIRST
        backend = Tokenizer(models.WordLevel(model.get("vocab", {}), unk_token=unknown))
        backend.normalizer = self.normalizer()
        backend.pre_tokenizer = (
            pre_tokenizers.WhitespaceSplit()
            if self.config.pretokenized
            else pre_tokenizers.BertPreTokenizer()
        )
        return PreTrainedTokenizerFast(
            tokenizer_object=backend,
            bos_token=begin,
            eos_token=end,
            unk_token=unknown,
            model_max_length=self.max_length,
            split_special_tokens=self.config.split_special_tokens,
            **self.extra_tokens(),
        )


class Elmo(Family, config=Config):
    """ELMo. Sequences have no padding, so that no token id is needed."""

    TITLE = "ELMo"
    OBJECTIVE = "bilm"
    TOKENIZER = ElmoTemplate
    HEADS = ("forward", "backward")
    SCORES_PARTS = False
    READS_CHARACTERS = True
    POOLS = False
    ANSWERS = ("frozen",)
    MODEL_TYPE = "elmo"
    ADVICE = Advice(window=20)
    DROPOUT = ("dropout",)
    SIZE_FIELDS = ("cell_size", "projection_size", "num_highway_layers")
    SIZES = {  # 5.5b is the original network, trained on more text
        "tiny": (256, 64, 1),
        "small": (1024, 128, 1),
        "medium": (2048, 256, 1),
        "original": (4096, 512, 2),
        "5.5b": (4096, 512, 2),
    }
    TOKEN_IDS = ()
    POSITIONS = ""
    FP16 = False  # trained in fp32 alone; sums over time are long
    FSDP = False
    RECOMPUTES = False
    COMPILES = False  # its layers are loops over time
    VARYING_SHAPES = True  # windows differ in their distinct words
    ATTENTION = False

    config: Config

    def size_fields(self) -> dict[str, Any]:
        """The convolutions too."""
        filters = _TINY_FILTERS if self.config.size == "tiny" else _FILTERS
        return {**super().size_fields(), "filters": filters}

    @classmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """One class: both directions share the head."""
        from plmctl.models.elmo import ElmoForPreTraining

        return ElmoForPreTraining

    @classmethod
    def output_width(cls, network: PreTrainedConfig) -> int:
        """The output of one direction."""
        config: Any = network
        return int(config.projection_size)

    @classmethod
    def used_again(cls, model: Any, outputs: int) -> int:
        """Both directions predict; the convolutions run at all characters of a word."""
        from torch import nn

        config = model.config
        again = (2 * outputs - config.vocab_size) * config.projection_size
        for filters in (part for part in model.modules() if isinstance(part, nn.Conv1d)):
            again += filters.weight.numel() * (config.max_characters - filters.kernel_size[0])
        return int(again)

    @classmethod
    def run_layers(cls, model: Any, rows: int, length: int) -> None:
        """See the base class; the words' vectors are any."""
        import torch

        size = model.config.projection_size
        model.elmo.run(torch.zeros(2, rows, length, size, device=model.device))

    @staticmethod
    def forward(
        model: ElmoForPreTraining,
        characters: Tensor,
        words: Tensor,
        state: Tensor | None = None,
        project: Project | None = None,
        **sampled: Tensor,
    ) -> dict[str, Tensor]:
        """Logits of each direction, and the recurrent state after the window.

        Args:
            characters: [U, C] of distinct words.
            words: [2, B, T], rows of ``characters``: the forward streams, the backward ones.
            state: [B, layers, 2, P + C] before the window; None: zeros.
            project: Instead of logits, for each direction; see ``families.base``.
            **sampled: For a sampled softmax: targets [2, B, T], candidates [2, S], and tries [2],
                the number of draws.

        Returns:
            forward, backward: [B, T, V], or [B, T, 1 + S] with the true word first; state.
        """
        from plmctl.models.losses import sampled_logits

        if not sampled and project is None:
            out = model(characters, words, state)
            logits = {"forward": out.forward_logits, "backward": out.backward_logits}
            return {**logits, "state": out.state}
        top_DBTP, after = model.top(characters, words, state)
        logits = {"state": after}
        if project is not None:
            halves = zip(Elmo.HEADS, top_DBTP.unbind(0), strict=True)
            return logits | {name: project(top_BTP, model.head) for name, top_BTP in halves}
        for number, direction in enumerate(Elmo.HEADS):
            targets_BT, hidden_BTP = sampled["targets"][number], top_DBTP[number]
            flat = sampled_logits(
                hidden_BTP.flatten(0, 1),
                model.head,
                targets_BT.flatten(),
                sampled["candidates"][number],
                sampled["tries"][number],
            )
            logits[direction] = flat.view(*targets_BT.shape, -1)
        return logits
