"""The probability of a completion given its context, for models of every family but ELMo.

``score_completions`` is for causal and text-to-text models: it encodes each pair, puts pairs that
share a context into one batch, computes the context once, and sums the log-probabilities of the
completion's tokens. ``MaskedCompletions`` does the same for encoders by pseudo-likelihood.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import Ints, padded
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.likelihood import (
    MaskedCopies,
    MaskedLikelihood,
    MaskingVariant,
    equal_pieces,
    masked_until,
)

if TYPE_CHECKING:
    from tokenizers import Encoding
    from torch import Tensor

    from plmctl.evaluation.model import LoadedModel


_LOGIT_ROWS = 1024  # rows of logits, each of the size of the vocabulary


@dataclass(frozen=True)
class CompletionScore:
    """The score of a completion.

    Attributes:
        log_prob: log p(completion | context) in nats, summed over its tokens.
        tokens: Their number.
        greedy: Whether each of them is the most probable one, given all before it.
        cut: Whether the context was cut from the left to fit.
    """

    log_prob: float
    tokens: int
    greedy: bool
    cut: bool = False


def score_completions(
    model: LoadedModel, pairs: Sequence[Pair], *, sentinel: bool = False
) -> list[CompletionScore]:
    """Score each pair by log p(completion | context).

    See ``encode_completions`` and ``score_encoded``.
    """
    if not pairs:
        return []
    return score_encoded(model, encode_completions(model, pairs, sentinel=sentinel))


def score_encoded(model: LoadedModel, texts: Sequence[EncodedCompletion]) -> list[CompletionScore]:
    """The log-probability of the scored tokens of each text.

    Texts of similar length are in one batch, and what several share is computed once: the keys and
    values of a causal model's context, the output of T5's encoder. Order and batch size change the
    result by rounding only.

    Args:
        model: A causal or text-to-text model.
        texts: Each with one scored token or more.

    Returns:
        One for each text, in their order.
    """
    import torch

    scores: dict[int, CompletionScore] = {}
    with torch.inference_mode():
        for groups in completion_batches(texts, model.batch_size, caches=model.caches):
            states_KH = predicting_states(model, texts, groups)
            numbers = [member for group in groups for member in group.members]
            targets = [texts[number].ids[texts[number].first :] for number in numbers]
            log_probs, greedy = _target_log_probs(
                model, states_KH, [id_ for ids in targets for id_ in ids]
            )
            ends = np.cumsum([len(ids) for ids in targets])[:-1]
            parts = zip(numbers, np.split(log_probs, ends), np.split(greedy, ends), strict=True)
            for number, p, right in parts:
                scores[number] = CompletionScore(
                    float(p.sum()), len(p), bool(right.all()), texts[number].cut
                )
    return [scores[number] for number in range(len(texts))]


def _target_log_probs(
    model: LoadedModel, states_KH: Tensor, targets: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The log-probability of each target in float32, and whether it is the most probable token."""
    import torch

    network: Any = model.generator
    head = network.get_output_embeddings()
    target_K = torch.tensor(targets, device=states_KH.device)
    log_probs, greedy = [], []
    pieces = zip(
        torch.split(states_KH, _LOGIT_ROWS), torch.split(target_K, _LOGIT_ROWS), strict=True
    )
    for states, target in pieces:
        logits = head(states.float()).log_softmax(-1)
        log_probs.append(logits.gather(-1, target[:, None])[:, 0].double().cpu())
        greedy.append((logits.argmax(-1) == target).cpu())
    return torch.cat(log_probs).numpy(), torch.cat(greedy).numpy()


# --- Encoding: which tokens of a context with its completion belong to the completion ---


Pair = tuple[str, str]
"""A context, and a completion of it."""


@dataclass(frozen=True)
class EncodedCompletion:
    """Token ids, some of which are scored.

    Attributes:
        ids: The tokens that the network reads, and the last one, which is only predicted; for T5
            the tokens of the decoder, its start token first.
        first: Where the scored tokens begin; all tokens after it are scored.
        source: What T5's encoder reads; empty for the others.
        cut: Whether tokens were left out at the left.
    """

    ids: tuple[int, ...]
    first: int
    source: tuple[int, ...] = ()
    cut: bool = False


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


# --- Batches: which texts are together, and what of them is computed once ---


# A context of this length is read once for all its completions; for a shorter one another pass
# costs more than it saves.
_MIN_SHARED_TOKENS = 16


@dataclass(frozen=True)
class SharedContext:
    """Texts that share a beginning (causal) or a source (T5).

    Attributes:
        members: Their numbers.
        shared: Tokens of the beginning that are read once; 0: none.
        length: Tokens of the longest of them, source included.
    """

    members: tuple[int, ...]
    shared: int
    length: int


def completion_batches(
    texts: Sequence[EncodedCompletion], size: int, *, caches: bool
) -> Iterator[list[SharedContext]]:
    """All texts in batches of at most ``size`` rows of similar length.

    Args:
        texts: The texts to score.
        size: Rows at once.
        caches: Whether a shared beginning can be read once.
    """
    together: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for number, text in enumerate(texts):
        together.setdefault((text.source, text.ids[: text.first]), []).append(number)
    groups = [
        group
        for same in together.values()
        for at in range(0, len(same), size)
        for group in _contexts(texts, tuple(same[at : at + size]), caches=caches)
    ]
    # The longest first: a batch that does not fit the memory fails immediately.
    groups.sort(key=lambda group: (group.shared > 0, group.shared, group.length), reverse=True)
    batch: list[SharedContext] = []
    for group in groups:
        rows = len(group.members) + sum(len(other.members) for other in batch)
        if batch and (rows > size or (group.shared > 0) != (batch[0].shared > 0)):
            yield batch
            batch = []
        batch.append(group)
    if batch:
        yield batch


