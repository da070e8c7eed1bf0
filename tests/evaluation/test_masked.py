"""Completions by pseudo-likelihood: copy by copy with transformers."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM

from plmctl.errors import DataError
from plmctl.evaluation.completions import MaskedCompletions
from tests.evaluation.models import opened
from tests.evaluation.test_neighbours import pieces

PAIRS = [("Anna sees", " the banks lend"), ("The bank", " lends"), ("", "the old river")]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("masked") / "bert"
    tokenizer = pieces(folder)
    torch.manual_seed(2)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=24,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


def by_hand(folder: Path, context: str, completion: str) -> tuple[float, int]:
    """Each token of the completion with the later pieces of its word masked, all else seen."""
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(context + completion)
    ids, words = batch["input_ids"], batch.word_ids()
    first = len(tokenizer(context)["input_ids"]) - 1
    total = 0.0
    for place in range(first, len(ids) - 1):
        row = list(ids)
        for other in range(place, len(ids)):
            if words[other] == words[place]:
                row[other] = tokenizer.mask_token_id
        with torch.no_grad():
            logits = model(torch.tensor([row])).logits[0, place]
        total += logits.log_softmax(-1)[ids[place]].item()
    return total, len(ids) - 1 - first


@pytest.mark.parametrize("size", [1, 7])
def test_each_token_is_masked_with_the_rest_of_its_word(encoder: Path, size: int) -> None:
    scores = MaskedCompletions(opened(encoder, size)).score([*PAIRS, PAIRS[0]])
    for one, pair in zip(scores, PAIRS, strict=False):
        total, count = by_hand(encoder, *pair)
        assert one.log_prob == pytest.approx(total, rel=1e-4)
        assert (one.tokens, one.cut) == (count, False)
    assert scores[3] == scores[0]


def test_a_whole_text_is_a_completion_of_nothing(encoder: Path) -> None:
    text = "the bank lends money"
    (one,) = MaskedCompletions(opened(encoder)).rolled(text)
    assert one.log_prob == pytest.approx(by_hand(encoder, "", text)[0], rel=1e-4)
    several = MaskedCompletions(opened(encoder), seq_len=6).rolled(text * 5)
    whole = AutoTokenizer.from_pretrained(encoder)(text * 5, add_special_tokens=False)
    assert len(several) > 1
    assert sum(one.tokens for one in several) == len(whole["input_ids"])


def test_a_context_is_cut_from_the_left(encoder: Path) -> None:
    model = MaskedCompletions(opened(encoder))
    (long,) = model.score([("money " * 40 + "the old river", " bank")])
    assert long.cut
    (none,) = model.score([("the old river", " bank")])
    assert not none.cut
    assert long.tokens == none.tokens
    with pytest.raises(DataError, match="takes 1 to 22"):
        model.score([("a", " bank" * 40)])
    with pytest.raises(DataError, match="0 tokens"):
        model.score([("the bank", "")])
