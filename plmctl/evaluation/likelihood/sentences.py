"""One summed log-probability a sentence, for any family: what minimal pairs compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from plmctl.arrays import Floats, Ints
from plmctl.errors import DataError
from plmctl.evaluation.likelihood import bidirectional, causal, encoder_decoder, masked
from plmctl.evaluation.likelihood.masked import Variant
from plmctl.evaluation.likelihood.reader import Kind, Reader, Tokens
from plmctl.evaluation.likelihood.scores import Scores

DEFINITIONS: dict[Kind, str] = {
    "causal": "sum of log p(token | tokens before it), given the begin token where there is one",
    "masked": "pseudo-log-likelihood: sum of log p(token | the others), {variant}",
    "encoder_decoder": "{span}",
    "bidirectional": "mean over both directions of the sum of log p(word | words before it)",
}
_WHOLE = (
    "sum of log p(token | tokens before it) in the decoder; the encoder reads one sentinel for "
    "the whole sentence"
)
_SPANS = (
    "sum of log p(token | the rest, tokens before it in its span), spans of {size} hidden one "
    "after the other"
)


@dataclass(frozen=True)
class Sentences:
    """Of N sentences.

    Attributes:
        log_probability: [N] in nats.
        tokens: [N] that count in it.
        cut: Sentences that were longer than the context, and were cut from the left.
        unknown: Tokens that stand for anything not in the vocabulary.
    """

    log_probability: Floats
    tokens: Ints
    cut: int
    unknown: int


def sentences(
    reader: Reader, texts: Sequence[str], variant: Variant = "original", span: int | None = None
) -> Sentences:
    """The log-probability of each sentence by itself.

    Args:
        reader: A model of any family.
        texts: N of them, each read as one sentence.
        variant: Masked models only, see ``masked``.
        span: Encoder-decoders only: tokens that are hidden together; None: all of them.

    Returns:
        Sums of logarithms. The first token of a model without a begin token counts as a guess
        among all tokens alike, the same for every sentence.

    Raises:
        DataError: A sentence of which the tokenizer leaves nothing, and which would so be certain.
    """
    read = reader.tokens([[text] for text in texts])
    for text, tokens in zip(texts, read, strict=True):
        if not len(tokens.ids):
            raise DataError(
                f"{text!r}: the tokenizer of {reader.name} leaves nothing of this sentence",
                "leave it out, or mend its characters",
            )
    room = _room(reader)
    kept = [trimmed(tokens, room) for tokens in read]
    scores = _score(reader, kept, variant, span)
    return Sentences(
        -scores.nll - scores.first * np.log(reader.outputs),
        np.array([len(tokens.ids) for tokens in kept], dtype=np.int64),
        sum(len(tokens.ids) > room for tokens in read),
        sum(tokens.unknown for tokens in read),
    )


def definition(reader: Reader, variant: Variant, span: int | None) -> str:
    """In one line what ``sentences`` gives."""
    shown = "its word's later tokens masked too" if variant == "word_l2r" else "one masked at once"
    spans = _WHOLE if span is None else _SPANS.format(size=span)
    return DEFINITIONS[reader.kind].format(variant=shown, span=spans)


def trimmed(tokens: Tokens, room: int) -> Tokens:
    """The last ``room`` tokens."""
    if len(tokens.ids) <= room:
        return tokens
    ids = tokens.ids[-room:]
    return replace(tokens, ids=ids, starts=tokens.starts[-room:], sentences=np.array([len(ids)]))


def _room(reader: Reader) -> int:
    """Tokens of a sentence that a model can read at once."""
    if reader.kind == "masked":
        return reader.context - 2
    # A causal model reads all but the last token, and the begin token if it has one.
    return reader.context + (reader.kind == "causal" and reader.begin is None)


def _score(reader: Reader, texts: Sequence[Tokens], variant: Variant, span: int | None) -> Scores:
    if reader.kind == "causal":
        return causal.score(reader, texts, reader.context, reader.context, reader.begin)
    if reader.kind == "masked":
        return masked.score(reader, texts, reader.context, variant)
    if reader.kind == "encoder_decoder":
        return encoder_decoder.score(reader, texts, reader.context, span)
    return bidirectional.score(reader, texts)
