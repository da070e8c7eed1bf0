"""The log-probability of given tokens after others: decoders, and encoder-decoders (T5).

Finetuned networks rank their labels by it, and evaluation scores completions of prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl.arrays import padded

if TYPE_CHECKING:
    import torch
    from torch import Tensor


_LOGIT_ROWS = 1024  # rows of logits, each of the size of the vocabulary


@dataclass(frozen=True)
class CompletionScore:
    """The score of a completion.

    Attributes:
        log_prob: log p(completion | context) in nats, summed over its tokens.
        greedy: Whether each of them is the most probable one, given all before it.
        cut: Whether the context was cut from the left to fit.
    """

    log_prob: float
    tokens: int
    greedy: bool
    cut: bool = False


@dataclass(frozen=True)
class EncodedCompletion:
    """Token ids, some of which are scored.

    Attributes:
        ids: The tokens that the network reads, and the last one, which is only predicted; for T5
            the tokens of the decoder, its start token first.
        first: Where the scored tokens begin; all tokens after it are scored.
        source: What T5's encoder reads; empty for the others.
    """

    ids: tuple[int, ...]
    first: int
    source: tuple[int, ...] = ()
    cut: bool = False


def score_encoded(
    network: Any,
    texts: Sequence[EncodedCompletion],
    batch_size: int,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> list[CompletionScore]:
    """The log-probability of the scored tokens of each text.

    Texts of similar length are in one batch, and what several share is computed once: the keys and
    values of a decoder's context, the output of T5's encoder. Order and batch size change the
    result by rounding only.

    Args:
        network: A decoder with its language-model head, or an encoder-decoder.
        texts: Each with one scored token or more.
        autocast: The precision of all but the output layer, which is computed in float32.

    Returns:
        One for each text, in their order.
    """
    import torch

    from plmctl.models.any_head import ability

    scores: dict[int, CompletionScore] = {}
    with torch.inference_mode():
        for groups in completion_batches(texts, batch_size, caches=ability(network).caches):
            with autocast():
                states_KH = predicting_states(network, texts, groups)
            numbers = [member for group in groups for member in group.members]
            targets = [texts[number].ids[texts[number].first :] for number in numbers]
            log_probs, greedy = _target_log_probs(
                network, states_KH, [id_ for ids in targets for id_ in ids]
            )
            ends = np.cumsum([len(ids) for ids in targets])[:-1]
            parts = zip(numbers, np.split(log_probs, ends), np.split(greedy, ends), strict=True)
            for number, p, right in parts:
                scores[number] = CompletionScore(
                    float(p.sum()), len(p), bool(right.all()), texts[number].cut
                )
    return [scores[number] for number in range(len(texts))]


def _target_log_probs(
    network: Any, states_KH: Tensor, targets: list[int]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The log-probability of each target in float32, and whether it is the most probable token."""
    import torch

    from plmctl.models.any_head import head_of

    head = head_of(network)
    target_K = torch.tensor(targets, device=states_KH.device)
    log_probs, greedy = [], []
    pieces = zip(
        torch.split(states_KH, _LOGIT_ROWS), torch.split(target_K, _LOGIT_ROWS), strict=True
    )
    for states, target in pieces:
        logits = head(states.float()).log_softmax(-1)
        log_probs.append(logits.gather(-1, target[:, None])[:, 0].cpu().double())
        greedy.append((logits.argmax(-1) == target).cpu())
    return torch.cat(log_probs).numpy(), torch.cat(greedy).numpy()


# --- Batches: which texts are together, and what of them is computed once ---


# A context of this length is read once for all its completions; for a shorter one another pass
# costs more than it saves.
_MIN_SHARED_TOKENS = 16


@dataclass(frozen=True)
class SharedContext:
    """Texts that share a beginning (causal) or a source (T5).

    Attributes:
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
    network: Any, texts: Sequence[EncodedCompletion], groups: Sequence[SharedContext]
) -> Tensor:
    """The states before the output layer that predict the scored tokens of a batch.

    Returns:
        [K, H], the texts in the order of the groups.
    """
    import torch

    run = _text_to_text_states if network.config.is_encoder_decoder else _causal_states
    hidden_BTH = run(network, texts, groups)
    places = [
        (row, at - 1 - group.shared)
        for row, (group, member) in enumerate(_group_members(groups))
        for at in range(texts[member].first, len(texts[member].ids))
    ]
    row_K, column_K = torch.tensor(places, device=network.device).T
    return hidden_BTH[row_K, column_K]


def _causal_states(
    network: Any, texts: Sequence[EncodedCompletion], groups: Sequence[SharedContext]
) -> Tensor:
    """Rows are padded at the right, where a causal model does not look."""
    import torch

    from plmctl.models.decoder import cache_parameter, hidden_states

    device, rows = network.device, _group_members(groups)
    ids_BT, live_BT = _padded_tensors(
        [texts[m].ids[group.shared : -1] for group, m in rows], device
    )
    if not groups[0].shared:
        return hidden_states(network, ids_BT)
    context_GT, context_live_GT = _padded_tensors(
        [texts[g.members[0]].ids[: g.shared] for g in groups], device
    )
    body, positions = network.base_model, network.config.max_position_embeddings
    name = cache_parameter(body)
    cache = getattr(body(context_GT, attention_mask=context_live_GT, use_cache=True), name)
    group_B = torch.tensor(
        [number for number, group in enumerate(groups) for _ in group.members], device=device
    )
    cache.batch_select_indices(group_B)
    shared_B = torch.tensor([group.shared for group, _ in rows], device=device)
    place_BT = shared_B[:, None] + torch.arange(ids_BT.shape[1], device=device)
    after = body(
        ids_BT,
        attention_mask=torch.cat([context_live_GT[group_B], live_BT], dim=1),
        position_ids=place_BT.clamp(max=positions - 1),
        use_cache=True,
        **{name: cache},
    )
    last: Tensor = after.last_hidden_state
    return last


def _text_to_text_states(
    network: Any, texts: Sequence[EncodedCompletion], groups: Sequence[SharedContext]
) -> Tensor:
    import torch

    device = network.device
    source_GL, live_GL = _padded_tensors(
        [texts[group.members[0]].source for group in groups], device
    )
    encoded_GLH = network.get_encoder()(source_GL, attention_mask=live_GL).last_hidden_state
    group_B = torch.tensor(
        [number for number, group in enumerate(groups) for _ in group.members], device=device
    )
    ids_BT, _ = _padded_tensors(
        [texts[member].ids[:-1] for _, member in _group_members(groups)], device
    )
    hidden: Tensor = network.get_decoder()(
        ids_BT,
        encoder_hidden_states=encoded_GLH[group_B],
        encoder_attention_mask=live_GL[group_B],
        use_cache=False,
    ).last_hidden_state
    return hidden


def _group_members(groups: Sequence[SharedContext]) -> list[tuple[SharedContext, int]]:
    return [(group, member) for group in groups for member in group.members]


def _padded_tensors(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """[B, T] ids with zeros at the right, and 1 where there is a token."""
    import torch

    ids, live = padded(rows, 0)
    return torch.from_numpy(ids).to(device), torch.from_numpy(live).to(device).long()
