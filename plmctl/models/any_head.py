"""Any language-model head of transformers where there is a target, and nowhere else.

Classes of transformers have no common way to run a head on some positions. But all of them hand
the last hidden state of their base model to it, and most end in one linear layer: two hooks reach
both, with no code per architecture. Whether that gives what the class itself gives is tried once
per network, on two short texts (``Ability``).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import signature
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from plmctl.models.decoder import cache_parameter
from plmctl.models.encoder import options_at

Change = Callable[[Tensor], Tensor]

_CLOSE = 1e-4
"""Of the largest logit: as much as two ways to add the same numbers differ in float32."""


# --- What a network can do ---


@dataclass(frozen=True)
class Ability:
    """What holds for a network, as tried.

    Attributes:
        at_positions: Its head gives the same for some positions as for all.
        in_pieces: Between the input of its output layer and its logits is that layer alone.
        on_states: Its head is the output layer alone, on the last hidden state.
        without_padding: What stands at real tokens is the same with padding after them.
        backwards: A token sees tokens after it.
        caches: It continues from the cached keys and values of other rows, and gives the same.
    """

    at_positions: bool
    in_pieces: bool
    on_states: bool
    without_padding: bool
    backwards: bool
    caches: bool


_known: WeakKeyDictionary[nn.Module, Ability] = WeakKeyDictionary()


def ability(model: Any) -> Ability:
    """What a network can do: tried when it is first asked for, on the network's own weights."""
    if model not in _known:
        if model.device.type == "meta":
            return Ability(False, False, False, True, False, False)
        tried = _tried(model)
        if not (tried.at_positions and tried.without_padding):
            # In float32 large states can differ by more than is allowed (MobileBERT's).
            tried = _tried(copy.deepcopy(model).double())
        _known[model] = tried
    return _known[model]


_ROWS, _LENGTH = 2, 12


@torch.no_grad()
def _tried(model: Any) -> Ability:
    training = model.training
    model.eval()
    try:
        ids = _sample_ids(model)
        inputs = _inputs(model, ids)
        whole = model(**inputs).logits
        picked = torch.tensor([1, 4, _LENGTH - 1, _LENGTH + 3], device=ids.device)
        close = _CLOSE * whole.abs().max().clamp_min(1e-3)

        def same(logits: Tensor | None, wanted: Tensor) -> bool:
            if logits is None or logits.numel() != wanted.numel():
                return False
            return bool((logits.reshape(wanted.shape) - wanted).abs().max() <= close)

        some = whole.flatten(0, 1)[picked]
        at_positions = same(_attempt(lambda: _at_positions(model, inputs, picked)[1]), some)
        layer = model.get_output_embeddings()
        in_pieces = type(layer) is nn.Linear and _nothing_after(model, inputs, layer)
        on_states = in_pieces and same(_attempt(lambda: layer(_states(model, inputs)[0])), whole)
        padded = _attempt(lambda: model(**_with_padding(inputs)).logits[:, :_LENGTH])
        later = {**inputs, **_other_last(model, inputs)}
        moved = (model(**later).logits - whole)[:, :-1].abs().max()
        return Ability(
            at_positions,
            in_pieces,
            on_states,
            same(padded, whole),
            bool(moved > close),
            not model.config.is_encoder_decoder and _continues(model, inputs["input_ids"]),
        )
    finally:
        model.train(training)


def _nothing_after(model: Any, inputs: dict[str, Any], layer: nn.Linear) -> bool:
    """Whether a class gives what its output layer gives, also where logits are large.

    Small ones alone do not show it: a soft cap leaves them nearly as they are (Gemma 2).
    """
    for largest in (1.0, 300.0):
        given: list[Tensor] = []
        with _output_layer(model, given, partial(_up_to, largest, layer)):
            logits = _attempt(lambda: model(**inputs).logits)
        if logits is None or not given:
            return False
        expected = layer(_up_to(largest, layer, given[0]))
        close = logits.shape == expected.shape and (logits - expected).abs().max()
        if close is False or close > _CLOSE * largest:
            return False
    return True


