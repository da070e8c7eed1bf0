"""The base class of all families.

A family's file names its paper, its sizes, and how its network differs from others. The options
that a user may set have the names that transformers gives them, so that the base class hands them
to transformers' config; what is in ``NETWORK`` is fixed. One file per family; what GPT-2 and GPT-3
share is in ``_gpt``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from plmctl import registry
from plmctl.config.base import ModelConfig
from plmctl.errors import ConfigError, nearest

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel

    from plmctl.models.load import NewHeads

NO_LIMIT = 2**31 - 1
"""``positions`` of a network that takes inputs of any length."""

_OF_ANY_NETWORK = {"tie_word_embeddings", "decoder_start_token_id"}
"""Fields that transformers' configs take although their classes do not declare them."""


class Family(ABC):
    """A family of networks: how to build, load and run one.

    A subclass names its config in its header, ``class Bert(EncoderFamily, config=Config)``. All
    methods are class methods or static: a family has no state. No family imports PyTorch or
    transformers at the top of its file, because reading a config imports all of them.

    Attributes:
        Config: The options that a user may set.
        OBJECTIVE: The objective of the paper.
        TOKENIZER: The tokenizer algorithm of the paper.
        HEADS: The loss terms that it has heads for.
        SIZES: For each size, the values of ``SIZE_FIELDS``.
        SIZE_FIELDS: The fields of transformers' config that a size decides.
        WIDTH: The fields of the hidden size, of the attention heads and of the feed-forward size.
            Heads default to hidden size / 64 and the feed-forward size to 4 * hidden size; an empty
            name has no default. The heads of a size hold for the hidden size of that size.
        NETWORK: Fields of transformers' config that are the same in all networks of the family.
        TOKEN_IDS: Fields of transformers' config that get the id of the padding token, or of the
            end-of-text token if the tokenizer has no padding token.
        DROPOUT: The dropout probabilities in transformers' config.
        POSITIONS: The field of the number of positions; empty: inputs of any length.
        UNUSED_POSITIONS: Positions that no token can have.
        MODEL_TYPE: transformers' name of the architecture, by which a folder is recognised; empty:
            its folders are recognised as another family's (GPT-3 as GPT-2, SpanBERT as BERT).
        SAMPLES: Whether its networks can make the samples of an objective that has some.
        ENCODER_DECODER: Whether it has an encoder and a decoder.
        ANSWERS: How it answers the rows of a finetuning, by which suites choose recipes: "labels"
            and "spans" of the text by a head, "text" that it writes, labels over "frozen" layers.
        FP16: Whether its networks can be trained in fp16, whose largest number is 65,504.
    """

    Config: ClassVar[type[ModelConfig]]
    OBJECTIVE: ClassVar[str]
    TOKENIZER: ClassVar[str]
    HEADS: ClassVar[tuple[str, ...]]
    SIZES: ClassVar[Mapping[str, tuple[int, ...]]]
    SIZE_FIELDS: ClassVar[tuple[str, ...]]
    WIDTH: ClassVar[tuple[str, str, str]] = ("", "", "")
    NETWORK: ClassVar[Mapping[str, Any]] = {}
    TOKEN_IDS: ClassVar[tuple[str, ...]] = ("pad_token_id",)
    DROPOUT: ClassVar[tuple[str, ...]]
    POSITIONS: ClassVar[str] = "max_position_embeddings"
    UNUSED_POSITIONS: ClassVar[int] = 0
    MODEL_TYPE: ClassVar[str] = ""
    SAMPLES: ClassVar[bool] = True
    ENCODER_DECODER: ClassVar[bool] = False
    ANSWERS: ClassVar[tuple[str, ...]] = ("labels", "spans")
    FP16: ClassVar[bool] = True

    def __init_subclass__(cls, config: type[ModelConfig] | None = None) -> None:
        """Set ``Config``; base classes of several families have none."""
        super().__init_subclass__()
        if config is not None:
            cls.Config = config

    # --- What a family defines ---

    @classmethod
    @abstractmethod
    def network_class(cls, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """The class of the network with the heads for ``loss_terms``."""

    @staticmethod
    @abstractmethod
    def forward(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """The logits of each loss term.

        Its first argument is the network, the others are the inputs that objectives make. Encoders
        take:
            input_ids: [B, L].
            attention_mask: [B, L], 0 at padding.
            token_type_ids: [B, L]; ignored by networks without token types.
            positions: [K] positions of the flattened batch where a token is predicted.
        Those with an output layer over the vocabulary also take ``project``: see ``Project``.
        """

    # --- What a family may define ---

    @classmethod
    def initialize(cls, model: Any) -> None:
        """Change a network's initial weights where the paper's differ from transformers'."""
        return  # the default: transformers' own

    @classmethod
    def start_local(cls, model: Any, std: float) -> None:
        """Let the heads of the first layer look at near tokens: see ``local_attention_``.

        Args:
            model: A network with fresh weights.
            std: Of its token embeddings.
        """
        raise NotImplementedError(cls.__name__)  # where the config has `initial_attention`

    @classmethod
    def size_fields(cls, config: ModelConfig) -> dict[str, Any]:
        """The fields of transformers' config that the size decides."""
        size = dict(config)["size"]
        return dict(zip(cls.SIZE_FIELDS, cls.SIZES[size], strict=True))

    @classmethod
    def network_fields(cls, config: ModelConfig, *, vocab_size: int, pad_id: int) -> dict[str, Any]:
        """All fields of transformers' config that the family decides.

        Options that the user leaves out (None) come from the size, then from the hidden size.
        """
        size = cls.size_fields(config)
        options = {name: value for name, value in config if value is not None}
        for name in ("size", *LearnedPositionsConfig.model_fields):
            options.pop(name, None)
        width, heads, feed_forward = cls.WIDTH
        if options.get(width, size.get(width)) != size.get(width):
            size.pop(heads, None)
        fields = {"vocab_size": vocab_size, **cls.NETWORK, **size, **options}
        if heads:
            fields.setdefault(heads, max(1, fields[width] // 64))
        if feed_forward:
            fields.setdefault(feed_forward, 4 * fields[width])
        return fields | dict.fromkeys(cls.TOKEN_IDS, pad_id)

    @classmethod
    def init_from_teacher(cls, model: PreTrainedModel, teacher: str) -> None:
        """Give a student, in place, weights of the network in the folder ``teacher``.

        Raises:
            ConfigError: The family has no such initialization.
        """
        raise ConfigError(
            f"objective.init: the family {cls.__name__} cannot start from a teacher's weights",
            "use `family: distilbert`, or `init: random`",
        )

    # --- What callers use ---

    @classmethod
    def build(
        cls, config: ModelConfig, *, vocab_size: int, pad_id: int, loss_terms: tuple[str, ...]
    ) -> PreTrainedModel:
        """A network with random weights from the global generator.

        Args:
            vocab_size: Rows of the embedding table.
            pad_id: Id of the padding token, or of the end-of-text token if there is none.
            loss_terms: Decide the heads.

        Raises:
            TypeError: transformers' config has no field of a name that the family uses.
        """
        network_class = cls.network_class(loss_terms)
        config_class: Any = network_class.config_class
        chosen = cls.network_fields(config, vocab_size=vocab_size, pad_id=pad_id)
        known = {field.name for field in fields(config_class)} | _OF_ANY_NETWORK
        for name in chosen:
            if name not in known:
                raise TypeError(
                    f"{config_class.__name__} has no field {name}{nearest(name, known)}"
                )
        model = network_class(config_class(**chosen))
        cls.initialize(model)
        if isinstance(config, LearnedPositionsConfig) and config.initial_attention == "local":
            from plmctl.models.parameters import counted_std

            std = model.config.initializer_range
            if config.initial_embeddings == "cooccurrence":  # they are set when the text is known
                std = counted_std(std)
            cls.start_local(model, std)
        return model

    @classmethod
    def load(
        cls,
        folder: str,
        loss_terms: tuple[str, ...],
        *,
        new_heads: NewHeads | None = None,
        **changes: Any,
    ) -> PreTrainedModel:
        """A pretrained network in float32 with the heads for ``loss_terms``.

        Args:
            folder: A model folder or Hub id.
            loss_terms: Decide the heads.
            new_heads: Called with a message if the folder lacks heads; None: an error.
            **changes: To transformers' config.

        Raises:
            DataError: See ``models.load.load_network``.
        """
        from plmctl.models.load import load_network

        network_class = cls.network_class(loss_terms)
        loaded = load_network(network_class, folder, new_heads=new_heads, **changes)
        model: PreTrainedModel = loaded.network
        return model

    @classmethod
    def positions(cls, config: ModelConfig | PreTrainedConfig) -> int:
        """The longest input, by the family's config or by transformers'."""
        if not cls.POSITIONS:
            return NO_LIMIT
        rows: int = getattr(config, cls.POSITIONS)
        return rows - cls.UNUSED_POSITIONS

    @classmethod
    def fits(cls, loss_terms: tuple[str, ...], *, encoder_decoder: bool) -> bool:
        """Whether its networks can be trained or measured on an objective."""
        return set(loss_terms) <= set(cls.HEADS) and encoder_decoder == cls.ENCODER_DECODER


def get_family(name: str) -> type[Family]:
    """The family of that name.

    Raises:
        ConfigError: No family has that name; the message has the nearest.
    """
    return registry.member("families", name, Family)


def trains_in_fp16(model_type: str) -> bool:
    """Whether networks of a type of transformers can be trained in fp16; unknown ones may not."""
    families = map(get_family, registry.names("families"))
    return any(family.FP16 for family in families if model_type == family.MODEL_TYPE)


# --- The output layer: a hook in place of logits ---


Project = Callable[..., Any]
"""Called with hidden states [..., H] and the output layer; its result stands for the logits."""


def project_to_logits(hidden: Tensor, layer: nn.Linear) -> Any:
    """Logits [..., V]."""
    return layer(hidden)


# --- Initial weights that are not the published ones ---


class TokenEmbeddingsConfig(ModelConfig):
    """Options of networks that read tokens: all but ELMo, and DistilBERT, which has a teacher."""

    initial_embeddings: Literal["published", "cooccurrence"] = "published"
    """Token embeddings before training. published: random; cooccurrence: from counts of what stands
    near each token in the training text, so that tokens with the same neighbours start alike. The
    network then learns sooner (docs/learning.md)."""

    @model_validator(mode="after")
    def _of_fresh_weights(self) -> Self:
        for name in ("initial_embeddings", "initial_attention"):
            if self.init_from is not None and getattr(self, name, "published") != "published":
                raise ValueError(
                    f"{name}: the weights come from init_from; leave out one of the two"
                )
        return self


class LearnedPositionsConfig(TokenEmbeddingsConfig):
    """Options of BERT's encoder and of GPT-2."""

    initial_attention: Literal["published", "local"] = "published"
    """What attention heads look at before training. published: nothing in particular; local: each
    of the first layer at one near token, which the initial position embeddings, queries and keys
    decide. BERT then learns sooner, most of all from little text (docs/learning.md)."""


# --- BERT's encoder, which RoBERTa and SpanBERT share ---


class EncoderConfig(LearnedPositionsConfig):
    """Options of BERT's encoder."""

    num_hidden_layers: int | None = Field(default=None, ge=1)
    """Layers."""
    hidden_size: int | None = Field(default=None, ge=1)
    """Hidden size."""
    num_attention_heads: int | None = Field(default=None, ge=1)
    """Attention heads. Default: hidden_size / 64."""
    intermediate_size: int | None = Field(default=None, ge=1)
    """Feed-forward size. Default: 4 * hidden_size."""
    max_position_embeddings: int = Field(default=512, ge=8)
    """Number of positions: the longest input."""
    hidden_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of embeddings and sublayers."""
    attention_probs_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    """Dropout of attention weights."""
    initializer_range: float = Field(default=0.02, gt=0)
    """Standard deviation of the initial weights."""


class EncoderFamily(Family):
    """A family whose networks have the fields of BERT's config."""

    SIZE_FIELDS: ClassVar[tuple[str, ...]] = ("num_hidden_layers", "hidden_size")
    WIDTH = ("hidden_size", "num_attention_heads", "intermediate_size")
    DROPOUT: ClassVar[tuple[str, ...]] = ("hidden_dropout_prob", "attention_probs_dropout_prob")

    @classmethod
    def start_local(cls, model: Any, std: float) -> None:
        """See the base class."""
        from plmctl.models.parameters import local_attention_

        encoder = model.base_model
        attention = encoder.encoder.layer[0].attention.self
        local_attention_(
            encoder.embeddings.position_embeddings,
            attention.query.weight,
            attention.key.weight,
            heads=model.config.num_attention_heads,
            std=std,
            causal=False,
        )
