"""Sequences are those of the papers, cut as their code cuts them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from plmctl.tasks._sequences import gpt1_ids, text_sequences, truncated_lengths
from plmctl.tasks.base import get_task
from tests.tasks.conftest import Folder

TASK = get_task("classification")
PAIR = TASK.Config(text=("a", "b"))


def pieces(folder: str, *texts: str, length: int = 64) -> tuple[list[str], tuple[int, ...] | None]:
    config = PAIR if len(texts) == 2 else TASK.Config()
    tokenizer = TASK(config).tokenizer(folder)
    sequences = text_sequences(tokenizer, [[text] for text in texts], length)
    tokens = tokenizer.convert_ids_to_tokens(sequences.ids[0])
    return tokens, sequences.segments and sequences.segments[0]


def bert_cuts(first: int, second: int, room: int) -> tuple[int, int]:
    """BERT's rule, one token at a time."""
    while first + second > room:
        if first > second:
            first -= 1
        else:
            second -= 1
    return first, second


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 60))
def test_a_pair_is_cut_as_bert_cuts_it(first: int, second: int, room: int) -> None:
    assert truncated_lengths(first, second, room) == bert_cuts(first, second, room)


@pytest.mark.parametrize("family", ["bert", "spanbert", "albert"])
def test_segments_and_ties(family: str, folder: Folder) -> None:
    got, segments = pieces(folder(family), "a b c d", "e f g h", length=8)
    assert [piece.strip("▁") for piece in got] == [
        "[CLS]", "a", "b", "c", "[SEP]", "e", "f", "[SEP]",
    ]  # fmt: skip
    assert segments == (0, 0, 0, 0, 0, 1, 1, 1)


def test_roberta_has_two_separators_and_no_segments(folder: Folder) -> None:
    assert pieces(folder("roberta"), "ab", " c") == (
        ["<s>", "a", "b", "</s>", "</s>", "Ġ", "c", "</s>"], None,
    )  # fmt: skip
    borrowed = folder("roberta", tokenizer="bert")
    assert pieces(borrowed, "a b", "c") == (
        ["[CLS]", "a", "b", "[SEP]", "[SEP]", "c", "[SEP]"], None,
    )  # fmt: skip
    assert pieces(borrowed, "a b") == (["[CLS]", "a", "b", "[SEP]"], None)


def test_gpt1_has_three_new_tokens_and_cuts_each_text(folder: Folder) -> None:
    source = folder("gpt1")
    tokenizer = TASK(PAIR).tokenizer(source)
    size = len(AutoTokenizer.from_pretrained(source))
    assert gpt1_ids(tokenizer) == [size, size + 1, size + 2]
    assert pieces(source, "a b", "c")[0] == [
        "_start_", "a</w>", "b</w>", "_delimiter_", "c</w>", "_classify_",
    ]  # fmt: skip
    assert pieces(source, "a b")[0] == ["_start_", "a</w>", "b</w>", "_classify_"]
    # 12 / 2 - 2 = 4 of each from its start, though the second leaves room for more of the first.
    cut, _ = pieces(source, "a b c d e f g", "h", length=12)
    assert cut == [
        "_start_", "a</w>", "b</w>", "c</w>", "d</w>", "_delimiter_", "h</w>", "_classify_",
    ]  # fmt: skip


def test_gpt2_reads_a_line_break_between_the_texts(folder: Folder) -> None:
    assert pieces(folder("gpt2"), "ab", "c")[0] == ["a", "b", "Ċ", "c"]
    assert pieces(folder("gpt2"), "ab")[0] == ["a", "b"]
    assert pieces(folder("gpt2"), "")[0] == ["<|endoftext|>"]


def test_text_that_looks_like_a_special_token_is_only_text(folder: Folder) -> None:
    assert pieces(folder("gpt2"), "a<|endoftext|>")[0].count("<|endoftext|>") == 0
    assert pieces(folder("bert"), "a [SEP] b")[0].count("[SEP]") == 1


@pytest.mark.parametrize("family", ["bert", "roberta", "albert", "gpt1", "gpt2"])
def test_a_saved_tokenizer_formats_texts_itself(family: str, folder: Folder, tmp_path) -> None:
    """As ``pipeline`` uses it, which knows nothing of this project."""
    tokenizer = TASK(PAIR).tokenizer(folder(family))
    tokenizer.save_pretrained(tmp_path)
    saved = AutoTokenizer.from_pretrained(tmp_path)
    for texts in (["a b c"], ["a b c", "d e"]):
        sequences = text_sequences(tokenizer, [[text] for text in texts], 64)
        assert tuple(saved(*texts)["input_ids"]) == sequences.ids[0]