def _up_to(largest: float, layer: nn.Linear, read: Tensor) -> Tensor:
    """The same input of an output layer, by a factor with which its products go up to a number."""
    return read * (largest / nn.functional.linear(read, layer.weight).abs().max())


def _continues(model: Any, ids: Tensor) -> bool:
    """Whether the second half of two texts, after the first half from a cache, is as it was."""
    body, half = model.base_model, _LENGTH // 2
    name, table = cache_parameter(body), getattr(model.config, "max_position_embeddings", None)
    if not isinstance(table, int) or not takes(body, name):
        return False

    def continued() -> Tensor:
        live = torch.ones_like(ids)
        cache = getattr(body(ids[:, :half], attention_mask=live[:, :half], use_cache=True), name)
        cache.batch_select_indices(torch.arange(_ROWS, device=ids.device).flip(0))
        place = torch.arange(half, _LENGTH, device=ids.device).expand(_ROWS, -1)
        options = {"position_ids": place, "use_cache": True, name: cache}
        states: Tensor = body(ids.flip(0)[:, half:], attention_mask=live, **options)[0]
        return states

    states = _attempt(continued)
    if states is None:
        return False
    wanted = body(ids.flip(0), **options_of(body))[0][:, half:]
    return bool((states - wanted).abs().max() <= _CLOSE * wanted.abs().max())


def _attempt(run: Callable[[], Tensor]) -> Tensor | None:
    """What a class gives; None where it cannot."""
    try:
        return run()
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError):
        return None


def _sample_ids(model: Any) -> Tensor:
    """[2, 12] ids that stand for no padding."""
    size = int(model.get_input_embeddings().weight.shape[0])
    ids = torch.arange(_ROWS * _LENGTH, device=model.device).reshape(_ROWS, _LENGTH) * 7919 % size
    special = {getattr(model.config, f"{name}_token_id", None) for name in ("pad", "bos", "eos")}
    other = next(id_ for id_ in range(size) if id_ not in special)
    for id_ in special - {None}:
        ids[ids == id_] = other
    return ids


def _inputs(model: Any, ids: Tensor) -> dict[str, Tensor]:
    inputs = {"input_ids": ids, **options_of(model)}
    if takes(model, "attention_mask"):
        inputs["attention_mask"] = torch.ones_like(ids)
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids.flip(0)
    return inputs


