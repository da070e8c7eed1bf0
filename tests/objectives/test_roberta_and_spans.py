"""RoBERTa's rows and masks and SpanBERT's spans through the whole objective."""

from pathlib import Path

import numpy as np
import pytest
import torch

from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError, DataError
from plmctl.models.base import Examples
from plmctl.models.batch import Batch
from plmctl.objectives.base import get_objective
from plmctl.objectives.mlm_and_sbo import Config, SpanBoundaryObjective
from plmctl.tokenization.load import Vocab
from tests.builders import make_examples, random_documents
from tests.objectives.reference import reference_store

VOCAB = Vocab(size=2000, pad=1, unk=3, cls=0, sep=2, mask=1999, bos=0, eos=2)

# fairseq's MaskTokensDataset on rows of 512: what it masks, and how often each end of a row is
# among it. 600 rows, so that its shares of rows are known to 0.02 and 0.014.
FAIRSEQ = {
    "masked": 0.14998,
    "mask": 0.8007,
    "random": 0.0994,
    "keep": 0.0999,
    "counts": {76: 0.21, 77: 0.79},
    "first": 0.149,
    "last": 0.1513,
}
RECIPE = {"packing": "full_sentences", "count": "probabilistic", "mask_specials": True}


@pytest.fixture(scope="module")
def full() -> TokenStore:
    """Sentences of 72 tokens: seven of them and their separators fill a row of 512."""
    rng = np.random.default_rng(0)
    documents = [[rng.integers(4, 1999, 72).tolist() for _ in range(7 * 40)] for _ in range(25)]
    # A document's last sentence has one token less: there is one more separator to the next one.
    for document in documents[:-1]:
        document[-1] = document[-1][:-1]
    return TokenStore.from_lists(documents, vocab_size=2000)


@pytest.fixture(scope="module")
def mixed() -> TokenStore:
    documents = random_documents(1, (4, 1999), documents=60, sentences=(1, 30), tokens=(3, 30))
    total = sum(len(sentence) for document in documents for sentence in document)
    starts = np.random.default_rng(1).random(total) >= 0.25
    return TokenStore.from_lists(documents, 2000, starts.tolist())


def make_objective(name: str, store: TokenStore, seq_len: int = 512, **fields: object) -> Examples:
    return make_examples(name, store, VOCAB, seq_len, 1, **fields)


def everything(objective: Examples, epoch: int = 0, most: int | None = None) -> Batch:
    samples = np.arange(min(len(objective), most or len(objective)))
    return objective.collate(np.full(len(samples), epoch), samples)


def originals(batch: Batch) -> torch.Tensor:
    """[B, L] the rows before they were masked."""
    ids = batch.inputs["input_ids"].flatten().clone()
    ids[batch.inputs["positions"]] = batch.targets["mlm"]
    return ids.view_as(batch.inputs["input_ids"])


