"""Causal language modeling: predict the next token (GPT-1/2/3).

Documents stand one after the other with an end-of-text token after each; rows are consecutive
windows of that stream, with attention across documents, as GPT-2 and GPT-3 describe it. A row of T
inputs has T targets, the window's last target being the next window's first input, so that an epoch
predicts every token once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from plmctl.config.members import ObjectiveConfig
from plmctl.errors import ConfigError, DataError
from plmctl.shaping.examples import Example, Piece, Tallies, tally
from plmctl.shaping.packing import DocumentStream

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.corpus.store import TokenStore
    from plmctl.modeling.batch import Batch
    from plmctl.modeling.network import Network
    from plmctl.tokenization.vocab import Vocab


class Config(ObjectiveConfig):
    """Predict the next token, documents joined by an end-of-text token."""

    name: Literal["clm"] = "clm"


PARTS = ("lm",)
TOKENS = ("eos",)


@dataclass(frozen=True)
class CausalLm:
    """The windows of one store at one sequence length."""

    store: TokenStore
    seq_len: int
    end_of_text: int
    stream: DocumentStream
    parts: tuple[str, ...] = PARTS

    def __len__(self) -> int:
        """Windows in an epoch."""
        return (len(self.stream) - 1) // self.seq_len

    def collate(self, epochs: NDArray[np.int64], samples: NDArray[np.int64]) -> Batch:
        """The windows ``samples``, the same in every epoch.

        Args:
            epochs: [B], not used.
            samples: [B], each below ``len(self)``.

        Returns:
            inputs: input_ids [B, T]; targets: lm [B, T].
        """
        import torch

        from plmctl.modeling.batch import Batch

        positions = samples[:, None] * self.seq_len + np.arange(self.seq_len + 1)
        token, separator = self.stream.locate(positions)
        ids = np.where(separator, self.end_of_text, self.store.tokens(token)).astype(np.int64)
        window = torch.from_numpy(ids)
        size = len(samples) * self.seq_len
        return Batch(
            {"input_ids": window[:, :-1].contiguous()},
            {"lm": window[:, 1:].contiguous()},
            size,
            size,
        )

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Summed cross-entropy of the next tokens, in nats."""
        from plmctl.modeling.losses import cross_entropy_sums

        return cross_entropy_sums(network(**batch.inputs), batch.targets)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The loss, and the number of right first guesses."""
        from plmctl.modeling.losses import score_sums

        return score_sums(network(**batch.inputs), batch.targets)

    def tally(self, epochs: NDArray[np.int64], samples: NDArray[np.int64]) -> Tallies:
        """Statistics of the windows ``samples``."""
        batch = self.collate(epochs, samples)
        lengths = np.full(len(samples), self.seq_len)
        targets = batch.targets["lm"].numpy()
        separators = (targets == self.end_of_text).sum(axis=1)
        return {"mean_length": tally(lengths), "mean_separators": tally(separators)}

    def expected(self) -> dict[str, float]:
        """What some of the statistics should come to."""
        return {"mean_length": self.seq_len}

    def example(self, epoch: int, sample: int) -> Example:
        """One window for reading, and the token that its last position predicts."""
        batch = self.collate(np.array([epoch]), np.array([sample]))
        ids = [*batch.inputs["input_ids"][0].tolist(), int(batch.targets["lm"][0, -1])]
        row = [Piece(id_, "special" if id_ == self.end_of_text else "text") for id_ in ids[:-1]]
        return Example({"input": tuple(row), "last target": (Piece(ids[-1], "target"),)})


def make(config: Config, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> CausalLm:
    """The objective over a store.

    Raises:
        ConfigError: The tokenizer has no end-of-text token.
        DataError: The corpus is shorter than one window.
    """
    if vocab.eos is None:
        raise ConfigError(
            "the objective 'clm' needs a tokenizer with an end-of-text token",
            "train one with `family: gpt2`",
        )
    documents = store.sentences[store.documents]
    made = CausalLm(store, seq_len, vocab.eos, DocumentStream(documents))
    if not len(made):
        raise DataError(
            f"the corpus has {store.num_tokens:,} tokens, less than one sequence of {seq_len}",
            "use more text, or a smaller `train.phases[].seq_len`",
        )
    return made
