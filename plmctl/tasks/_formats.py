"""How a text, or a pair of texts, becomes one sequence of ids for a family's network.

The special tokens around texts are the tokenizer's own template, so that a finetuned folder reads
texts the same way wherever it is loaded. Where a family's template is not in its tokenizer it is
put there:

- GPT-1: ``_start_ A _classify_`` and ``_start_ A _delimiter_ B _classify_``, three new tokens.
- GPT-2, GPT-3: a line break between the texts of a pair; nothing is published.
- RoBERTa with another family's tokenizer: two separators, no segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Ids = tuple[int, ...]

START, DELIMITER, CLASSIFY = GPT1_TOKENS = ("_start_", "_delimiter_", "_classify_")
"""In the order of their ids, which follow the vocabulary's."""


@dataclass(frozen=True)
class Layout:
    """Special tokens around the texts of one sequence, and segments.

    Attributes:
        before: Ids before the first text.
        between: Ids between the texts of a pair.
        after: Ids after the last text.
        second: Segment of the second text and of what follows it.
    """

    before: Ids
    between: Ids
    after: Ids
    second: int = 0

    @property
    def special(self) -> int:
        """Special tokens of a sequence."""
        return len(self.before) + len(self.between) + len(self.after)

    def join(self, texts: Sequence[Sequence[int]]) -> tuple[Ids, Ids]:
        """The sequence of one text or of a pair, and its segments."""
        first = (*self.before, *texts[0], *self.between)
        second = (*(texts[1] if len(texts) == 2 else ()), *self.after)
        if len(texts) == 1:
            return first + second, (0,) * (len(first) + len(second))
        return first + second, (0,) * len(first) + (self.second,) * len(second)


@dataclass(frozen=True)
class Sequences:
    """Rows of ids.

    Attributes:
        ids: [N] sequences.
        segments: As ids; None where the network has none.
        cut: Of each, whether text was lost to the maximal length.
    """

    ids: tuple[Ids, ...]
    segments: tuple[Ids, ...] | None
    cut: tuple[bool, ...]


def with_format(tokenizer: PreTrainedTokenizerBase, model_type: str) -> PreTrainedTokenizerBase:
    """The tokenizer with its family's template for finetuning.

    Args:
        tokenizer: Is changed.
        model_type: The network's, in transformers.
    """
    if model_type == "openai-gpt":
        return _gpt1(tokenizer)
    if model_type == "gpt2":
        return _gpt2(tokenizer)
    if model_type == "roberta" and len(layout_of(tokenizer, pair=True).between) == 1:
        return _roberta(tokenizer)
    return tokenizer


