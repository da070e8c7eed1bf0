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
    equal_pieces,
    masked_token_nll,
    masked_until,
    with_special_tokens,
)
from plmctl.evaluation.model import load_model

if TYPE_CHECKING:
    from tokenizers import Encoding
    from torch import Tensor

    from plmctl.evaluation.model import EvaluatedModel, LoadedGenerator


_LOGIT_ROWS = 1024  # rows of logits, each of the size of the vocabulary


@dataclass(frozen=True)
class CompletionScore:
    """What a model says to a completion.

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
    model: LoadedGenerator, pairs: Sequence[Pair], batch_size: int, *, sentinel: bool = False
) -> list[CompletionScore]:
    """Score each pair by log p(completion | context).

    See ``encode_completions`` and ``score_encoded``.
    """
    return (
        score_encoded(model, encode_completions(model, pairs, sentinel=sentinel), batch_size)
        if pairs
        else []
    )


def score_encoded(
    model: LoadedGenerator, texts: Sequence[EncodedCompletion], batch_size: int
) -> list[CompletionScore]:
    """The log-probability of the scored tokens of each text.

    Texts of like length are in one batch, and what several share is computed once: the keys and
    values of a causal model's context, the output of T5's encoder. Order and batch size change the
    result by rounding only.

    Args:
        model: A model that writes.
        texts: Each with one scored token or more.
        batch_size: Rows at once.

    Returns:
        One for each text, in their order.
    """
    import torch

    found: dict[int, CompletionScore] = {}
    with torch.inference_mode():
        for groups in completion_batches(texts, batch_size, caches=model.caches):
            states_KH = predicting_states(model, texts, groups)
            scored = [texts[row].ids[texts[row].first :] for row in members_of(groups)]
            log_probs, greedy = _target_log_probs(
                model, states_KH, [id_ for ids in scored for id_ in ids]
            )
            ends = np.cumsum([len(ids) for ids in scored])[:-1]
            parts = zip(
                members_of(groups), np.split(log_probs, ends), np.split(greedy, ends), strict=True
            )
            for row, p, right in parts:
                found[row] = CompletionScore(
                    float(p.sum()), len(p), bool(right.all()), texts[row].cut
                )
    return [found[row] for row in range(len(texts))]


def _target_log_probs(
    model: LoadedGenerator, states_KH: Tensor, targets: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The log-probability of each target in float32, and whether it is the most probable token."""
    import torch

    network: Any = model.network
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


def join_pair(context: str, completion: str) -> Pair:
    """The two with the space between them, if there is one, on the completion's side.

    A tokenizer of GPT-2's kind has the space within the token of a word, and a context that ends
    in a space is one that it has hardly seen.
    """
    bare = context.rstrip(" ")
    if bare == context or completion[:1].isspace():
        return bare, completion
    return bare, f" {completion}"


def encode_completions(
    model: LoadedGenerator, pairs: Sequence[Pair], *, sentinel: bool = False
) -> list[EncodedCompletion]:
    """Contexts and completions as token ids, cut from the left to the model's window.

    Causal models: both are tokenized as one text, and the completion's tokens are those that reach
    past the context's end. T5: each by itself, the context with an end token, the completion
    without one, so that its probability is that of text which begins so, as for causal models.

    Args:
        model: A model that writes.
        pairs: See ``join_pair`` for the space between the two.
        sentinel: Of T5: ask for the completion in place of ``<extra_id_0>`` after the context,
            which is what span corruption teaches.

    Raises:
        DataError: A completion without a token or longer than the window, or nothing before it in
            a model that has no token for the beginning of a text.
        ConfigError: A sentinel for a model that has none.
    """
    pairs = [join_pair(*pair) for pair in pairs]
    mark = first_sentinel(model) if sentinel else ()
    if model.text_to_text:
        return _encode_text_to_text(model, pairs, mark)
    both = model.plain.encode_batch(["".join(pair) for pair in pairs], add_special_tokens=False)
    return [_encode_causal(model, pair, found) for pair, found in zip(pairs, both, strict=True)]


def _encode_causal(model: LoadedGenerator, pair: Pair, found: Encoding) -> EncodedCompletion:
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
    return EncodedCompletion(ids[over:], first - over, cut=over > 0)


def _encode_text_to_text(
    model: LoadedGenerator, pairs: list[Pair], mark: tuple[int, ...]
) -> list[EncodedCompletion]:
    sources, targets = (
        model.plain.encode_batch(list(texts), add_special_tokens=False)
        for texts in zip(*pairs, strict=True)
    )
    found = []
    for (_, completion), source, target in zip(pairs, sources, targets, strict=True):
        if not target.ids:
            raise DataError(f"{completion!r}: a completion without a token")
        kept, cut = encoder_input(model, source.ids, mark)
        before = model.start + mark
        found.append(EncodedCompletion((*before, *target.ids), len(before), kept, cut))
    return found


def encoder_input(
    model: LoadedGenerator, ids: Sequence[int], mark: tuple[int, ...]
) -> tuple[tuple[int, ...], bool]:
    """What T5's encoder reads of a context: its last tokens, the sentinel, the end token.

    Returns:
        The ids, and whether some were cut.
    """
    after = (*mark, int(model.tokenizer.eos_token_id or 0))
    room = model.window - len(after)
    return (*ids[max(0, len(ids) - room) :], *after), len(ids) > room


def first_sentinel(model: LoadedGenerator) -> tuple[int, ...]:
    """The id of ``<extra_id_0>``.

    Raises:
        ConfigError: The model has none.
    """
    sentinels = model.sentinels if model.text_to_text else ()
    if not sentinels:
        raise ConfigError(f"{model.name}: it has no sentinel", "leave out `sentinel`: it is for T5")
    return sentinels[:1]


