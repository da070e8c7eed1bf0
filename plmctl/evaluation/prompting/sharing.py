"""Which texts are in one batch, and what of them is computed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plmctl.evaluation.prompting.encoding import Encoded

# A context this long is read once for all its completions; for a shorter one a second pass costs
# more than it saves.
_WORTH_SHARING = 16


@dataclass(frozen=True)
class Group:
    """Texts that share a beginning (causal) or a source (T5).

    Attributes:
        members: Their numbers.
        shared: Tokens of the beginning that are read once; 0: none.
        length: Tokens of the longest of them, source included.
    """

    members: tuple[int, ...]
    shared: int
    length: int


def batches(texts: Sequence[Encoded], size: int, *, caches: bool) -> Iterator[list[Group]]:
    """All texts in batches of at most ``size`` rows, alike in length.

    Args:
        texts: What is scored.
        size: Rows at once.
        caches: Whether a beginning can be read once.
    """
    together: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for number, text in enumerate(texts):
        together.setdefault((text.source, text.ids[: text.first]), []).append(number)
    groups = [
        group
        for same in together.values()
        for at in range(0, len(same), size)
        for group in _groups(texts, tuple(same[at : at + size]), caches=caches)
    ]
    # The longest first: a batch that does not fit the memory is met at once.
    groups.sort(key=lambda group: (group.shared > 0, group.shared, group.length), reverse=True)
    batch: list[Group] = []
    for group in groups:
        rows = len(group.members) + sum(len(other.members) for other in batch)
        if batch and (rows > size or (group.shared > 0) != (batch[0].shared > 0)):
            yield batch
            batch = []
        batch.append(group)
    if batch:
        yield batch


def rows_of(groups: Sequence[Group]) -> list[int]:
    """The numbers of the texts of a batch, one a row."""
    return [member for group in groups for member in group.members]


def _groups(texts: Sequence[Encoded], members: tuple[int, ...], *, caches: bool) -> list[Group]:
    lengths = [len(texts[member].ids) + len(texts[member].source) for member in members]
    one = texts[members[0]]
    if one.source:
        return [Group(members, 0, max(lengths))]
    # The last token of the context is read with the completion, whose first token it predicts.
    if caches and len(members) > 1 and one.first - 1 >= _WORTH_SHARING:
        return [Group(members, one.first - 1, max(lengths))]
    return [Group((member,), 0, length) for member, length in zip(members, lengths, strict=True)]
