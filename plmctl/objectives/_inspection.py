"""What the masked objectives show of their batches: statistics, and examples for reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from plmctl.arrays import Ints
from plmctl.shaping.examples import (
    Example,
    Tallies,
    expected_shares,
    masked_row,
    masked_tallies,
)

if TYPE_CHECKING:
    from plmctl.modeling.batch import Batch
    from plmctl.objectives._masked import Masker


def tally(masker: Masker, batch: Batch) -> Tallies:
    """See ``shaping.examples.masked_tallies``."""
    return masked_tallies(
        batch.inputs["input_ids"].numpy(),
        lengths(batch),
        batch.inputs["positions"].numpy(),
        batch.targets["mlm"].numpy(),
        masker.treatment.mask_id,
    )


def expected(masker: Masker) -> dict[str, float]:
    """The shares that the config asks for."""
    treatment = masker.treatment
    shares = expected_shares(treatment.mask, treatment.random, treatment.vocab_size)
    return {"masked_share": masker.config.rate, **shares}


def example(masker: Masker, batch: Batch, note: str = "") -> Example:
    """The one row of a batch."""
    size = batch.tokens
    row = masked_row(
        batch.inputs["input_ids"].numpy()[0, :size],
        batch.inputs["positions"].numpy(),
        batch.targets["mlm"].numpy(),
        masker.treatment.mask_id,
        set(masker.specials.values()),
    )
    return Example({"input": row}, note)


def lengths(batch: Batch) -> Ints:
    """[B] tokens of each row that are no padding."""
    return np.asarray(batch.inputs["attention_mask"].numpy().sum(axis=1), dtype=np.int64)
