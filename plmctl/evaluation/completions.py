"""The probability of a completion given its context, for models of every family but ELMo.

``score_completions`` is for causal and text-to-text models: it encodes each pair, and
``models.completions`` scores the tokens. ``MaskedCompletions`` is for encoders, whose score is a
pseudo-likelihood.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.likelihood import (
    Likelihood,
    MaskedCopies,
    MaskedLikelihood,
    MaskingVariant,
    equal_pieces,
    masked_until,
)
from plmctl.models.completions import CompletionScore, EncodedCompletion, score_encoded

if TYPE_CHECKING:
    from tokenizers import Encoding

    from plmctl.evaluation.model import LoadedModel


Scorer = Callable[[Sequence["Pair"]], list[CompletionScore]]
"""The scores of contexts with completions."""


def completion_scorer(
    model: LoadedModel,
    measure: str,
    seq_len: int | None = None,
    variant: MaskingVariant = "original",
) -> Scorer:
    """What scores contexts with completions, by the kind of the model.

    Causal models: each token given all before it; encoders: one token masked at once, all else
    seen; T5: in the decoder, after a sentinel at the end of the context in the encoder.

    Args:
        measure: Its name, for the message.
        seq_len: Tokens that the model reads at most; None: its positions (T5: 512).

    Raises:
        ConfigError: The model's family has no likelihood of a completion (ELMo).
    """
    likelihood = Likelihood.of(model)  # refuses a model without a language-model head
    if isinstance(likelihood, MaskedLikelihood):
        return MaskedCompletions(model, seq_len, variant).score
    if not model.family.SCORES_PARTS:
        raise ConfigError(
            f"{model.name}: {measure} does not support {model.family.name}, whose likelihood is of "
            "whole sentences only",
            "use minimal_pairs for this model",
        )
    limited = model.for_generation(seq_len)
    sentinel = limited.text_to_text and bool(limited.vocab.sentinels)
    return lambda pairs: score_completions(limited, pairs, sentinel=sentinel)


def score_completions(
    model: LoadedModel, pairs: Sequence[Pair], *, sentinel: bool = False
) -> list[CompletionScore]:
    """Score each pair by log p(completion | context).

    See ``encode_completions`` and ``models.completions.score_encoded``.
    """
    if not pairs:
        return []
    texts = encode_completions(model, pairs, sentinel=sentinel)
    return score_encoded(model.generator, texts, model.batch_size, model.autocast)


# --- Encoding: which tokens of a context with its completion belong to the completion ---


Pair = tuple[str, str]
"""A context, and a completion of it."""


def join_pair(context: str, completion: str) -> Pair:
    """The two with the space between them, if there is one, on the completion's side.

    A tokenizer like GPT-2's has the space within the token of a word, and has hardly seen a context
    that ends in a space.
    """
    bare = context.rstrip(" ")
    if bare == context or completion[:1].isspace():
        return bare, completion
    return bare, f" {completion}"


def encode_completions(
    model: LoadedModel, pairs: Sequence[Pair], *, sentinel: bool = False
) -> list[EncodedCompletion]:
    """Contexts and completions as token ids, cut from the left to the model's window.

    Causal models: both are tokenized as one text, and the completion's tokens are those that reach
    past the context's end. T5: each by itself, the context with an end token, the completion
    without one, so that its probability is that of text which begins so, as for causal models.

    Args:
        model: A causal or text-to-text model.
        pairs: See ``join_pair`` for the space between the two.
        sentinel: T5 only: predict the completion in place of ``<extra_id_0>`` after the context,
            as span corruption trains it.

    Raises:
        DataError: A completion has no token or is longer than the window, or it has no context
            and the model has no begin token.
        ConfigError: ``sentinel`` for a model without sentinels.
    """
    pairs = [join_pair(*pair) for pair in pairs]
    model.note_unknown([text for pair in pairs for text in pair])
    mark = first_sentinel(model) if sentinel else ()
    if model.text_to_text:
        return _encode_text_to_text(model, pairs, mark)
    both = model.plain.encode_batch(["".join(pair) for pair in pairs], add_special_tokens=False)
    return [
        _encode_causal(model, pair, encoding) for pair, encoding in zip(pairs, both, strict=True)
    ]


def _encode_causal(model: LoadedModel, pair: Pair, encoding: Encoding) -> EncodedCompletion:
    context, completion = pair
    ids = tuple(encoding.ids)
    ends = [end for _, end in encoding.offsets]
    first = next((n for n, end in enumerate(ends) if end > len(context)), len(ids))
    if first == len(ids):
        raise DataError(f"the completion {completion!r} has no token")
    if first == 0:
        if not model.start:
            raise DataError(
                f"{completion!r} has no context, and {model.name} has no begin token to predict it "
                "from",
                "add a context",
            )
        ids, first = model.start + ids, len(model.start)
    over = max(0, len(ids) - 1 - model.window)
    if over >= first:
        raise DataError(
            f"{completion[:40]!r}...: {len(ids) - first} tokens, but the model reads at most "
            f"{model.window}",
            "remove the item, or shorten it",
        )
    return EncodedCompletion(ids[over:], first - over, cut=over > 0)


def _encode_text_to_text(
    model: LoadedModel, pairs: list[Pair], mark: tuple[int, ...]
) -> list[EncodedCompletion]:
    sources, targets = (
        model.plain.encode_batch(list(texts), add_special_tokens=False)
        for texts in zip(*pairs, strict=True)
    )
    encoded = []
    for (_, completion), source, target in zip(pairs, sources, targets, strict=True):
        if not target.ids:
            raise DataError(f"the completion {completion!r} has no token")
        source_ids, cut = encoder_input(model, source.ids, mark)
        before = model.start + mark
        encoded.append(EncodedCompletion((*before, *target.ids), len(before), source_ids, cut))
    return encoded


def encoder_input(
    model: LoadedModel, ids: Sequence[int], mark: tuple[int, ...]
) -> tuple[tuple[int, ...], bool]:
    """What T5's encoder reads of a context: its last tokens, the sentinel, the end token.

    Returns:
        The ids, and whether some were cut.
    """
    after = (*mark, int(model.tokenizer.eos_token_id or 0))
    room = model.window - len(after)
    return (*ids[max(0, len(ids) - room) :], *after), len(ids) > room


def first_sentinel(model: LoadedModel) -> tuple[int, ...]:
    """The id of ``<extra_id_0>``.

    Raises:
        ConfigError: The model has no sentinels.
    """
    sentinels = model.vocab.sentinels if model.text_to_text else ()
    if not sentinels:
        raise ConfigError(
            f"{model.name} has no sentinel tokens", "leave out `sentinel`: it is only for T5"
        )
    return sentinels[:1]


# --- Encoders ---
#
# The likelihood is that of ``MaskedLikelihood``. This class adds where a completion starts, and how
# a context is cut.


_MASKS = 3  # at the end of a text that is read on


class MaskedCompletions:
    """An encoder with its masked-language-model head, or a decoder that sees both sides.

    Args:
        seq_len: Tokens at most, special tokens included; None: its positions.
        variant: Which tokens are masked, see ``ScoringOptions``.

    Raises:
        ConfigError: The model has no such head.
    """

    def __init__(
        self,
        model: LoadedModel,
        seq_len: int | None = None,
        variant: MaskingVariant = "word_l2r",
    ) -> None:
        self._model = model
        self._variant = variant
        self._likelihood = MaskedLikelihood.of(model)
        specials = 1 + self._likelihood.SPECIAL_AFTER
        self._limit = min(seq_len or 2**31, model.context) - specials

    def score(self, pairs: Sequence[Pair]) -> list[CompletionScore]:
        """Score the tokens of each completion, all else seen; a context is cut from the left.

        Raises:
            DataError: A completion without a token, or longer than the positions.
        """
        texts = [context + completion for context, completion in pairs]
        tokenized = self._model.tokens([[text] for text in texts])
        firsts = [
            self._first(text, context, completion)
            for text, (context, completion) in zip(texts, pairs, strict=True)
        ]
        cuts = [max(0, len(tokens.ids) - self._limit) for tokens in tokenized]
        inputs = [
            (tokens.ids[cut:], tokens.starts[cut:], first - cut)
            for tokens, first, cut in zip(tokenized, firsts, cuts, strict=True)
        ]
        scores = zip(self._scores(inputs), cuts, strict=True)
        return [CompletionScore(*score, cut=cut > 0) for score, cut in scores]

    def continued(self, pairs: Sequence[Pair]) -> list[CompletionScore]:
        """Score each token of a completion after what is before it, as if the text were read on.

        Nothing follows the token but masks: three stand there, of which the first is predicted
        (Samuel, 2024, arXiv:2406.04823).

        Raises:
            DataError: A completion without a token, or longer than the positions.
        """
        texts = [context + completion for context, completion in pairs]
        more = np.full(_MASKS - 1, self._model.special("mask"))
        room, rows, text_of, cuts = self._limit - len(more), [], [], []
        tokenized = self._model.tokens([[text] for text in texts])
        for number, (tokens, pair) in enumerate(zip(tokenized, pairs, strict=True)):
            for end in range(self._first(texts[number], *pair) + 1, len(tokens.ids) + 1):
                ids = tokens.ids[max(0, end - room) : end]
                rows.append(self._likelihood.with_special_tokens(np.concatenate([ids, more])))
                text_of.append(number)
            cuts.append(len(tokens.ids) > room)
        place = np.array([len(ids) - self._likelihood.SPECIAL_AFTER - _MASKS for ids in rows])
        copies = MaskedCopies(rows, np.arange(len(rows)), place, place + _MASKS)
        scores = zip(self._sums(copies, np.array(text_of), len(pairs)), cuts, strict=True)
        return [CompletionScore(*score, cut=cut) for score, cut in scores]

    def rolled(self, text: str) -> list[CompletionScore]:
        """Score every token of a text once, in windows that do not overlap."""
        (tokens,) = self._model.tokens([[text]])
        windows = [
            (tokens.ids[start:end], tokens.starts[start:end], 0)
            for start, end in equal_pieces(len(tokens.ids), self._limit)
        ]
        return [CompletionScore(*score) for score in self._scores(windows)]

    def _first(self, text: str, context: str, completion: str) -> int:
        """The first token that has any character of the completion."""
        ends = [end for _, end in self._model.offsets(text)]
        first = next((n for n, end in enumerate(ends) if end > len(context)), len(ends))
        count = len(ends) - first
        if not 1 <= count <= self._limit:
            raise DataError(
                f"{completion[:40]!r} has {count} tokens; the model takes 1 to {self._limit}",
                "remove the item",
            )
        return first

    def _scores(
        self, texts: Sequence[tuple[Ints, NDArray[np.bool_], int]]
    ) -> list[tuple[float, int, bool]]:
        """Sum, tokens and greedy of each text: its ids, word starts and first scored place."""
        rows, places = [], []
        for number, (ids, starts, first) in enumerate(texts):
            place = np.arange(first, len(ids))
            until = masked_until(starts, self._variant)[first:]
            places.append(np.stack([np.full_like(place, number), place + 1, until + 1]))
            rows.append(self._likelihood.with_special_tokens(ids))
        row, place, until = np.concatenate([np.zeros((3, 0), np.int64), *places], axis=1)
        return self._sums(MaskedCopies(rows, row, place, until), row, len(texts))

    def _sums(
        self, copies: MaskedCopies, text_of: Ints, count: int
    ) -> list[tuple[float, int, bool]]:
        """Sum, tokens and greedy of each of ``count`` texts, from copies that belong to them."""
        sums, greedy = np.zeros(count), np.ones(count, bool)
        for chosen, nll, most_probable in self._likelihood.masked_token_nll(copies):
            np.subtract.at(sums, text_of[chosen], nll)
            np.logical_and.at(greedy, text_of[chosen], most_probable)
        counts = np.bincount(text_of, minlength=count)
        return [
            (float(total), int(count), bool(all_first))
            for total, count, all_first in zip(sums, counts, greedy, strict=True)
        ]
