"""ELMo's streams against plain loops over lists, and its two softmaxes against each other."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from plmctl.corpus.store import TokenStore
from plmctl.errors import ConfigError
from plmctl.families.base import get_family
from plmctl.models import losses
from plmctl.models.batch import Rows
from plmctl.models.elmo import boundary, encode_words
from plmctl.models.losses import sampled_logits
from plmctl.models.network import Network
from plmctl.objectives.base import get_objective
from plmctl.objectives.bilm import Streams, log_uniform
from plmctl.tokenization.load import Vocab
from tests.builders import make_examples, make_network, random_documents

HEADS = get_family("elmo").HEADS
BEGIN, END, UNKNOWN = 0, 1, 2
WORDS = ("<S>", "</S>", "<UNK>", *(f"w{number}" for number in range(3, 60)))
VOCAB = Vocab(size=60, unk=UNKNOWN, bos=BEGIN, eos=END, words=WORDS)


@pytest.fixture(scope="module")
def store() -> TokenStore:
    documents = random_documents(5, (3, 60), documents=25, sentences=(1, 8), tokens=(1, 9))
    return TokenStore.from_lists(documents, vocab_size=60)


def make_objective(store: TokenStore, seq_len: int = 10, **fields: object) -> Streams:
    return make_examples("bilm", store, VOCAB, seq_len, 3, **fields)


def read(objective: Streams, epoch: int = 0) -> list[tuple[list[int], list[int]]]:
    """The whole epoch of each direction as two flat lists: inputs and targets."""
    samples = np.arange(len(objective))
    batch = objective.collate(np.full(len(samples), epoch), samples)
    by_row = {tuple(objective.characters[number].tolist()): number for number in range(60)}
    ids = [by_row[tuple(row)] for row in batch.inputs["characters"].tolist()]
    both = []
    for direction, part in enumerate(HEADS):
        inputs = [ids[row] for row in batch.inputs["words"][direction].flatten().tolist()]
        both.append((inputs, batch.targets[part].flatten().tolist()))
    return both


def test_streams_in_the_order_of_the_text(store: TokenStore) -> None:
    """Against the definition: <S> words </S> forwards, </S> words reversed <S> backwards."""
    objective = make_objective(store, shuffle=False)
    text = store.tokens(np.arange(store.num_tokens)).tolist()
    bounds = store.sentences.tolist()
    sentences = [text[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    forward = [[BEGIN, *s, END] for s in sentences]
    backward = [[END, *s[::-1], BEGIN] for s in sentences]
    size = len(objective) * 10
    assert size > store.num_tokens + store.num_sentences - 10
    for (inputs, targets), marked in zip(read(objective), (forward, backward), strict=True):
        assert inputs == [word for s in marked for word in s[:-1]][:size]
        assert targets == [word for s in marked for word in s[1:]][:size]


def sentences_of(inputs: list[int], targets: list[int], mark: int) -> list[tuple[int, ...]]:
    """Whole sentences of a stream; inside one every target is the next input."""
    starts = [place for place, word in enumerate(inputs) if word == mark]
    sentences = []
    for start, end in zip(starts, starts[1:], strict=False):
        assert targets[start : end - 1] == inputs[start + 1 : end]
        sentences.append(tuple(inputs[start + 1 : end]))
    return sentences


def test_every_epoch_and_direction_has_its_own_order(store: TokenStore) -> None:
    objective = make_objective(store)
    orders = []
    for epoch in (0, 1):
        (inputs, targets), (back_inputs, back_targets) = read(objective, epoch)
        assert END not in inputs
        assert BEGIN not in targets
        assert BEGIN not in back_inputs
        assert END not in back_targets
        orders.append(sentences_of(inputs, targets, BEGIN))
        orders.append([s[::-1] for s in sentences_of(back_inputs, back_targets, END)])
    everything = {
        tuple(store.tokens(np.arange(a, b)).tolist())
        for a, b in zip(store.sentences, store.sentences[1:], strict=False)
    }
    for order in orders:
        assert set(order) <= everything
        assert len(order) > store.num_sentences - 12  # but those of the last, cut window
    assert len({tuple(order) for order in orders}) == 4


def test_a_batch_over_epochs_is_that_of_each(store: TokenStore) -> None:
    objective = make_objective(store)
    both = objective.collate(np.array([0, 1]), np.array([4, 2]))
    for row, (epoch, sample) in enumerate(((0, 4), (1, 2))):
        alone = objective.collate(np.array([epoch]), np.array([sample]))
        words = both.inputs["characters"][both.inputs["words"][:, row]]
        assert torch.equal(words, alone.inputs["characters"][alone.inputs["words"][:, 0]])
        assert torch.equal(both.targets["backward"][row], alone.targets["backward"][0])


def test_characters_of_words_and_marks(store: TokenStore) -> None:
    objective = make_objective(store)
    assert np.array_equal(objective.characters[3:], encode_words(WORDS[3:]))
    assert np.array_equal(objective.characters[BEGIN], boundary(257))
    assert np.array_equal(objective.characters[END], boundary(258))


def test_rare_words_are_read_but_not_predicted(store: TokenStore) -> None:
    few, every = make_objective(store, target_words=30), make_objective(store)
    for (inputs, targets), (all_inputs, all_targets) in zip(read(few), read(every), strict=True):
        assert inputs == all_inputs
        assert max(inputs) >= 30
        assert targets == [word if word < 30 else UNKNOWN for word in all_targets]


def network(dropout: float = 0.0, words: int = 60) -> Network:
    fields = {"projection_size": 16, "cell_size": 24, "dropout": dropout}
    return make_network("elmo", words, HEADS, size="tiny", **fields)


def test_loss_starts_near_the_log_of_the_vocabulary(store: TokenStore) -> None:
    objective = make_objective(store)
    batch = objective.collate(np.zeros(16, int), np.arange(16))
    sums = objective.loss(network(), batch)
    for part, count in batch.counts().items():
        assert sums[part].item() / count == pytest.approx(math.log(60), rel=0.05)
    assert objective.weights == {"forward": 0.5, "backward": 0.5}


def test_many_logits_are_not_computed_as_a_whole(
    store: TokenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses, the gradients and the state of two windows are those of all logits."""
    objective = make_objective(store)
    results = []
    for worth_it in (1 << 24, 0):
        monkeypatch.setattr(losses, "_WORTH_IT", worth_it)
        torch.manual_seed(0)
        net = network()
        largest = []
        hook = net.model.head.register_forward_hook(lambda *_: largest.append(1))  # noqa: B023
        for window in (0, 1):
            batch = objective.collate(np.zeros(4, int), np.arange(4) + 4 * window)
            batch = replace(batch, rows=Rows(0, 4, 4, window))
            sums = objective.loss(net, batch)
        hook.remove()
        assert len(largest) == (2 if worth_it else 0)
        (sums["forward"] + 0.5 * sums["backward"]).backward()
        gradients = [parameter.grad for parameter in net.parameters()]
        results.append([*sums.values(), net.recurrent_state.slots, *gradients])
    for number, (whole, pieces) in enumerate(zip(*results, strict=True)):
        is_loss = number < len(HEADS)
        rtol, atol = (1e-6, 0.0) if is_loss else (1e-5, 1e-6)
        torch.testing.assert_close(pieces, whole, rtol=rtol, atol=atol)


