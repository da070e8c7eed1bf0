"""Samples for a finished pretraining run, from text that it was not trained on."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from plmctl.evaluation.samples import answer, fill_mask, go_on
from plmctl.shaping.keys import below, fold, stream
from plmctl.tokenization.load import load_tokenizer
from plmctl.tokenization.vocab import Vocab

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore

Ints = NDArray[np.int64]

_COUNT = 6
_LOOKED_AT = 100_000  # sentences, spread over the corpus
_WORDS = (8, 40)  # tokens of a text that reads well as a sample


def samples(folder: str, store: "TokenStore", seed: int, objective: str) -> dict[str, Any]:
    """A few sentences of a store with a word masked, or their beginnings gone on with.

    An encoder-decoder is asked what its objective asks.

    Args:
        folder: The model folder.
        store: Held-out text.
        seed: Decides the sentences and the words.
        objective: What the model was trained with.
    """
    from transformers import AutoConfig

    tokenizer = load_tokenizer(folder)
    key = int(fold(seed, stream("samples")))
    spans = _spans(store, key)
    if getattr(AutoConfig.from_pretrained(folder), "is_encoder_decoder", False):
        return _text_to_text(folder, store, spans, key, objective)
    if tokenizer.mask_token is None:
        halves = [store.tokens(span[: len(span) // 2]).tolist() for span in spans]
        prompts = [str(tokenizer.decode(ids)) for ids in halves]
        return {"kind": "generation", "items": go_on(folder, prompts)}
    items, answers = [], []
    for number, span in enumerate(spans):
        ids = store.tokens(span).tolist()
        words = _whole_words(store, span)
        if not len(words):
            continue
        at = int(words[below(fold(key, 1, number), len(words))])
        answers.append(tokenizer.decode([ids[at]]))
        masked = [*ids[:at], tokenizer.mask_token_id, *ids[at + 1 :]]
        items.append(str(tokenizer.decode(masked)))
    filled = fill_mask(folder, items)
    return {
        "kind": "fill-mask",
        "items": [{**item, "answer": a} for item, a in zip(filled, answers, strict=True)],
    }


def _text_to_text(
    folder: str, store: "TokenStore", spans: list[Ints], key: int, objective: str
) -> dict[str, Any]:
    """Sentences with a sentinel for some words, shuffled ones, or beginnings."""
    vocab = Vocab.from_folder(folder)
    inputs, answers = [], []
    for number, span in enumerate(spans):
        ids = store.tokens(span).tolist()
        if objective in ("span_corruption", "iid_denoising") and vocab.sentinels:
            kind = "fill-span"
            first, past = _some_words(store, span, int(fold(key, 1, number)))
            ids, hidden = [*ids[:first], vocab.sentinels[0], *ids[past:]], ids[first:past]
        elif objective == "deshuffling":
            kind, hidden = "deshuffle", ids
            order = np.argsort(fold(key, 2, number, np.arange(len(ids))))
            ids = [ids[at] for at in order]
        else:
            kind = "generation"
            ids, hidden = ids[: len(ids) // 2], ids[len(ids) // 2 :]
        inputs.append([*ids, vocab.eos or 0])
        answers.append(hidden)
    tokenizer = load_tokenizer(folder)
    items = [
        {**item, "answer": str(tokenizer.decode(hidden))}
        for item, hidden in zip(answer(folder, inputs), answers, strict=True)
    ]
    return {"kind": kind if spans else "generation", "items": items}


def _some_words(store: "TokenStore", span: Ints, key: int) -> tuple[int, int]:
    """Places [first, past) of whole words within a sentence, two tokens or more, not its first."""
    starts = np.flatnonzero(store.word_starts(span))
    after = starts[starts > 0]
    first = int(after[below(key, len(after))]) if len(after) else len(span) // 2
    ends = starts[starts >= first + 2]
    return first, int(ends[0]) if len(ends) else len(span)


def _whole_words(store: "TokenStore", span: Ints) -> Ints:
    """Places within a sentence of words of one token, the first and the last left out."""
    starts = store.word_starts(span)
    return 1 + np.flatnonzero(starts[1:-1] & starts[2:])


def _spans(store: "TokenStore", key: int) -> list[Ints]:
    """Token positions of a few sentences, or of the beginnings of documents not cut into any.

    Of a few long documents: from the beginning of a word anywhere in them.
    """
    looked_at = np.arange(0, store.num_sentences, max(1, store.num_sentences // _LOOKED_AT))
    starts, ends = store.sentences[looked_at], store.sentences[looked_at + 1]
    sizes = ends - starts
    if len(sizes) < _COUNT and sizes.max() > _WORDS[1]:
        drawn = below(fold(key, 0, np.arange(_COUNT)), store.num_tokens - _WORDS[0])
        window = np.minimum(drawn[:, None] + np.arange(_WORDS[1]), store.num_tokens - _WORDS[0])
        begins = np.take_along_axis(window, store.word_starts(window).argmax(axis=1)[:, None], 1)
        past = np.append(starts, store.num_tokens)[np.searchsorted(starts, begins, side="right")]
        chosen = zip(begins[:, 0], np.minimum(begins + _WORDS[1], past)[:, 0], strict=True)
        return [np.arange(a, b) for a, b in sorted(set(chosen)) if b - a >= _WORDS[0]]
    fitting = np.flatnonzero((sizes >= _WORDS[0]) & (sizes <= _WORDS[1]))
    if not len(fitting):  # they are documents, of which the beginning will do
        fitting = np.flatnonzero(sizes >= _WORDS[0])
    if not len(fitting):
        return []
    which = np.unique(fitting[below(fold(key, 0, np.arange(_COUNT)), len(fitting))])
    return [np.arange(starts[s], min(starts[s] + _WORDS[1], ends[s])) for s in which]
