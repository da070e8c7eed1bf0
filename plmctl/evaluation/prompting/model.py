"""A causal or text-to-text model as prompting needs it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from plmctl import families
from plmctl.errors import ConfigError
from plmctl.evaluation.language import family_of

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from tokenizers import Tokenizer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_T5_WINDOW = 512  # positions are relative: what the published models were trained with


@dataclass(frozen=True)
class Generative:
    """A model that writes, its tokenizer, and the longest text that it may be given.

    Attributes:
        name: Its folder or Hub id.
        network: In evaluation mode, on its device.
        tokenizer: With a padding token.
        window: Tokens that it reads at most; of T5 those of the encoder.
        accelerator: Device and precision.
    """

    name: str
    network: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    window: int
    accelerator: Accelerator

    @property
    def text_to_text(self) -> bool:
        """Whether it reads one text and writes another (T5), or goes on with one (GPT)."""
        return bool(self.network.config.is_encoder_decoder)

    @property
    def caches(self) -> bool:
        """Whether it can go on from keys and values of what it has read; GPT-1 cannot."""
        return self.network.config.model_type != "openai-gpt"

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        device: torch.device = self.accelerator.device
        return device

    @property
    def start(self) -> tuple[int, ...]:
        """What stands before the first token of a text: the end of the text before, if any."""
        if self.text_to_text:
            return (int(self.network.config.decoder_start_token_id),)
        ids = (self.tokenizer.bos_token_id, self.tokenizer.eos_token_id)
        return next(((int(id_),) for id_ in ids if id_ is not None), ())

    @property
    def sentinels(self) -> tuple[int, ...]:
        """Ids of T5's ``<extra_id_0>``, ``<extra_id_1>`` ..."""
        from plmctl.tokenization.vocab import Vocab

        return Vocab.from_folder(self.name).sentinels

    @cached_property
    def plain(self) -> Tokenizer:
        """The tokenizer for text of data sets, in which what looks like a special token is text."""
        from tokenizers import Tokenizer

        backend: Any = self.tokenizer
        tokenizer = Tokenizer.from_str(backend.backend_tokenizer.to_str())
        tokenizer.encode_special_tokens = True
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer

    def count(self, text: str) -> int:
        """Tokens of a text, none of them special."""
        return len(self.plain.encode(text, add_special_tokens=False).ids)

    def ids_with(self, text: str) -> tuple[int, ...]:
        """Ids of the tokens that have a text within them: of a line end, those that end a line."""
        backend = self.plain
        ids = sorted(set(backend.get_vocab(with_added_tokens=True).values()))
        pieces = backend.decode_batch([[id_] for id_ in ids], skip_special_tokens=False)
        return tuple(id_ for id_, piece in zip(ids, pieces, strict=True) if text in piece)


def load(name: str, accelerator: Accelerator, window: int | None = None) -> Generative:
    """A model with its language-model head, in float32.

    Args:
        name: Its folder or Hub id.
        accelerator: Device and precision.
        window: Tokens that it may be given at most; None: its positions, 512 for T5.

    Raises:
        ConfigError: It does not write text, has no head for it, or fewer positions than asked for.
    """
    from plmctl.modeling.auto import config_of
    from plmctl.tokenization.load import load_tokenizer

    check_writes(name)
    family = families.get(family_of(name))
    positions = getattr(config_of(name), "max_position_embeddings", None)
    if window is not None and positions is not None and window > positions:
        raise ConfigError(
            f"{name}: {window} tokens asked for, and it has {positions} positions",
            f"set seq_len to {positions} or less, or leave it out",
        )
    network: Any = family.load(name, ("lm",))
    network.to(accelerator.device).train(False)
    tokenizer = load_tokenizer(name)
    return Generative(name, network, tokenizer, window or positions or _T5_WINDOW, accelerator)


def check_writes(name: str) -> None:
    """Refuse a model that does not write text, before its weights are read.

    Raises:
        ConfigError: An encoder, ELMo, or a model with another head.
    """
    from plmctl.modeling.auto import config_of

    family = families.get(family_of(name))
    made_for = (config_of(name).architectures or ["LMHeadModel"])[0]
    if "lm" not in family.HEADS:
        raise ConfigError(
            f"{name}: a {made_for} writes no text",
            "ask GPT or T5; a masked model fills [MASK] with `plmctl predict`",
        )
    if not any(kind in made_for for kind in ("LMHead", "ForConditionalGeneration")):
        raise ConfigError(
            f"{name}: a {made_for} has no language-model head",
            "name the model that it was finetuned from",
        )
