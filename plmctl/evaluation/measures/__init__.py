"""One file a measure: what is asked of a finished model, and the figures that it gives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

from plmctl import registry

if TYPE_CHECKING:
    from accelerate import Accelerator


@dataclass(frozen=True)
class Subject:
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
    accelerator: "Accelerator"


EACH = "each"
"""Where ``Measure.measure`` puts what each item is worth, apart from the figures."""


@dataclass(frozen=True)
class Each:
    """What each item of a measure is worth: two models are compared by it, item by item.

    Attributes:
        credit: What it is.
        items: A hash of what was asked; models that were asked the same have the same.
        values: [N] of each item.
        sizes: [N] what the values are to be divided by, as the bytes of a text; None: the figure is
            a plain mean. Else it is the sum of the values over the sum of these.
        better: Which end is the good one.
    """

    credit: str
    items: str
    values: Sequence[float]
    sizes: Sequence[float] | None = None
    better: Literal["high", "low"] = "high"

    def document(self) -> dict[str, Any]:
        """As it stands in ``eval/rows/``."""
        made = {"rows": self.items, "credit": self.credit, "better": self.better}
        sizes = {} if self.sizes is None else {"sizes": list(self.sizes)}
        return {**made, "values": list(self.values), **sizes}


class Measure(Protocol):
    """What a file of this folder defines; the module itself is the object."""

    def measure(self, config: Any, subject: Subject) -> dict[str, Any]:
        """The figures, with what they were measured on.

        Where there are items, ``EACH`` has an ``Each`` by name: the figures that models are
        compared by, "" being that of a measure that has one.
        """


def get(name: str) -> Measure:
    """The measure of that name.

    Raises:
        ConfigError: There is none; the message has the nearest.
    """
    return cast(Measure, registry.load("evaluation.measures", name))
