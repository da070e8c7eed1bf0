"""The base class of all families.

A family's file names its paper, its sizes, and how its network differs from others. The options
that a user may set have the names that transformers gives them, so that the base class hands them
to transformers' config; what is in ``NETWORK`` is fixed. One file per family; what GPT-2 and GPT-3
share is in ``_gpt``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from plmctl import hub, registry
from plmctl.config.base import ModelConfig
from plmctl.errors import ConfigError, nearest
from plmctl.tokenization.templates import TokenizerTemplate

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.models.load import NewHeads
    from plmctl.models.network import Network

HeadKind = Literal[
    "classification", "tagging", "multiple_choice", "question_answering", "answer_or_none"
]
"""What a head is for. answer_or_none: a question that may have no answer, by a separate logit."""

NO_LIMIT = 2**31 - 1
"""``positions`` of a network that takes inputs of any length."""

_OF_ANY_NETWORK = {"tie_word_embeddings", "decoder_start_token_id"}
"""Fields that transformers' configs take although their classes do not declare them."""


@dataclass(frozen=True)
class Advice:
    """What ``plmctl init`` proposes for a family, chosen on small models (``configs/fast``).

    Attributes:
        lr: Muon's learning rate.
        beta2: The second of its betas.
        window: Tokens of a row if a state continues from one row to the next; 0: the text decides.
    """

    objective: Mapping[str, Any] = field(default_factory=dict)
    network: Mapping[str, Any] = field(default_factory=dict)
    lr: float = 3e-3
    beta2: float = 0.98
    window: int = 0


