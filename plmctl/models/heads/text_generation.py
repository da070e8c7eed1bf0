"""Networks that write a text after a text: GPT-1, GPT-2 and GPT-3, and encoder-decoders (T5).

From top to bottom: loading, the logits of target tokens, generating. ``models.completions`` has the
log-probabilities of given texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
)

from plmctl.arrays import batches, lengths_of, padded
from plmctl.models.any_head import ability, logits_at, options_of
from plmctl.models.decoder import hidden_states
from plmctl.models.load import HeadSource, changed_config, from_scratch, load_network
from plmctl.models.parameters import add_token_embeddings

if TYPE_CHECKING:
    from transformers.generation.streamers import BaseStreamer

# --- Loading, and the logits of target tokens ---


def load_writer(
    start: HeadSource, changes: Mapping[str, Any], new_ids: Sequence[int]
) -> PreTrainedModel:
    """A decoder with its language-model head, in float32.

    Args:
        new_ids: The ids of tokens that finetuning adds to the vocabulary (GPT-1).
    """
    config = changed_config(start.model, changes)
    network: Any = (
        load_network(AutoModelForCausalLM, start.model, config=config).network
        if start.pretrained
        else from_scratch(AutoModelForCausalLM, config)
    )
    if new_ids and max(new_ids) >= network.get_input_embeddings().num_embeddings:
        add_token_embeddings(network, list(new_ids))
    ability(network)  # tried here, where no other process has a part of it
    writer: PreTrainedModel = network
    return writer


def start_with_padding(model: Any) -> None:
    """Let an encoder-decoder begin its texts as plmctl trains them: with the padding token, as T5.

    BART begins with its end token and mBART with a language's, which its folder says.
    """
    for config in (model.config, model.generation_config):
        config.decoder_start_token_id = model.config.pad_token_id
        for name in ("forced_bos_token_id", "forced_eos_token_id"):
            if getattr(config, name, None) is not None:
                setattr(config, name, None)


def write(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    positions: Tensor,
    prompts: Tensor,
    project: Callable[..., Any] = lambda hidden, layer: layer(hidden),
) -> dict[str, Any]:
    """Logits of the target tokens.

    Args:
        model: A causal network with its language-model head.
        input_ids: [B, L], padded at the end, where no token of a causal network sees it.
        attention_mask: [B, L], not used.
        positions: [K] positions in the flattened batch that predict a target token.
        prompts: [B], not used.
        project: Function of hidden states and output layer; by default it gives logits.

    Returns:
        lm: [K, V].
    """
    if not ability(model).on_states:
        inputs = {"input_ids": input_ids, **options_of(model)}
        return {"lm": logits_at(model, inputs, positions, project)}
    states = hidden_states(model, input_ids).flatten(0, 1)
    return {"lm": project(states[positions], model.get_output_embeddings())}


# --- Generating ---


@dataclass(frozen=True)
class Search:
    """How the next token is searched for.

    Attributes:
        max_new_tokens: Tokens to generate at most.
        beams: Hypotheses of beam search; 1: the token with the largest logit.
        length_penalty: Beam search: a hypothesis' score is its log-probability divided by its
            length to this power.
        early_stopping: Beam search: stop when as many hypotheses have ended as there are beams.
        no_repeat_ngram: Never generate a sequence of this many tokens twice; 0: no limit.
    """

    max_new_tokens: int
    beams: int = 1
    length_penalty: float = 1.0
    early_stopping: bool = False
    no_repeat_ngram: int = 0


@dataclass(frozen=True)
class SpecialIds:
    """Ids that generating requires.

    Attributes:
        start: Encoder-decoders: the first tokens of the decoder.
    """

    ends: tuple[int, ...]
    pad: int
    start: tuple[int, ...] = ()


Processors = Callable[[tuple[int, ...], int], list[Any]]
"""From the numbers of the rows of a batch, and the tokens before the first new one, to functions of
ids [B, T] and logits [B, V] that give other logits."""


def caches(model: Any) -> bool:
    """Whether a network can continue from cached keys and values; GPT-1 cannot."""
    # Until transformers 5.23 it has the second name.
    return bool({"cache", "past_key_values"} & set(signature(model.forward).parameters))


def generate_rows(
    model: Any,
    rows: Sequence[Sequence[int]],
    search: Search,
    special: SpecialIds,
    *,
    batch_size: int | None = None,
    processors: Processors = lambda numbers, width: [],
    streamer: BaseStreamer | None = None,
) -> list[list[int]]:
    """The ids that a network generates after each row, end tokens and padding included.

    Rows of similar length are in one batch, padded at the left for causal networks; GPT-1, whose
    positions count padding too, gets batches of one length. Apart from rounding, a text does not
    depend on the other rows.

    Args:
        model: A network with a language-model head.
        rows: What a causal network continues, or what the encoder reads.
        batch_size: Rows at once; None: all.
        streamer: Receives the tokens of a single row as they are generated.
    """
    settings = _generation_config(model, search, special)
    # Padding, which is the end token of GPT-2, would count as a token that was there already.
    same_length = not caches(model) or search.no_repeat_ngram == 1
    result: dict[int, list[int]] = {}
    with _without_own_settings(model):
        for which in batches(lengths_of(rows), most=batch_size, same_length=same_length):
            numbers = tuple(which.tolist())
            inputs = _inputs(model, [rows[number] for number in numbers], special)
            width = inputs.get("decoder_input_ids", inputs["input_ids"]).shape[1]
            generated = model.generate(
                **inputs,
                generation_config=settings,
                logits_processor=LogitsProcessorList(processors(numbers, width)),
                streamer=streamer,
                # One process alone, with all weights: it would wait for the others if FSDP has
                # sharded them.
                synced_gpus=False,
            )
            result.update(zip(numbers, generated[:, width:].tolist(), strict=True))
    return [result[number] for number in range(len(rows))]


@contextmanager
def _without_own_settings(model: Any) -> Iterator[None]:
    """No default settings meanwhile: generate() takes from them what a call does not set."""
    own = model.generation_config
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = own


def _inputs(model: Any, rows: Sequence[Sequence[int]], special: SpecialIds) -> dict[str, Tensor]:
    two_stacks, device = bool(model.config.is_encoder_decoder), model.device
    ids, real = padded(rows, special.pad, left=not two_stacks)
    inputs = {"input_ids": torch.from_numpy(ids).to(device)}
    if caches(model):  # GPT-1 gets no padding, and computes faster without a mask
        inputs["attention_mask"] = torch.from_numpy(real).to(device).long()
    if two_stacks:
        inputs["decoder_input_ids"] = torch.tensor([special.start] * len(rows), device=device)
    return inputs


def _generation_config(model: Any, search: Search, special: SpecialIds) -> GenerationConfig:
    beams: dict[str, Any] = {}
    if search.beams > 1:
        beams = {
            "num_beams": search.beams,
            "length_penalty": search.length_penalty,
            "early_stopping": search.early_stopping,
        }
    return GenerationConfig(
        max_new_tokens=search.max_new_tokens,
        do_sample=False,
        no_repeat_ngram_size=search.no_repeat_ngram or None,
        eos_token_id=sorted(special.ends) or None,
        pad_token_id=special.pad,
        decoder_start_token_id=special.start[0] if special.start else None,
        use_cache=caches(model),
        **beams,
    )