def _contexts(
    texts: Sequence[EncodedCompletion], members: tuple[int, ...], *, caches: bool
) -> list[SharedContext]:
    lengths = [len(texts[member].ids) + len(texts[member].source) for member in members]
    one = texts[members[0]]
    if one.source:
        return [SharedContext(members, 0, max(lengths))]
    # The last token of the context is read with the completion, whose first token it predicts.
    if caches and len(members) > 1 and one.first - 1 >= _MIN_SHARED_TOKENS:
        return [SharedContext(members, one.first - 1, max(lengths))]
    return [
        SharedContext((member,), 0, length) for member, length in zip(members, lengths, strict=True)
    ]


# --- The states that predict the scored tokens ---


def predicting_states(
    model: LoadedModel, texts: Sequence[EncodedCompletion], groups: Sequence[SharedContext]
) -> Tensor:
    """The states before the output layer that predict the scored tokens of a batch.

    Args:
        model: A causal or text-to-text model.
        texts: All texts.
        groups: Those of this batch.

    Returns:
        [K, H], the texts in the order of the groups.
    """
    import torch

    run = _text_to_text_states if model.text_to_text else _causal_states
    with model.autocast():
        hidden_BTH = run(model, texts, groups)
    places = [
        (row, at - 1 - group.shared)
        for row, (group, member) in enumerate(_group_members(groups))
        for at in range(texts[member].first, len(texts[member].ids))
    ]
    row_K, column_K = torch.tensor(places, device=model.device).T
    return hidden_BTH[row_K, column_K]


def _causal_states(
    model: LoadedModel, texts: Sequence[EncodedCompletion], groups: Sequence[SharedContext]
) -> Tensor:
    """Rows are padded at the right, where a causal model does not look."""
    import torch

    network: Any = model.generator.base_model
    rows = _group_members(groups)
    ids_BT, live_BT = _padded_tensors([texts[m].ids[group.shared : -1] for group, m in rows], model)
    if not groups[0].shared:
        hidden: Tensor = network(ids_BT)[0]
        return hidden
    context_GT, context_live_GT = _padded_tensors(
        [texts[g.members[0]].ids[: g.shared] for g in groups], model
    )
    cache = network(context_GT, attention_mask=context_live_GT, use_cache=True).past_key_values
    group_B = torch.tensor(
        [number for number, group in enumerate(groups) for _ in group.members], device=model.device
    )
    cache.batch_select_indices(group_B)
    shared_B = torch.tensor([group.shared for group, _ in rows], device=model.device)
    place_BT = shared_B[:, None] + torch.arange(ids_BT.shape[1], device=model.device)
    after = network(
        ids_BT,
        past_key_values=cache,
        attention_mask=torch.cat([context_live_GT[group_B], live_BT], dim=1),
        position_ids=place_BT.clamp(max=model.generator.config.max_position_embeddings - 1),
        use_cache=True,
    )
    last: Tensor = after.last_hidden_state
    return last


def _text_to_text_states(
    model: LoadedModel, texts: Sequence[EncodedCompletion], groups: Sequence[SharedContext]
) -> Tensor:
    import torch

    network: Any = model.generator
    source_GL, live_GL = _padded_tensors(
        [texts[group.members[0]].source for group in groups], model
    )
    encoded_GLH = network.encoder(source_GL, attention_mask=live_GL).last_hidden_state
    group_B = torch.tensor(
        [number for number, group in enumerate(groups) for _ in group.members], device=model.device
    )
    ids_BT, _ = _padded_tensors(
        [texts[member].ids[:-1] for _, member in _group_members(groups)], model
    )
    hidden: Tensor = network.decoder(
        ids_BT,
        encoder_hidden_states=encoded_GLH[group_B],
        encoder_attention_mask=live_GL[group_B],
        use_cache=False,
    ).last_hidden_state
    return hidden * network.config.d_model**-0.5 if network.config.scale_decoder_outputs else hidden


def _group_members(groups: Sequence[SharedContext]) -> list[tuple[SharedContext, int]]:
    return [(group, member) for group in groups for member in group.members]


def _padded_tensors(rows: Sequence[Sequence[int]], model: LoadedModel) -> tuple[Tensor, Tensor]:
    """[B, T] ids with zeros at the right, and 1 where there is a token."""
    import torch

    ids, live = padded(rows, 0)
    device = model.device
    return torch.from_numpy(ids).to(device), torch.from_numpy(live).to(device).long()


# --- Encoders ---
#
# The likelihood is that of ``MaskedLikelihood``. This class adds where a completion starts, and how
# a context is cut.


class MaskedCompletions:
    """An encoder with its masked-language-model head.

    Args:
        model: The model.
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
        self._limit = min(seq_len or 2**31, model.context) - 2

    def score(self, pairs: Sequence[Pair]) -> list[CompletionScore]:
        """Score the tokens of each completion, all else seen; a context is cut from the left.

        Args:
            pairs: Contexts and their completions.

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
        sums, greedy = np.zeros(len(texts)), np.ones(len(texts), bool)
        copies = MaskedCopies(rows, row, place, until)
        for chosen, nll, most_probable in self._likelihood.masked_token_nll(copies):
            np.subtract.at(sums, row[chosen], nll)
            np.logical_and.at(greedy, row[chosen], most_probable)
        counts = np.bincount(row, minlength=len(texts))
        return [
            (float(total), int(count), bool(all_first))
            for total, count, all_first in zip(sums, counts, greedy, strict=True)
        ]
