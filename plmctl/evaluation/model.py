"""A model opened for evaluation: its network, its tokenizer, its device, and what it can read.

``EvaluatedModel`` names the model of an evaluation and says how much is computed at once.
``LoadedModel`` is opened from it to score text, and ``LoadedGenerator`` is a causal or text-to-text
model that scores completions and generates text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmctl import registry
from plmctl.arrays import Ints
from plmctl.errors import ConfigError
from plmctl.families.base import get_family

if TYPE_CHECKING:
    import torch
    from accelerate import Accelerator
    from tokenizers import Tokenizer
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from plmctl.models.batch import Rows
    from plmctl.models.network import Network
    from plmctl.tokenization.encode import Encoder
    from plmctl.tokenization.load import Vocab


@dataclass(frozen=True)
class EvaluatedModel:
    """The model that is measured, and how.

    Attributes:
        model: A model folder or Hub id.
        seed: Decides masks and pairs.
        batch_size: Rows at once; it changes no figure.
        accelerator: The device.
    """

    model: str
    seed: int
    batch_size: int
    accelerator: Accelerator


def family_of(model: str) -> str:
    """The family of a model folder or Hub id, from its config.

    Raises:
        ConfigError: Its architecture is none of plmctl's.
    """
    from plmctl.models.load import config_of

    kind = config_of(model).model_type
    known = registry.names("families")
    called = {get_family(name).MODEL_TYPE: name for name in known if get_family(name).MODEL_TYPE}
    if kind not in called:
        raise ConfigError(f"{model}: a model of type {kind!r}; known are: {', '.join(called)}")
    return called[str(kind)]


# --- A model that scores text, of any family ---


LikelihoodKind = Literal["causal", "masked", "encoder_decoder", "bidirectional"]

_OUTPUTS: dict[LikelihoodKind, tuple[str, ...]] = {
    "causal": ("lm",),
    "masked": ("mlm",),
    "encoder_decoder": ("lm",),
    "bidirectional": ("forward", "backward"),
}


# Names of transformers' and of our classes that have a language model's head.
_LM_HEADS = (
    "MaskedLM", "PreTraining", "LMHead", "DoubleHeads", "CausalLM", "ConditionalGeneration",
    "SpanBert",
)  # fmt: skip


_MEASURES_FOR: dict[LikelihoodKind, str] = {
    "causal": "`perplexity` or `bits_per_byte`",
    "masked": "`pseudo_perplexity` or `bits_per_byte`",
    "encoder_decoder": "`bits_per_byte` or `span_corruption`",
    "bidirectional": "`bits_per_byte` or `bilm`",
}

_ROW_TOKENS = 512  # tokens of the row that `batch_size` counts; of shorter ones as many more fit

_MAX_LOGITS = 1 << 26  # at once: 256 MB


@dataclass(frozen=True)
class TokenizedText:
    """A text as a model reads it.

    Attributes:
        ids: [n], without special tokens.
        starts: [n] whether a word starts at each.
        sentences: [s] tokens of each sentence.
        unknown: Tokens that stand for anything not in the vocabulary.
        unknown_bytes: UTF-8 bytes of the text that these stand for.
    """

    ids: Ints
    starts: NDArray[np.bool_]
    sentences: Ints
    unknown: int = 0
    unknown_bytes: int = 0


@dataclass(frozen=True)
class LoadedModel:
    """A model that scores.

    Attributes:
        name: Folder or Hub id.
        kind: What its likelihood is.
        network: On its device, in evaluation mode.
        context: Tokens that it can read at once, special ones included.
        outputs: Tokens that it can predict.
        vocab: Ids of special tokens.
        encoder: Texts to ids.
        subject: The device, and how much is computed at once.
    """

    name: str
    kind: LikelihoodKind
    network: Network
    context: int
    outputs: int
    vocab: Vocab
    encoder: Encoder
    subject: EvaluatedModel

    @property
    def cells(self) -> int:
        """Tokens at once, padding included."""
        return self.subject.batch_size * _ROW_TOKENS

    @property
    def predictions(self) -> int:
        """Predictions at once, by the memory of their logits."""
        return max(1, _MAX_LOGITS // self.outputs)

    @property
    def begin(self) -> int | None:
        """The token that stands before a text of a causal model; None: it has none (GPT-1)."""
        return self.vocab.eos if self.vocab.bos is None else self.vocab.bos

    def special(self, name: str) -> int:
        """The id of a special token.

        Raises:
            ConfigError: The tokenizer has none.
        """
        from plmctl.tokenization.load import TOKEN_NAMES

        found = getattr(self.vocab, name)
        if found is None or found == ():
            raise ConfigError(
                f"{self.name}: its tokenizer has no {TOKEN_NAMES[name]}, which scoring needs",
                "measure a model that was saved with the tokenizer it was pretrained with",
            )
        return int(found[0] if isinstance(found, tuple) else found)

    def logits(self, *, rows: Rows | None = None, **inputs: NDArray[Any]) -> dict[str, Tensor]:
        """The family's logits; call it in inference mode."""
        import torch

        accelerator = self.subject.accelerator
        tensors = {n: torch.from_numpy(a).to(accelerator.device) for n, a in inputs.items()}
        with accelerator.autocast():
            found: dict[str, Tensor] = self.network(rows=rows, **tensors)
        return found

    def tokens(self, texts: Sequence[Sequence[str]]) -> list[TokenizedText]:
        """Texts, each given as its sentences, which are encoded one by one as in pretraining."""
        flat = [sentence for text in texts for sentence in text]
        encoded = self.encoder(flat)
        found, at = [], 0
        for text in texts:
            part = encoded[at : at + len(text)]
            at += len(text)
            unknown = [self._is_unknown(ids) for ids, _ in part]
            spelt = sum(
                self._bytes(sentence, mask)
                for sentence, mask in zip(text, unknown, strict=True)
                if mask.any()
            )
            found.append(
                TokenizedText(
                    np.concatenate([np.zeros(0, np.int64), *(ids for ids, _ in part)]),
                    np.concatenate([np.zeros(0, bool), *(starts for _, starts in part)]),
                    np.array([len(ids) for ids, _ in part], dtype=np.int64),
                    sum(int(mask.sum()) for mask in unknown),
                    spelt,
                )
            )
        return found

    def offsets(self, sentence: str) -> list[tuple[int, int]]:
        """Where in a sentence each of its tokens stands, in characters."""
        found: list[tuple[int, int]] = self._tokenizer.encode(
            sentence, add_special_tokens=False
        ).offsets
        return found

    def _is_unknown(self, ids: Ints) -> NDArray[np.bool_]:
        unknown = ids >= self.outputs  # words of ELMo that are read but not predicted
        return unknown if self.vocab.unk is None else unknown | (ids == self.vocab.unk)

    def _bytes(self, sentence: str, chosen: NDArray[np.bool_]) -> int:
        """UTF-8 bytes that the chosen tokens of a sentence stand for."""
        pairs = [p for p, wanted in zip(self.offsets(sentence), chosen, strict=True) if wanted]
        return sum(len(sentence[start:end].encode()) for start, end in pairs)

    @cached_property
    def _tokenizer(self) -> Any:
        from plmctl.tokenization.load import load_tokenizer

        whole: Any = load_tokenizer(self.name)
        tokenizer = whole.backend_tokenizer
        tokenizer.encode_special_tokens = True
        tokenizer.no_truncation()
        return tokenizer


