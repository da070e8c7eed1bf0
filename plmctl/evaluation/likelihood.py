"""Log-likelihoods of texts and of sentences under a model of any family.

``score_texts`` and ``score_sentences`` choose by family; each family has one function below. What
is summed is always the negative log-likelihood in nats of every token, and each token is scored
exactly once. Averages are taken by the measures, over a whole set and never over batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Floats, Ints, batches, lengths_of, padded
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.model import LikelihoodKind, LoadedModel, TokenizedText

if TYPE_CHECKING:
    from torch import Tensor

    from plmctl.models.batch import Rows


# --- Texts: what perplexities and bits are made of ---


MaskingVariant = Literal["original", "word_l2r"]


_DEFAULT_ROW = 128  # of models that read a row once for every token of it


@dataclass(frozen=True)
class ScoringOptions:
    """How texts are scored, where a family leaves a choice.

    Attributes:
        seq_len: Tokens that the model reads at once; None: the default of its kind.
        stride: Causal models: see ``sliding_windows``; None: half of the window.
        begin: Causal models: whether the begin token stands before a text.
        variant: Masked models: see ``score_masked``.
        span: Encoder-decoders: tokens that are hidden together.
    """

    seq_len: int | None = None
    stride: int | None = None
    begin: bool = True
    variant: MaskingVariant = "original"
    span: int = 3


def score_texts(
    reader: LoadedModel, texts: Sequence[TokenizedText], way: ScoringOptions
) -> TextScores:
    """Every token of each text scored once.

    Raises:
        ConfigError: As ``window_of``.
    """
    size, stride = window_of(reader, way)
    if reader.kind == "causal":
        return score_causal(reader, texts, size, stride, reader.begin if way.begin else None)
    if reader.kind == "masked":
        return score_masked(reader, texts, size, way.variant)
    if reader.kind == "encoder_decoder":
        return score_encoder_decoder(reader, texts, size, way.span)
    return score_bidirectional(reader, texts)


def window_of(reader: LoadedModel, way: ScoringOptions) -> tuple[int, int]:
    """Tokens of a window, and its stride.

    Raises:
        ConfigError: More than the model can read at once, or a stride that leaves tokens out.
    """
    default = reader.context if reader.kind == "causal" else min(_DEFAULT_ROW, reader.context)
    size = way.seq_len or default
    if size > reader.context:
        raise ConfigError(
            f"seq_len: {size:,}, but {reader.name} reads {reader.context:,} tokens at once",
            f"use at most {reader.context}",
        )
    stride = way.stride or max(1, size // 2)
    if stride > size:
        raise ConfigError(
            f"stride: {stride:,} is more than the window of {size:,} tokens, so that tokens would "
            "be left out",
            f"use at most {size}: the smaller, the more context and the more work",
        )
    return size, stride


def text_definition(reader: LoadedModel, way: ScoringOptions) -> str:
    """In one line what a token's likelihood is."""
    size, stride = window_of(reader, way)
    if reader.kind == "causal":
        begin = "a begin token" if way.begin and reader.begin is not None else "no begin token"
        return (
            f"p(token | tokens before it in its document), windows of {size} inputs, stride "
            f"{stride}, {begin}"
        )
    if reader.kind == "masked":
        words = ", later tokens of its word masked too" if way.variant == "word_l2r" else ""
        return f"p(token | the others), one masked copy a token{words}, rows of {size} tokens"
    if reader.kind == "encoder_decoder":
        return (
            f"p(token | the rest, tokens before it in its span), spans of {way.span} tokens hidden "
            f"one after the other, rows of {size} tokens, without sentinels and end tokens"
        )
    return "p(word | words before it in its document), mean of both directions, without marks"


@dataclass(frozen=True)
class TextScores:
    """Of each of N texts.

    Attributes:
        nll: [N] negative log-likelihood in nats, summed over the scored tokens.
        scored: [N] their number.
        first: [N] tokens without a prediction: the first of a text of a model that has no begin
            token.
    """

    nll: Floats
    scored: Ints
    first: Ints

    @classmethod
    def empty(cls, texts: int) -> TextScores:
        """Nothing scored yet."""
        return cls(np.zeros(texts), np.zeros(texts, np.int64), np.zeros(texts, np.int64))

    def add(self, text: Ints, nll: Floats) -> None:
        """Add the tokens' ``nll`` [K] to the texts [K] that they are of."""
        np.add.at(self.nll, text, nll)
        np.add.at(self.scored, text, 1)


