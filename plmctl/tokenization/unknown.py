"""Text that a tokenizer does not know: counted and reported in one way by all commands.

What is counted are characters in unknown tokens, without white space. Tokens would mislead: a
sentence in a foreign script is three unknown tokens for WordPiece, and every second one for
SentencePiece. Beside unknown text, known digits and marks of ASCII do not count: all scripts use
them, and a text of which nothing else is known is unknown.
"""

from __future__ import annotations

import json
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from plmctl.arrays import spread
from plmctl.errors import DataError
from plmctl.tokenization.units import plain_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAID_FROM, REFUSED_FROM = 0.05, 0.9
"""Shares of unknown characters from which a line says it, and a command refuses."""

_COMMON = frozenset(string.digits + string.punctuation)

_EXAMPLES, _SHOWN = 3, 20  # how many, and characters of each

_LOOKED_AT = 300_000  # characters of labelled rows that are counted, spread over them


@dataclass(frozen=True)
class Unknown:
    """What a tokenizer does not know of a text.

    Attributes:
        unknown: Those in unknown tokens, and in none, of texts that have such tokens.
        long: Those in words that WordPiece does not cut since they are too long.
    """

    characters: int = 0
    unknown: int = 0
    long: int = 0
    examples: tuple[str, ...] = ()

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any] | None) -> Unknown:
        """The counts in a manifest; a store of an earlier version has none."""
        facts = facts or {}
        characters, unknown, long = (
            int(facts.get(name, 0)) for name in ("characters", "unknown", "long")
        )
        return cls(characters, unknown, long, tuple(facts.get("examples", ())))

    def __add__(self, other: Unknown) -> Unknown:
        """The counts of two texts together."""
        return Unknown(
            self.characters + other.characters,
            self.unknown + other.unknown,
            self.long + other.long,
            tuple(dict.fromkeys(self.examples + other.examples))[:_EXAMPLES],
        )

    @property
    def share(self) -> float:
        """The share of the characters that are unknown."""
        return self.unknown / max(1, self.characters)

    def report(self, what: str, tokenizer: str) -> str | None:
        """A line that says how much of a text is unknown; None: hardly anything.

        Raises:
            DataError: Nearly all of it is.
        """
        if self.share < SAID_FROM:
            return None
        shown = ", ".join(
            repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…") for text in self.examples
        )
        line = (
            f"{100 * self.share:.1f} % of the characters of {what} are unknown to the tokenizer "
            f"{tokenizer}, such as {shown}"
        )
        hint = (
            "use a tokenizer that knows this text: train one on it (`plmctl train-tokenizer`), or "
            "extend this one by it (`plmctl train-tokenizer --from`); byte_bpe knows all characters"
        )
        if self.long > self.unknown / 2:
            line += "; most of them are in words that are longer than its max_word_length"
            hint = (
                "text without spaces, such as DNA, needs a tokenizer with byte_bpe or unigram, or "
                "a larger max_word_length (`plmctl train-tokenizer`)"
            )
        if self.share >= REFUSED_FROM:
            raise DataError(line, hint)
        return f"{line}; {hint}"


class UnknownCounter:
    """Counts what a tokenizer does not know.

    Args:
        tokenizer: As ``units.plain_tokenizer`` sets it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        model = json.loads(tokenizer.to_str())["model"]
        token, self.id = model.get("unk_token"), model.get("unk_id")
        if self.id is None and token:
            self.id = tokenizer.token_to_id(token)
        self._longest = model.get("max_input_chars_per_word") or 0

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> UnknownCounter:
        """A counter for a tokenizer of transformers, which stays as it is."""
        backend: Any = tokenizer
        return cls(plain_tokenizer(Tokenizer.from_str(backend.backend_tokenizer.to_str())))

    def count(self, texts: Sequence[str]) -> Unknown:
        """What is unknown of these texts."""
        characters = sum(map(visible, texts))
        if self.id is None or not characters:
            return Unknown(characters)
        unknown, long, examples = 0, 0, dict[str, None]()
        encodings = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        for text, encoding in zip(texts, encodings, strict=True):
            if self.id not in encoding.ids:
                continue
            known = past = common = (
                0  # marks that rules drop beside an unknown token are in no token
            )
            for id_, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
                if id_ != self.id:
                    known += visible(text[max(start, past) : end])
                    common += sum(map(_COMMON.__contains__, text[max(start, past) : end]))
                elif size := visible(part := text[start:end]):
                    long += size if 0 < self._longest < end - start else 0
                    if len(examples) < _EXAMPLES:
                        examples[part.strip()] = None
                past = max(past, end)
            unknown += visible(text) - known
            characters -= common
        return Unknown(characters, unknown, long, tuple(examples))

    def estimate(self, texts: Sequence[str]) -> Unknown:
        """The same of many texts, at a tenth of the cost: about, from texts spread over them."""
        size = sum(map(len, texts))
        some = sampled(texts, max(20_000, size // 10))
        looked_at = self.count(some)
        scale = size / max(1, sum(map(len, some)))
        return Unknown(
            round(looked_at.characters * scale),
            round(looked_at.unknown * scale),
            round(looked_at.long * scale),
            looked_at.examples,
        )


def report_text(
    manifest: Mapping[str, Any], tokenizer: str, say: Callable[[str], None], name: str = ""
) -> None:
    """Say what the user should know of a prepared text: its form, and what is unknown of it.

    Raises:
        DataError: The tokenizer knows hardly anything of a side.
    """
    for note in manifest.get("notes", ()):
        say(f"{name}: {note}" if name else str(note))
    of = f" of {name}" if name else ""
    for side, what in (("train", f"the text{of}"), ("valid", f"the validation text{of}")):
        unknown = Unknown.of_facts((manifest.get(side) or {}).get("unknown"))
        if (line := unknown.report(what, tokenizer)) is not None:
            say(line)


def sampled(texts: Sequence[str], most: int = _LOOKED_AT) -> list[str]:
    """Texts, evenly spread over these, of about so many characters; long ones are cut."""
    size = sum(map(len, texts))
    if size <= most:
        return list(texts)
    chosen = spread(len(texts), max(1, len(texts) * most // size))
    return [texts[number][:most] for number in chosen.tolist()]


def strings_of(values: Iterable[Any]) -> Iterable[str]:
    """The texts in values of rows: in lists and objects, too."""
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from strings_of(value.values())
        elif isinstance(value, list | tuple):
            yield from strings_of(value)


def visible(text: str) -> int:
    """Characters of a text without spaces and line ends."""
    return len(text) - text.count(" ") - text.count("\n")
