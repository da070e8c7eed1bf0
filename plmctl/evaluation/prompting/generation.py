"""Text written by a model: greedy, by beam search, or sampled, in batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from plmctl.arrays import batches, lengths_of, padded
from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.prompting.encoding import sentinel_of, source_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers.generation.streamers import BaseStreamer

    from plmctl.evaluation.prompting.model import Generative


@dataclass(frozen=True)
class Decoding:
    """How the next token is chosen.

    Attributes:
        max_new_tokens: Tokens to write at most.
        beams: Hypotheses kept; 1: greedy, or sampling.
        length_penalty: Of beam search: a hypothesis' score is its log-probability divided by its
            length to this power.
        temperature: Divides the logits before a draw; None with ``top_k`` and ``top_p`` None: the
            most probable token, no draw.
        top_k: Draw from this many most probable tokens.
        top_p: Draw from the fewest most probable tokens with this probability together.
        no_repeat_ngram: Never write so many tokens in a row twice; 0: whatever comes.
        seed: Decides the draws, with the number of the prompt and the place of the token.
        ends: Ids that end the text, besides the tokenizer's.
        sentinel: Whether T5's answer begins with ``<extra_id_0>``, and ends before the next.
    """

    max_new_tokens: int = 64
    beams: int = 1
    length_penalty: float = 1.0
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    no_repeat_ngram: int = 0
    seed: int = 42
    ends: tuple[int, ...] = ()
    sentinel: bool = False

    def __post_init__(self) -> None:
        if self.temperature is not None and not self.temperature > 0:
            raise ConfigError(
                f"a temperature of {self.temperature}", "leave it out for the most probable token"
            )
        if self.sampled and self.beams > 1:
            raise ConfigError(
                "beam search draws no tokens: it goes with no temperature, top-k or top-p",
                "ask for either of them",
            )

    @property
    def sampled(self) -> bool:
        """Whether tokens are drawn."""
        return (self.temperature, self.top_k, self.top_p) != (None, None, None)


@dataclass(frozen=True)
class Prompted:
    """What a model is given to go on from, or T5's encoder to read.

    Attributes:
        ids: Tokens.
        cut: Whether some were left out at the left.
    """

    ids: tuple[int, ...]
    cut: bool


@dataclass(frozen=True)
class Written:
    """What a model wrote.

    Attributes:
        text: Without special tokens.
        tokens: Their number.
        ended: Whether the model ended it, and not the limit.
        cut: Whether the prompt was cut from the left to fit.
    """

    text: str
    tokens: int
    ended: bool
    cut: bool


def prompted(
    model: Generative, ids: Sequence[int], new_tokens: int, *, sentinel: bool = False
) -> Prompted:
    """A prompt with room for what is to be written.

    Args:
        model: A model that writes.
        ids: Tokens of the prompt, without an end token.
        new_tokens: Room to leave, of causal models.
        sentinel: Of T5: see ``encoding.encode``.

    Raises:
        ConfigError: No room is left for a prompt.
        DataError: An empty prompt for a model without a token for the beginning of a text.
    """
    if model.text_to_text:
        mark = sentinel_of(model) if sentinel else ()
        return Prompted(*source_of(model, ids, mark))
    room = model.window - new_tokens
    if room < 1:
        raise ConfigError(
            f"{new_tokens} new tokens asked for, and {model.name} has {model.window} positions",
            f"ask for {model.window - 1} at most; the prompt takes its share of them",
        )
    kept = tuple(ids) or model.start
    if not kept:
        raise DataError(
            f"an empty prompt, and {model.name} has no token for the beginning of a text",
            "give it a word to begin with",
        )
    return Prompted(kept[max(0, len(kept) - room) :], len(kept) > room)


def write(
    model: Generative,
    prompts: Sequence[Prompted],
    decoding: Decoding,
    batch_size: int = 16,
    streamer: BaseStreamer | None = None,
) -> list[Written]:
    """What the model writes to each prompt.

    Prompts of like length are in one batch, causal ones padded at the left; GPT-1, whose positions
    count from the first cell, gets batches of one length. What is written does not depend on the
    other prompts but for rounding: a draw is keyed by the seed, the number of its prompt and its
    place.

    Args:
        model: A model that writes.
        prompts: See ``prompted``.
        decoding: How the next token is chosen.
        batch_size: Rows at once.
        streamer: Gets the tokens of a single prompt as they come.
    """
    import torch

    begin, last = model.start, {*decoding.ends}
    if model.tokenizer.eos_token_id is not None:
        last.add(int(model.tokenizer.eos_token_id))
    if decoding.sentinel:
        begin += sentinel_of(model)
        last |= set(model.sentinels[1:])
    found: dict[int, Written] = {}
    network: Any = model.network
    with torch.inference_mode(), model.accelerator.autocast():
        # Padding, which is the end token of GPT-2, would count as a token that was there already.
        padding = model.caches and decoding.no_repeat_ngram != 1
        lengths = lengths_of([prompt.ids for prompt in prompts])
        for which in batches(lengths, most=batch_size, same_length=not padding):
            numbers = tuple(which.tolist())
            inputs = _inputs(model, [prompts[number].ids for number in numbers], begin)
            width = inputs.get("decoder_input_ids", inputs["input_ids"]).shape[1]
            said = network.generate(
                **inputs,
                generation_config=_generation_config(model, decoding, sorted(last)),
                logits_processor=_processors(decoding, numbers, width),
                streamer=streamer,
            )
            for number, ids in zip(numbers, said[:, width:].tolist(), strict=True):
                found[number] = _written(model, ids, last, cut=prompts[number].cut)
    return [found[number] for number in range(len(prompts))]


def _written(model: Generative, ids: list[int], last: set[int], *, cut: bool) -> Written:
    end = next((at for at, id_ in enumerate(ids) if id_ in last), None)
    tokenizer: Any = model.tokenizer
    text = str(tokenizer.decode(ids[:end], skip_special_tokens=True))
    return Written(text, len(ids[:end]), end is not None, cut)


def _inputs(
    model: Generative, rows: Sequence[Sequence[int]], begin: tuple[int, ...]
) -> dict[str, Tensor]:
    import torch

    pad = model.tokenizer.pad_token_id or 0
    ids, live = padded(rows, pad, left=not model.text_to_text)
    inputs = {"input_ids": torch.from_numpy(ids).to(model.device)}
    if model.caches:  # GPT-1 gets no padding, and computes faster without a mask
        inputs["attention_mask"] = torch.from_numpy(live).to(model.device).long()
    if model.text_to_text:
        inputs["decoder_input_ids"] = torch.tensor([begin] * len(rows), device=model.device)
    return inputs


def _generation_config(model: Generative, decoding: Decoding, ends: list[int]) -> Any:
    """Nothing of what the model's own folder says on generating, which differs between models."""
    from transformers import GenerationConfig

    beams: dict[str, Any] = {}
    if decoding.beams > 1:
        beams = {"num_beams": decoding.beams, "length_penalty": decoding.length_penalty}
    network: Any = model.network
    network.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]  # theirs
    return GenerationConfig(  # type: ignore[no-untyped-call]  # theirs
        max_new_tokens=decoding.max_new_tokens,
        do_sample=False,
        no_repeat_ngram_size=decoding.no_repeat_ngram or None,
        eos_token_id=ends or None,
        pad_token_id=model.tokenizer.pad_token_id or 0,
        decoder_start_token_id=model.start[0] if model.text_to_text else None,
        use_cache=model.caches,
        **beams,
    )


def _processors(decoding: Decoding, numbers: tuple[int, ...], width: int) -> Any:
    """What turns the logits into those whose largest is the token."""
    from transformers import LogitsProcessorList

    if not decoding.sampled:
        return LogitsProcessorList()
    from plmctl.evaluation.prompting.sampling import processors

    return LogitsProcessorList(processors(decoding, numbers, width))
