"""Training examples and their statistics on the terminal: in colour, or with plain marks."""

from collections.abc import Callable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from plmctl.reporting.tables import rows_table
from plmctl.shaping.examples import Example, Kind, Piece

TokenTexts = Callable[[Sequence[int]], list[str]]
"""From the ids of a row to the text of each token."""

# Colour, and what stands around the token where there is none.
_STYLES: dict[Kind, tuple[str, str, str]] = {
    "text": ("", "", ""),
    "special": ("dim", "", ""),
    "masked": ("bold red", "", ""),
    "random": ("bold yellow", "~", "~"),
    "kept": ("bold green", "=", "="),
    "target": ("cyan", "", ""),
}
_MEANING: dict[Kind, str] = {
    "masked": "masked{original}",
    "random": "replaced by a random token{original}",
    "kept": "predicted, but left as it is",
}


def example_text(example: Example, shown: TokenTexts, gap: str, *, colour: bool) -> Text:
    """One example.

    Args:
        example: What was done to the text.
        shown: The tokens' texts.
        gap: Between tokens.
        colour: Whether colours tell what was done; otherwise marks do.
    """
    text = Text()
    for name, row in example.rows.items():
        text.append(f"{name}: " if len(example.rows) > 1 else "", style="bold")
        words = shown([piece.id for piece in row])
        # What stood at a place is read with what stood before it, as the text was.
        originals = shown([piece.id if piece.original is None else piece.original for piece in row])
        for number, (piece, word, original) in enumerate(zip(row, words, originals, strict=True)):
            text.append(gap if number else "")
            text.append_text(_piece(piece, word, original, colour))
        text.append("\n")
    if example.note:
        text.append(f"{example.note}\n", style="bold")
    return text


def legend(examples: Sequence[Example], *, colour: bool) -> Text:
    """What the colours or marks mean, of those that are there."""
    there = {piece.kind for example in examples for row in example.rows.values() for piece in row}
    text = Text()
    for kind, meaning in _MEANING.items():
        if kind in there:
            style, before, after = _STYLES[kind]
            sample = "[MASK]" if kind == "masked" else "token"
            plain = sample if colour else f"{before}{sample}{after}"
            text.append("   " if text.plain else "")
            text.append(plain, style=style if colour else "")
            text.append(f" {meaning.format(original=' {original}')}", style="dim" if colour else "")
    return text


def statistics_table(
    title: str, figures: Mapping[str, float], expected: Mapping[str, float]
) -> Table:
    """A figure a row: what was seen, and what should be seen where that is known."""
    rows = [(name, value, expected.get(name, "")) for name, value in figures.items()]
    return rows_table(title, ["", "seen", "expected"], rows)


def _piece(piece: Piece, word: str, original: str, colour: bool) -> Text:
    style, before, after = _STYLES[piece.kind]
    text = Text()
    if colour:
        text.append(word, style=style)
    else:
        inner = word.strip()
        text.append(word.replace(inner, f"{before}{inner}{after}") if inner else word)
    if piece.original is not None:
        text.append(f"{{{original.strip()}}}", style="dim" if colour else "")
    return text
