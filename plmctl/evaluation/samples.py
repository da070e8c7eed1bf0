"""What a pretrained model says: masked words filled in, or a text gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_TOP_TOKENS = 5
_NEW_TOKENS = 40


def fill_mask(folder: str, texts: Sequence[str], top: int = _TOP_TOKENS) -> list[dict[str, Any]]:
    """The most probable tokens for the mask in each text.

    Args:
        folder: A masked model's folder or Hub id.
        texts: Each with one mask token or more; the first is filled.
        top: How many tokens.

    Returns:
        For each text: ``text`` and ``predictions``, a list of token and probability.
    """
    import torch
    from transformers import AutoModelForMaskedLM

    from plmctl.models.load import load_network
    from plmctl.tokenization.load import load_tokenizer

    tokenizer: Any = load_tokenizer(folder)
    model = load_network(AutoModelForMaskedLM, folder).network
    found = []
    for text in texts:
        batch = tokenizer(text, return_tensors="pt", truncation=True)
        at = int((batch["input_ids"][0] == tokenizer.mask_token_id).nonzero()[0])
        with torch.inference_mode():
            probabilities = model(**batch).logits[0, at].softmax(-1)
        best = probabilities.topk(top)
        words = [tokenizer.decode([token]) for token in best.indices.tolist()]
        scores = [round(score, 4) for score in best.values.tolist()]
        predictions = [{"token": w, "score": s} for w, s in zip(words, scores, strict=True)]
        found.append({"text": text, "predictions": predictions})
    return found


def generate_answers(
    folder: str, inputs: Sequence[Sequence[int]], new_tokens: int = _NEW_TOKENS
) -> list[dict[str, str]]:
    """What an encoder-decoder says to each input, greedily.

    Args:
        folder: Its folder or Hub id.
        inputs: Token ids, end token included.
        new_tokens: At most.

    Returns:
        For each: ``prompt`` without the end token, and ``text`` without special tokens.
    """
    from plmctl.tokenization.load import Vocab, load_tokenizer

    tokenizer = load_tokenizer(folder)
    vocab = Vocab.from_folder(folder)
    unsaid = {vocab.pad, vocab.eos, *vocab.sentinels}
    found = []
    for ids, said in zip(inputs, _generated_ids(folder, inputs, new_tokens), strict=True):
        words = [id_ for id_ in said if id_ not in unsaid]
        found.append(
            {"prompt": str(tokenizer.decode(list(ids[:-1]))), "text": str(tokenizer.decode(words))}
        )
    return found


def fill_sentinels(folder: str, texts: Sequence[str]) -> list[dict[str, Any]]:
    """What an encoder-decoder writes for each sentinel of each text, greedily.

    Args:
        folder: A T5's folder or Hub id, with sentinels.
        texts: Each with ``<extra_id_0>`` or more.

    Returns:
        For each text: ``text`` and ``fills``, the sentinels of the text in its order, and what is
        written for each; None for one that the model leaves out.
    """
    from plmctl.tokenization.load import Vocab, load_tokenizer

    tokenizer: Any = load_tokenizer(folder)
    vocab = Vocab.from_folder(folder)
    names = {id_: f"<extra_id_{number}>" for number, id_ in enumerate(vocab.sentinels)}
    plain = tokenizer(list(texts), add_special_tokens=False)["input_ids"]
    inputs = [[*ids, vocab.eos or 0] for ids in plain]
    room = [_NEW_TOKENS * sum(id_ in names for id_ in ids) for ids in plain]
    found = []
    written = _generated_ids(folder, inputs, max(room, default=0))
    for text, ids, said in zip(texts, plain, written, strict=True):
        spans: dict[int, list[int]] = {}
        inside = None
        for id_ in said:
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
        found.append({"text": text, "fills": fills})
    return found


def _generated_ids(
    folder: str, inputs: Sequence[Sequence[int]], new_tokens: int
) -> list[list[int]]:
    """The ids that an encoder-decoder writes to each input, greedily."""
    import torch

    from plmctl.families.t5 import T5

    model: Any = T5.load(folder, T5.HEADS)
    found = []
    for ids in inputs:
        row = torch.tensor([list(ids)])
        said = model.generate(
            row, attention_mask=torch.ones_like(row), max_new_tokens=new_tokens, do_sample=False
        )
        found.append(said[0].tolist())
    return found


def continue_texts(
    folder: str, prompts: Sequence[str], new_tokens: int = _NEW_TOKENS
) -> list[dict[str, str]]:
    """Each prompt gone on with by a causal model, greedily but never repeating three tokens.

    Returns:
        For each: ``prompt`` and ``text``, what was added.
    """
    from transformers import AutoModelForCausalLM

    from plmctl.models.load import load_network
    from plmctl.tokenization.load import load_tokenizer

    tokenizer: Any = load_tokenizer(folder)
    model = load_network(AutoModelForCausalLM, folder).network
    found = []
    for prompt in prompts:
        batch = tokenizer(prompt, return_tensors="pt")
        room = model.config.max_position_embeddings - batch["input_ids"].shape[1]
        ids = model.generate(
            **batch,
            max_new_tokens=min(new_tokens, room),
            do_sample=False,
            no_repeat_ngram_size=3,
            pad_token_id=tokenizer.eos_token_id,
        )
        added = str(
            tokenizer.decode(ids[0, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        )
        found.append({"prompt": prompt, "text": added})
    return found
