"""Networks of any architecture: what they share, and the three forms that they have.

Their classes, options and heads are transformers' own. What differs between architectures is
tried on the network itself when it is built or loaded (``models.any_head``), not written down.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict

from plmctl.config.base import ModelConfig, Text
from plmctl.errors import ConfigError, machine_error, nearest
from plmctl.families.base import (
    NO_LIMIT,
    Family,
    HeadKind,
    Project,
    positions_after_padding,
    project_to_logits,
)
from plmctl.families.roberta import RobertaTemplate

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel

    from plmctl.models.load import NewHeads

Form = Literal["encoder", "decoder", "encoder_decoder"]

_IDS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
_AFTER_PADDING = "create_position_ids_from_input_ids"
"""What the code of networks has that count positions from after the id of the padding token."""


class Config(ModelConfig):
    """Any architecture of transformers, by its name there, with the options of its config."""

    model_config = ConfigDict(extra="allow")

    family: Literal["auto"] = "auto"
    architecture: Text | None = None
    """transformers' name (its `model_type`), such as xlm-roberta. Every option of its config may
    stand beside it; what is left out has transformers' default. Default: that of init_from."""
    network: Form | None = None
    """Which of its networks, if it has several. encoder: predicts masked tokens; decoder: the next
    token; encoder_decoder: text from text. Default: the last of these that it has, an encoder
    before a decoder; with init_from that of the folder."""


