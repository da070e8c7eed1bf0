"""Samples for a finished pretraining run, from text that it was not trained on."""

from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.evaluation.samples import fill_mask, go_on
from plmctl.shaping.keys import below, fold, stream
from plmctl.tokenization.load import load_tokenizer

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore

_COUNT = 6
_WORDS = (8, 40)  # tokens of a sentence that reads well as a sample


def samples(folder: str, store: "TokenStore", seed: int) -> dict[str, Any]:
    """A few sentences of a store with a word masked, or their beginnings gone on with.

    Args:
        folder: The model folder.
        store: Held-out text.
        seed: Decides the sentences and the words.
    """
    tokenizer = load_tokenizer(folder)
    key = int(fold(seed, stream("samples")))
    sentences = _sentences(store, key)
    if tokenizer.mask_token is None:
        prompts = [str(tokenizer.decode(ids[: len(ids) // 2])) for ids in sentences]
        return {"kind": "generation", "items": go_on(folder, prompts)}
    items, answers = [], []
    for number, ids in enumerate(sentences):
        at = 1 + int(below(fold(key, 1, number), len(ids) - 2))
        answers.append(tokenizer.decode([ids[at]]))
        masked = [*ids[:at], tokenizer.mask_token_id, *ids[at + 1 :]]
        items.append(str(tokenizer.decode(masked)))
    filled = fill_mask(folder, items)
    return {
        "kind": "fill-mask",
        "items": [{**item, "answer": a} for item, a in zip(filled, answers, strict=True)],
    }


def _sentences(store: "TokenStore", key: int) -> list[list[int]]:
    sizes = np.diff(store.sentences)
    fitting = np.flatnonzero((sizes >= _WORDS[0]) & (sizes <= _WORDS[1]))
    if not len(fitting):
        return []
    chosen = fitting[below(fold(key, 0, np.arange(_COUNT)), len(fitting))]
    spans = [np.arange(store.sentences[s], store.sentences[s + 1]) for s in np.unique(chosen)]
    return [store.tokens(span).tolist() for span in spans]
