"""Letters, vowel signs and joiners of a text that a tokenizer's rules drop before it is cut.

BERT's lower case drops the accents of French, and the vowel signs of Hindi with them; its cleaning
drops the joiners of Persian and Sinhala, of which T5's makes spaces.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from plmctl.characters import JOINERS

_SAID_FROM = 0.005  # share of the words that lose something

_EXAMPLES, _NAMED = 3, 3

_JOINERS = frozenset(JOINERS)


@dataclass(frozen=True)
class Lost:
    """What normalization drops.

    Attributes:
        words: Words of the text, between white space.
        changed: Words that lose a letter, a mark or a joiner.
        characters: How often each of these is dropped.
    """

    words: int
    changed: int
    characters: Counter[str]
    examples: tuple[tuple[str, str], ...]

    def report(self) -> str | None:
        """A line that says what is dropped, and the keys that keep it; None: hardly anything."""
        if self.changed < _SAID_FROM * self.words:
            return None
        named = ", ".join(
            f"{_name(character)} {count:,} times"
            for character, count in self.characters.most_common(_NAMED)
        )
        shown = ", ".join(f"{before!r} becomes {after!r}" for before, after in self.examples)
        keys = []
        if self.characters.keys() & _JOINERS:
            keys.append("keep_joiners=true")
        if any(unicodedata.category(character)[0] == "M" for character in self.characters):
            keys.append("strip_accents=false")
        kept = f"; set {' and '.join(keys)} to keep them" if keys else ""
        return (
            f"the rules of this tokenizer change {100 * self.changed / self.words:.1f} % of the "
            f"words of the text: they drop {named}, so that {shown}{kept}"
        )


def lost_letters(normalize: Callable[[str], str], texts: Sequence[str]) -> Lost:
    """What normalization drops of texts; case and compatible forms do not count.

    Args:
        texts: Lines.
    """
    words = Counter(word for text in texts for word in text.split())
    dropped, changed, examples = Counter[str](), 0, list[tuple[str, str]]()
    for word, count in words.most_common():
        if word.isascii():
            continue
        after = normalize(word)
        if missing := _letters(word) - _letters(after):
            changed += count
            for character, times in missing.items():
                dropped[character] += times * count
            if len(examples) < _EXAMPLES:
                examples.append((word[:20], after.strip()[:20]))
    return Lost(words.total(), changed, dropped, tuple(examples))


def _letters(text: str) -> Counter[str]:
    """Letters, numbers, marks and joiners, without case, and apart from each other."""
    apart = unicodedata.normalize("NFKD", text.casefold())
    return Counter(c for c in apart if c in _JOINERS or unicodedata.category(c)[0] in "LMN")


def _name(character: str) -> str:
    return f"U+{ord(character):04X} ({unicodedata.name(character, 'unnamed').lower()})"
