"""Causal language modeling: predict the next token (GPT-1/2/3).

A row of T inputs has T targets, the window's last target being the next window's first input, so
that an epoch predicts every token once. (GPT-2 and GPT-3 predict the T - 1 that a window itself
holds; nanoGPT, their usual reproduction, predicts T of windows drawn with replacement.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from plmctl.arrays import Bools, Ints
from plmctl.examples.inspection import Example, ExampleToken, Tallies, tally
from plmctl.objectives._windows import WindowConfig, WindowObjective, Windows

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore
    from plmctl.tokenization.load import Vocab


class Config(WindowConfig):
    """Predict the next token, documents joined by an end-of-text token."""

    name: Literal["clm"] = "clm"


class CausalLM(WindowObjective[Config], config=Config):
    """Predict the next token."""

    SAMPLES = "generation"
    COUNTED = "ngrams"

    def over(self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> CausalWindows:
        """The windows of ``seq_len`` tokens of a store.

        Raises:
            DataError: The corpus has not one of them.
        """
        return CausalWindows(self, store, seq_len, self.separator(vocab))

    def sample(self, ids: Ints, starts: Bools, key: int, vocab: Vocab) -> tuple[Ints, Ints]:
        """The first half of the sentence is continued."""
        return ids[: len(ids) // 2], ids[len(ids) // 2 :]


class CausalWindows(Windows[Config]):
    """Windows of which every next token is predicted."""

    def tally(self, epochs: Ints, samples: Ints) -> Tallies:
        """Statistics of the windows ``samples``."""
        batch = self.collate(epochs, samples)
        lengths = np.full(len(samples), self.seq_len)
        ids, targets = batch.inputs["input_ids"].numpy(), batch.targets["lm"].numpy()
        separators = (ids == self.end_of_text).sum(axis=1)
        return {
            "mean_length": tally(lengths),
            "mean_separators": tally(separators),
            "target_share": tally(targets >= 0),
        }

    def expected(self) -> dict[str, float]:
        """The expected values of some of the statistics."""
        separated = self.end_of_text is not None
        documents = self.store.num_documents / len(self.stream)
        return {
            "mean_length": self.seq_len,
            "mean_separators": documents * self.seq_len if separated else 0.0,
            # Without a token before it, the first token of a document is not predicted.
            "target_share": 1 - documents if self.within and not separated else 1.0,
        }

    def example(self, epoch: int, sample: int) -> Example:
        """One window for reading, and the token that its last position predicts."""
        batch = self.one(epoch, sample)
        ids, last = batch.inputs["input_ids"][0].tolist(), int(batch.targets["lm"][0, -1])
        row = tuple(
            ExampleToken(id_, "special" if id_ == self.end_of_text else "text") for id_ in ids
        )
        rows = {"input": row}
        return Example(
            rows | ({"last target": (ExampleToken(last, "target"),)} if last >= 0 else {})
        )
