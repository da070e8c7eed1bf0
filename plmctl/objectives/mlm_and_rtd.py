"""Replaced-token detection (Clark et al., 2020, arXiv:2003.10555: ELECTRA).

A generator predicts masked tokens; what it draws stands in their place, and a discriminator says of
every token whether it is the original one. Loss = mean over the masked tokens + ``rtd_weight`` *
mean over all tokens, special ones included. A drawn token that equals the original one counts as
original. Source: google-research/electra, pretrain/pretrain_helpers.py and run_pretraining.py.

There the masked tokens are drawn with replacement, so that the published rate of 15 % masks 13.8 %
of the tokens of a row of 128; here it is 15 %.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from plmctl.arrays import IGNORE, Ints
from plmctl.config.sections import MaskingConfig
from plmctl.examples.keys import fold, stream, uniform
from plmctl.objectives._masked import MaskedObjective, MaskedRows, document_rows, masker

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.corpus.store import TokenStore
    from plmctl.models.batch import Batch
    from plmctl.models.network import Network
    from plmctl.tokenization.load import Vocab


class Config(MaskingConfig):
    """Predict masked tokens, and find those that the predictions replaced."""

    name: Literal["mlm+rtd"] = "mlm+rtd"
    mask_share: float = Field(default=0.85, ge=0, le=1)
    """Share of the predicted tokens that [MASK] replaces."""
    random_share: float = Field(default=0.0, ge=0, le=1)
    """Share of the predicted tokens that a random token replaces; the rest stays unchanged."""
    rtd_weight: float = Field(default=50.0, ge=0)
    """Weight of the mean loss of the discriminator; that of the generator has weight 1."""


class ReplacedTokens(MaskedObjective[Config], config=Config):
    """A generator and a discriminator learn together."""

    LOSS_TERMS = ("mlm", "rtd")

    def over(self, store: TokenStore, vocab: Vocab, seq_len: int, seed: int) -> ReplacedRows:
        """The rows of a store; ``seq_len`` counts [CLS] and [SEP]."""
        masks = masker(self.config, store, vocab, seed)
        key = int(fold(seed, stream("replaced tokens")))
        return ReplacedRows(self, masks, *document_rows(store, vocab, seq_len - 2), key=key)


class ReplacedRows(MaskedRows[Config]):
    """Rows, [CLS], sentences of a document, [SEP].

    Attributes:
        key: Of the numbers by which the generator's tokens are drawn.
    """

    def __init__(self, *arguments: Any, key: int) -> None:
        super().__init__(*arguments)
        self.key = key

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each loss term."""
        return {"mlm": 1.0, "rtd": self.config.rtd_weight}

    @property
    def counted_terms(self) -> tuple[str, ...]:
        """Which tokens are replaced depends on the generator."""
        return ("mlm",)

    def collate(self, epochs: Ints, samples: Ints) -> Batch:
        """The rows ``samples`` with the masks of their epochs.

        Args:
            epochs: [B].
            samples: [B], each below ``len(self)``.

        Returns:
            inputs: those of masked rows, and original_ids [B, L], draws [K] in (0, 1];
            targets: mlm [K]; rtd [B, L], 0 at each token: the network knows what it has replaced.
        """
        import torch

        from plmctl.models.batch import Batch, TargetList

        masked = self.masked(epochs, samples)
        ids, positions = masked.inputs["input_ids"], masked.inputs["positions"]
        original = ids.flatten().scatter(0, positions, masked.targets["mlm"]).view_as(ids)
        rows, columns = np.divmod(positions.numpy(), ids.shape[1])
        keys = fold(self.key, epochs[rows], samples[rows], columns)
        draws = torch.from_numpy(1 - uniform(keys)).to(torch.float32)
        everywhere = torch.zeros_like(ids)
        return Batch(
            {**masked.inputs, "original_ids": original, "draws": draws},
            {
                "mlm": masked.targets["mlm"],
                "rtd": everywhere.masked_fill(masked.inputs["attention_mask"] == 0, IGNORE),
            },
            masked.tokens,
            masked.padded_tokens,
            lists=(TargetList(("positions",), ("mlm",), ("draws",)),),
        )

    def loss(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """Both losses, summed over their targets, in nats."""
        return _sums(network(**batch.inputs), batch)

    def score(self, network: Network, batch: Batch) -> dict[str, Tensor]:
        """The losses, the generator's right tokens, and the tokens that are judged rightly."""
        from plmctl.models.losses import score_sums

        outputs = network(**batch.inputs)
        right = score_sums(outputs, {"mlm": batch.targets["mlm"]})["mlm/correct"]
        judged = (outputs["rtd"] < 0) & (batch.targets["rtd"] != IGNORE)
        return _sums(outputs, batch) | {
            "mlm/correct": right,
            "rtd/correct": judged.sum().to(right.dtype),
        }


def _sums(outputs: dict[str, Tensor], batch: Batch) -> dict[str, Tensor]:
    from torch.nn.functional import softplus

    from plmctl.models.losses import cross_entropy_sums

    mlm = cross_entropy_sums(outputs, {"mlm": batch.targets["mlm"]})["mlm"]
    judged = softplus(outputs["rtd"].float()).where(batch.targets["rtd"] != IGNORE, 0)
    return {"mlm": mlm, "rtd": judged.sum()}