def _with_padding(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Any tokens after the texts: the embedding of padding may be 0 at first, and is trained."""
    ids, four = inputs["input_ids"], (_ROWS, 4)
    padded = {**inputs, "input_ids": torch.cat([ids, ids[:, :4]], 1)}
    if "attention_mask" in inputs:
        padded["attention_mask"] = torch.cat([inputs["attention_mask"], ids.new_zeros(four)], 1)
    return padded


def _other_last(model: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Inputs whose last token is another one."""
    name = "decoder_input_ids" if model.config.is_encoder_decoder else "input_ids"
    ids = inputs[name].clone()
    ids[:, -1] = ids[:, 0]
    return {name: ids}


def takes(model: Any, name: str) -> bool:
    """Whether a network's ``forward`` has such an input."""
    return name in signature(model.forward).parameters


def options_of(model: Any) -> dict[str, Any]:
    """No cache, in training and scoring: it would cost memory."""
    return {"use_cache": False} if takes(model, "use_cache") else {}


# --- The two hooks ---


def body_of(model: Any) -> nn.Module:
    """What gives the head its hidden states.

    T5's model is its own base, and OPT's, as BART's decoder alone, calls what is in the base.
    """
    body: nn.Module = model.base_model
    inner = isinstance(getattr(body, "decoder", None), PreTrainedModel)
    if body is model or (inner and not model.config.is_encoder_decoder):
        return cast(nn.Module, model.get_decoder())
    return body


@contextmanager
def _last_states(model: Any, change: Change) -> Iterator[None]:
    """The head gets other hidden states [B, L, H] than the body's."""

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return change(output[0]), *output[1:]
        output["last_hidden_state"] = change(output["last_hidden_state"])
        return output

    handle = body_of(model).register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _output_layer(model: Any, given: list[Tensor], change: Change) -> Iterator[None]:
    """Keep what the output layer is given [..., H], and let it read something else."""

    def hook(layer: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        given.append(inputs[0])
        return (change(inputs[0]), *inputs[1:])

    handle = model.get_output_embeddings().register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _at_positions(model: Any, inputs: dict[str, Any], positions: Tensor) -> tuple[Tensor, Tensor]:
    """The last hidden states [K, H] at some positions, and the head's logits [K, V] of them."""
    body = body_of(model)
    options, positions = options_at(body, positions, inputs)
    seen: list[Tensor] = []

    def picked(states: Tensor) -> Tensor:
        seen.append(states.flatten(0, 1)[positions])
        return seen[0][None]

    handle = body.register_forward_pre_hook(
        lambda _, arguments, named: (arguments, {**named, **options}), with_kwargs=True
    )
    try:
        with _last_states(model, picked):
            logits: Tensor = model(**inputs).logits
    finally:
        handle.remove()
    return seen[0], logits[0]


def _states(model: Any, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The last hidden states [B, L, H], and the logits [B, L, V]."""
    seen: list[Tensor] = []

    def keep(states: Tensor) -> Tensor:
        seen.append(states)
        return states

    with _last_states(model, keep):
        logits: Tensor = model(**inputs).logits
    return seen[0], logits


# --- What families and scoring call ---


def logits_at(
    model: Any, inputs: dict[str, Any], positions: Tensor | None, project: Callable[..., Any]
) -> Any:
    """Logits [K, V] at some positions of the flattened batch, or [B, L, V] at all of them.

    Args:
        inputs: Of the network's own ``forward``.
        positions: [K]; None: all.
        project: See ``families.base.Project``; it is left out where more than the output layer
            stands between its input and the logits, which are then computed as a whole.
    """
    if positions is not None:
        return states_and_logits_at(model, inputs, positions, project)[1]
    if not ability(model).in_pieces:
        return model(**inputs).logits
    given: list[Tensor] = []
    with _output_layer(model, given, _one_position):
        model(**inputs)
    return project(given[0], model.get_output_embeddings())


def states_and_logits_at(
    model: Any, inputs: dict[str, Any], positions: Tensor, project: Callable[..., Any]
) -> tuple[Tensor, Any]:
    """The last hidden states [K, H] at some positions, and ``logits_at`` them."""
    can = ability(model)
    given: list[Tensor] = []
    if not can.at_positions:
        states, whole = _states(model, inputs)
        return states.flatten(0, 1)[positions], whole.flatten(0, 1)[positions]
    if not can.in_pieces:
        return _at_positions(model, inputs, positions)
    with _output_layer(model, given, _one_position):
        states_KH, _ = _at_positions(model, inputs, positions)
    return states_KH, project(given[0][0], model.get_output_embeddings())


def _one_position(read: Tensor) -> Tensor:
    """For an output layer whose logits are not used: it computes one position."""
    return read[..., :1, :]


def head_of(model: Any) -> Callable[[Tensor], Tensor]:
    """The head as a function of last hidden states [K, H], which gives logits [K, V]."""
    if ability(model).on_states:
        layer: Callable[[Tensor], Tensor] = model.get_output_embeddings()
        return layer
    ids = _sample_ids(model)[:1, :1]

    def head(states_KH: Tensor) -> Tensor:
        with _last_states(model, lambda _: states_KH[None]):
            logits: Tensor = model(**_inputs(model, ids)).logits
        return logits[0]

    return head
