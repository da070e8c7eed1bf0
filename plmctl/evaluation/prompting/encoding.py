"""Which tokens of a context with its completion belong to the completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from plmctl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from tokenizers import Encoding

    from plmctl.evaluation.prompting.model import Generative

Pair = tuple[str, str]
"""A context, and a completion of it."""


@dataclass(frozen=True)
class Encoded:
    """Token ids, some of which are scored.

    Attributes:
        ids: What the network reads token by token, and the last one, which is only predicted; of
            T5 what its decoder writes, its start token first.
        first: Where the scored tokens begin; they go on to the end.
        source: What T5's encoder reads; empty for the others.
        cut: Whether tokens were left out at the left.
    """

    ids: tuple[int, ...]
    first: int
    source: tuple[int, ...] = ()
    cut: bool = False


def joined(context: str, completion: str) -> Pair:
    """The two with the space between them, if there is one, on the completion's side.

    A tokenizer of GPT-2's kind has the space within the token of a word, and a context that ends
    in a space is one that it has hardly seen.
    """
    bare = context.rstrip(" ")
    if bare == context or completion[:1].isspace():
        return bare, completion
    return bare, f" {completion}"


def encode(model: Generative, pairs: Sequence[Pair], *, sentinel: bool = False) -> list[Encoded]:
    """Contexts and completions as token ids, cut from the left to the model's window.

    Causal models: both are tokenized as one text, and the completion's tokens are those that reach
    past the context's end. T5: each by itself, the context with an end token, the completion
    without one, so that its probability is that of text which begins so, as for causal models.

    Args:
        model: A model that writes.
        pairs: See ``joined`` for the space between the two.
        sentinel: Of T5: ask for the completion in place of ``<extra_id_0>`` after the context,
            which is what span corruption teaches.

    Raises:
        DataError: A completion without a token or longer than the window, or nothing before it in
            a model that has no token for the beginning of a text.
        ConfigError: A sentinel for a model that has none.
    """
    pairs = [joined(*pair) for pair in pairs]
    mark = sentinel_of(model) if sentinel else ()
    if model.text_to_text:
        return _text_to_text(model, pairs, mark)
    both = model.plain.encode_batch(["".join(pair) for pair in pairs], add_special_tokens=False)
    return [_causal(model, pair, found) for pair, found in zip(pairs, both, strict=True)]


def _causal(model: Generative, pair: Pair, found: Encoding) -> Encoded:
    context, completion = pair
    ids = tuple(found.ids)
    ends = [end for _, end in found.offsets]
    first = next((n for n, end in enumerate(ends) if end > len(context)), len(ids))
    if first == len(ids):
        raise DataError(f"{completion!r}: a completion without a token")
    if first == 0:
        if not model.start:
            raise DataError(
                f"{completion!r} has no context, and {model.name} has no token for the beginning "
                "of a text",
                "give a context",
            )
        ids, first = model.start + ids, len(model.start)
    over = max(0, len(ids) - 1 - model.window)
    if over >= first:
        raise DataError(
            f"{completion[:40]!r}...: {len(ids) - first} tokens, longer than the {model.window} "
            "that the model reads",
            "leave the item out, or shorten it",
        )
    return Encoded(ids[over:], first - over, cut=over > 0)


def _text_to_text(model: Generative, pairs: list[Pair], mark: tuple[int, ...]) -> list[Encoded]:
    sources, targets = (
        model.plain.encode_batch(list(texts), add_special_tokens=False)
        for texts in zip(*pairs, strict=True)
    )
    found = []
    for (_, completion), source, target in zip(pairs, sources, targets, strict=True):
        if not target.ids:
            raise DataError(f"{completion!r}: a completion without a token")
        kept, cut = source_of(model, source.ids, mark)
        before = model.start + mark
        found.append(Encoded((*before, *target.ids), len(before), kept, cut))
    return found


def source_of(
    model: Generative, ids: Sequence[int], mark: tuple[int, ...]
) -> tuple[tuple[int, ...], bool]:
    """What T5's encoder reads of a context: its last tokens, the sentinel, the end token.

    Returns:
        The ids, and whether some were cut.
    """
    after = (*mark, int(model.tokenizer.eos_token_id or 0))
    room = model.window - len(after)
    return (*ids[max(0, len(ids) - room) :], *after), len(ids) > room


def sentinel_of(model: Generative) -> tuple[int, ...]:
    """The id of ``<extra_id_0>``.

    Raises:
        ConfigError: The model has none.
    """
    sentinels = model.sentinels if model.text_to_text else ()
    if not sentinels:
        raise ConfigError(f"{model.name}: it has no sentinel", "leave out `sentinel`: it is for T5")
    return sentinels[:1]