def token_nll(logits: Tensor, targets: Ints) -> Floats:
    """Negative log-likelihood of each target in nats, unreduced.

    Args:
        logits: [K, V].
        targets: [K].

    Returns:
        [K], from a softmax in float32.
    """
    import torch
    from torch.nn.functional import cross_entropy

    wanted = torch.from_numpy(targets).to(logits.device)
    found = cross_entropy(logits.float(), wanted, reduction="none")
    return found.double().cpu().numpy()


# --- Sentences: one summed log-probability per sentence, which minimal pairs compare ---


SENTENCE_DEFINITIONS: dict[LikelihoodKind, str] = {
    "causal": "sum of log p(token | tokens before it), given the begin token where there is one",
    "masked": "pseudo-log-likelihood: sum of log p(token | the others), {variant}",
    "encoder_decoder": "{span}",
    "bidirectional": "mean over both directions of the sum of log p(word | words before it)",
}

_WHOLE_SENTENCE = (
    "sum of log p(token | tokens before it) in the decoder; the encoder reads one sentinel for "
    "the whole sentence"
)

_SPANS_OF_SENTENCE = (
    "sum of log p(token | the rest, tokens before it in its span), spans of {size} hidden one "
    "after the other"
)


@dataclass(frozen=True)
class SentenceScores:
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


