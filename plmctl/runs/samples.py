"""Samples for a finished pretraining run, from text that it was not trained on."""

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any

import numpy as np

from plmctl.arrays import Ints
from plmctl.corpus.sentences import choose_rule, sentence_spans
from plmctl.evaluation.samples import answer, fill_mask, go_on
from plmctl.shaping.keys import below, fold, stream
from plmctl.tokenization.load import load_tokenizer
from plmctl.tokenization.vocab import Vocab

if TYPE_CHECKING:
    from plmctl.corpus.store import TokenStore


_COUNT = 6
_LOOKED_AT = 100_000  # sentences, spread over the corpus
_WORDS = (8, 40)  # tokens of a sentence that reads well as a sample
_STRETCH = 160  # tokens in which there is surely a sentence
_READABLE = 30  # characters of one


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
    spans = _spans(store, tokenizer, key)
    if getattr(AutoConfig.from_pretrained(folder), "is_encoder_decoder", False):
        return _text_to_text(folder, store, spans, key, objective)
    if tokenizer.mask_token is None:
        halves = [store.tokens(span[: len(span) // 2]).tolist() for span in spans]
        # The half may end within a character.
        prompts = [str(tokenizer.decode(ids)).rstrip("\ufffd") for ids in halves]
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


def _spans(store: "TokenStore", tokenizer: Any, key: int) -> list[Ints]:
    """Token positions of a few sentences that read well."""
    looked_at = np.arange(0, store.num_sentences, max(1, store.num_sentences // _LOOKED_AT))
    starts, ends = store.sentences[looked_at], store.sentences[looked_at + 1]
    sizes = ends - starts
    fitting = np.flatnonzero((sizes >= _WORDS[0]) & (sizes <= _WORDS[1]))
    if len(fitting):
        which = np.unique(fitting[below(fold(key, 0, np.arange(_COUNT)), len(fitting))])
        return [np.arange(starts[s], ends[s]) for s in which]
    # The text is not cut into sentences: a sentence somewhere in each of some stretches of it.
    found = []
    for place in below(fold(key, 0, np.arange(_COUNT)), max(1, store.num_tokens - _STRETCH)):
        window = np.arange(place, min(place + _STRETCH, store.num_tokens))
        if len(span := _sentence_in(store, tokenizer, window)) >= _WORDS[0]:
            found.append(span)
    return found


def _sentence_in(store: "TokenStore", tokenizer: Any, window: Ints) -> Ints:
    """The tokens of the first whole sentence of a stretch, or of its beginning."""
    ids = store.tokens(window).tolist()
    text = str(tokenizer.decode(ids))
    spans = sentence_spans(text, choose_rule([text]))
    # What comes first is cut through, and so may be what comes last.
    start, end = next(((a, b) for a, b in spans[1:] if b - a >= _READABLE), (0, len(text)))
    lengths = [len(str(tokenizer.decode(ids[:count]))) for count in range(len(ids) + 1)]
    first, past = bisect_right(lengths, start) - 1, bisect_left(lengths, end)
    return window[first : min(past, first + _WORDS[1])]
