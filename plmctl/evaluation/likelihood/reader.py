"""A model opened for scoring: its network, its tokenizer, and what it can read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from plmctl import families
from plmctl.arrays import Ints
from plmctl.errors import ConfigError
from plmctl.evaluation.language import family_of

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.evaluation.measures import Subject
    from plmctl.modeling.batch import Rows
    from plmctl.modeling.network import Network
    from plmctl.tokenization.encode import Encoder
    from plmctl.tokenization.vocab import Vocab

Kind = Literal["causal", "masked", "encoder_decoder", "bidirectional"]

_PARTS: dict[Kind, tuple[str, ...]] = {
    "causal": ("lm",),
    "masked": ("mlm",),
    "encoder_decoder": ("lm",),
    "bidirectional": ("forward", "backward"),
}
# Names of transformers' and of our classes that have a language model's head.
_HEADS = (
    "MaskedLM", "PreTraining", "LMHead", "DoubleHeads", "CausalLM", "ConditionalGeneration",
    "SpanBert",
)  # fmt: skip
_MEASURES: dict[Kind, str] = {
    "causal": "`perplexity` or `bits_per_byte`",
    "masked": "`pseudo_perplexity` or `bits_per_byte`",
    "encoder_decoder": "`bits_per_byte` or `span_corruption`",
    "bidirectional": "`bits_per_byte` or `bilm`",
}
_ROW = 512  # tokens of the row that `batch_size` counts; of shorter ones as many more fit
_LOGITS = 1 << 26  # at once: 256 MB


@dataclass(frozen=True)
class Tokens:
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
class Reader:
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
    kind: Kind
    network: Network
    context: int
    outputs: int
    vocab: Vocab
    encoder: Encoder
    subject: Subject

    @property
    def cells(self) -> int:
        """Tokens at once, padding included."""
        return self.subject.batch_size * _ROW

    @property
    def predictions(self) -> int:
        """Predictions at once, by the memory of their logits."""
        return max(1, _LOGITS // self.outputs)

    @property
    def begin(self) -> int | None:
        """The token that stands before a text of a causal model; None: it has none (GPT-1)."""
        return self.vocab.eos if self.vocab.bos is None else self.vocab.bos

    def special(self, name: str) -> int:
        """The id of a special token.

        Raises:
            ConfigError: The tokenizer has none.
        """
        from plmctl.tokenization.vocab import TOKEN_NAMES

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

    def tokens(self, texts: Sequence[Sequence[str]]) -> list[Tokens]:
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
                Tokens(
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


def kind_of(family: str) -> Kind:
    """What the likelihood of a family's models is."""
    member = families.get(family)
    if "forward" in member.HEADS:
        return "bidirectional"
    if "mlm" in member.HEADS:
        return "masked"
    return "encoder_decoder" if getattr(member, "ENCODER_DECODER", False) else "causal"


def open_reader(subject: Subject, kinds: Sequence[Kind] = tuple(_PARTS)) -> Reader:
    """Load a model to score with.

    Args:
        subject: The model.
        kinds: Those that the measure can do with.

    Raises:
        ConfigError: A model of another kind, or without a language model's head.
    """
    from plmctl.modeling.auto import config_of
    from plmctl.modeling.network import Network
    from plmctl.tokenization.encode import Encoder
    from plmctl.tokenization.vocab import Vocab

    family = family_of(subject.model)
    kind = kind_of(family)
    if kind not in kinds:
        known = " and ".join(name.replace("_", "-") for name in kinds)
        raise ConfigError(
            f"{subject.model}: a {kind.replace('_', '-')} model ({family}), and this measure is "
            f"for {known} ones",
            f"ask for {_MEASURES[kind]}",
        )
    outline: Any = config_of(subject.model)
    classes = outline.architectures or []
    if classes and not any(head in classes[0] for head in _HEADS):
        raise ConfigError(
            f"{subject.model}: a {classes[0]} has no language model's head to score text with",
            "name the folder of the pretrained model, not of one that was finetuned from it",
        )
    member = families.get(family)
    network = Network(member.load(subject.model, _PARTS[kind]), member.forward)
    network.to(subject.accelerator.device).eval()
    return Reader(
        subject.model,
        kind,
        network,
        member.positions(outline),
        int(outline.vocab_size),
        Vocab.from_folder(subject.model),
        Encoder(subject.model),
        subject,
    )
