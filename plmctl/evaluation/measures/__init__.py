"""One file a measure: what is asked of a finished model, and the figures that it gives."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

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


class Measure(Protocol):
    """What a file of this folder defines; the module itself is the object."""

    def measure(self, config: Any, subject: Subject) -> dict[str, Any]:
        """The figures, with what they were measured on."""


def get(name: str) -> Measure:
    """The measure of that name.

    Raises:
        ConfigError: There is none; the message has the nearest.
    """
    return cast(Measure, registry.load("evaluation.measures", name))
