"""What the objectives of decoders share: rows that are consecutive windows of the corpus.

Documents are joined by an end-of-text token.

Conventions of the papers: GPT-2 and GPT-3 attend across documents; the separator signals that the
text before it is unrelated (GPT-3, appendix B). GPT-1 has contiguous text and no separator.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from pydantic import Field

from plmctl.arrays import IGNORE, Ints
from plmctl.config.base import ObjectiveConfig
from plmctl.corpus.store import cached_array
from plmctl.errors import ConfigError, DataError
from plmctl.examples.packing import DocumentStream, document_edges
from plmctl.objectives.base import Objective, ObjectiveExamples

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from plmctl.corpus.store import TokenStore
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.tokenization.load import Vocab


class WindowConfig(ObjectiveConfig):
    """The settings of all objectives of decoders."""

    reads_sentences = False
    separator: Literal["end_of_text", "none"] = "end_of_text"
    """What follows every document. none: nothing, as in GPT-1, which has no such token."""
    attention: Literal["across", "within"] = "across"
    """What a token attends to. across: all earlier tokens of its row, as in GPT-2 and GPT-3; of
    `mntp` all of its row. within: only those of its document. A document then begins with the
    end-of-text token before it, at position 0, as a text that is scored does; with
    `separator: none` its first token is not predicted. Attention needs a mask of seq_len squared
    bytes per row, and kernels that take one."""

    z_loss: float = Field(default=0.0, ge=0)
    """Weight of the squared logarithm of the softmax's normalizer, added to the loss of every
    target (GPT-BERT: 1e-4); logged as a separate loss term. 0: no z-loss."""


W = TypeVar("W", bound=WindowConfig, covariant=True)


class WindowObjective(Objective[W]):
    """Predict tokens of windows; the config decides what token it requires: see ``check``."""

    LOSS_TERMS = ("lm",)

    @property
    def keeps_texts_apart(self) -> bool:
        """See the base class."""
        return self.config.attention == "within"

    def check(
        self, tokenizer: PreTrainedTokenizerBase, network: PreTrainedConfig, seq_len: int
    ) -> None:
        """Refuse a tokenizer without an end-of-text token, unless the config wants no separator."""
        from plmctl.tokenization.load import Vocab

        self.separator(Vocab.of(tokenizer))

    def separator(self, vocab: Vocab) -> int | None:
        """The id of the token between documents, if there is one."""
        name = self.config.name
        if self.config.separator == "none":
            return None
        if vocab.eos is None:
            raise ConfigError(
                f"tokenizer: no end-of-text token, which {name} puts after each document",
                f"write `{{name: {name}, separator: none}}`, as GPT-1 has it, or use a tokenizer "
                "of `family: gpt2`",
            )
        return vocab.eos


class Windows(ObjectiveExamples[W]):
    """The windows of one store at one sequence length.

    Attributes:
        seq_len: T, tokens per row.
        end_of_text: Id of the separator; None: documents follow each other without one.
    """

    def __init__(
        self,
        objective: WindowObjective[W],
        store: TokenStore,
        seq_len: int,
        end_of_text: int | None,
    ) -> None:
        super().__init__(objective, store)
        self.seq_len, self.end_of_text = seq_len, end_of_text
        self._options = {"both_sides": True} if objective.BOTH_SIDES else {}
        self.within = self.config.attention == "within"
        separated = self.end_of_text is not None
        starts = cached_array(
            store,
            ("documents", separated),
            np.int64,
            lambda: document_edges(store.sentences, store.documents, separated=separated),
        )
        self.stream = DocumentStream(starts, separated=separated)
        if not len(self):
            raise DataError(
                f"the corpus has {store.num_tokens:,} tokens, less than one sequence of {seq_len}",
                "use more text, or a smaller `train.phases[].seq_len`",
            )

    def __len__(self) -> int:
        """Windows in an epoch."""
        return max(0, len(self.stream) - 1) // self.seq_len

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """The cross-entropy, and the z-loss if it has a weight."""
        return ("lm", "z_loss") if self.config.z_loss else ("lm",)

    @property
    def counted_terms(self) -> tuple[str, ...]:
        """The loss terms without z_loss."""
        return ("lm",)

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The windows ``samples``, the same in every epoch.

        Args:
            epochs: [B], not used.
            samples: [B], each below ``len(self)``.

        Returns:
            inputs: input_ids [B, T], and within documents position_ids [B, T], which begin again at
            0 with every document; targets: lm [B, T], and z_loss, the same tensor.
        """
        import torch

        from plmctl.models.batch import Batch

        positions = samples[:, None] * self.seq_len + np.arange(self.seq_len + 1)
        token, separator = self.stream.locate(positions)
        filler = 0 if self.end_of_text is None else self.end_of_text
        ids = np.where(separator, filler, self.store.tokens(token)).astype(np.int64)
        inputs, targets = {"input_ids": ids[:, :-1]}, ids[:, 1:]
        if self.within:
            # A separator is the last target of its document and the first input of the next one.
            separated = self.end_of_text is not None
            offsets = self.stream.offsets(positions + separated)
            # If a row starts in the middle of a document, positions start at 0 there too.
            inputs["position_ids"] = np.minimum(offsets[:, :-1], np.arange(self.seq_len))
            if not separated:
                targets = np.where(offsets[:, 1:] == 0, IGNORE, targets)
        size = len(samples) * self.seq_len
        return Batch(
            {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in inputs.items()},
            dict.fromkeys(self.loss_terms, torch.from_numpy(np.ascontiguousarray(targets))),
            size,
            size,
            lists=(),
        )

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The cross-entropy of the targets in nats, and the z-loss, summed."""
        sums: dict[str, Tensor] = network(
            loss_on=batch.targets, z_loss=self.config.z_loss, **self._options, **batch.inputs
        )
        return sums

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, and the number of correct predictions: nan for the z-loss."""
        import torch

        from plmctl.models.losses import cross_entropy_and_z, score_sums

        logits, targets = network(**self._options, **batch.inputs), batch.targets["lm"]
        sums = score_sums(logits, {"lm": targets})
        if z_loss := self.config.z_loss:
            sums["z_loss"] = cross_entropy_and_z(logits["lm"], targets, z_loss)[1]
            sums["z_loss/correct"] = torch.tensor(math.nan)
        return sums
