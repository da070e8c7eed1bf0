"""Completions scored by an encoder's pseudo-likelihood, for the lm-evaluation-harness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plmctl.errors import DataError
from plmctl.evaluation.prompting.continuations import Continuation


@dataclass(frozen=True)
class _Text:
    """Ids with special tokens, the places that are scored, and the word of each id."""

    ids: tuple[int, ...]
    scored: tuple[int, ...]
    words: tuple[int | None, ...]
    cut: bool


class Masked:
    """An encoder with its masked-language-model head.

    Args:
        name: A folder or Hub id.
        device: Where to compute.
        seq_len: Tokens at most, special ones included; None: its positions.
    """

    def __init__(self, name: str, device: Any, seq_len: int | None = None) -> None:
        import torch
        from transformers import AutoModelForMaskedLM

        from plmctl.modeling.auto import longest_input
        from plmctl.tokenization.load import load_tokenizer

        self._network: Any = AutoModelForMaskedLM.from_pretrained(name, dtype=torch.float32)
        self._network.to(device).train(False)
        self._tokenizer: Any = load_tokenizer(name)
        longest = longest_input(self._network.config)
        self._room = min(seq_len or 2**31, longest or 2**31) - 2

    def score(self, pairs: Sequence[tuple[str, str]], batch_size: int) -> list[Continuation]:
        """Score the tokens of each completion, all else seen; a context is cut from the left.

        Args:
            pairs: A context and its completion each.
            batch_size: Masked copies at once.

        Raises:
            DataError: A completion without a token, or longer than the positions.
        """
        return self._scored([self._text(*pair) for pair in pairs], batch_size)

    def rolled(self, text: str, batch_size: int) -> list[Continuation]:
        """Every token of a text once, in windows of all positions that do not overlap."""
        found = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)
        ids, words = found["input_ids"], found.word_ids()
        texts = [
            self._framed(ids[at : at + self._room], words[at : at + self._room], 0, cut=False)
            for at in range(0, len(ids), self._room)
        ]
        return self._scored(texts, batch_size)

    def _text(self, context: str, completion: str) -> _Text:
        found = self._tokenizer(
            context + completion,
            add_special_tokens=False,
            split_special_tokens=True,
            return_offsets_mapping=True,
        )
        ids, words = found["input_ids"], found.word_ids()
        ends = [end for _, end in found["offset_mapping"]]
        first = next((n for n, end in enumerate(ends) if end > len(context)), len(ids))
        over = max(0, len(ids) - self._room)
        if first == len(ids) or over > first:
            raise DataError(
                f"{completion[:40]!r}: {len(ids) - first} tokens, where the model takes 1 to "
                f"{self._room}",
                "leave the item out",
            )
        return self._framed(ids[over:], words[over:], first - over, cut=over > 0)

    def _framed(
        self, ids: Sequence[int], words: Sequence[int | None], first: int, *, cut: bool
    ) -> _Text:
        before, after = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        scored = tuple(range(first + 1, len(ids) + 1))
        return _Text((before, *ids, after), scored, (None, *words, None), cut)

    def _scored(self, texts: Sequence[_Text], batch_size: int) -> list[Continuation]:
        import torch

        copies = [(number, place) for number, text in enumerate(texts) for place in text.scored]
        copies.sort(key=lambda copy: len(texts[copy[0]].ids))
        sums, greedy = [0.0] * len(texts), [True] * len(texts)
        with torch.inference_mode():
            for at in range(0, len(copies), batch_size):
                batch = copies[at : at + batch_size]
                rows = [self._masked(texts[number], place) for number, place in batch]
                inputs = self._tokenizer.pad({"input_ids": rows}, return_tensors="pt")
                logits = self._network(**inputs.to(self._network.device)).logits
                for row, (number, place) in enumerate(batch):
                    target = texts[number].ids[place]
                    log_probs = logits[row, place].log_softmax(-1)
                    sums[number] += float(log_probs[target])
                    greedy[number] &= int(log_probs.argmax()) == target
        parts = zip(texts, sums, greedy, strict=True)
        return [Continuation(total, len(t.scored), right, t.cut) for t, total, right in parts]

    def _masked(self, text: _Text, place: int) -> list[int]:
        word = text.words[place]
        later = range(place + 1, len(text.ids))
        hidden = {place, *(n for n in later if word is not None and text.words[n] == word)}
        mask = self._tokenizer.mask_token_id
        return [mask if n in hidden else id_ for n, id_ in enumerate(text.ids)]