def score_sentences(
    reader: LoadedModel,
    texts: Sequence[str],
    variant: MaskingVariant = "original",
    span: int | None = None,
) -> SentenceScores:
    """The log-probability of each sentence by itself.

    Args:
        reader: A model of any family.
        texts: N of them, each read as one sentence.
        variant: Masked models only, see ``score_masked``.
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
    room = _sentence_context(reader)
    kept = [cut_from_left(tokens, room) for tokens in read]
    scores = _token_scores(reader, kept, variant, span)
    return SentenceScores(
        -scores.nll - scores.first * np.log(reader.outputs),
        np.array([len(tokens.ids) for tokens in kept], dtype=np.int64),
        sum(len(tokens.ids) > room for tokens in read),
        sum(tokens.unknown for tokens in read),
    )


def _token_scores(
    reader: LoadedModel, texts: Sequence[TokenizedText], variant: MaskingVariant, span: int | None
) -> TextScores:
    if reader.kind == "causal":
        return score_causal(reader, texts, reader.context, reader.context, reader.begin)
    if reader.kind == "masked":
        return score_masked(reader, texts, reader.context, variant)
    if reader.kind == "encoder_decoder":
        return score_encoder_decoder(reader, texts, reader.context, span)
    return score_bidirectional(reader, texts)


def _sentence_context(reader: LoadedModel) -> int:
    """Tokens of a sentence that a model can read at once."""
    if reader.kind == "masked":
        return reader.context - 2
    # A causal model reads all but the last token, and the begin token if it has one.
    return reader.context + (reader.kind == "causal" and reader.begin is None)


def cut_from_left(tokens: TokenizedText, room: int) -> TokenizedText:
    """The last ``room`` tokens."""
    if len(tokens.ids) <= room:
        return tokens
    ids = tokens.ids[-room:]
    return replace(tokens, ids=ids, starts=tokens.starts[-room:], sentences=np.array([len(ids)]))


def sentence_definition(reader: LoadedModel, variant: MaskingVariant, span: int | None) -> str:
    """In one line what ``score_sentences`` gives."""
    shown = "its word's later tokens masked too" if variant == "word_l2r" else "one masked at once"
    spans = _WHOLE_SENTENCE if span is None else _SPANS_OF_SENTENCE.format(size=span)
    return SENTENCE_DEFINITIONS[reader.kind].format(variant=shown, span=spans)


# --- Causal models (GPT-1, GPT-2, GPT-3): log p(token | the tokens before it), sliding windows ---


def score_causal(
    reader: LoadedModel, texts: Sequence[TokenizedText], size: int, stride: int, begin: int | None
) -> TextScores:
    """Every token of each text scored once, by itself from the tokens of its own text.

    Args:
        reader: A causal model.
        texts: N of them.
        size: Inputs of a window, at most the model's context.
        stride: How far a window begins after the one before, see ``sliding_windows``.
        begin: The token before each text; None: the first token of a text has no prediction.

    Returns:
        The sums of each text.
    """
    import torch

    scores = TextScores.empty(len(texts))
    before = np.array([] if begin is None else [begin], dtype=np.int64)
    rows: list[Ints] = []
    spans: list[tuple[int, int, int]] = []  # the text, and what of a row is scored
    for number, text in enumerate(texts):
        ids = np.concatenate([before, text.ids])
        scores.first[number] = len(text.ids) and begin is None
        for window in sliding_windows(len(ids) - 1, size, stride):
            rows.append(ids[window.begin : window.end + 1])
            spans.append((number, window.first - window.begin, window.end - window.begin))
    of, first, end = np.array(spans, dtype=np.int64).reshape(-1, 3).T
    with torch.inference_mode():
        for which in batches(end, cells=min(reader.cells, reader.predictions)):
            table, _ = padded([rows[number] for number in which], 0)
            # Padding comes after a row's tokens, which look back only: it changes nothing.
            logits = reader.logits(input_ids=np.ascontiguousarray(table[:, :-1]))["lm"]
            column = np.arange(table.shape[1] - 1)
            asked = (column >= first[which, None]) & (column < end[which, None])
            place = torch.from_numpy(asked).to(logits.device)
            row, _ = np.nonzero(asked)
            scores.add(of[which][row], token_nll(logits[place], table[:, 1:][asked]))
    return scores


# --- Masked models: pseudo-log-likelihood (Salazar et al., 2020, arXiv:1910.14659) ---
#
# The sum over the tokens of log p(token | the others), one masked copy of the text per token. In
# a word of several tokens the others give a token away; ``word_l2r`` also masks the later tokens
# of its word (Kauf and Ivanova, 2023, arXiv:2305.10588).


def score_masked(
    reader: LoadedModel, texts: Sequence[TokenizedText], size: int, variant: MaskingVariant
) -> TextScores:
    """Every token of each text masked and scored once; special tokens are not scored.

    Args:
        reader: A masked model.
        texts: N of them.
        size: Tokens of a row, the two special ones included; longer texts are cut into pieces,
            each scored by itself.
        variant: original: one token is masked; word_l2r: and the later ones of its word.

    Returns:
        The sums of each text.
    """
    rows: list[Ints] = []
    places: list[Ints] = []  # [4, n]: row, place, end of what is masked, text
    for number, text in enumerate(texts):
        for start, end in equal_pieces(len(text.ids), size - 2):
            place = np.arange(1, end - start + 1)
            until = masked_until(text.starts[start:end], variant) + 1
            fixed = np.full_like(place, len(rows)), np.full_like(place, number)
            places.append(np.stack([fixed[0], place, until, fixed[1]]))
            rows.append(with_special_tokens(reader, text.ids[start:end]))
    row, place, until, of = np.concatenate([np.zeros((4, 0), np.int64), *places], axis=1)
    scores = TextScores.empty(len(texts))
    for which, nll, _ in masked_token_nll(reader, MaskedCopies(rows, row, place, until)):
        scores.add(of[which], nll)
    return scores


@dataclass(frozen=True)
class MaskedCopies:
    """Masked copies of rows, each asking for one token.

    Attributes:
        rows: Ids, special tokens included.
        row: [n] whose copy it is.
        place: [n] the token that is asked for.
        until: [n] where what is masked from there on ends.
    """

    rows: Sequence[Ints]
    row: Ints
    place: Ints
    until: Ints


def with_special_tokens(reader: LoadedModel, ids: Ints) -> Ints:
    """A row: the ids between the two special tokens."""
    return np.concatenate([[reader.special("cls")], ids, [reader.special("sep")]])


def masked_token_nll(
    reader: LoadedModel, copies: MaskedCopies
) -> Iterator[tuple[Ints, Floats, NDArray[np.bool_]]]:
    """What a model says to every copy, in batches by length.

    Yields:
        Numbers of copies [K], the negative log-likelihood of their tokens in nats [K], and whether
        each is the most probable one [K].
    """
    import torch

    mask, fill = reader.special("mask"), reader.vocab.pad or 0
    lengths = lengths_of(copies.rows)[copies.row]
    with torch.inference_mode():
        for which in batches(lengths, cells=reader.cells, most=reader.predictions):
            place, until = copies.place[which], copies.until[which]
            ids, there = padded([copies.rows[number] for number in copies.row[which]], fill)
            column = np.arange(ids.shape[1])
            at = np.arange(len(which)), place
            targets = ids[at]
            ids[(column >= place[:, None]) & (column < until[:, None])] = mask
            logits = reader.logits(
                input_ids=ids,
                attention_mask=there.astype(np.int64),
                token_type_ids=np.zeros_like(ids),
                positions=at[0] * ids.shape[1] + at[1],
            )["mlm"]
            first = logits.argmax(-1).cpu().numpy() == targets
            yield which, token_nll(logits, targets), first


def masked_until(starts: NDArray[np.bool_], variant: MaskingVariant) -> Ints:
    """Where the masked stretch that begins at each token ends.

    Args:
        starts: [n] whether a word starts at each token.
        variant: One token, or the rest of its word.

    Returns:
        [n], each above its own place.
    """
    after = np.arange(1, len(starts) + 1)
    if variant == "original":
        return after
    cuts = np.append(np.flatnonzero(starts), len(starts))
    return cuts[np.searchsorted(cuts, after)]


# --- Encoder-decoders (T5): likelihood of hidden spans, as in pretraining ---
#
# A span of a text is replaced by the first sentinel; the encoder reads the rest and the end token,
# the decoder is given the sentinel and then the span, token by token. Spans follow one another,
# so that every token is in one; the likelihoods of the sentinel and the end token are left out.
# Within a span this is the chain rule, over the spans it is a pseudo-likelihood. A span that is
# the whole text makes it log p(text | a hidden text): the encoder reads the sentinel alone.


def score_encoder_decoder(
    reader: LoadedModel, texts: Sequence[TokenizedText], size: int, span: int | None
) -> TextScores:
    """Every token of each text hidden and scored once.

    Args:
        reader: An encoder-decoder.
        texts: N of them.
        size: Tokens of a piece, the end token included; longer texts are cut into pieces, each
            scored by itself.
        span: Tokens that are hidden together; None: the whole piece.

    Returns:
        The sums of each text.
    """
    import torch

    eos, pad, sentinel = (reader.special(name) for name in ("eos", "pad", "sentinels"))
    sources: list[Ints] = []
    hidden: list[Ints] = []
    texts_of: list[int] = []
    for number, text in enumerate(texts):
        for start, end in equal_pieces(len(text.ids), size - 1):
            piece = text.ids[start:end]
            for first in range(0, len(piece), span or len(piece)):
                last = first + (span or len(piece))
                sources.append(np.concatenate([piece[:first], [sentinel], piece[last:], [eos]]))
                hidden.append(piece[first:last])
                texts_of.append(number)
    scores, of = TextScores.empty(len(texts)), np.array(texts_of, dtype=np.int64)
    lengths = lengths_of(sources) + lengths_of(hidden)
    with torch.inference_mode():
        for which in batches(lengths, cells=min(reader.cells, reader.predictions)):
            source, there = padded([sources[number] for number in which], pad)
            targets, hides = padded([hidden[number] for number in which], -1)
            rows, places = np.nonzero(hides)
            # The decoder's first input is the padding token, its first output the sentinel.
            before = np.full((len(which), targets.shape[1] + 1), pad, dtype=np.int64)
            before[:, 1] = sentinel
            before[:, 2:] = np.maximum(targets[:, :-1], 0)
            logits = reader.logits(
                input_ids=source,
                attention_mask=there.astype(np.int64),
                decoder_input_ids=before,
                positions=rows * before.shape[1] + places + 1,
            )
            scores.add(of[which][rows], token_nll(logits["lm"], targets[rows, places]))
    return scores


# --- ELMo: the mean of the log-likelihoods of both directions ---
#
# A text is a stream of its sentences, each from <S> to its last word; the backward stream has the
# last sentence first and each from </S> to its first word, as in pretraining. The recurrent state
# starts at zero and is kept through a text. The marks' own likelihoods are left out. A word that is
# not in the vocabulary is predicted as <UNK>.


_ELMO_WINDOW = 64  # words whose logits are there at once; the state goes on

_NO_TARGET = -1


def score_bidirectional(reader: LoadedModel, texts: Sequence[TokenizedText]) -> TextScores:
    """Every word of each text scored once in each direction.

    Returns:
        The sums of each text: of both directions, halved.
    """
    import torch

    from plmctl.models.batch import Rows

    unknown, bos, eos = (reader.special(name) for name in ("unk", "bos", "eos"))
    streams = [_elmo_streams(text, bos, eos) for text in texts]
    table, scores = _word_characters(reader, bos, eos), TextScores.empty(len(texts))
    lengths = np.array([stream.shape[-1] for stream in streams], dtype=np.int64)
    with torch.inference_mode():
        cells = min(reader.cells, reader.predictions // 2)
        for which in batches(lengths, cells=cells, window=_ELMO_WINDOW):
            chosen = [streams[number] for number in which]
            inputs, targets = (
                np.stack([padded([stream[side, d] for stream in chosen], fill)[0] for d in (0, 1)])
                for side, fill in ((0, bos), (1, _NO_TARGET))
            )
            targets[targets >= reader.outputs] = unknown
            with reader.network.apart():  # so that the state begins anew
                for number, start in enumerate(range(0, inputs.shape[-1], _ELMO_WINDOW)):
                    part = np.s_[:, :, start : start + _ELMO_WINDOW]
                    rows = Rows(0, len(which), len(which), number)
                    _add_both_directions(
                        scores,
                        which,
                        targets[part],
                        _elmo_logits(reader, table, inputs[part], rows),
                    )
    scores.nll[:] /= 2
    scores.scored[:] //= 2
    return scores


def _elmo_streams(text: TokenizedText, bos: int, eos: int) -> Ints:
    """Inputs and targets of the forward and of the backward stream, [2 sides, 2 directions, S]."""
    sentences = np.split(text.ids, np.cumsum(text.sentences)[:-1])
    forward = [np.concatenate([[bos], sentence]) for sentence in sentences]
    backward = [np.concatenate([[eos], sentence[::-1]]) for sentence in reversed(sentences)]
    inputs = np.stack([np.concatenate(forward), np.concatenate(backward)])
    targets = np.full_like(inputs, _NO_TARGET)  # what follows a sentence's last word is not scored
    for direction, stream in enumerate((forward, backward)):
        ends = np.cumsum([len(sentence) for sentence in stream]) - 1
        targets[direction, :-1] = inputs[direction, 1:]
        targets[direction, ends] = _NO_TARGET
    return np.stack([inputs, targets])


def _word_characters(reader: LoadedModel, bos: int, eos: int) -> NDArray[np.int16]:
    """The characters of every word and mark."""
    from plmctl.models.elmo import BEGIN_SENTENCE, END_SENTENCE, boundary, encode_words

    if reader.vocab.words is None:
        raise ConfigError(
            f"{reader.name}: its tokenizer is none of whole words, which ELMo needs",
            "measure a model that was saved with the tokenizer it was pretrained with",
        )
    table = encode_words(reader.vocab.words)
    table[bos], table[eos] = boundary(BEGIN_SENTENCE), boundary(END_SENTENCE)
    return table


def _elmo_logits(
    reader: LoadedModel, table: NDArray[np.int16], inputs: Ints, rows: Rows
) -> dict[str, Tensor]:
    """Logits of a window of both directions, going on from the window before."""
    distinct, words = np.unique(inputs, return_inverse=True)
    return reader.logits(rows=rows, characters=table[distinct], words=words.reshape(inputs.shape))


def _add_both_directions(
    scores: TextScores, which: Ints, targets: Ints, logits: dict[str, Tensor]
) -> None:
    import torch

    for direction, part in enumerate(("forward", "backward")):
        asked = targets[direction] >= 0
        chosen = logits[part][torch.from_numpy(asked).to(logits[part].device)]
        scores.add(which[np.nonzero(asked)[0]], token_nll(chosen, targets[direction][asked]))


# --- Where long texts are cut: windows that overlap, and pieces of about one length ---


class Window(NamedTuple):
    """A stretch of predictions that are made together.

    Attributes:
        begin: The first input.
        first: The first prediction that is scored; those before it were scored already.
        end: After the last input and the last prediction.
    """

    begin: int
    first: int
    end: int


def sliding_windows(count: int, size: int, stride: int) -> Iterator[Window]:
    """Sliding windows over ``count`` predictions, each of which is scored exactly once.

    Prediction i is that of token i + 1 from the tokens up to i. So a window has ``size`` inputs
    and a scored token always has one token of context at least, also where the stride is the size.

    Args:
        count: Tokens less one, or as many as there are with a begin token before them.
        size: Inputs of a window.
        stride: How far a window begins after the one before; 1 gives every token all the context
            that fits, ``size`` makes the windows disjoint.
    """
    scored = 0
    for begin in range(0, count, stride):
        end = min(begin + size, count)
        yield Window(begin, scored, end)
        scored = end
        if end == count:
            return


def equal_pieces(count: int, size: int) -> list[tuple[int, int]]:
    """[start, end) of consecutive pieces of at most ``size`` tokens, as equal as can be.

    Equal ones, so that no piece at the end of a text is left with hardly any context.
    """
    number = -(-count // size)
    cuts = [count * part // number for part in range(number + 1)] if number else [0]
    return list(zip(cuts, cuts[1:], strict=False))
