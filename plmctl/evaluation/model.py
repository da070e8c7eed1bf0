"""A model opened for evaluation.

``LoadedModel`` is a model folder or Hub id with its tokenizer and its device. A command opens it
once and hands it to everything that scores text, completes prompts or predicts labels. Weights and
tokenizers are read when they are first needed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints
from plmctl.errors import ConfigError
from plmctl.families.base import Family, family_of, refuse_both_sides
from plmctl.run.display import say
from plmctl.tokenization.unknown import Unknown, UnknownCounter, sampled, visible

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from tokenizers import Tokenizer
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.models.network import Forward, Network
    from plmctl.tokenization.encode import Encoder
    from plmctl.tokenization.load import Vocab


@dataclass(frozen=True)
class TokenizedText:
    """A text as a model reads it.

    Attributes:
        ids: [n], without special tokens.
        starts: [n] whether a word starts at each token.
        sentences: [s] tokens of each sentence.
        unknown: Number of tokens that stand for text outside the vocabulary.
        unknown_bytes: UTF-8 bytes of the text that these stand for.
    """

    ids: Ints
    starts: NDArray[np.bool_]
    sentences: Ints
    unknown: int = 0
    unknown_bytes: int = 0


_ROW_TOKENS = 512  # `batch_size` counts rows of this length; more rows fit if they are shorter

_MAX_LOGITS = 1 << 26  # at once: 256 MB

_MASKED = ("mlm",)  # the head of masked models

_WRITE = ("LMHead", "ForCausalLM", "ForConditionalGeneration", "MTModel")  # in the names of classes
_T5_WINDOW = 512  # positions are relative; the published models were trained with this length


class LoadedModel:
    """A model, its tokenizer and its device, opened once per command.

    Args:
        name: A model folder or Hub id.
        accelerator: The device and the precision; None: the CPU, in float32.
        batch_size: Rows at once; it changes no metric.
        both_sides: A decoder's positions see those after them too, whatever the folder says.

    Attributes:
        networks: The networks that are loaded, by the loss terms that they have heads for, and the
            finetuned one, by ``("task",)`` (``scoring.FinetunedModel``).
    """

    def __init__(
        self,
        name: str,
        accelerator: Accelerator | None = None,
        batch_size: int = 32,
        *,
        both_sides: bool = False,
    ) -> None:
        self.name = name
        self.both_sides = both_sides
        self.accelerator = accelerator
        self.batch_size = batch_size
        self._window: int | None = None
        self._unknown: list[Unknown] = []
        self.networks: dict[tuple[str, ...], Network] = {}

    @classmethod
    def in_training(
        cls,
        network: Network,
        tokenizer: PreTrainedTokenizerBase,
        family: Family,
        accelerator: Accelerator,
    ) -> LoadedModel:
        """The network of a training between two steps, for samples; its weights are not copied.

        Args:
            network: Not wrapped, with all weights, in evaluation mode.
            tokenizer: Of the training; it is copied, since reading a text may change its settings.
            accelerator: The device and the precision.
        """
        from plmctl.tokenization.load import Vocab, with_pad_token

        model = cls("the model in training", accelerator)
        model.family = family
        model.config = copy.copy(network.model.config)
        model.config.architectures = [type(network.model).__name__]  # a saved one names its class
        own = copy.deepcopy(tokenizer)
        model._tokenizer_and_vocab = with_pad_token(own), Vocab.of(tokenizer)
        model.networks = {("mlm",): network, ("lm",): network}
        return model

    # --- What is known without the weights ---

    @cached_property
    def family(self) -> Family:
        """Its family.

        Raises:
            ConfigError: No family has its architecture.
        """
        return family_of(self.config).listed(self.name, self.config)

    @cached_property
    def config(self) -> PreTrainedConfig:
        """The config of its network.

        Raises:
            ConfigError: It cannot see both sides, or is finetuned and says itself how it reads.
        """
        from plmctl.models.load import changed_config, config_of

        if not self.both_sides:
            return config_of(self.name)
        network: PreTrainedConfig = changed_config(self.name, {"is_causal": False})
        refuse_both_sides(self.name, network)
        if not any(head in (network.architectures or _WRITE)[0] for head in _WRITE):
            raise ConfigError(
                f"both_sides: {self.name} is finetuned, and its config says how it reads",
                "leave it out, or name the pretrained model",
            )
        return network

    @property
    def text_to_text(self) -> bool:
        """Whether it reads one text and writes another (T5), or continues one (GPT)."""
        return bool(self.config.is_encoder_decoder)

    @property
    def is_masked(self) -> bool:
        """Whether it predicts masked tokens: encoders, and decoders that see both sides."""
        return set(_MASKED) <= set(self.family.HEADS) or self.sees_both_sides

    @property
    def sees_both_sides(self) -> bool:
        """Whether it is a decoder that does: it predicts a token from the output before it."""
        from plmctl.models.decoder import sees_both_sides

        decoder = "lm" in self.family.HEADS and not self.text_to_text
        return decoder and sees_both_sides(self.config)

    @cached_property
    def outputs(self) -> int:
        """Number of tokens that it can predict."""
        config: Any = self.config
        return int(config.vocab_size)

    @cached_property
    def context(self) -> int:
        """Tokens that it reads at once, special tokens included."""
        return self.family.positions(self.config)

    @property
    def device(self) -> torch.device:
        """The device that the model is on."""
        import torch

        device: torch.device = self.accelerator.device if self.accelerator else torch.device("cpu")
        return device

    def autocast(self) -> AbstractContextManager[None]:
        """Compute in the precision of the accelerator."""
        if self.accelerator is None:
            return nullcontext()
        context: AbstractContextManager[None] = self.accelerator.autocast()
        return context

    @property
    def batch_tokens(self) -> int:
        """Tokens at once, padding included."""
        return self.batch_size * _ROW_TOKENS

    @property
    def batch_predictions(self) -> int:
        """Predictions at once, limited by the memory of their logits."""
        return max(1, _MAX_LOGITS // self.outputs)

    # --- Networks ---

    def network(self, loss_terms: tuple[str, ...]) -> Network:
        """The network with the heads for these loss terms, in evaluation mode on its device.

        Each combination of heads is loaded once.

        Raises:
            DataError: The folder lacks such a head.
        """
        heads = tuple(term for term in loss_terms if term != "z_loss")  # a penalty, without a head
        if heads not in self.networks:
            changes: dict[str, Any] = {"config": self.config} if self.both_sides else {}
            model = self.family.load(self.name, heads, **changes)
            self.networks[heads] = self.placed(model, self.family.forward)
        return self.networks[heads]

    def placed(self, model: PreTrainedModel, forward: Forward) -> Network:
        """A network in evaluation mode on the device, as fast as it is in training."""
        from plmctl.models.fast import apply_fast_paths
        from plmctl.models.network import Network

        apply_fast_paths(model, device=self.device.type, compiled=False, sharded=False)
        network: Network = Network(model, forward).to(self.device).eval()
        return network

    @property
    def generator(self) -> PreTrainedModel:
        """The transformers model with its language-model head, which generates text."""
        return self.network(("lm",)).model

    def masked_logits(self, inputs: Mapping[str, torch.Tensor], position: int) -> torch.Tensor:
        """Logits [V] of the token at a position of one text.

        Args:
            inputs: input_ids [1, L] and what else the tokenizer gives for the text.
        """
        with self.autocast():
            if _MASKED not in self.networks:  # of a folder: any masked model of transformers
                logits: torch.Tensor = self._masked_model(**inputs).logits[0, position]
                return logits
            ids = inputs["input_ids"].to(self.device)
            return self.family.predict_token(self.networks[_MASKED], ids, position)

    @cached_property
    def _masked_model(self) -> PreTrainedModel:
        """The model with its head for masked tokens."""
        from transformers import AutoModelForMaskedLM

        from plmctl.models.load import load_network

        family = family_of(self.config)
        if set(_MASKED) <= set(family.HEADS) and not family.IS_TRIED:  # that may refuse it
            return family.load(self.name, _MASKED)
        network: PreTrainedModel = load_network(AutoModelForMaskedLM, self.name).network
        return network

    # --- Tokens ---

    @cached_property
    def _tokenizer_and_vocab(self) -> tuple[PreTrainedTokenizerBase, Vocab]:
        from plmctl.tokenization.load import Vocab, open_tokenizer, with_pad_token

        tokenizer = open_tokenizer(self.name)
        vocab = Vocab.of(tokenizer)  # as it was saved
        return with_pad_token(tokenizer), vocab

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer, with a padding token."""
        return self._tokenizer_and_vocab[0]

    @cached_property
    def plain(self) -> Tokenizer:
        """The tokenizer for text of data sets: text that looks like a special token stays text."""
        from plmctl.tokenization.units import plain_copy

        return plain_copy(self.tokenizer)

    @cached_property
    def encoder(self) -> Encoder:
        """Encodes texts as in pretraining."""
        from plmctl.tokenization.encode import Encoder

        return Encoder(self.name)

    @property
    def vocab(self) -> Vocab:
        """Ids of the special tokens, as the tokenizer was saved."""
        return self._tokenizer_and_vocab[1]

    def special(self, name: str) -> int:
        """The id of a special token.

        Raises:
            ConfigError: The tokenizer lacks it.
        """
        from plmctl.tokenization.load import TOKEN_NAMES

        value = getattr(self.vocab, name)
        if value is None or value == ():
            raise ConfigError(
                f"{self.name}: its tokenizer has no {TOKEN_NAMES[name]}, which scoring requires",
                "measure a model that was saved with the tokenizer it was pretrained with",
            )
        return int(value[0] if isinstance(value, tuple) else value)

    @property
    def start(self) -> tuple[int, ...]:
        """The token before the first token of a text; empty if the model has none (GPT-1)."""
        if self.text_to_text:
            config: Any = self.config
            return (int(config.decoder_start_token_id),)
        ids = (self.vocab.bos, self.vocab.eos)
        return next(((id_,) for id_ in ids if id_ is not None), ())

    def tokens(self, texts: Sequence[Sequence[str]]) -> list[TokenizedText]:
        """Tokenize texts, each given as its sentences, which are encoded as in pretraining."""
        encoded = iter(self.encoder([sentence for text in texts for sentence in text]))
        result = []
        for text in texts:
            parts = [next(encoded) for _ in text]
            unknown = [self._is_unknown(ids) for ids, _ in parts]
            self.note_unknown(text, any(mask.any() for mask in unknown))
            unknown_bytes = sum(
                len(sentence[start:end].encode())
                for sentence, mask in zip(text, unknown, strict=True)
                if mask.any()
                for (start, end), missing in zip(self.offsets(sentence), mask, strict=True)
                if missing
            )
            result.append(
                TokenizedText(
                    np.concatenate([np.zeros(0, np.int64), *(ids for ids, _ in parts)]),
                    np.concatenate([np.zeros(0, bool), *(starts for _, starts in parts)]),
                    np.array([len(ids) for ids, _ in parts], dtype=np.int64),
                    sum(int(mask.sum()) for mask in unknown),
                    unknown_bytes,
                )
            )
        return result

    def note_unknown(
        self, texts: Sequence[str], some: bool = True, counter: UnknownCounter | None = None
    ) -> None:
        """Count what the tokenizer does not know of texts; ``say_unknown`` says it.

        Args:
            texts: Without prompts' special tokens.
            some: Whether any of it is unknown.
            counter: Of the tokenizer that reads them; None: of the model's as it is.
        """
        if family_of(self.config).READS_CHARACTERS:
            return
        known = Unknown(sum(map(visible, texts)))
        counter = (counter or self._counter) if some else None
        self._unknown.append(counter.count(sampled(texts)) if counter else known)

    def say_unknown(self, what: str) -> None:
        """Say how much was unknown of the texts that were encoded since the last call.

        Raises:
            DataError: Nearly all of it.
        """
        line = sum(self._unknown, Unknown()).report(what, self.name)
        self._unknown.clear()
        if line is not None:
            say(line)

    @cached_property
    def _counter(self) -> UnknownCounter:
        return UnknownCounter(self.plain)

    def without_special(self, texts: Sequence[str]) -> list[str]:
        """Prompts without the special tokens that they name, such as masks and sentinels."""
        names = sorted(
            self.plain.get_added_tokens_decoder().values(), key=lambda t: -len(t.content)
        )
        pattern = "|".join(re.escape(token.content) for token in names if token.special)
        return [re.sub(pattern, " ", text) if pattern else text for text in texts]

    def _is_unknown(self, ids: Ints) -> NDArray[np.bool_]:
        unknown = ids >= self.outputs  # words that ELMo reads but does not predict
        return unknown if self.vocab.unk is None else unknown | (ids == self.vocab.unk)

    def offsets(self, sentence: str) -> list[tuple[int, int]]:
        """Start and end of each token of a sentence, in characters."""
        offsets: list[tuple[int, int]] = self.plain.encode(
            sentence, add_special_tokens=False
        ).offsets
        return offsets

    def count(self, text: str) -> int:
        """Number of tokens of a text, without special tokens."""
        return len(self.plain.encode(text, add_special_tokens=False).ids)

    def ids_with(self, text: str) -> tuple[int, ...]:
        """Ids of the tokens that contain a text: for a line end, all tokens that end a line."""
        backend = self.plain
        ids = sorted(set(backend.get_vocab(with_added_tokens=True).values()))
        pieces = backend.decode_batch([[id_] for id_ in ids], skip_special_tokens=False)
        return tuple(id_ for id_, piece in zip(ids, pieces, strict=True) if text in piece)

    # --- Generation: causal and text-to-text models ---

    def for_generation(self, window: int | None = None) -> LoadedModel:
        """This model as one that completes prompts; weights and tokenizers are shared.

        Args:
            window: Tokens that a prompt may have; None: see ``window``.

        Raises:
            ConfigError: The model does not generate text, has no language-model head, or has fewer
                positions than ``window``. Its weights are not read for this.
        """
        model_class = (self.config.architectures or ["LMHeadModel"])[0]
        if "lm" not in self.family.HEADS:
            raise ConfigError(
                f"{self.name}: a {model_class} does not generate text",
                "use a GPT or T5 model; `plmctl predict` fills [MASK] with a masked model",
            )
        if self.sees_both_sides:
            raise ConfigError(
                f"{self.name}: a decoder that sees both sides has no next token to predict",
                "leave out both_sides, or name the pretrained model: a finetuned folder whose "
                "config.json has `is_causal: false` sees both sides",
            )
        if not any(head in model_class for head in _WRITE):
            raise ConfigError(
                f"{self.name}: a {model_class} has no language-model head",
                "name the pretrained model from which it was finetuned",
            )
        if window is not None and window > self.context:
            raise ConfigError(
                f"{self.name}: seq_len is {window}, but the model has {self.context} positions",
                f"set seq_len to {self.context} or less, or leave it out",
            )
        _ = self.plain  # with its tokenizer, read before the copy, so that both share them
        limited = copy.copy(self)
        limited._window = window
        return limited

    @property
    def window(self) -> int:
        """Tokens that it reads at most when it completes a prompt; for T5 those of the encoder.

        The limit given to ``for_generation``, else the model's positions, else 512 (T5).
        """
        return self._window or (_T5_WINDOW if self.text_to_text else self.context)