# --- Batches: which texts are together, and what of them is computed once ---


# A context this long is read once for all its completions; for a shorter one a second pass costs
# more than it saves.
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
        for group in _contexts(texts, tuple(same[at : at + size]), caches=caches)
    ]
    # The longest first: a batch that does not fit the memory is met at once.
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


def members_of(groups: Sequence[SharedContext]) -> list[int]:
    """The numbers of the texts of a batch, one a row."""
    return [member for group in groups for member in group.members]


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
    model: LoadedGenerator, texts: Sequence[EncodedCompletion], groups: Sequence[SharedContext]
) -> Tensor:
    """The states before the output layer that predict the scored tokens of a batch.

    Args:
        model: A model that writes.
        texts: All texts.
        groups: Those of this batch.

    Returns:
        [K, H], the texts in the order of the groups.
    """
    import torch

    run = _text_to_text_states if model.text_to_text else _causal_states
    with model.accelerator.autocast():
        hidden_BTH = run(model, texts, groups)
    places = [
        (row, at - 1 - group.shared)
        for row, (group, member) in enumerate(_group_members(groups))
        for at in range(texts[member].first, len(texts[member].ids))
    ]
    row_K, column_K = torch.tensor(places, device=model.device).T
    return hidden_BTH[row_K, column_K]


def _causal_states(
    model: LoadedGenerator, texts: Sequence[EncodedCompletion], groups: Sequence[SharedContext]
) -> Tensor:
    """Rows are padded at the right, where a causal model does not look."""
    import torch

    network: Any = model.network.base_model
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
        position_ids=place_BT.clamp(max=model.network.config.max_position_embeddings - 1),
        use_cache=True,
    )
    last: Tensor = after.last_hidden_state
    return last


def _text_to_text_states(
    model: LoadedGenerator, texts: Sequence[EncodedCompletion], groups: Sequence[SharedContext]
) -> Tensor:
    import torch

    network: Any = model.network
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


def _padded_tensors(rows: Sequence[Sequence[int]], model: LoadedGenerator) -> tuple[Tensor, Tensor]:
    """[B, T] ids with zeros at the right, and 1 where there is a token."""
    import torch

    ids, live = padded(rows, 0)
    device = model.device
    return torch.from_numpy(ids).to(device), torch.from_numpy(live).to(device).long()


# --- Encoders, for the lm-evaluation-harness ---
#
# The likelihood is that of ``likelihood.score_masked`` with ``word_l2r``. Here is where a
# completion starts, and how a context is cut.


class MaskedCompletions:
    """An encoder with its masked-language-model head.

    Args:
        subject: The model.
        seq_len: Tokens at most, special ones included; None: its positions.

    Raises:
        ConfigError: The model has no such head.
    """

    def __init__(self, subject: EvaluatedModel, seq_len: int | None = None) -> None:
        self._reader = load_model(subject, ("masked",))
        self._room = min(seq_len or 2**31, self._reader.context) - 2

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[CompletionScore]:
        """Score the tokens of each completion, all else seen; a context is cut from the left.

        Args:
            pairs: A context and its completion each.

        Raises:
            DataError: A completion without a token, or longer than the positions.
        """
        texts = [context + completion for context, completion in pairs]
        read = self._reader.tokens([[text] for text in texts])
        firsts = [
            self._first(text, context, completion)
            for text, (context, completion) in zip(texts, pairs, strict=True)
        ]
        over = [max(0, len(tokens.ids) - self._room) for tokens in read]
        cut = [
            (tokens.ids[less:], tokens.starts[less:], first - less)
            for tokens, first, less in zip(read, firsts, over, strict=True)
        ]
        found = self._scored(cut)
        parts = zip(found, over, strict=True)
        return [CompletionScore(*one, cut=less > 0) for one, less in parts]

    def rolled(self, text: str) -> list[CompletionScore]:
        """Every token of a text once, in windows that do not overlap."""
        (tokens,) = self._reader.tokens([[text]])
        windows = [
            (tokens.ids[start:end], tokens.starts[start:end], 0)
            for start, end in equal_pieces(len(tokens.ids), self._room)
        ]
        return [CompletionScore(*one) for one in self._scored(windows)]

    def _first(self, text: str, context: str, completion: str) -> int:
        """The first token that has anything of the completion."""
        ends = [end for _, end in self._reader.offsets(text)]
        first = next((n for n, end in enumerate(ends) if end > len(context)), len(ends))
        count = len(ends) - first
        if not 1 <= count <= self._room:
            raise DataError(
                f"{completion[:40]!r}: {count} tokens, where the model takes 1 to {self._room}",
                "leave the item out",
            )
        return first

    def _scored(
        self, texts: Sequence[tuple[Ints, NDArray[np.bool_], int]]
    ) -> list[tuple[float, int, bool]]:
        """Of ids, word starts and the first scored place of each text: sum, tokens, greedy."""
        rows, places = [], []
        for number, (ids, starts, first) in enumerate(texts):
            place = np.arange(first, len(ids))
            until = masked_until(starts, "word_l2r")[first:]
            places.append(np.stack([np.full_like(place, number), place + 1, until + 1]))
            rows.append(with_special_tokens(self._reader, ids))
        row, place, until = np.concatenate([np.zeros((3, 0), np.int64), *places], axis=1)
        sums, greedy = np.zeros(len(texts)), np.ones(len(texts), bool)
        for which, nll, likeliest in masked_token_nll(
            self._reader, MaskedCopies(rows, row, place, until)
        ):
            np.subtract.at(sums, row[which], nll)
            np.logical_and.at(greedy, row[which], likeliest)
        counts = np.bincount(row, minlength=len(texts))
        return [
            (float(total), int(count), bool(right))
            for total, count, right in zip(sums, counts, greedy, strict=True)
        ]
