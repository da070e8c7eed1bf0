"""Causal language modeling: predict the next token (GPT-1/2/3).

Rows are consecutive windows of the corpus, documents joined by an end-of-text token. A row of T
inputs has T targets, the window's last target being the next window's first input, so that an epoch
predicts every token once. (GPT-2 and GPT-3 predict the T - 1 that a window itself holds; nanoGPT,
their usual reproduction, predicts T of windows drawn with replacement.)

Conventions of the papers: GPT-2 and GPT-3 attend across documents; the separator signals that the
text before it is unrelated (GPT-3, appendix B). GPT-1 has contiguous text and no separator.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from plmctl.arrays import IGNORE, Bools, Ints
from plmctl.config.base import ObjectiveConfig
from plmctl.corpus.store import cached_array
from plmctl.errors import ConfigError, DataError
from plmctl.examples.inspection import Example, ExampleToken, Tallies, tally
from plmctl.examples.packing import DocumentStream, document_edges
from plmctl.objectives.base import Objective, ObjectiveExamples

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from plmctl.corpus.store import TokenStore
    from plmctl.models.batch import Batch
    from plmctl.tokenization.load import Vocab


class Config(ObjectiveConfig):
    """Predict the next token, documents joined by an end-of-text token."""

    name: Literal["clm"] = "clm"
    reads_sentences = False
    separator: Literal["end_of_text", "none"] = "end_of_text"
    """What follows every document. none: nothing, as in GPT-1, which has no such token."""
    attention: Literal["across", "within"] = "across"
    """What a token attends to. across: all earlier tokens of its row, as in GPT-2 and GPT-3.
    within: only those of its document. A document then begins with the end-of-text token
    before it, at position 0, as a text that is scored does; with `separator: none` its
    first token is not predicted. Attention needs a mask of seq_len squared bytes per row, and
    kernels that take one."""


class CausalLM(Objective[Config], config=Config):
    """Predict the next token."""

    LOSS_TERMS = ("lm",)  # the token that it requires depends on the config: see ``check``
    SAMPLES = "generation"
    COUNTED = "ngrams"

    @property
    def keeps_texts_apart(self) -> bool:
        """See the base class."""
        return self.config.attention == "within"

    def over(self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> Windows:
        """The windows of ``seq_len`` tokens of a store.

        Raises:
            DataError: The corpus has not one of them.
        """
        return Windows(self, store, seq_len, self.separator(vocab))

    def check(
        self, tokenizer: PreTrainedTokenizerBase, network: PreTrainedConfig, seq_len: int
    ) -> None:
        """Refuse a tokenizer without an end-of-text token, unless the config wants no separator."""
        from plmctl.tokenization.load import Vocab

        self.separator(Vocab.of(tokenizer))

    def sample(self, ids: Ints, starts: Bools, key: int, vocab: Vocab) -> tuple[Ints, Ints]:
        """The first half of the sentence is continued."""
        return ids[: len(ids) // 2], ids[len(ids) // 2 :]

    def separator(self, vocab: Vocab) -> int | None:
        """The id of the token between documents, if there is one."""
        if self.config.separator == "none":
            return None
        if vocab.eos is None:
            raise ConfigError(
                "tokenizer: no end-of-text token, which clm puts after each document",
                "write `{name: clm, separator: none}`, as GPT-1 has it, or use a tokenizer of "
                "`family: gpt2`",
            )
        return vocab.eos


class Windows(ObjectiveExamples[Config]):
    """The windows of one store at one sequence length.

    Attributes:
        seq_len: T, tokens per row.
        end_of_text: Id of the separator; None: documents follow each other without one.
    """

    def __init__(
        self, objective: CausalLM, store: TokenStore, seq_len: int, end_of_text: int | None
    ) -> None:
        super().__init__(objective, store)
        self.seq_len, self.end_of_text = seq_len, end_of_text
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

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The windows ``samples``, the same in every epoch.

        Args:
            epochs: [B], not used.
            samples: [B], each below ``len(self)``.

        Returns:
            inputs: input_ids [B, T], and within documents position_ids [B, T], which begin again at
            0 with every document; targets: lm [B, T].
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
            {"lm": torch.from_numpy(np.ascontiguousarray(targets))},
            size,
            size,
            lists=(),
        )

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
