"""The hidden states of causal decoders, for any head."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class View(NamedTuple):
    """What a position sees of its text.

    Attributes:
        both_sides: Also what is after it.
        real: [B, T], 0 at padding; read only with ``both_sides``. None: there is none.
    """

    both_sides: bool
    real: Tensor | None = None


LEFT_TO_RIGHT = View(both_sides=False)


class FastDecoder(metaclass=ABCMeta):
    """A decoder's list of layers with a faster way through them: ``models.fast``."""

    @abstractmethod
    def states(
        self, body: Any, embedded: Tensor, position_ids: Tensor | None, view: View = LEFT_TO_RIGHT
    ) -> Tensor:
        """[B, T, H] of token embeddings [B, T, H]; ``body`` is the network with these layers."""

    def states_at(
        self, body: Any, embedded: Tensor, column_B: Tensor, *, both_sides: bool = False
    ) -> Tensor:
        """[B, H], one position of each row, which is one text and ends there."""
        view = View(both_sides, until(column_B, embedded.shape[1]))
        return _at(self.states(body, embedded, None, view), column_B)


def sees_both_sides(network: Any) -> bool:
    """Whether each position of a decoder sees those after it, as its config says (transformers)."""
    return getattr(network, "is_causal", None) is False


def hidden_states(
    model: Any,
    input_ids: Tensor,
    position_ids: Tensor | None = None,
    *,
    both_sides: bool | None = None,
    attention_mask: Tensor | None = None,
) -> Tensor:
    """The last hidden states, [B, T, H].

    Args:
        model: A decoder with any head.
        input_ids: [B, T]. Padding is at the end, where no real token of a causal network sees it.
        position_ids: [B, T], from 0 at every position that attention shall not look back from;
            None: each row is one text.
        both_sides: Whether each position sees all of its text, later positions too; for networks
            of families with ``BOTH_SIDES``. None: as the network's config says.
        attention_mask: [B, T], 0 at padding; read only where positions see both sides.
    """
    body = model.base_model
    both = sees_both_sides(model.config) if both_sides is None else both_sides
    if (layers := _fast(body)) is not None:
        embedded: Tensor = model.get_input_embeddings()(input_ids)
        return layers.states(body, embedded, position_ids, View(both, attention_mask))
    if both:
        embedded = model.get_input_embeddings()(input_ids)
        return states_of_both_sides(body, embedded, position_ids, attention_mask)
    options: dict[str, Any] = {} if position_ids is None else {"position_ids": position_ids}
    if getattr(model.config, "use_cache", None) is not None:
        # A cache would cost memory, and transformers would not separate the texts of a row.
        options["use_cache"] = False
    elif position_ids is not None:
        embedded = model.get_input_embeddings()(input_ids)
        return _gpt1_states_of_packed_rows(body, embedded, position_ids)
    states: Tensor = body(input_ids, **options).last_hidden_state
    return states


def states_at(model: Any, input_ids: Tensor, column_B: Tensor) -> Tensor:
    """The last hidden state at one position of each row, [B, H].

    Args:
        model: As in ``hidden_states``.
        input_ids: [B, T], each row one text.
        column_B: [B] the position, the last one of the text.
    """
    body = model.base_model
    if (layers := _fast(body)) is not None:
        embedded: Tensor = model.get_input_embeddings()(input_ids)
        both_sides = sees_both_sides(model.config)
        return layers.states_at(body, embedded, column_B, both_sides=both_sides)
    real = until(column_B, input_ids.shape[1])
    return _at(hidden_states(model, input_ids, attention_mask=real), column_B)


def _fast(body: nn.Module) -> FastDecoder | None:
    return next((part for part in body.children() if isinstance(part, FastDecoder)), None)


def cache_parameter(module: Any) -> str:
    """What ``forward`` and its output call the cache: until transformers 5.23 another name."""
    parameters = signature(module.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"


def until(column_B: Tensor, length: int) -> Tensor:
    """[B, T] True up to a position of each row, which is included."""
    return torch.arange(length, device=column_B.device) <= column_B[:, None]


def _at(states: Tensor, column_B: Tensor) -> Tensor:
    return states[torch.arange(len(states), device=states.device), column_B]


def _gpt1_states_of_packed_rows(body: Any, embedded: Tensor, position_ids: Tensor) -> Tensor:
    """GPT-1's own forward takes no mask for several texts per row; its layers do."""
    seen = block_mask(position_ids)
    states: Tensor = body.drop(embedded + body.positions_embed(position_ids))
    mask = torch.zeros_like(seen, dtype=states.dtype)
    mask.masked_fill_(~seen, torch.finfo(states.dtype).min)
    for block in body.h:
        states = block(states, mask)[0]
    return states


def states_of_both_sides(
    body: Any, embedded: Tensor, position_ids: Tensor | None, real: Tensor | None = None
) -> Tensor:
    """The last hidden states by transformers' own forward, which a mask of numbers keeps as it is.

    It would make a causal mask of no mask, and eager attention adds a boolean one.
    """
    rows = 1 if position_ids is None and real is None else len(embedded)
    mask = embedded.new_zeros(rows, 1, embedded.shape[1], embedded.shape[1])
    least = torch.finfo(embedded.dtype).min
    if position_ids is not None:
        mask = mask.masked_fill(~block_mask(position_ids, both_sides=True), least)
    if real is not None:
        mask = mask.masked_fill(real[:, None, None] == 0, least)
    run = body(
        inputs_embeds=embedded, position_ids=position_ids, attention_mask=mask, use_cache=False
    )
    states: Tensor = run.last_hidden_state
    return states


def block_mask(position_ids: Tensor, *, both_sides: bool = False) -> Tensor:
    """True where a query sees a key: not after it, and not before position 0 of its own text.

    Args:
        position_ids: [B, T], from 0 at the start of every text.
        both_sides: Also after it, to the end of its text.

    Returns:
        [B, 1, T, T], B * T * T bytes.
    """
    length = position_ids.shape[1]
    # A row's first text may start in its middle, so that counting the zeros numbers the texts.
    text_BT = (position_ids == 0).cumsum(1)
    same_BTT = text_BT[:, :, None] == text_BT[:, None, :]
    if both_sides:
        return same_BTT[:, None]
    causal_TT = torch.ones(length, length, dtype=torch.bool, device=position_ids.device).tril()
    return (same_BTT & causal_TT)[:, None]
