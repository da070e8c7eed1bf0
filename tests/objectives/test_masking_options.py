"""What the masked objectives let a user set, and sentence order."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from plmctl.corpus.store import TokenStore
from plmctl.errors import DataError
from plmctl.examples.keys import fold
from plmctl.examples.pairing import Pairs, sentence_order_pairs
from plmctl.models.base import Examples
from plmctl.objectives.base import get_objective
from plmctl.tokenization.load import Vocab

VOCAB = Vocab(size=500, pad=0, unk=1, cls=2, sep=3, mask=4, bos=2, eos=3)


@pytest.fixture(scope="module")
def store() -> TokenStore:
    """Consecutive ids, so that order can be read off; a word has one to three tokens."""
    rng = np.random.default_rng(3)
    documents = [
        [(6 + (np.arange(rng.integers(4, 20)) + 7 * s) % 490).tolist() for s in range(40)]
        for _ in range(60)
    ]
    size = sum(len(sentence) for document in documents for sentence in document)
    return TokenStore.from_lists(documents, 500, (rng.random(size) < 0.6).tolist())


def make_objective(name: str, store: TokenStore, seq_len: int = 64, **fields: object) -> Examples:
    member = get_objective(name)
    return member.make(member.Config(name=name, **fields), store, VOCAB, seq_len, 1)


def whole(objective: Examples, epoch: int = 0):
    return objective.collate(np.full(len(objective), epoch), np.arange(len(objective)))


def test_probabilistic_counts_have_an_exact_mean(store: TokenStore) -> None:
    objective = make_objective("mlm", store, count="probabilistic")
    masked = total = 0
    for epoch in range(4):
        batch = whole(objective, epoch)
        lengths = batch.inputs["attention_mask"].sum(1)
        rows = batch.inputs["positions"] // batch.inputs["input_ids"].shape[1]
        counts = torch.bincount(rows, minlength=len(lengths))
        assert ((counts == (0.15 * lengths).floor()) | (counts == (0.15 * lengths).ceil())).all()
        masked, total = masked + len(rows), total + batch.tokens
    assert masked / total == pytest.approx(0.15, abs=0.001)
    limited = whole(make_objective("mlm", store, count="probabilistic", max_predictions=3))
    rows = limited.inputs["positions"] // limited.inputs["input_ids"].shape[1]
    assert torch.bincount(rows).max() == 3


@pytest.mark.parametrize("unit", ["token", "word"])
def test_special_tokens_are_masked_if_configured(unit: str, store: TokenStore) -> None:
    """As often as any other: fairseq has 14.9 % of <s> and 15.1 % of </s>."""
    objective = make_objective("mlm", store, mask_specials=True, count="probabilistic", unit=unit)
    masked = {VOCAB.cls: 0, VOCAB.sep: 0}
    rows = 0
    for epoch in range(10):
        batch = whole(objective, epoch)
        rows += len(objective)
        for id_ in masked:
            masked[id_] += int((batch.targets["mlm"] == id_).sum())
        assert (batch.targets["mlm"] != VOCAB.pad).all()
    # Single tokens fit more often than long words do where little is left to choose.
    for count in masked.values():
        assert count / rows == pytest.approx(0.15 if unit == "token" else 0.18, abs=0.02)
    plain = whole(make_objective("mlm", store, unit=unit))
    assert plain.targets["mlm"].min() >= 6


def test_random_tokens_without_special_ones(store: TokenStore) -> None:
    fields = {"mask_share": 0.0, "random_share": 1.0, "rate": 0.5}
    drawn = {}
    for special in (True, False):
        objective = make_objective("mlm", store, random_specials=special, **fields)
        inputs = [
            batch.inputs["input_ids"].flatten()[batch.inputs["positions"]]
            for batch in (whole(objective, epoch) for epoch in range(4))
        ]
        drawn[special] = torch.cat(inputs)
    specials = torch.tensor([VOCAB.pad, VOCAB.unk, VOCAB.cls, VOCAB.sep, VOCAB.mask])
    assert torch.isin(drawn[True], specials).float().mean() == pytest.approx(5 / 500, rel=0.2)
    assert not torch.isin(drawn[False], specials).any()
    assert drawn[False].min() == 5
    assert drawn[False].max() == 499


def test_defaults_are_those_of_the_papers() -> None:
    member = get_objective("mlm+sop")
    config = member.Config(name="mlm+sop")
    assert (config.unit, config.max_ngram, config.favor_shorter) == ("ngram", 3, True)
    assert config.single_sentence == "other_document"
    for name in ("mlm", "mlm+nsp"):
        config = get_objective(name).Config(name=name)
        assert (config.unit, config.count, config.mask_specials) == ("token", "exact", False)


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, 2.0])
@pytest.mark.parametrize("name", ["mlm", "mlm+nsp", "mlm+sop"])
def test_a_rate_is_between_none_and_all(name: str, rate: float) -> None:
    with pytest.raises(ValidationError, match="rate"):
        get_objective(name).Config(name=name, rate=rate)


@pytest.mark.parametrize("fields", [{}, {"count": "probabilistic"}, {"unit": "word"}])
@pytest.mark.parametrize("name", ["mlm", "mlm+nsp", "mlm+sop"])
def test_a_scheduled_rate_has_the_masks_of_that_rate(
    name: str, fields: dict[str, str], store: TokenStore
) -> None:
    """Of the step: the same examples as a run with that rate has, and validation has the last."""
    objective = make_objective(name, store, rate={"start": 0.4, "end": 0.1}, **fields)
    for done, rate in ((0.0, 0.4), (0.25, 0.325), (1.0, 0.1), (None, 0.1)):
        changing = objective if done is None else objective.during(done)
        assert changing.masker.rate == pytest.approx(rate, rel=1e-12)
        fixed = make_objective(name, store, rate=changing.masker.rate, **fields)
        batch, expected = whole(changing), whole(fixed)
        for tensor, other in zip(batch.inputs.values(), expected.inputs.values(), strict=True):
            assert torch.equal(tensor, other)
        assert torch.equal(batch.targets["mlm"], expected.targets["mlm"])
    share = get_objective(name).targets_per_token(objective.masker.config)
    assert share == pytest.approx(0.25)  # what `plan` counts with


@pytest.mark.parametrize(
    ("rate", "message"),
    [
        ({"start": 0.4, "end": 0}, "greater than 0"),
        ({"start": 1.5, "end": 0.1}, "less than 1"),
        ({"start": 0.4}, "end"),
        ({"start": 0.4, "end": 0.1, "middle": 0.2}, "middle"),
        ("a lot", "rate"),
    ],
)
def test_a_schedule_needs_two_rates(rate: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        get_objective("mlm").Config(name="mlm", rate=rate)


def test_static_masks_have_one_rate() -> None:
    rate = {"start": 0.4, "end": 0.1}
    with pytest.raises(ValidationError, match="static masks are the same in every pass"):
        get_objective("mlm").Config(name="mlm", masking="static", rate=rate)


def joined(records: Iterator[np.ndarray]) -> Pairs:
    return Pairs.of(np.concatenate(list(records)))


def test_swapped_pairs_are_those_in_order_with_segments_exchanged(store: TokenStore) -> None:
    corpus = (store.sentences, store.documents)
    pairs = joined(sentence_order_pairs(*corpus, 4096, fold(5)))  # nothing is truncated
    in_order = np.where(pairs.label == 1, pairs.b_start, pairs.a_start)
    follows = np.where(pairs.label == 1, pairs.a_start, pairs.b_start)
    ends = np.where(pairs.label == 1, pairs.b_end, pairs.a_end)
    multi = ~pairs.forced
    assert (ends[multi] == follows[multi]).all()
    assert (in_order[multi] < follows[multi]).all()
    assert (pairs.label[pairs.forced] == 1).all()
    assert {0, 1} <= set(pairs.label[multi].tolist())


def test_single_sentences_come_from_elsewhere_or_not_at_all() -> None:
    sizes = [[30], [5, 6, 40], [7, 8], [50, 3]]  # documents, as lengths of sentences
    sentences = np.concatenate([[0], np.cumsum([n for document in sizes for n in document])])
    documents = np.concatenate([[0], np.cumsum([len(document) for document in sizes])])
    bounds = sentences[documents]
    for key in range(40):
        both = joined(sentence_order_pairs(sentences, documents, 33, fold(1, key)))
        pure = joined(sentence_order_pairs(sentences, documents, 33, fold(1, key), single="skip"))
        assert len(pure) == (~both.forced).sum()
        assert not pure.forced.any()
        document_of = [
            np.searchsorted(bounds, side, side="right") for side in (both.a_start, both.b_start)
        ]
        assert (document_of[0][both.forced] != document_of[1][both.forced]).all()
        assert (document_of[0][~both.forced] == document_of[1][~both.forced]).all()
        # Nothing is put back: each sentence is in one chunk.
        starts = np.where(both.label == 1, both.b_start, both.a_start)[~both.forced]
        assert len(set(starts.tolist())) == len(starts)


def test_order_needs_no_second_document_if_single_sentences_are_left_out() -> None:
    store = TokenStore.from_lists([[[7, 8, 9], [10, 11], [12, 13]]], vocab_size=500)
    with pytest.raises(DataError, match="two documents") as refused:
        make_objective("mlm+sop", store)
    assert "single_sentence: skip" in str(refused.value)
    assert len(make_objective("mlm+sop", store, single_sentence="skip")) == 1