def gpt1_ids(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Ids of GPT-1's three tokens; empty: the tokenizer has none."""
    known = tokenizer.get_vocab()
    return [known[token] for token in GPT1_TOKENS if token in known]


def layout_of(tokenizer: PreTrainedTokenizerBase, *, pair: bool) -> Layout:
    """The template of a tokenizer, found by what it does to a text."""
    whole: Any = tokenizer
    backend = whole.backend_tokenizer
    made = backend.encode("a", "a") if pair else backend.encode("a")
    texts: list[int | None] = made.sequence_ids
    ids: list[int] = made.ids
    first = texts.index(0)
    end = len(texts) - texts[::-1].index(1 if pair else 0)
    if not pair:
        return Layout(tuple(ids[:first]), (), tuple(ids[end:]))
    inner = zip(ids[first:end], texts[first:end], strict=True)
    between = tuple(id_ for id_, text in inner if text is None)
    return Layout(tuple(ids[:first]), between, tuple(ids[end:]), made.type_ids[texts.index(1)])


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Ids of texts without special tokens; text that looks like one is only text."""
    if not texts:
        return []
    made = tokenizer(
        list(texts),
        add_special_tokens=False,
        split_special_tokens=True,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    ids: list[list[int]] = made["input_ids"]
    return ids


def kept(first: int, second: int, room: int) -> tuple[int, int]:
    """Lengths that BERT leaves a pair of: the longer is cut at its end, the second on ties.

    In closed form. Tokenizers' own ``longest_first`` cuts the first on ties.
    Source: google-research/bert, run_classifier.py, ``_truncate_seq_pair``.
    """
    if first + second <= room:
        return first, second
    if first > second:
        first = max(second, room - second)
    else:
        second = max(first, room - first)
    if first + second <= room:
        return first, second
    return room - room // 2, room // 2


def sequences(
    tokenizer: PreTrainedTokenizerBase, columns: Sequence[Sequence[str]], max_length: int
) -> Sequences:
    """One sequence a row, of at most ``max_length`` tokens.

    Args:
        tokenizer: With its family's template.
        columns: The texts, or the firsts and the seconds of pairs.
        max_length: In tokens, special ones included.
    """
    encoded = [encode(tokenizer, texts) for texts in columns]
    if len(columns) == 2:
        return pairs(tokenizer, encoded[0], encoded[1], max_length)
    layout = layout_of(tokenizer, pair=False)
    room = max(0, max_length - layout.special)
    return _joined(tokenizer, layout, [([ids], [min(len(ids), room)]) for ids in encoded[0]])


def pairs(
    tokenizer: PreTrainedTokenizerBase,
    first: Sequence[Sequence[int]],
    second: Sequence[Sequence[int]],
    max_length: int,
    *,
    whole_second: bool = False,
) -> Sequences:
    """One sequence a pair, of at most ``max_length`` tokens.

    Args:
        tokenizer: With its family's template.
        first: Ids of the first texts.
        second: Ids of the second texts.
        max_length: In tokens, special ones included.
        whole_second: Cut the first text alone, as long as there is any of it.
    """
    layout = layout_of(tokenizer, pair=True)
    room = max(0, max_length - layout.special)
    each = max(1, max_length // 2 - 2)  # GPT-1's; finetune-transformer-lm, train.py, max_len
    rows, gpt1 = [], bool(gpt1_ids(tokenizer))
    for one, two in zip(first, second, strict=True):
        if gpt1:
            keep = (min(len(one), each), min(len(two), each))
        elif whole_second:
            behind = min(len(two), room)
            keep = (min(len(one), room - behind), behind)
        else:
            keep = kept(len(one), len(two), room)
        rows.append(([one, two], list(keep)))
    return _joined(tokenizer, layout, rows)


def _joined(
    tokenizer: PreTrainedTokenizerBase,
    layout: Layout,
    rows: Sequence[tuple[list[Sequence[int]], list[int]]],
) -> Sequences:
    """The sequences of texts, and how many tokens are kept of each."""
    empty = tokenizer.eos_token_id  # a text without a token, between no special ones
    joined = [
        layout.join([ids[:length] for ids, length in zip(texts, keep, strict=True)])
        for texts, keep in rows
    ]
    ids = tuple(row or (int(empty or 0),) for row, _ in joined)
    segments = None
    if "token_type_ids" in tokenizer.model_input_names:
        segments = tuple(row or (0,) for _, row in joined)
    cut = tuple(list(map(len, texts)) != keep for texts, keep in rows)
    return Sequences(ids, segments, cut)


def _gpt1(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    if not gpt1_ids(tokenizer):
        tokenizer.add_tokens(list(GPT1_TOKENS), special_tokens=True)
    if tokenizer.pad_token is None:  # not the last token, by which a text's end is found
        tokenizer.pad_token = tokenizer.unk_token or START
    ids = gpt1_ids(tokenizer)
    single, pair = f"{START} $A {CLASSIFY}", f"{START} $A {DELIMITER} $B {CLASSIFY}"
    return _templated(tokenizer, single, pair, dict(zip(GPT1_TOKENS, ids, strict=True)))


def _gpt2(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    ids = encode(tokenizer, ["\n"])[0]
    known = {tokenizer.convert_ids_to_tokens(id_): id_ for id_ in ids}
    if len(ids) != 1:  # no token for a line break
        known = {str(tokenizer.eos_token): int(tokenizer.eos_token_id)}
    return _templated(tokenizer, "$A", f"$A {next(iter(known))} $B", known)


def _roberta(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    first, last = str(tokenizer.cls_token), str(tokenizer.sep_token)
    ids = {first: int(tokenizer.cls_token_id), last: int(tokenizer.sep_token_id)}
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    pair = f"{first} $A:0 {last} {last} $B:0 {last}"
    return _templated(tokenizer, f"{first} $A {last}", pair, ids)


def _templated(
    tokenizer: PreTrainedTokenizerBase, single: str, pair: str, ids: dict[Any, int]
) -> PreTrainedTokenizerBase:
    from tokenizers.processors import TemplateProcessing

    whole: Any = tokenizer
    whole.backend_tokenizer.post_processor = TemplateProcessing(
        single=single, pair=pair, special_tokens=list(ids.items())
    )
    return tokenizer
