"""The unit of a corpus."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """A text, and where it came from.

    Attributes:
        text: The text.
        origin: ``file:line``, or a sample's name for it.
    """

    text: str
    origin: str
