"""What a pretrained model says: masked words filled in, or a text gone on with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_TOP = 5
_NEW_TOKENS = 40


def fill_mask(folder: str, texts: Sequence[str], top: int = _TOP) -> list[dict[str, Any]]:
    """The most probable tokens for the mask in each text.

    Args:
        folder: A masked model's folder or Hub id.
        texts: Each with one mask token or more; the first is filled.
        top: How many tokens.

    Returns:
        For each text: ``text`` and ``predictions``, a list of token and probability.
    """
    import torch
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32)
    model.train(False)
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


def answer(
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
    import torch
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    from plmctl.tokenization.vocab import Vocab

    tokenizer = AutoTokenizer.from_pretrained(folder)
    vocab = Vocab.from_folder(folder)
    unsaid = {vocab.pad, vocab.eos, *vocab.sentinels}
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32)
    model.train(False)
    found = []
    for ids in inputs:
        row = torch.tensor([list(ids)])
        said = model.generate(
            row, attention_mask=torch.ones_like(row), max_new_tokens=new_tokens, do_sample=False
        )
        words = [id_ for id_ in said[0].tolist() if id_ not in unsaid]
        found.append(
            {"prompt": str(tokenizer.decode(list(ids[:-1]))), "text": str(tokenizer.decode(words))}
        )
    return found


def go_on(
    folder: str, prompts: Sequence[str], new_tokens: int = _NEW_TOKENS
) -> list[dict[str, str]]:
    """Each prompt gone on with by a causal model, greedily but never repeating three tokens.

    Returns:
        For each: ``prompt`` and ``text``, what was added.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.train(False)
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
