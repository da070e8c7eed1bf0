"""Log-probabilities of completions: by hand, by transformers' loss, however they are batched."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from plmctl.errors import ConfigError, DataError
from plmctl.evaluation.completions import (
    MaskedCompletions,
    encode_completions,
    join_pair,
    score_completions,
)
from plmctl.evaluation.model import LoadedModel
from plmctl.models.completions import (
    CompletionScore,
    EncodedCompletion,
    completion_batches,
    score_encoded,
)
from tests.evaluation.models import masked_by_hand, opened
from tests.evaluation.prompting.conftest import KINDS, SENTINELS, with_batch_size

LONG = "Question: who paints the tower and likes the garden?\nAnswer:"


OTHER = f"{LONG} Carl paints the tower. the people of the city saw the king"


PAIRS = [
    (LONG, " Carl paints the tower."),
    (LONG, " the king"),
    ("Anna sees", " the old river"),
    (LONG, " Bela"),
    ("the king went to the city, and the people of", " the city"),
    (LONG, " the people of the city saw the king"),
    (OTHER, " and the river"),
    (OTHER, " the garden"),
]


def close(one: CompletionScore, other: CompletionScore) -> bool:
    same = (one.tokens, one.greedy, one.cut) == (other.tokens, other.greedy, other.cut)
    # Sums of hundreds of nats in float32: their rounding goes with their size.
    return same and one.log_prob == pytest.approx(other.log_prob, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize("kind", ["gpt1", "gpt2"])
def test_a_causal_completion_is_transformers_loss(kind: str, folders: dict, subjects: dict) -> None:
    """The loss with the context's labels left out is the mean over the completion."""
    tokenizer = AutoTokenizer.from_pretrained(folders[kind])
    model = AutoModelForCausalLM.from_pretrained(folders[kind]).eval()
    for (context, completion), score in zip(
        PAIRS, score_completions(subjects[kind], PAIRS), strict=True
    ):
        ids = tokenizer(context + completion, return_tensors="pt").input_ids
        before = len(tokenizer(context).input_ids)
        labels = ids.clone()
        labels[:, :before] = -100
        with torch.no_grad():
            out = model(ids, labels=labels)
        count = ids.shape[1] - before
        assert score.tokens == count
        assert score.log_prob == pytest.approx(-out.loss.item() * count, rel=1e-4)
        guesses = out.logits[0, before - 1 : -1].argmax(-1)
        assert score.greedy == bool((guesses == ids[0, before:]).all())


@pytest.mark.parametrize("sentinel", [False, True])
def test_a_completion_of_t5_is_transformers_loss(
    sentinel: bool, folders: dict, subjects: dict
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folders["t5"])
    model = AutoModelForSeq2SeqLM.from_pretrained(folders["t5"]).eval()
    mark = SENTINELS[0] if sentinel else ""
    scores = score_completions(subjects["t5"], PAIRS, sentinel=sentinel)
    for (context, completion), one in zip(PAIRS, scores, strict=True):
        source = tokenizer(context, add_special_tokens=False).input_ids
        ids = tokenizer(completion, add_special_tokens=False).input_ids
        first = tokenizer.convert_tokens_to_ids([mark]) if sentinel else []
        labels = torch.tensor([[*first, *ids]])
        with torch.no_grad():
            logits = model(torch.tensor([[*source, *first, 1]]), labels=labels).logits
        log_probs = logits[0].log_softmax(-1)[len(first) :]
        expected = sum(log_probs[at, id_].item() for at, id_ in enumerate(ids))
        assert one.log_prob == pytest.approx(expected, rel=1e-4)
        assert one.tokens == len(ids)
        assert one.greedy == (log_probs.argmax(-1).tolist() == ids)


def test_greedy_is_what_greedy_decoding_writes(folders: dict, subjects: dict) -> None:
    """What the model itself goes on with is greedy; with its last token changed it is not."""
    tokenizer = AutoTokenizer.from_pretrained(folders["gpt1"])
    model = AutoModelForCausalLM.from_pretrained(folders["gpt1"]).eval()
    ids = tokenizer("anna sees", return_tensors="pt").input_ids
    for _ in range(3):
        with torch.no_grad():
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
    row = tuple(ids[0].tolist())
    other = (*row[:-1], (row[-1] + 1) % 50)
    texts = [EncodedCompletion(ids, len(row) - 3) for ids in (row, other)]
    scores = score_encoded(subjects["gpt1"].generator, texts, batch_size=2)
    assert [one.greedy for one in scores] == [True, False]


@pytest.mark.parametrize("kind", KINDS)
@given(order=st.permutations(range(len(PAIRS))), size=st.integers(1, 8))
@settings(max_examples=8)
def test_order_and_batch_size_change_nothing(
    kind: str, order: list[int], size: int, subjects: dict
) -> None:
    alone = [score_completions(subjects[kind], [pair])[0] for pair in PAIRS]
    scores = score_completions(
        with_batch_size(subjects[kind], size), [PAIRS[number] for number in order]
    )
    assert all(close(one, alone[n]) for n, one in zip(order, scores, strict=True))