def test_candidates_are_log_uniform() -> None:
    """Shares of the first draws, and distinct ids after as many draws as are told."""
    size = 50
    seen = np.zeros(size)
    for key in range(4000):
        seen[log_uniform(key, size, 1)[0]] += 1
    k = np.arange(size)
    expected = np.log((k + 2) / (k + 1)) / math.log(size + 1)
    assert expected.sum() == pytest.approx(1)
    assert np.abs(seen / 4000 - expected).max() < 4 * math.sqrt(0.17 * 0.83 / 4000)
    ids, tries = log_uniform(7, size, 20)
    assert len(np.unique(ids)) == 20
    assert tries >= 20
    assert np.array_equal(log_uniform(7, size, 20)[0], ids)
    assert np.array_equal(log_uniform(7, size, 30)[0][:20], ids)  # the draws themselves are fixed


def test_sampled_logits_by_hand() -> None:
    head = torch.nn.Linear(2, 5)
    hidden, targets, candidates = torch.randn(1, 2), torch.tensor([3]), torch.tensor([0, 3, 4])
    got = sampled_logits(hidden, head, targets, candidates, torch.tensor(6))[0].tolist()
    logits = head(hidden)[0].tolist()
    chance = [math.log((k + 2) / (k + 1)) / math.log(6) for k in range(5)]
    log_count = [math.log(1 - (1 - p) ** 6) for p in chance]
    assert got[0] == pytest.approx(logits[3] - log_count[3], abs=1e-5)
    assert got[1] == pytest.approx(logits[0] - log_count[0], abs=1e-5)
    assert got[2] == -math.inf  # a candidate that is the true word
    assert got[3] == pytest.approx(logits[4] - log_count[4], abs=1e-5)


