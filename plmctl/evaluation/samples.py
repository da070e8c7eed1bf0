"""Samples of a pretrained model: masked words filled in, spans filled in, or texts continued.

They are made on the CPU in float32, one text at a time, so that they do not depend on the machine:
``opened_for_samples`` opens a model so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from plmctl.evaluation.generation import (
    Decoding,
    EncodedPrompt,
    encode_prompt,
    generate_ids,
    generate_texts,
)
from plmctl.evaluation.model import LoadedModel

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
        model: A masked model.
        texts: Each with one mask token or more; the first is filled.
        top: Number of tokens.

    Returns:
        For each text: ``text`` and ``predictions``, a list of token and probability.
    """
    import torch
    from transformers import AutoModelForMaskedLM

    from plmctl.models.load import load_network

    tokenizer: Any = model.tokenizer
    network = load_network(AutoModelForMaskedLM, model.name).network
    result = []
    for text in texts:
        batch = tokenizer(text, return_tensors="pt", truncation=True)
        at = int((batch["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0])
        with torch.inference_mode():
            probabilities = network(**batch).logits[0, at].softmax(-1)
        best = probabilities.topk(top)
        words = [tokenizer.decode([token]) for token in best.indices.tolist()]
        scores = [round(score, 4) for score in best.values.tolist()]
        predictions = [{"token": w, "score": s} for w, s in zip(words, scores, strict=True)]
        result.append({"text": text, "predictions": predictions})
    return result


def generate_answers(
    model: LoadedModel, inputs: Sequence[Sequence[int]], new_tokens: int = _NEW_TOKENS
) -> list[dict[str, str]]:
    """The text that an encoder-decoder generates for each input, greedily.

    Args:
        model: An encoder-decoder.
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
) -> list[dict[str, str]]:
    """Each prompt continued by a causal model, greedily and without repeating three tokens.

    Returns:
        For each: ``prompt`` and ``text``, the continuation.
    """
    model = model.for_generation()
    tokenizer: Any = model.tokenizer
    result = []
    for prompt in prompts:
        ids = tokenizer(prompt)["input_ids"]
        limit = max(1, min(new_tokens, model.window - len(ids)))
        (generated,) = generate_texts(
            model, [encode_prompt(model, ids, limit)], Decoding(limit, no_repeat_ngram=3)
        )
        result.append({"prompt": prompt, "text": generated.text})
    return result