class Generic(Family):
    """A network of transformers, by the name of its architecture."""

    TITLE = "auto"
    TOKENIZER = RobertaTemplate
    SIZES: ClassVar[Mapping[str, tuple[float, ...]]] = {}
    SIZE_FIELDS = ()
    DROPOUT = ()  # by the names of its options
    FP16 = False  # unknown
    COMPILES = False  # the hooks of its heads are in the way
    IS_TRIED = True
    KEEPS_TEXTS_APART = False
    FORM: ClassVar[Form]

    config: Config

    def __init_subclass__(cls, config: type[ModelConfig] | None = None) -> None:
        """They all have one name."""
        super().__init_subclass__(config)
        cls.name = "auto"

    def __init__(self, config: ModelConfig | None = None, architecture: str = "") -> None:
        """Bind options and architecture."""
        super().__init__(config or Config())
        self.architecture = architecture

    @property
    def options(self) -> dict[str, Any]:
        """The options of transformers' config that the user sets."""
        return dict(self.config.model_extra or {})

    def chosen_fields(self) -> set[str]:
        """See the base class."""
        return set(self.options)

    def network_class(self, loss_terms: tuple[str, ...]) -> type[PreTrainedModel]:
        """The class of transformers' mapping."""
        mapped: type[PreTrainedModel] = network_classes(self.architecture)[self.FORM]
        return mapped

    # --- A network with random weights ---

    def build(
        self,
        *,
        vocab_size: int,
        pad_id: int,
        loss_terms: tuple[str, ...],
        eos_id: int | None = None,
    ) -> PreTrainedModel:
        """See the base class.

        Raises:
            ConfigError: transformers has no such option or cannot build it; it cannot be
                pretrained.
        """
        build: Any = self.network_class(loss_terms)
        chosen = self.network_fields(vocab_size=vocab_size, pad_id=pad_id)
        self._check_names(build)
        ends = pad_id if eos_id is None else eos_id
        chosen |= {name: ends for name in _IDS if name in _declared(build.config_class)}
        try:
            model: PreTrainedModel = build(build.config_class(**chosen))
        except Exception as error:  # noqa: BLE001 - a size that does not fit can raise anything
            reason = " ".join(str(error).split()) or type(error).__name__
            raise machine_error(error) or ConfigError(
                f"model: transformers cannot build this {self.architecture}: {reason[:300]}",
                "its options depend on each other; https://huggingface.co/docs/transformers lists "
                "them",
            ) from error
        self._check_trainable(model)
        return model

    def network_fields(self, *, vocab_size: int, pad_id: int) -> dict[str, Any]:
        """The user's options by the names of the class, and the ids of special tokens."""
        config_class: Any = self.network_class(self.HEADS).config_class
        names, declared = config_class.attribute_map, _declared(config_class)
        given = {"vocab_size": vocab_size, **self.options, "pad_token_id": pad_id}
        if self.FORM == "decoder" and "is_decoder" in declared:
            given["is_decoder"] = True
        if self.FORM == "encoder_decoder":
            given["decoder_start_token_id"] = pad_id
            given |= dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id"))
        return {names.get(name, name): value for name, value in given.items()}

    def _check_names(self, network_class: Any) -> None:
        """Refuse options that the class does not have: transformers would keep and ignore them.

        Not all that it reads is declared: DeBERTa's code looks for some names itself.
        """
        config_class: Any = network_class.config_class
        known = _declared(config_class) | set(config_class.attribute_map)
        code = inspect.getsource(sys.modules[network_class.__module__])
        own = known - _declared(config_class.__mro__[1])
        for name in self.options:
            if name not in known and f'"{name}"' not in code and f"config.{name}" not in code:
                raise ConfigError(
                    f"model.{name}: {config_class.__name__} has no such option"
                    f"{nearest(name, sorted(own))}"
                )

    # --- A network of a folder ---

    def load(
        self,
        folder: str,
        loss_terms: tuple[str, ...],
        *,
        new_heads: NewHeads | None = None,
        **changes: Any,
    ) -> PreTrainedModel:
        """See the base class; a network whose losses would be wrong is refused."""
        model = super().load(folder, loss_terms, new_heads=new_heads, **changes)
        self._check_losses(model)
        return model

    def load_start(self, loss_terms: tuple[str, ...], new_heads: NewHeads) -> PreTrainedModel:
        """See the base class; dropout alone can be chosen beside a folder."""
        for name in self.options:
            if "drop" not in name:
                raise ConfigError(
                    f"model.{name}: the folder of init_from decides it",
                    "leave it out; only dropout can be changed",
                )
        from plmctl.models.decoder import sees_both_sides
        from plmctl.models.load import config_of

        start = str(self.config.init_from)
        both_sides = self.FORM == "decoder" and sees_both_sides(config_of(start))
        causal = {"is_causal": True} if both_sides else {}
        model = self.load(start, loss_terms, new_heads=new_heads, **self.options, **causal)
        self._check_trainable(model)
        return model

    # --- What it cannot do, as tried ---

    def _check_losses(self, model: PreTrainedModel) -> None:
        """Refuse a network whose loss would depend on its neighbours in a batch, or leak."""
        from plmctl.models.any_head import ability

        can, kind = ability(model), type(model).__name__
        if self.FORM == "decoder" and can.backwards:
            raise ConfigError(
                f"{kind} sees the tokens that it is to predict, so its loss says nothing",
                "choose another architecture; plmctl checks each on two short texts",
            )
        if self.FORM != "decoder" and not can.without_padding:
            raise ConfigError(
                f"{kind} gives other results with padding after a text, so its loss would depend "
                "on the other texts of a batch",
                "choose another architecture; it can still be finetuned",
            )

    def _check_trainable(self, model: PreTrainedModel) -> None:
        """Refuse also what needs another loss than that of its head."""
        self._check_losses(model)
        config: Any = model.config
        experts = [name for name in vars(config) if name.endswith("experts")]
        if any(isinstance(getattr(config, n), int) and getattr(config, n) > 1 for n in experts):
            raise ConfigError(
                f"{type(model).__name__} has experts, which need a further loss to be used evenly; "
                "it can be evaluated and finetuned, and not pretrained",
                "choose an architecture without experts",
            )

    # --- What callers ask ---

    @classmethod
    def positions(cls, network: PreTrainedConfig) -> int:
        """See the base class; unlimited where the architecture has no table of positions."""
        rows = getattr(network, "max_position_embeddings", None)
        if rows is None:
            rows = getattr(network, "max_decoder_position_embeddings", None)
        if not isinstance(rows, int) or rows < 1:
            return NO_LIMIT
        return positions_after_padding(network) if _counts_after_padding(network) else rows

    @classmethod
    def longest_input(cls, network: PreTrainedConfig) -> int | None:
        """See the base class."""
        longest = cls.positions(network)
        return None if longest == NO_LIMIT else longest

    @classmethod
    def run_layers(cls, model: Any, rows: int, length: int) -> None:
        """See the base class; without weights, masks are made in the way that reads no values.

        Raises:
            ConfigError: Its code reads values nevertheless.
        """
        import torch

        from plmctl.models.any_head import options_of, takes

        ids = torch.zeros(rows, length, dtype=torch.long, device=model.device)
        inputs = {"input_ids": ids, **options_of(model)}
        if cls.FORM == "decoder" and takes(model, "attention_mask"):
            inputs["attention_mask"] = torch.ones_like(ids)
        if cls.ENCODER_DECODER:
            inputs["decoder_input_ids"] = ids
        usual = model.config._attn_implementation
        if model.device.type == "meta":
            model.set_attn_implementation("eager")
        try:
            model(**inputs)
        except RuntimeError as error:
            raise ConfigError(
                f"the time of a step of {type(model).__name__} cannot be estimated without running "
                "it",
                "prepare the text and measure it with `plmctl plan CONFIG --measure`, or give "
                "`train.budget` in tokens",
            ) from error
        model.set_attn_implementation(usual)


