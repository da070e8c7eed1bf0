"""Causal rows: the shift, the separators, attention within documents, transformers' own loss."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plmctl.arrays import IGNORE
from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError, DataError
from plmctl.models.base import Examples
from plmctl.models.network import Network
from plmctl.tokenization.load import Vocab
from tests.builders import make_examples, make_network, random_documents

EOS = 9
VOCAB = Vocab(size=120, eos=EOS)
DOCUMENTS = [[[11, 12, 13], [14]], [[21]], [[31, 32], [33, 34, 35]]]
STREAM = [11, 12, 13, 14, EOS, 21, EOS, 31, 32, 33, 34, 35, EOS]
NAMES = ("gpt1", "gpt2", "gpt3")


def make_objective(
    documents: list, seq_len: int, vocab: Vocab = VOCAB, **fields: object
) -> Examples:
    store = TokenStore.from_lists(documents, vocab_size=120)
    return make_examples("clm", store, vocab, seq_len, 1, **fields)


def everything(objective: Examples) -> dict[str, list[int]]:
    samples = np.arange(len(objective))
    batch = objective.collate(np.zeros_like(samples), samples)
    tensors = {**batch.inputs, **batch.targets}
    return {name: tensor.flatten().tolist() for name, tensor in tensors.items()}


def network(family: str, **fields: object) -> Network:
    fields = {"size": "tiny", "n_embd": 32, "n_head": 2, "n_positions": 48} | fields
    fields |= {"resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
    return make_network(family, 120, ("lm",), pad_id=EOS, **fields)


@pytest.fixture(scope="module")
def many() -> list:
    return random_documents(0, (10, 120), documents=80, sentences=(1, 7), tokens=(1, 9))


def test_separated_by_hand() -> None:
    got = everything(make_objective(DOCUMENTS, 4))
    assert got == {"input_ids": STREAM[:12], "lm": STREAM[1:13]}


def test_contiguous_by_hand() -> None:
    """GPT-1: no token between the documents, and none needed in the vocabulary."""
    got = everything(make_objective(DOCUMENTS, 3, Vocab(size=120), separator="none"))
    text = [token for token in STREAM if token != EOS]
    assert got == {"input_ids": text[:9], "lm": text[1:10]}


def test_within_by_hand() -> None:
    """Positions begin again with a separator, which predicts a document's first, and with a row."""
    got = everything(make_objective(DOCUMENTS, 4, attention="within"))
    assert got["input_ids"] == STREAM[:12]
    assert got["position_ids"] == [0, 1, 2, 3, 0, 1, 0, 1, 0, 1, 2, 3]
    assert got["lm"] == STREAM[1:13]


def test_within_contiguous_by_hand() -> None:
    got = everything(
        make_objective(DOCUMENTS, 9, Vocab(size=120), attention="within", separator="none")
    )
    assert got["position_ids"] == [0, 1, 2, 3, 0, 0, 1, 2, 3]
    assert got["lm"] == [12, 13, 14, IGNORE, IGNORE, 32, 33, 34, 35]


@given(
    st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=12),
    st.integers(1, 7),
    st.booleans(),
)
def test_rows_against_a_plain_loop(sizes: list[list[int]], seq_len: int, separated: bool) -> None:
    numbers = iter(range(10, 10**6))
    documents = [[[next(numbers) % 110 + 10 for _ in range(n)] for n in doc] for doc in sizes]
    flat, places = [], []
    for document in documents:
        tokens = sum(document, [])
        flat += tokens + [EOS] * separated
        # A separator is the start of what follows it.
        places += [*range(1, len(tokens) + 1), 0] if separated else range(len(tokens))
    separator = "end_of_text" if separated else "none"
    rows = (len(flat) - 1) // seq_len
    if not rows:
        with pytest.raises(DataError):
            make_objective(documents, seq_len, separator=separator)
        return
    got = everything(make_objective(documents, seq_len, separator=separator, attention="within"))
    used = range(rows * seq_len)
    assert got["input_ids"] == [flat[i] for i in used]
    predicted = [separated or places[i + 1] > 0 for i in used]
    assert got["lm"] == [flat[i + 1] if predicted[i] else IGNORE for i in used]
    assert got["position_ids"] == [min(places[i], i % seq_len) for i in used]


def test_a_tokenizer_without_a_separator_is_refused_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match="end-of-text") as caught:
        make_objective(DOCUMENTS, 4, Vocab(size=120))
    assert "separator: none" in str(caught.value.hint)


@pytest.mark.parametrize("family", NAMES)
def test_loss_is_transformers_own(family: str, many: list) -> None:
    """Theirs shifts the labels itself and averages over the T - 1 targets that a row holds."""
    objective = make_objective(many, 40)
    batch = objective.collate(np.zeros(6, np.int64), np.arange(6))
    net = network(family).eval()
    targets = batch.targets["lm"].clone()
    targets[:, -1] = IGNORE  # the token after the row, which transformers does not predict
    held = type(batch)(batch.inputs, {"lm": targets}, batch.tokens, batch.padded_tokens)
    with torch.no_grad():
        ours = objective.loss(net, held)["lm"] / held.counts()["lm"]
        ids = batch.inputs["input_ids"]
        theirs = net.model(ids, labels=ids).loss
    assert held.counts()["lm"] == 6 * 39
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)


@pytest.mark.parametrize("family", NAMES)
@pytest.mark.parametrize("separator", ["end_of_text", "none"])
def test_loss_within_documents_is_the_sum_over_documents_alone(
    family: str, separator: str, many: list
) -> None:
    objective = make_objective(many, 40, attention="within", separator=separator)
    batch = objective.collate(np.zeros(4, np.int64), np.arange(4))
    net = network(family).eval()
    total = 0.0
    ids, places = batch.inputs["input_ids"], batch.inputs["position_ids"]
    following = batch.targets["lm"][:, -1]
    with torch.no_grad():
        packed = objective.loss(net, batch)["lm"].item()
        for row in range(4):
            starts = [*np.flatnonzero(places[row].numpy() == 0), 40]
            for start, end in zip(starts, starts[1:], strict=False):
                piece = ids[row, start:end]
                if end == 40 and following[row] != IGNORE:
                    labels = torch.cat([piece[1:], following[row : row + 1]])
                elif end < 40 and separator == "end_of_text":  # the next document's first input
                    labels = ids[row, start + 1 : end + 1]
                else:
                    piece, labels = piece[:-1], piece[1:]
                if len(piece):
                    logits = net(input_ids=piece[None])["lm"][0]
                    total += torch.nn.functional.cross_entropy(
                        logits, labels, reduction="sum"
                    ).item()
    assert packed == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"attention": "within"},
        {"separator": "none"},
        {"attention": "within", "separator": "none"},
    ],
    ids=str,
)
def test_statistics_come_to_what_is_expected(fields: dict, many: list) -> None:
    objective = make_objective(many, 10, **fields)
    samples = np.arange(len(objective))
    tallies = objective.tally(np.zeros_like(samples), samples)
    expected = objective.expected()
    assert set(expected) == set(tallies)
    for name, (total, cases) in tallies.items():
        # The stream's last tokens, less than a row, are in the corpus but in no row.
        assert total / cases == pytest.approx(expected[name], rel=0.02), name
