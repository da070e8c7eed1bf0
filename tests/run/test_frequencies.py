"""The loss of token frequencies alone, by hand."""

import math

import numpy as np
import pytest

from plmctl.corpus.store import MixedStore, TokenStore
from plmctl.objectives.distillation import TaughtRows
from plmctl.run.frequencies import frequency_losses
from plmctl.tokenization.load import Vocab
from tests.builders import make_examples

VOCAB = Vocab(14, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5)


def test_a_causal_model_of_four_equal_tokens() -> None:
    """Four tokens as often as each other, and no separator between documents: log 4."""
    store = TokenStore.from_lists([[[6, 7, 8, 9] * 200]], 14)
    examples = make_examples("clm", store, VOCAB, 16, separator="none")
    losses = frequency_losses(store, examples, examples, None)
    assert losses == {"lm": pytest.approx(math.log(4), abs=0.01), "loss": losses["lm"]}


def test_separators_are_counted_in_the_rows() -> None:
    store = TokenStore.from_lists([[[6]]] * 400, 14)
    examples = make_examples("clm", store, VOCAB, 16)
    losses = frequency_losses(store, examples, examples, None)
    assert losses["lm"] == pytest.approx(math.log(2), abs=0.01)


def test_masked_tokens_and_pairs() -> None:
    rng = np.random.default_rng(0)
    documents = [[rng.integers(6, 14, 12).tolist() for _ in range(8)] for _ in range(100)]
    store = TokenStore.from_lists(documents, 14)
    examples = make_examples("mlm+nsp", store, VOCAB, 32)
    losses = frequency_losses(store, examples, None, None)
    assert losses["mlm"] == pytest.approx(math.log(8), abs=0.03)
    assert losses["nsp"] == pytest.approx(math.log(2), abs=0.03)
    assert losses["loss"] == losses["mlm"] + losses["nsp"]


def test_the_classes_of_a_pair_are_two_whatever_the_vocabulary() -> None:
    """The text has [UNK], whose id is that of a class, and few of the vocabulary's tokens."""
    vocab = Vocab(5_000, pad=0, unk=1, cls=2, sep=3, mask=4)
    rng = np.random.default_rng(0)
    tokens = [1, *range(6, 14)]
    documents = [[rng.choice(tokens, 12).tolist() for _ in range(8)] for _ in range(100)]
    store = TokenStore.from_lists(documents, 5_000)
    examples = make_examples("mlm+nsp", store, vocab, 32)
    losses = frequency_losses(store, examples, None, None)
    assert losses["nsp"] == pytest.approx(math.log(2), abs=0.03)
    assert losses["mlm"] == pytest.approx(math.log(9), abs=0.1)


def test_the_texts_of_a_mixture_count_by_their_weights() -> None:
    stores = [TokenStore.from_lists([[[token] * 400]], 14) for token in (6, 7)]
    mixed = MixedStore(("one", "two"), tuple(stores), (3.0, 1.0))
    examples = make_examples("clm", stores[0], VOCAB, 16, separator="none")
    other = make_examples("clm", stores[1], VOCAB, 16, separator="none")
    assert frequency_losses(mixed, examples, examples, None)["lm"] < 0.02  # by its own rows
    assert frequency_losses(mixed, examples, other, None)["lm"] == pytest.approx(math.log(4), 0.01)


def test_what_is_no_cross_entropy_is_left_out() -> None:
    assert TaughtRows.counted_terms.fget(None) == ("mlm",)