class Family(ABC):
    """A family of networks: how to build, load and run one.

    A subclass names its config in its header, ``class Bert(EncoderFamily, config=Config)``. An
    instance has the options of one network, and no other state; what needs none of them is an
    attribute, a class method or static. No family imports PyTorch or transformers at the top of its
    file, because reading a config imports all of them.

    Attributes:
        name: The name of its file, by which a config chooses it.
        TITLE: Its name in a sentence; that of the class if it is left out.
        Config: The options that a user may set.
        OBJECTIVE: The objective of the paper.
        TOKENIZER: The tokenizer of the paper, apart from its vocabulary.
        HEADS: The loss terms that it has heads for.
        SIZES: For each size, the values of ``SIZE_FIELDS``.
        SIZE_FIELDS: The fields of transformers' config that a size decides.
        WIDTH: The fields of the hidden size, of the attention heads and of the feed-forward size.
            Heads default to hidden size / 64 and the feed-forward size to 4 * hidden size; an empty
            name has no default. The heads of a size hold for the hidden size of that size.
        NETWORK: Fields of transformers' config that are the same in all networks of the family.
        UNDECLARED: Fields that its networks' configs take although their class declares none.
        TOKEN_IDS: Fields of transformers' config that get the id of the padding token, or of the
            end-of-text token if the tokenizer has no padding token.
        DROPOUT: The dropout probabilities in transformers' config.
        POSITIONS: The field of the number of positions; empty: inputs of any length.
        UNUSED_POSITIONS: Positions that no token can have.
        MODEL_TYPE: transformers' name of the architecture, by which a folder is recognised; empty:
            its folders are recognised as another family's (GPT-3 as GPT-2, SpanBERT as BERT).
        SAMPLES: Whether its networks can make the samples of an objective that has some.
        ENCODER_DECODER: Whether it has an encoder and a decoder.
        BOTH_SIDES: Whether its forward can let a causal network see both sides of each position.
        ANSWERS: How it answers the rows of a finetuning, by which suites choose recipes: "labels",
            "spans" of the text and one of "options" by a head, "text" that it writes, labels over
            "frozen" layers.
        FP16: Whether its networks can be trained in fp16, whose largest number is 65,504.
        FSDP: Whether its layers can be sharded over processes.
        RECOMPUTES: Whether a backward pass can recompute activations instead of keeping them.
        COMPILES: Whether compiling pays on a GPU, so that ``compute.compile: auto`` does it.
        VARYING_SHAPES: Whether shapes inside it differ from step to step for batches of one shape.
        SCORES_PARTS: Whether it has a likelihood of a part of a text, and not of sentences alone.
        READS_CHARACTERS: Whether it reads the characters of words instead of token ids.
        ATTENTION: Whether it has attention layers.
        IS_TRIED: Whether ``build`` and ``load`` try what the network can do, and may refuse it.
        KEEPS_TEXTS_APART: Whether texts of one row need not see each other.
        FORMAT_TOKENS: Tokens that finetuning adds for its format, in the order of their ids.
        LORA_TARGETS: Linear layers with the attention's queries and values; empty: not known.
        HEAD_CLASSES: For what a head is for, transformers' class of a network with it.
        POOLS: Whether a head can read any of its vectors, or all of them (`pooling`).
        ADVICE: What ``plmctl init`` proposes for it.
    """

    name: ClassVar[str]
    TITLE: ClassVar[str]
    Config: ClassVar[type[ModelConfig]]
    OBJECTIVE: ClassVar[str]
    TOKENIZER: ClassVar[type[TokenizerTemplate]]
    HEADS: ClassVar[tuple[str, ...]]
    SIZES: ClassVar[Mapping[str, tuple[float, ...]]]
    SIZE_FIELDS: ClassVar[tuple[str, ...]]
    WIDTH: ClassVar[tuple[str, str, str]] = ("", "", "")
    NETWORK: ClassVar[Mapping[str, Any]] = {}
    UNDECLARED: ClassVar[tuple[str, ...]] = ()
    TOKEN_IDS: ClassVar[tuple[str, ...]] = ("pad_token_id",)
    DROPOUT: ClassVar[tuple[str, ...]]
    POSITIONS: ClassVar[str] = "max_position_embeddings"
    UNUSED_POSITIONS: ClassVar[int] = 0
    MODEL_TYPE: ClassVar[str] = ""
    SAMPLES: ClassVar[bool] = True
    ENCODER_DECODER: ClassVar[bool] = False
    BOTH_SIDES: ClassVar[bool] = False
    ANSWERS: ClassVar[tuple[str, ...]] = ("labels", "spans", "options")
    FP16: ClassVar[bool] = True
    FSDP: ClassVar[bool] = True
    RECOMPUTES: ClassVar[bool] = True
    COMPILES: ClassVar[bool] = True
    VARYING_SHAPES: ClassVar[bool] = False
    SCORES_PARTS: ClassVar[bool] = True
    READS_CHARACTERS: ClassVar[bool] = False
    ATTENTION: ClassVar[bool] = True
    IS_TRIED: ClassVar[bool] = False
    KEEPS_TEXTS_APART: ClassVar[bool] = True
    FORMAT_TOKENS: ClassVar[tuple[str, ...]] = ()
    LORA_TARGETS: ClassVar[tuple[str, ...]] = ()
    HEAD_CLASSES: ClassVar[Mapping[HeadKind, str]] = {
        "classification": "AutoModelForSequenceClassification",
        "tagging": "AutoModelForTokenClassification",
        "multiple_choice": "AutoModelForMultipleChoice",
        "question_answering": "AutoModelForQuestionAnswering",
    }
    POOLS: ClassVar[bool] = True
    ADVICE: ClassVar[Advice] = Advice()

    def __init_subclass__(cls, config: type[ModelConfig] | None = None) -> None:
        """Set ``name`` and ``Config``; base classes of several families have no config."""
        super().__init_subclass__()
        cls.name = cls.__module__.rpartition(".")[2]
        cls.TITLE = vars(cls).get("TITLE", cls.__name__)
        if config is not None:
            cls.Config = config

    @classmethod
    def chosen(cls, config: ModelConfig) -> Family:
        """The family with the options of a network; one of several forms, if it has some."""
        return cls(config)

    @classmethod
    def of_other(cls, network: PreTrainedConfig) -> Family | None:
        """A folder's family if its architecture has none of its own; None: not this one."""
        return None

    def __init__(self, config: ModelConfig | None = None) -> None:
        """Bind the options of a network that is built.

        Args:
            config: The section ``model`` of a pretraining; None: the network is that of a folder,
                which has its own config.
        """
        self.config = config or self.Config(family=self.name)

    # --- What a family defines ---

    @abstractmethod
    def network_class(self, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
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
            std: Of its token embeddings.
        """
        raise NotImplementedError(cls.__name__)  # where the config has `initial_attention`

    def size_fields(self) -> dict[str, Any]:
        """The fields of transformers' config that the size decides."""
        size = dict(self.config)["size"]
        return dict(zip(self.SIZE_FIELDS, self.SIZES[size], strict=True))

    def network_fields(self, *, vocab_size: int, pad_id: int) -> dict[str, Any]:
        """All fields of transformers' config that the family decides.

        Options that the user leaves out (None) come from the size, then from the hidden size.
        """
        size = self.size_fields()
        options = {name: value for name, value in self.config if value is not None}
        for name in ("size", *LearnedPositionsConfig.model_fields):
            options.pop(name, None)
        width, heads, feed_forward = self.WIDTH
        if options.get(width, size.get(width)) != size.get(width):
            size.pop(heads, None)
        fields = {"vocab_size": vocab_size, **self.NETWORK, **size, **options}
        if heads:
            fields.setdefault(heads, max(1, fields[width] // 64))
        if feed_forward:
            fields.setdefault(feed_forward, 4 * fields[width])
        return fields | dict.fromkeys(self.TOKEN_IDS, pad_id)

    @classmethod
    def check_teacher(cls, student: PreTrainedConfig, teacher: str) -> None:
        """Refuse a student that is to start from the weights in the folder ``teacher``.

        Raises:
            ConfigError: They do not fit, or the family has no such initialization.
        """
        raise ConfigError(
            f"objective.init: the family {cls.name} cannot start from a teacher's weights",
            "use `family: distilbert`, or `init: random`",
        )

    @classmethod
    def init_from_teacher(cls, model: PreTrainedModel, teacher: str) -> None:
        """Give a student, in place, weights of a teacher that ``check_teacher`` has passed."""
        raise NotImplementedError(cls.__name__)  # the default `check_teacher` passes none

    # --- Finetuning: what a family may define ---

    @classmethod
    def head_class(cls, kind: HeadKind, network: PreTrainedConfig) -> Any:
        """The class of the network with a head; None: none."""
        import transformers

        name = cls.HEAD_CLASSES.get(kind)
        if name is None or (network.is_encoder_decoder and kind != "question_answering"):
            return None
        head_class: Any = getattr(transformers, name)
        # transformers has no accessor for what an Auto class knows.
        known: Any = getattr(head_class, "_model_mapping", None)
        return head_class if known is None else known.get(type(network), None)

    @classmethod
    def initialize_head(cls, head: nn.Module, network: PreTrainedConfig) -> None:
        """Draw a new head, or a whole network, where the published code does so in its own way."""
        return  # the default: transformers' own

    @classmethod
    def finetuning_format(cls, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
        """The tokenizer with the family's special tokens around texts, in place."""
        return tokenizer

    @classmethod
    def masked_folder(cls, folder: str) -> str:
        """The folder of the network that predicts masked tokens; by default the same one."""
        return folder

    @classmethod
    def longest_input(cls, network: PreTrainedConfig) -> int | None:
        """Tokens that a network of a folder has positions for; None: any number (T5, ELMo)."""
        rows: int | None = getattr(network, "max_position_embeddings", None)
        return rows

    # --- What callers use ---

    def listed(self, model: str, network: PreTrainedConfig) -> Family:
        """The family itself.

        Raises:
            ConfigError: It is ``Unlisted``, and the caller needs a family.
        """
        return self

    def build(
        self,
        *,
        vocab_size: int,
        pad_id: int,
        loss_terms: tuple[str, ...],
        eos_id: int | None = None,
    ) -> PreTrainedModel:
        """A network with random weights from the global generator.

        Args:
            vocab_size: Rows of the embedding table.
            pad_id: Id of the padding token, or of the end-of-text token if there is none.
            eos_id: Where an encoder-decoder stops writing; T5's own config says 1.

        Raises:
            TypeError: transformers' config has no field of a name that the family uses.
        """
        network_class = self.network_class(loss_terms)
        config_class: Any = network_class.config_class
        chosen = self.network_fields(vocab_size=vocab_size, pad_id=pad_id)
        known = {field.name for field in fields(config_class)} | _OF_ANY_NETWORK
        known |= set(self.UNDECLARED)
        for name in chosen:
            if name not in known:
                raise TypeError(
                    f"{config_class.__name__} has no field {name}{nearest(name, known)}"
                )
        model: Any = network_class(config_class(**chosen))
        self.initialize(model)
        if self.ENCODER_DECODER and eos_id is not None:
            model.config.eos_token_id = model.generation_config.eos_token_id = eos_id
        config = self.config
        if isinstance(config, LearnedPositionsConfig) and config.initial_attention == "local":
            from plmctl.models.parameters import counted_std

            std = model.config.initializer_range
            if config.initial_embeddings == "cooccurrence":  # they are set when the text is known
                std = counted_std(std)
            self.start_local(model, std)
        built: PreTrainedModel = model
        return built

    def load(
        self,
        folder: str,
        loss_terms: tuple[str, ...],
        *,
        new_heads: NewHeads | None = None,
        **changes: Any,
    ) -> PreTrainedModel:
        """A pretrained network in float32 with the heads for ``loss_terms``.

        Args:
            folder: A model folder or Hub id.
            new_heads: Called with a message if the folder lacks heads; None: an error.
            **changes: To transformers' config.

        Raises:
            DataError: See ``models.load.load_network``.
        """
        from plmctl.models.load import load_network

        network_class = self.network_class(loss_terms)
        loaded = load_network(network_class, folder, new_heads=new_heads, **changes)
        model: PreTrainedModel = loaded.network
        return model

    def from_scratch(
        self, folder: str, loss_terms: tuple[str, ...], **changes: Any
    ) -> PreTrainedModel:
        """The network of a folder with random weights and the heads for ``loss_terms``."""
        network_class: Any = self.network_class(loss_terms)
        network = network_class.config_class.from_pretrained(hub.local(folder), **changes)
        network.dtype = None  # that of the weights in the folder
        model: PreTrainedModel = network_class(network)
        self.initialize(model)
        return model

    def load_start(self, loss_terms: tuple[str, ...], new_heads: NewHeads) -> PreTrainedModel:
        """The network of ``init_from``, with the dropout that the config chooses."""
        chosen = sorted(self.chosen_fields() & set(self.DROPOUT))
        dropout = {name: getattr(self.config, name) for name in chosen}
        return self.load(str(self.config.init_from), loss_terms, new_heads=new_heads, **dropout)

    def chosen_fields(self) -> set[str]:
        """Options of the network that are not the default: a resolved config names all of them."""
        fields = {n: f.default for n, f in type(self.config).model_fields.items()}
        chosen = {name for name, value in fields.items() if getattr(self.config, name) != value}
        return chosen - set(ModelConfig.model_fields)

    @property
    def starts_from_text(self) -> bool:
        """Whether the token embeddings start from counts in the training text."""
        config = self.config
        return (
            isinstance(config, TokenEmbeddingsConfig)
            and config.initial_embeddings == "cooccurrence"
        )

    @classmethod
    def positions(cls, network: PreTrainedConfig) -> int:
        """The longest input of a network, by transformers' config."""
        if not cls.POSITIONS:
            return NO_LIMIT
        rows: int = getattr(network, cls.POSITIONS)
        return rows - cls.UNUSED_POSITIONS

    @classmethod
    def run_layers(cls, model: Any, rows: int, length: int) -> None:
        """Run all layers on any tokens; ``plmctl plan`` sees what the layers are given."""
        import torch

        ids = torch.zeros(rows, length, dtype=torch.long, device=model.device)
        decoder = {"decoder_input_ids": ids} if cls.ENCODER_DECODER else {}
        model.base_model(ids, **decoder, use_cache=False)

    @classmethod
    def predict_token(cls, network: Network, input_ids: Tensor, position: int) -> Tensor:
        """Logits [V] of the token at a position of one text, ids [1, L], by the head "mlm"."""
        import torch

        logits: Tensor = network(
            input_ids=input_ids,
            attention_mask=torch.ones_like(input_ids),
            token_type_ids=torch.zeros_like(input_ids),
            positions=torch.tensor([position], device=input_ids.device),
        )["mlm"][0]
        return logits

    @classmethod
    def sizes(cls, model: PreTrainedModel, outputs: int) -> Sizes:
        """The sizes of a network, which may be on the meta device.

        Args:
            outputs: Ids that a target is compared with.
        """
        from torch import nn

        config: Any = model.config
        parameters = sum(weight.numel() for weight in model.parameters())
        tables = {part.weight for part in model.modules() if isinstance(part, nn.Embedding)}
        layers: int = getattr(config, "num_hidden_layers", 0)
        width: int = getattr(config, "hidden_size", 0)
        output_width = cls.output_width(config)
        used = parameters - sum(table.numel() for table in tables)
        used += cls.used_again(model, outputs)
        if getattr(config, "tie_word_embeddings", False) and tables:
            used += outputs * output_width
        return Sizes(
            parameters,
            used,
            layers + (getattr(config, "num_decoder_layers", None) or 0),
            width,
            getattr(config, "num_attention_heads", 0) if layers else 0,
            outputs,
            output_width,
            cls.ENCODER_DECODER,
        )

    @classmethod
    def output_width(cls, network: PreTrainedConfig) -> int:
        """Numbers of a token that the output layer reads: those of an embedding, as a rule."""
        config: Any = network
        width: int = getattr(config, "embedding_size", None) or config.hidden_size
        return width

    @classmethod
    def used_again(cls, model: Any, outputs: int) -> int:
        """Products of a token beyond one for each parameter that is no embedding."""
        return 0

    @classmethod
    def fits(
        cls, loss_terms: tuple[str, ...], *, encoder_decoder: bool, both_sides: bool = False
    ) -> bool:
        """Whether its networks can be trained or measured on an objective."""
        sees = cls.BOTH_SIDES or not both_sides
        heads = set(loss_terms) <= set(cls.HEADS)
        return sees and heads and encoder_decoder == cls.ENCODER_DECODER


def get_family(name: str) -> type[Family]:
    """The family of that name.

    Raises:
        ConfigError: No family has that name; the message has the nearest.
    """
    return registry.member("families", name, Family)


def make_family(config: ModelConfig) -> Family:
    """The family that a config chooses, with its options.

    Raises:
        ConfigError: No family has that name; the message has the nearest.
    """
    return get_family(config.family).chosen(config)


def family_of(network: PreTrainedConfig) -> Family:
    """The family of a folder, by its config; ``Unlisted`` if none takes its architecture."""
    kind = str(network.model_type)
    own = next((one() for one in families() if kind == one.MODEL_TYPE), None)
    others = (one.of_other(network) for one in families())
    return own or next(filter(None, others), Unlisted())


def families() -> Iterator[type[Family]]:
    """All families."""
    return map(get_family, registry.names("families"))


class Unlisted(Family, config=ModelConfig):
    """Any other architecture of transformers: it can be finetuned, and fill masks."""

    HEADS = ()
    DROPOUT = ()
    FP16 = False  # unknown

    def listed(self, model: str, network: PreTrainedConfig) -> Family:
        """See the base class."""
        known = ", ".join(one.MODEL_TYPE for one in families() if one.MODEL_TYPE)
        raise ConfigError(
            f"{model}: models of type {network.model_type!r} are not supported",
            f"name a model of one of these types: {known}",
        )

    def network_class(self, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """There is none."""
        raise NotImplementedError

    @staticmethod
    def forward(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
        """There is none."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sizes:
    """The sizes of a network.

    Attributes:
        parameters: All parameters; shared ones count once.
        used: Parameters that are multiplied, each as often as it is used: weights that layers share
            count once per layer; the output matrix counts, embeddings do not.
        layers: The number of layers of the encoder, the decoder, or both together.
        width: The hidden size.
        heads: Attention heads; 0 without attention.
        outputs: Ids that a target is compared with.
        output_width: Numbers of a token that the output layer reads.
        two_stacks: Whether it is an encoder-decoder.
    """

    parameters: int
    used: int
    layers: int
    width: int
    heads: int
    outputs: int
    output_width: int
    two_stacks: bool


def positions_after_padding(network: PreTrainedConfig) -> int:
    """The longest input of RoBERTa's encoder: positions start after the id of the padding token."""
    config: Any = network
    return int(config.max_position_embeddings) - int(config.pad_token_id or 0) - 1


def refuse_both_sides(model: str, network: PreTrainedConfig) -> None:
    """Refuse a network whose positions cannot be let see those after them.

    Raises:
        ConfigError: It is no such decoder.
    """
    from plmctl.models.own_heads import encoder_config

    encoder = encoder_config(network)
    if not family_of(encoder).BOTH_SIDES:
        known = sorted(one.MODEL_TYPE for one in families() if one.BOTH_SIDES and one.MODEL_TYPE)
        raise ConfigError(
            f"both_sides: {model} is a {encoder.model_type}",
            f"leave it out: it is for decoders ({', '.join(known)}); encoders see both sides",
        )


def longest_input(network: PreTrainedConfig) -> int | None:
    """Tokens that a network has positions for; None: any number (T5, ELMo)."""
    from plmctl.models.own_heads import encoder_config

    encoder = encoder_config(network)
    return family_of(encoder).longest_input(encoder)


def refuse_longer(model: str, length: int, key: str) -> None:
    """Refuse inputs that are longer than a network has positions for.

    Args:
        model: A model folder or Hub id.
        length: Tokens, special ones included.
        key: The key of the config that requires them.

    Raises:
        ConfigError: They are too many.
    """
    from plmctl.models.load import config_of

    longest = longest_input(config_of(model))
    if longest is not None and length > longest:
        raise ConfigError(
            f"{key}: {length:,} tokens, but {model} has positions for {longest:,}",
            f"{longest} at most; what is longer is cut, or read in windows",
        )


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


class EncoderConfig(TokenEmbeddingsConfig):
    """Options of an encoder with the fields of BERT's config."""

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


class BertConfig(EncoderConfig, LearnedPositionsConfig):
    """Options of BERT's encoder, whose layers read the embeddings as they are."""


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