def load_model(
    subject: EvaluatedModel, kinds: Sequence[LikelihoodKind] = tuple(_OUTPUTS)
) -> LoadedModel:
    """Load a model to score with.

    Args:
        subject: The model.
        kinds: Those that the measure can do with.

    Raises:
        ConfigError: A model of another kind, or without a language model's head.
    """
    from plmctl.models.load import config_of
    from plmctl.models.network import Network
    from plmctl.tokenization.encode import Encoder
    from plmctl.tokenization.load import Vocab

    family = family_of(subject.model)
    kind = likelihood_kind(family)
    if kind not in kinds:
        known = " and ".join(name.replace("_", "-") for name in kinds)
        raise ConfigError(
            f"{subject.model}: a {kind.replace('_', '-')} model ({family}), and this measure is "
            f"for {known} ones",
            f"ask for {_MEASURES_FOR[kind]}",
        )
    outline: Any = config_of(subject.model)
    classes = outline.architectures or []
    if classes and not any(head in classes[0] for head in _LM_HEADS):
        raise ConfigError(
            f"{subject.model}: a {classes[0]} has no language model's head to score text with",
            "name the folder of the pretrained model, not of one that was finetuned from it",
        )
    member = get_family(family)
    network = Network(member.load(subject.model, _OUTPUTS[kind]), member.forward)
    network.to(subject.accelerator.device).eval()
    return LoadedModel(
        subject.model,
        kind,
        network,
        member.positions(outline),
        int(outline.vocab_size),
        Vocab.from_folder(subject.model),
        Encoder(subject.model),
        subject,
    )


def likelihood_kind(family: str) -> LikelihoodKind:
    """What the likelihood of a family's models is."""
    member = get_family(family)
    if "forward" in member.HEADS:
        return "bidirectional"
    if "mlm" in member.HEADS:
        return "masked"
    return "encoder_decoder" if member.ENCODER_DECODER else "causal"


# --- A model that generates text: causal or text-to-text ---


_T5_WINDOW = 512  # positions are relative: what the published models were trained with


@dataclass(frozen=True)
class LoadedGenerator:
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
        from plmctl.tokenization.load import Vocab

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


def load_generator(
    name: str, accelerator: Accelerator, window: int | None = None
) -> LoadedGenerator:
    """A model with its language-model head, in float32.

    Args:
        name: Its folder or Hub id.
        accelerator: Device and precision.
        window: Tokens that it may be given at most; None: its positions, 512 for T5.

    Raises:
        ConfigError: It does not write text, has no head for it, or fewer positions than asked for.
    """
    from plmctl.models.load import config_of
    from plmctl.tokenization.load import load_tokenizer

    check_generates(name)
    family = get_family(family_of(name))
    positions = getattr(config_of(name), "max_position_embeddings", None)
    if window is not None and positions is not None and window > positions:
        raise ConfigError(
            f"{name}: {window} tokens asked for, and it has {positions} positions",
            f"set seq_len to {positions} or less, or leave it out",
        )
    network: Any = family.load(name, ("lm",))
    network.to(accelerator.device).train(False)
    tokenizer = load_tokenizer(name)
    return LoadedGenerator(name, network, tokenizer, window or positions or _T5_WINDOW, accelerator)


def check_generates(name: str) -> None:
    """Refuse a model that does not write text, before its weights are read.

    Raises:
        ConfigError: An encoder, ELMo, or a model with another head.
    """
    from plmctl.models.load import config_of

    family = get_family(family_of(name))
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
