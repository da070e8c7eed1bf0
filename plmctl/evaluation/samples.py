"""Samples of a language model: masked words filled in, spans filled in, or texts continued.

``held_out_samples`` chooses a few held-out texts, always the same ones, and shows what the model
makes of them: at every validation of a pretraining, and at its end. The samples of a model folder
are made on the CPU in float32, one text at a time, so that they do not depend on the machine:
``opened_for_samples`` opens a model so. Those of a training are made where it computes.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.arrays import Ints
from plmctl.config.base import ObjectiveConfig
from plmctl.corpus.sentences import choose_rule, sentence_spans
from plmctl.evaluation.generation import (
    Decoding,
    EncodedPrompt,
    encode_prompt,
    generate_ids,
    generate_texts,
)
from plmctl.evaluation.model import LoadedModel
from plmctl.examples.keys import below, fold, stream
from plmctl.objectives.base import Objective
from plmctl.tokenization.layout import layout_of

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore

# --- A model's answers to texts ---


_TOP_TOKENS = 5
_NEW_TOKENS = 40


def opened_for_samples(folder: str) -> LoadedModel:
    """A model folder or Hub id, opened on the CPU, for one text at a time."""
    return LoadedModel(folder, batch_size=1)


def fill_mask(
    model: LoadedModel, texts: Sequence[str], top: int = _TOP_TOKENS
) -> list[dict[str, Any]]:
    """The most probable tokens for the mask in each text.

    Args:
        texts: Each with one mask token or more.

    Returns:
        For each text: ``text`` and ``predictions``, a list of token and probability; ``cut`` if it
        is longer than the model reads, which then reads what is around the mask. Of several masks
        each is filled while the others stay, and ``mask`` is its number, from 1.
    """
    import torch

    from plmctl.families.base import longest_input

    tokenizer: Any = model.tokenizer
    layout = layout_of(tokenizer, pair=False)
    longest = longest_input(model.config) or sys.maxsize
    room = min(longest, tokenizer.model_max_length) - layout.special
    result = []
    for text in texts:
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        masks = [at for at, id_ in enumerate(ids) if id_ == tokenizer.mask_token_id]
        predictions = []
        for number, at in enumerate(masks, 1):
            first = max(0, min(at - room // 2, len(ids) - room))
            joined, segments = layout.join([ids[first : first + room]])
            batch = {"input_ids": torch.tensor([joined])}
            batch["attention_mask"] = torch.ones_like(batch["input_ids"])
            if "token_type_ids" in tokenizer.model_input_names:
                batch["token_type_ids"] = torch.tensor([segments])
            place = len(layout.before) + at - first
            with torch.inference_mode():
                probabilities = model.masked_logits(batch, place).float().softmax(-1)
            best = probabilities.topk(min(top, len(probabilities)))
            words = [tokenizer.decode([token]) for token in best.indices.tolist()]
            scores = [round(score, 4) for score in best.values.tolist()]
            of = {"mask": number} if len(masks) > 1 else {}
            predictions += [
                {**of, "token": w, "score": s} for w, s in zip(words, scores, strict=True)
            ]
        is_cut = {"cut": True} if len(ids) > room else {}
        result.append({"text": text, "predictions": predictions, **is_cut})
    return result


def generate_answers(
    model: LoadedModel, inputs: Sequence[Sequence[int]], new_tokens: int = _NEW_TOKENS
) -> list[dict[str, str]]:
    """The text that an encoder-decoder generates for each input, greedily.

    Args:
        inputs: Token ids, end token included.
        new_tokens: Tokens to generate at most.

    Returns:
        For each: ``prompt`` without the end token, and ``text`` without special tokens.
    """
    model = model.for_generation()
    special = {model.vocab.pad, model.vocab.eos, *model.vocab.sentinels}
    prompts = [EncodedPrompt(tuple(ids), cut=False) for ids in inputs]
    result = []
    for ids, generated in zip(
        inputs, generate_ids(model, prompts, Decoding(new_tokens)), strict=True
    ):
        words = [id_ for id_ in generated if id_ not in special]
        result.append(
            {
                "prompt": str(model.tokenizer.decode(list(ids[:-1]))),
                "text": str(model.tokenizer.decode(words)),
            }
        )
    return result


def fill_sentinels(model: LoadedModel, texts: Sequence[str]) -> list[dict[str, Any]]:
    """The text that an encoder-decoder generates for each sentinel of each text, greedily.

    Args:
        model: A T5 with sentinels.
        texts: Each with ``<extra_id_0>`` or more.

    Returns:
        For each text: ``text`` and ``fills``, the sentinels of the text in its order, and the text
        for each; None for a sentinel that the model leaves out.
    """
    model = model.for_generation()
    tokenizer: Any = model.tokenizer
    vocab = model.vocab
    names = {id_: f"<extra_id_{number}>" for number, id_ in enumerate(vocab.sentinels)}
    encoded = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    limit = max((_NEW_TOKENS * sum(id_ in names for id_ in ids) for ids in encoded), default=0)
    prompts = [EncodedPrompt((*ids, vocab.eos or 0), cut=False) for ids in encoded]
    result = []
    for text, ids, generated in zip(
        texts, encoded, generate_ids(model, prompts, Decoding(limit)), strict=True
    ):
        spans: dict[int, list[int]] = {}
        inside = None
        for id_ in generated:
            if id_ in names:
                inside = spans.setdefault(id_, [])
            elif id_ == vocab.eos:
                break
            elif inside is not None and id_ != vocab.pad:
                inside.append(id_)
        fills = {
            names[id_]: str(tokenizer.decode(spans[id_])).strip() if id_ in spans else None
            for id_ in ids
            if id_ in names
        }
        result.append({"text": text, "fills": fills})
    return result


def continue_texts(
    model: LoadedModel, prompts: Sequence[str], new_tokens: int = _NEW_TOKENS
) -> list[dict[str, Any]]:
    """Each prompt continued by a causal model, greedily and without repeating three tokens.

    Returns:
        For each: ``prompt`` and ``text``, the continuation; ``cut`` if the prompt lost its
        beginning.
    """
    model = model.for_generation()
    tokenizer: Any = model.tokenizer
    encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    limits = [max(1, min(new_tokens, model.window - len(ids))) for ids in encoded]
    texts: dict[int, str] = {}
    cut = set[int]()
    for limit in dict.fromkeys(limits):
        which = [number for number, own in enumerate(limits) if own == limit]
        inputs = [encode_prompt(model, encoded[number], limit) for number in which]
        cut |= {number for number, one in zip(which, inputs, strict=True) if one.cut}
        generated = generate_texts(model, inputs, Decoding(limit, no_repeat_ngram=3))
        texts.update(zip(which, (one.text for one in generated), strict=True))
    return [
        {"prompt": prompt, "text": texts[n]} | ({"cut": True} if n in cut else {})
        for n, prompt in enumerate(prompts)
    ]


# --- Held-out sentences that the model fills in or continues ---


_SENTENCES_TRIED = 100_000  # sentences, spread over the corpus

_SAMPLE_TOKENS = (8, 40)  # minimum and maximum tokens of a sample

_STRETCH = 160  # tokens that surely contain a sentence

_READABLE = 30  # minimum characters of a sentence


def held_out_samples(
    model: LoadedModel,
    store: TokenStore,
    seed: int,
    objective: Objective[ObjectiveConfig],
    count: int,
) -> dict[str, Any]:
    """The model's answers to a few sentences of a store, each as the objective makes it a sample.

    The sentences depend on no weights.

    Args:
        seed: Decides the sentences and what is hidden of them.
        objective: One that has samples; the model is trained with it.
        count: Sentences, at most.

    Returns:
        ``kind`` (``Objective.SAMPLES``) and ``items``, a mapping for each sentence.
    """
    tokenizer: Any = model.tokenizer
    key = int(fold(seed, stream("samples")))
    drawn = _sample_spans(store, tokenizer, key, count)
    spans = _distinct(drawn, store)
    if len(spans) < len(drawn):  # texts that begin alike: draw more of them
        spans = _distinct([*spans, *_sample_spans(store, tokenizer, key, 4 * count)], store)[:count]
    samples = []
    for number, span in enumerate(spans):
        ids, starts = store.tokens(span).astype(np.int64), store.word_starts(span)
        sample = objective.sample(ids, starts, int(fold(key, 1, number)), model.vocab)
        if sample is not None:
            samples.append((sample[0].tolist(), sample[1].tolist()))
    answer = _filled if objective.SAMPLES == "fill-mask" else _written
    return {"kind": objective.SAMPLES, "items": answer(model, samples)}


Samples = Sequence[tuple[list[int], list[int]]]


def _filled(model: LoadedModel, samples: Samples) -> list[dict[str, Any]]:
    """Texts with a mask, filled in; those that lose their mask when they are cut are left out."""
    tokenizer: Any = model.tokenizer
    # The tokenizer cuts longer texts; its own limit may be that of no network.
    tokenizer.model_max_length = min(tokenizer.model_max_length, model.context)
    texts, answers = [], []
    for ids, hidden in samples:
        text = str(tokenizer.decode(ids))
        if tokenizer.mask_token_id in tokenizer(text, truncation=True)["input_ids"]:
            texts.append(text)
            answers.append(tokenizer.decode(hidden))
    filled = fill_mask(model, texts)
    return [{**item, "answer": a} for item, a in zip(filled, answers, strict=True)]


def _written(model: LoadedModel, samples: Samples) -> list[dict[str, Any]]:
    """What the model writes after the beginning of a text, or for the input of a decoder."""
    tokenizer: Any = model.tokenizer
    if not model.text_to_text:  # a half may end inside a character
        prompts = [str(tokenizer.decode(ids)).rstrip("\ufffd") for ids, _ in samples]
        return continue_texts(model, [p for p in prompts if p])
    inputs = [[*ids, model.vocab.eos or 0] for ids, _ in samples]
    return [
        {**item, "answer": str(tokenizer.decode(hidden))}
        for item, (_, hidden) in zip(generate_answers(model, inputs), samples, strict=True)
    ]


def _distinct(spans: list[Ints], store: TokenStore) -> list[Ints]:
    """Spans whose first halves, the prompts, are not those of an earlier one."""
    by_prompt: dict[bytes, Ints] = {}
    for span in spans:
        by_prompt.setdefault(store.tokens(span[: len(span) // 2]).tobytes(), span)
    return list(by_prompt.values())


def _sample_spans(store: TokenStore, tokenizer: Any, key: int, count: int) -> list[Ints]:
    """Token positions of at most ``count`` readable sentences."""
    looked_at = np.arange(0, store.num_sentences, max(1, store.num_sentences // _SENTENCES_TRIED))
    starts, ends = store.sentences[looked_at], store.sentences[looked_at + 1]
    sizes = ends - starts
    fitting = np.flatnonzero((sizes >= _SAMPLE_TOKENS[0]) & (sizes <= _SAMPLE_TOKENS[1]))
    if len(fitting):
        which = np.unique(fitting[below(fold(key, 0, np.arange(count)), len(fitting))])
        return [np.arange(starts[s], ends[s]) for s in which]
    # The text is not split into sentences: find one in each of some stretches.
    spans = []
    for place in below(fold(key, 0, np.arange(count)), max(1, store.num_tokens - _STRETCH)):
        window = np.arange(place, min(place + _STRETCH, store.num_tokens))
        if len(span := _sentence_in(store, tokenizer, window)) >= _SAMPLE_TOKENS[0]:
            spans.append(span)
    return spans


def _sentence_in(store: TokenStore, tokenizer: Any, window: Ints) -> Ints:
    """The tokens of the first complete sentence of a stretch, or of its beginning."""
    ids = store.tokens(window).tolist()
    text = str(tokenizer.decode(ids))
    spans = sentence_spans(text, choose_rule([text]))
    # The first sentence is incomplete, and the last one may be.
    start, end = next(((a, b) for a, b in spans[1:] if b - a >= _READABLE), (0, len(text)))
    lengths = [len(str(tokenizer.decode(ids[:count]))) for count in range(len(ids) + 1)]
    first, past = bisect_right(lengths, start) - 1, bisect_left(lengths, end)
    return window[first : min(past, first + _SAMPLE_TOKENS[1])]
