"""Segments and labels of sentence order agree: a network learns it, for new documents too."""

import numpy as np
import torch

from plmctl.corpus.store import TokenStore
from plmctl.families.albert import Config
from plmctl.families.base import get_family
from plmctl.models.base import Examples
from plmctl.models.network import Network
from plmctl.objectives.base import get_objective
from plmctl.tokenization.load import Vocab

VOCAB = Vocab(size=60, pad=0, unk=1, cls=2, sep=3, mask=4)


def step_of(documents: int, seed: int) -> Examples:
    """Sentence s of every document has words of its own: which comes first can be learned."""
    rng = np.random.default_rng(seed)
    text = [
        [(6 + 5 * s + rng.integers(0, 5, rng.integers(3, 7))).tolist() for s in range(10)]
        for _ in range(documents)
    ]
    member = get_objective("mlm+sop")
    config = member.Config(name="mlm+sop", single_sentence="skip", short_seq_prob=0)
    return member.make(config, TokenStore.from_lists(text, 60), VOCAB, 32, seed)


def test_order_is_learned() -> None:
    train, held_out = step_of(200, 1), step_of(60, 2)
    torch.manual_seed(0)
    family = get_family("albert")
    config = Config(size="tiny", hidden_size=64, num_attention_heads=2, embedding_size=32)
    model = family.build(config, vocab_size=60, pad_id=0, loss_terms=("mlm", "sop"))
    network = Network(model, family.forward)
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    rng = np.random.default_rng(0)
    for number in range(180):
        batch = train.collate(np.full(32, number // 10), rng.integers(0, len(train), 32))
        counts, losses = batch.counts(), train.loss(network, batch)
        optimizer.zero_grad()
        sum(losses[part] / counts[part] for part in train.loss_terms).backward()
        optimizer.step()
    network.eval()
    batch = held_out.collate(np.zeros(len(held_out), int), np.arange(len(held_out)))
    with torch.no_grad():
        scores = held_out.score(network, batch)
    swapped = batch.targets["sop"].float().mean().item()
    assert 0.35 < swapped < 0.65
    assert scores["sop/correct"].item() / len(held_out) > 0.8