class GenericEncoder(Generic):
    """Any encoder that predicts masked tokens."""

    FORM = "encoder"
    OBJECTIVE = "mlm"
    HEADS = ("mlm",)

    @staticmethod
    def forward(
        model: Any,  # transformers types its submodules as tensors or modules
        input_ids: Tensor,
        attention_mask: Tensor,
        token_type_ids: Tensor,
        positions: Tensor,
        project: Project = project_to_logits,
    ) -> dict[str, Tensor]:
        """Logits mlm [K, V]; token types are left out where the network has one or none."""
        from plmctl.models.any_head import logits_at, takes

        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if takes(model, "token_type_ids") and getattr(model.config, "type_vocab_size", 0) > 1:
            inputs["token_type_ids"] = token_type_ids
        return {"mlm": logits_at(model, inputs, positions, project)}


class GenericDecoder(Generic):
    """Any decoder that predicts the next token."""

    FORM = "decoder"
    OBJECTIVE = "clm"
    HEADS = ("lm",)
    POOLS = False
    ANSWERS = ("labels", "spans")

    @staticmethod
    def forward(
        model: Any,
        input_ids: Tensor,
        project: Project = project_to_logits,
    ) -> dict[str, Tensor]:
        """Logits lm [B, T, V] of sequences without padding, each one text."""
        from plmctl.models.any_head import logits_at, options_of

        inputs = {"input_ids": input_ids, **options_of(model)}
        return {"lm": logits_at(model, inputs, None, project)}


class GenericEncoderDecoder(Generic):
    """Any encoder and decoder that writes text from text."""

    FORM = "encoder_decoder"
    OBJECTIVE = "span_corruption"
    HEADS = ("lm", "z_loss")
    POOLS = False
    ENCODER_DECODER = True
    ANSWERS = ("text",)

    @classmethod
    def head_class(cls, kind: HeadKind, network: PreTrainedConfig) -> Any:
        """mT5 answers as text, as T5 does; BART has a head for questions."""
        return None if "t5" in network.model_type else super().head_class(kind, network)

    def load_start(self, loss_terms: tuple[str, ...], new_heads: NewHeads) -> PreTrainedModel:
        """See the base class; its texts begin as those of the objectives."""
        from plmctl.models.heads.text_generation import start_with_padding

        model = super().load_start(loss_terms, new_heads)
        start_with_padding(model)
        return model

    @staticmethod
    def forward(
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        decoder_input_ids: Tensor,
        positions: Tensor,
        project: Project = project_to_logits,
    ) -> dict[str, Tensor]:
        """Logits lm [K, V] of the target tokens, one text per row; inputs as T5 takes them."""
        from plmctl.models.any_head import logits_at, options_of

        inputs = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "decoder_input_ids": decoder_input_ids,
            **options_of(model),
        }
        return {"lm": logits_at(model, inputs, positions, project)}


FORMS: dict[Form, type[Generic]] = {
    "encoder_decoder": GenericEncoderDecoder,
    "encoder": GenericEncoder,
    "decoder": GenericDecoder,
}
"""The classes of the three forms."""


# --- What transformers has ---


def network_classes(architecture: str) -> dict[Form, Any]:
    """The networks of an architecture of text that have a language-model head; empty: none."""
    import transformers

    if architecture not in transformers.CONFIG_MAPPING:
        return {}
    config_class: Any = transformers.CONFIG_MAPPING[architecture]
    # Parts of other kinds are images, sound, or two networks; those without a kind are settings.
    if any(getattr(part, "model_type", None) != "" for part in config_class.sub_configs.values()):
        return {}
    mappings: dict[Form, Any] = {
        "encoder_decoder": transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        "encoder": transformers.MODEL_FOR_MASKED_LM_MAPPING,
        "decoder": transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
    }
    return {f: mapping[config_class] for f, mapping in mappings.items() if config_class in mapping}


def form_of_folder(network: PreTrainedConfig) -> Form | None:
    """Which network a folder has: its class says it, or else its config."""
    classes = network_classes(str(network.model_type))
    saved = (network.architectures or [""])[0]
    named = [form for form, one in classes.items() if one.__name__ == saved]
    if getattr(network, "is_decoder", False) and "decoder" in classes:
        named.append("decoder")
    return next(iter([*named, *classes]), None)


def _declared(config_class: Any) -> set[str]:
    return {field.name for field in fields(config_class)} | {"tie_word_embeddings"}


def _counts_after_padding(network: PreTrainedConfig) -> bool:
    module = type(network).__module__.replace("configuration_", "modeling_")
    try:
        code = inspect.getsource(__import__(module, fromlist=["_"]))
    except (ImportError, OSError):
        return False
    return _AFTER_PADDING in code