def test_masks_of_fairseq(full: TokenStore) -> None:
    objective = make_objective("mlm", full, **RECIPE, random_specials=False)
    batch = everything(objective)
    rows, width = batch.inputs["input_ids"].shape
    assert width == 512
    assert batch.inputs["attention_mask"].all()
    positions, targets = batch.inputs["positions"], batch.targets["mlm"]
    counts = torch.bincount(positions // width)
    assert set(counts.tolist()) == set(FAIRSEQ["counts"])
    # 76.8 on average, exactly: 77 in four rows of five.
    assert (counts == 77).float().mean().item() == pytest.approx(0.8, abs=0.04)
    assert len(positions) / (rows * width) == pytest.approx(FAIRSEQ["masked"], abs=2e-4)
    inputs = batch.inputs["input_ids"].flatten()[positions]
    mask, keep = inputs == 1999, inputs == targets
    assert mask.float().mean().item() == pytest.approx(FAIRSEQ["mask"], abs=0.006)
    assert keep.float().mean().item() == pytest.approx(FAIRSEQ["keep"], abs=0.006)
    drawn = inputs[~mask & ~keep]
    assert len(drawn) / len(inputs) == pytest.approx(FAIRSEQ["random"], abs=0.006)
    assert drawn.min() > 3  # no special token was drawn, as there
    place = positions % width
    for name, at in (("first", 0), ("last", 511)):
        assert (place == at).sum().item() / rows == pytest.approx(FAIRSEQ[name], abs=0.03)


def test_rows_of_full_sentences(mixed: TokenStore) -> None:
    """The stream of sentences and separators, and nothing else, in rows that begin with [CLS]."""
    batch = everything(make_objective("mlm", mixed, 64, packing="full_sentences"))
    ids, real = originals(batch), batch.inputs["attention_mask"].bool()
    assert (ids[:, 0] == 0).all()
    assert real.sum(1).max() <= 64
    text = mixed.tokens(np.arange(mixed.num_tokens))
    expected: list[int] = []
    for number, (start, end) in enumerate(zip(mixed.documents, mixed.documents[1:], strict=False)):
        expected += [2] * (number > 0)
        for s in range(start, end):
            expected += [*text[mixed.sentences[s] : mixed.sentences[s + 1]].tolist(), 2]
    assert ids[:, 1:][real[:, 1:]].tolist() == expected
    # Rows are as full as whole sentences make them: on average half a sentence is missing.
    assert real.sum(1).float()[:-1].mean().item() > 64 - 16
    assert (batch.inputs["token_type_ids"] == 0).all()
    chosen = ids.flatten()[batch.inputs["positions"]]
    assert chosen.min() > 3  # special tokens are never asked for, unless they are meant to be


def test_rows_of_doc_sentences_end_with_the_document(mixed: TokenStore) -> None:
    batch = everything(make_objective("mlm", mixed, 64, packing="doc_sentences"))
    ids, real = originals(batch), batch.inputs["attention_mask"].bool()
    last = real.sum(1) - 1
    assert (ids[torch.arange(len(ids)), last] == 2).all()
    doubled = (ids[:, 1:] == 2) & (ids[:, :-1] == 2)
    assert not doubled.any()  # no separator between documents, since none share a row
    bounds = set(np.cumsum(np.diff(mixed.sentences[mixed.documents])).tolist())
    ends = np.cumsum((real & (ids > 3)).sum(1).numpy()).tolist()
    assert bounds <= set(ends)


def test_segment_pairs_are_bert_s_without_a_label(mixed: TokenStore) -> None:
    batch = everything(make_objective("mlm", mixed, 64, packing="segment_pair"))
    labelled = everything(make_objective("mlm+nsp", mixed, 64))
    assert torch.equal(batch.inputs["input_ids"], labelled.inputs["input_ids"])
    assert list(batch.targets) == ["mlm"]
    lonely = TokenStore.from_lists([[[7, 8, 9], [10, 11]]], vocab_size=2000)
    with pytest.raises(DataError, match=r"objective\.packing"):
        make_objective("mlm", lonely, packing="segment_pair")


def test_span_rows_and_targets(mixed: TokenStore) -> None:
    objective = make_objective("mlm+sbo", mixed, 128)
    batch = everything(objective)
    ids, real = originals(batch), batch.inputs["attention_mask"].bool()
    lengths = real.sum(1)
    assert (ids[:, 0] == 0).all()
    assert (ids[torch.arange(len(ids)), lengths - 1] == 2).all()
    counts = torch.bincount(batch.inputs["positions"] // ids.shape[1], minlength=len(ids))
    expected = [-(-15 * (int(length) - 2) // 100) for length in lengths]
    assert counts.tolist() == expected  # 15 % of the text rounded up, in every row
    assert batch.targets["mlm"].min() > 3
    # Boundaries: neighbours in the text that are no targets themselves, around whole runs.
    cells = ids.flatten()
    left, right, place = (batch.inputs[name] for name in ("left", "right", "place"))
    is_target = torch.zeros(len(cells), dtype=torch.bool)
    is_target[batch.inputs["positions"]] = True
    assert not is_target[left].any()
    assert not is_target[right].any()
    assert cells[left].min() > 3
    assert cells[right].min() > 3
    assert torch.equal(cells[left + 1 + place], batch.targets["sbo"])
    assert place.max() <= 14
    size = right - left - 1
    assert all(
        is_target[a + 1 : b].all() for a, b in zip(left.tolist(), right.tolist(), strict=True)
    )
    assert (place < size).all()


def test_random_tokens_of_spans_come_from_the_corpus() -> None:
    """Half of this corpus is one token, and so are half of the random ones."""
    rng = np.random.default_rng(0)
    text = np.where(rng.random(60_000) < 0.5, 10, rng.integers(11, 1999, 60_000))
    store = TokenStore.from_lists([text.reshape(-1, 30).tolist()], vocab_size=2000)
    objective = make_objective("mlm+sbo", store, 128, mask_share=0.0, random_share=1.0)
    batch = everything(objective)
    inputs = batch.inputs["input_ids"].flatten()[batch.inputs["positions"]]
    assert (inputs == 10).float().mean().item() == pytest.approx(0.5, abs=0.02)


def test_whole_spans_on_real_text(shared_data: Path) -> None:
    """Shares and lengths on Shakespeare's plays in WordPiece tokens."""
    store, vocab, _ = reference_store(shared_data)
    objective = make_examples("mlm+sbo", store, vocab, 512, 3)
    samples = np.arange(len(objective))
    tallies = objective.tally(np.zeros_like(samples), samples)
    statistics = {name: total / cases for name, (total, cases) in tallies.items()}
    full = 77 / 510
    assert statistics["masked_share"] == pytest.approx(full * 510 / 512, abs=0.001)
    assert statistics["mask_share"] == pytest.approx(0.8, abs=0.02)
    assert statistics["mean_span_words"] == pytest.approx(3.889, rel=0.03)
    assert 14 < statistics["mean_spans"] < 18


def test_preview_shows_the_example(mixed: TokenStore) -> None:
    objective = make_objective("mlm+sbo", mixed, 64)
    example = objective.example(0, 3)
    kinds = [piece.kind for piece in example.rows["input"]]
    assert kinds[0] == kinds[-1] == "special"
    assert {"masked", "random", "kept"} & set(kinds)
    assert objective.expected() == {"mask_share": 0.8}


def test_a_tokenizer_without_what_is_needed(mixed: TokenStore) -> None:
    bare = Vocab(size=2000, pad=1, eos=5)
    with pytest.raises(ConfigError, match=r"\[MASK\], \[CLS\], \[SEP\]"):
        make_examples("mlm+sbo", mixed, bare, 64)


def test_text_that_is_one_long_word_is_refused() -> None:
    text = [[list(range(10, 60))] * 20]
    store = TokenStore.from_lists(text, 2000, ([True] + [False] * 49) * 20)
    objective = SpanBoundaryObjective(Config())
    with pytest.raises(ConfigError, match="100% of the tokens are in words of more than 10"):
        objective.check_text(store, 64)
    objective.check_text(store, 512)  # a row predicts more than a word has


def test_shares_over_one_are_refused() -> None:
    with pytest.raises(ValueError, match="more than 1 together"):
        get_objective("mlm+sbo").Config(name="mlm+sbo", mask_share=0.9, random_share=0.2)