def test_a_shared_context_is_read_once(subjects: dict) -> None:
    """The four options of one question are one group; every text is in one batch."""
    texts = encode_completions(subjects["gpt2"], PAIRS)
    groups = [group for batch in completion_batches(texts, 8, caches=True) for group in batch]
    shared = [group for group in groups if group.shared]
    assert sorted(sorted(group.members) for group in shared) == [[0, 1, 3, 5], [6, 7]]
    assert {group.shared for group in shared} == {texts[0].first - 1, texts[6].first - 1}
    assert any(
        len(batch) == 2 and batch[1].shared for batch in completion_batches(texts, 8, caches=True)
    )
    assert sorted([member for group in groups for member in group.members]) == list(
        range(len(PAIRS))
    )
    assert all(not g.shared for batch in completion_batches(texts, 8, caches=False) for g in batch)
    for batch in completion_batches(texts, 2, caches=True):
        assert len([member for group in batch for member in group.members]) <= 2


@pytest.mark.parametrize(
    ("context", "completion", "expected"),
    [
        ("Answer:", " yes", ("Answer:", " yes")),
        ("Answer: ", "yes", ("Answer:", " yes")),
        ("Answer:  ", " yes", ("Answer:", " yes")),
        ("Answer:\n", "yes", ("Answer:\n", "yes")),
        ("答案是", "北京", ("答案是", "北京")),
    ],
)
def test_the_space_goes_with_the_completion(
    context: str, completion: str, expected: tuple[str, str]
) -> None:
    assert join_pair(context, completion) == expected


def test_a_token_over_the_boundary_is_the_completions(subjects: dict) -> None:
    """Joint tokens: where one spans both sides, it is scored, so that nothing is left out."""
    model: LoadedModel = subjects["gpt2"]
    spanning = [text for text in model.plain.get_vocab() if text.isalpha() and len(text) > 2]
    word = min(spanning)
    whole = model.plain.encode("x " + word, add_special_tokens=False)
    (encoded,) = encode_completions(model, [("x " + word[:1], word[1:])])
    crossing = next(n for n, (_, end) in enumerate(whole.offsets) if end > 3)
    assert encoded.ids == tuple(whole.ids)
    assert encoded.first == crossing


def test_text_that_looks_like_a_special_token_is_text(subjects: dict) -> None:
    (encoded,) = encode_completions(subjects["gpt2"], [("a <|endoftext|> b", " c")])
    assert subjects["gpt2"].tokenizer.eos_token_id not in encoded.ids


def test_long_items_are_cut_from_the_left(subjects: dict) -> None:
    model: LoadedModel = subjects["gpt2"]
    context, completion = "the king and " * 60, " the city"
    (score,) = score_completions(model, [(context, completion)])
    assert score.cut
    ids = model.plain.encode(context.rstrip() + completion).ids[-(model.window + 1) :]
    with torch.no_grad():
        log_probs = model.generator(torch.tensor([ids[:-1]])).logits[0].log_softmax(-1)
    last = range(model.window - score.tokens, model.window)
    expected = sum(log_probs[at, ids[at + 1]].item() for at in last)
    assert score.log_prob == pytest.approx(expected, rel=1e-4)
    (whole,) = score_completions(model, [("the king", completion)])
    assert not whole.cut


def test_without_a_context_a_text_follows_the_end_of_one(subjects: dict) -> None:
    model: LoadedModel = subjects["gpt2"]
    (encoded,) = encode_completions(model, [("", "the king")])
    assert encoded.ids[0] == model.tokenizer.eos_token_id
    assert encoded.first == 1
    with pytest.raises(DataError, match="no context"):
        encode_completions(subjects["gpt1"], [("", "the king")])


def test_what_cannot_be_scored_is_refused(subjects: dict) -> None:
    with pytest.raises(DataError, match="reads at most"):
        encode_completions(subjects["gpt2"], [("a", " the king" * 90)])
    with pytest.raises(DataError, match="has no token"):
        encode_completions(subjects["gpt2"], [("a", "")])
    with pytest.raises(ConfigError, match="no sentinel"):
        score_completions(subjects["gpt2"], [("a", " b")], sentinel=True)


def test_a_window_may_be_smaller_but_not_larger(folders: dict, accelerator) -> None:
    assert LoadedModel(folders["gpt2"], accelerator).for_generation(16).window == 16
    with pytest.raises(ConfigError, match="64 positions"):
        LoadedModel(folders["gpt2"], accelerator).for_generation(65)


def test_a_uniform_model_gives_the_same_to_every_token(folders: dict, accelerator) -> None:
    model = LoadedModel(folders["gpt2"], accelerator).for_generation()
    with torch.no_grad():
        for parameter in model.generator.parameters():
            parameter.zero_()
    scores = score_completions(model, PAIRS)
    size = torch.tensor(float(model.generator.config.vocab_size)).log().item()
    for one in scores:
        assert one.log_prob == pytest.approx(-one.tokens * size, rel=1e-6)


# Completions by pseudo-likelihood: copy by copy with transformers.


MASKED_PAIRS = [("Anna sees", " the banks lend"), ("The bank", " lends"), ("", "the old river")]


@pytest.mark.parametrize("size", [1, 7])
def test_each_token_is_masked_with_the_rest_of_its_word(encoder: Path, size: int) -> None:
    scores = MaskedCompletions(opened(encoder, size)).score([*MASKED_PAIRS, MASKED_PAIRS[0]])
    for one, pair in zip(scores, MASKED_PAIRS, strict=False):
        total, count = masked_by_hand(encoder, *pair)
        assert one.log_prob == pytest.approx(total, rel=1e-4)
        assert (one.tokens, one.cut) == (count, False)
    assert scores[3] == scores[0]


def test_a_whole_text_is_a_completion_of_nothing(encoder: Path) -> None:
    text = "the bank lends money"
    (one,) = MaskedCompletions(opened(encoder)).rolled(text)
    assert one.log_prob == pytest.approx(masked_by_hand(encoder, "", text)[0], rel=1e-4)
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
