"""What a run does about steps that go wrong."""

from typing import Literal

from pydantic import Field

from plmctl.config.base import Model


class DivergenceConfig(Model):
    """Steps whose loss or gradient cannot be right; each is written to `events`."""

    nonfinite: Literal["stop", "skip"] = "stop"
    """A loss or gradient that is no finite number. stop: save the state before the step and the ids
    of its examples, and exit with 1; skip: leave the update out."""
    spike: float | None = Field(default=None, gt=1)
    """A loss over this many times the median of the last 64 is a spike; empty: none is."""
    on_spike: Literal["stop", "skip", "rollback"] = "rollback"
    """rollback: back to the last checkpoint, and on with the data that follows the spike (PaLM,
    section 5.1)."""
    patience: int = Field(default=10, ge=0)
    """Updates left out in a row, or rollbacks in all, after which the run stops."""