def test_with_every_word_a_candidate_it_is_the_full_softmax() -> None:
    """After so many draws that each word is sure to come: no correction, the same loss."""
    torch.manual_seed(2)
    head, hidden, targets = torch.nn.Linear(8, 40), torch.randn(64, 8), torch.randint(0, 40, (64,))
    every = sampled_logits(hidden, head, targets, torch.arange(40), torch.tensor(10**7))
    got = cross_entropy(every, torch.zeros_like(targets))
    assert got.item() == pytest.approx(cross_entropy(head(hidden), targets).item(), rel=1e-6)


def test_sampled_softmax_learns_what_the_full_one_learns() -> None:
    """TensorFlow's estimate is another number than the full loss, with the same minimum.

    Biases alone, of words whose shares are known: their softmax has to become the shares, which it
    does not without the correction by the expected counts: a distance of 0.22 instead of 0.03.
    """
    size, count = 30, 12
    shares = torch.tensor([1.0 / (2 + (7 * k) % size) for k in range(size)])
    shares /= shares.sum()
    head = torch.nn.Linear(1, size)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    optimizer = torch.optim.Adam(head.parameters(), lr=0.05)
    targets, hidden = torch.arange(size), torch.zeros(size, 1)
    learned = torch.zeros(size)
    for step in range(600):
        ids, tries = log_uniform(step, size, count)
        logits = sampled_logits(hidden, head, targets, torch.from_numpy(ids), torch.tensor(tries))
        first = torch.zeros_like(targets)
        (cross_entropy(logits, first, reduction="none") * shares).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        learned += head.bias.detach() * (step >= 200) / 400
    distance = (learned.softmax(0) - shares).abs().sum().item() / 2
    assert distance < 0.05


def test_the_objective_trains_on_samples_and_scores_in_full(store: TokenStore) -> None:
    batch = make_objective(store).collate(np.zeros(8, int), np.arange(8))
    full, sampled = make_objective(store), make_objective(store, softmax="sampled", samples=25)
    net = network()
    one, other = full.loss(net, batch), sampled.loss(net, batch)
    for part in HEADS:
        assert other[part].item() != one[part].item()
        assert 0 < other[part].item() / batch.counts()[part] < math.log(61)
        assert sampled.score(net, batch)[part].item() == pytest.approx(one[part].item(), rel=1e-6)
    again = sampled.loss(net, batch)
    assert again["forward"].item() == other["forward"].item()
    every = make_objective(store, softmax="sampled", samples=60).loss(net, batch)
    assert every["forward"].item() == one["forward"].item()


def test_a_tokenizer_that_does_not_fit(store: TokenStore) -> None:
    member = get_objective("bilm")
    with pytest.raises(ConfigError, match="tokenizer of words"):
        member(member.Config()).over(store, Vocab(size=60, unk=0, bos=1, eos=2), 10, 1)
    with pytest.raises(ConfigError, match="target_words: 61"):
        make_objective(store, target_words=61)
