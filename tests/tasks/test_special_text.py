"""Text that looks like a special token is text: in every task and family."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from plmctl.tasks.question_answering import pieces_of
from plmctl.tasks.text_to_text import with_end_token
from plmctl.tokenization.encode import Encoder
from plmctl.tokenization.layout import encode_texts
from tests.tasks.conftest import LETTERS, tokenizer_of

TEXT = "a [SEP] b [MASK] c <s> d </s> <pad> <mask><extra_id_0> <|endoftext|> [CLS]<unk> </S>"


def t5() -> PreTrainedTokenizerBase:
    """As published: control pieces are among the pieces, and more probable than any of them."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(piece, -2.0) for piece in ["▁", *LETTERS, "</"]]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **names, extra_special_tokens=["<extra_id_0>"]
    )


def words() -> PreTrainedTokenizerBase:
    tokenizer = Tokenizer(models.WordLevel({"<S>": 0, "</S>": 1, "<UNK>": 2, "a": 3}, "<UNK>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"bos_token": "<S>", "eos_token": "</S>", "unk_token": "<UNK>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


MAKERS: dict[str, Callable[[], PreTrainedTokenizerBase]] = {"t5": t5, "words": words}
FAMILIES = ("bert", "roberta", "albert", "gpt1", "gpt2", *MAKERS)


@pytest.mark.parametrize("family", FAMILIES)
def test_text_that_looks_like_a_special_token_is_text(family: str, tmp_path: Path) -> None:
    tokenizer = MAKERS[family]() if family in MAKERS else tokenizer_of(family)
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    tokenizer.save_pretrained(tmp_path)
    stored = Encoder(str(tmp_path))([TEXT])[0][0].tolist()
    (encoded,) = encode_texts(tokenizer, [TEXT])
    (pieces,) = pieces_of([TEXT], tokenizer)
    assert stored == encoded == pieces.ids.tolist()
    assert not special & set(encoded)
    assert len(encoded) > 5
    if family == "t5":
        ((*target, end),), _ = with_end_token(tokenizer, [TEXT], 1000)
        assert (target, end) == (encoded, tokenizer.eos_token_id)
        # Prompts that a user types go to the tokenizer itself, which is unchanged.
        assert tokenizer.pad_token_id in tokenizer(TEXT)["input_ids"]
