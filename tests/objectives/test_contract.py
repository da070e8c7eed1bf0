"""The loss contract: a batch's summed losses and gradients are the sums of its micro-batches'."""

import numpy as np
import pytest
import torch

from plmctl import registry
from plmctl.corpus.store import TokenStore
from plmctl.families.base import get_family
from plmctl.models.base import Examples
from plmctl.models.network import Network
from plmctl.objectives.base import get_objective
from plmctl.tokenization.load import Vocab

VOCAB = Vocab(
    size=120, pad=0, unk=1, cls=2, sep=3, mask=4, bos=5, eos=5, sentinels=tuple(range(119, 99, -1))
)
TINY = {
    "albert": {"hidden_size": 32, "embedding_size": 16, "num_attention_heads": 2},
    "bert": {
        "hidden_size": 32, "num_attention_heads": 2,
        "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0,
    },
    "t5": {"d_model": 32, "d_ff": 48, "dropout_rate": 0},
    "gpt2": {"n_embd": 32, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0},
}  # fmt: skip
CASES = [
    ("bert", "mlm", {}),
    ("bert", "mlm", {"unit": "word", "mask_specials": True, "count": "probabilistic"}),
    ("bert", "mlm+nsp", {"unit": "word"}),
    ("albert", "mlm", {"unit": "word"}),
    ("albert", "mlm+sop", {}),
    ("albert", "mlm+sop", {"unit": "ngram", "favor_shorter": False, "single_sentence": "skip"}),
    ("gpt2", "clm", {}),
]
ENCODER_DECODER = [
    ("t5", "span_corruption", {}),
    ("t5", "span_corruption", {"density": 0.5, "mean_span": 1.5, "z_loss": 0.01}),
    ("t5", "prefix_lm", {}),
    ("t5", "deshuffling", {}),
    *(("t5", "iid_denoising", {"style": s}) for s in ("replace_spans", "bert", "mass")),
    ("t5", "iid_denoising", {"style": "drop_tokens"}),
]
SAMPLES = 16
Sums = tuple[dict[str, float], dict[str, int], torch.Tensor]


@pytest.fixture(scope="module")
def store() -> TokenStore:
    rng = np.random.default_rng(0)
    documents = [
        [rng.integers(6, 120, rng.integers(3, 15)).tolist() for _ in range(rng.integers(2, 25))]
        for _ in range(30)
    ]
    size = sum(len(sentence) for document in documents for sentence in document)
    starts = rng.random(size) < 0.7
    return TokenStore.from_lists(documents, vocab_size=120, word_starts=starts.tolist())


def network_of(family: str, loss_terms: tuple[str, ...]) -> Network:
    member = get_family(family)
    config = registry.load("families", family).Config(family=family, size="tiny", **TINY[family])
    torch.manual_seed(0)
    model = member.build(config, vocab_size=VOCAB.size, pad_id=0, loss_terms=loss_terms)
    return Network(model, member.forward)


def sums(examples: Examples, network: Network, splits: list[np.ndarray]) -> Sums:
    """Losses and counts summed over micro-batches, and the gradient of the sum of the losses."""
    network.zero_grad()
    losses = dict.fromkeys(examples.loss_terms, 0.0)
    counts = dict.fromkeys(examples.loss_terms, 0)
    for samples in splits:
        batch = examples.collate(np.zeros(len(samples), dtype=np.int64), samples)
        sums_of_terms = examples.loss(network, batch)
        sum(sums_of_terms.values()).backward()
        for part in examples.loss_terms:
            losses[part] += sums_of_terms[part].item()
            counts[part] += batch.counts()[part]
    gradients = [p.grad.flatten() for p in network.parameters() if p.grad is not None]
    return losses, counts, torch.cat(gradients).clone()


@pytest.mark.parametrize(("family", "objective", "fields"), CASES + ENCODER_DECODER)
def test_sums_do_not_depend_on_micro_batches(
    family: str, objective: str, fields: dict, store: TokenStore
) -> None:
    member = get_objective(objective)
    config = member.Config(name=objective, **fields)
    examples = member.make(config, store, VOCAB, 48, 7)
    network = network_of(family, member.LOSS_TERMS)
    samples = np.arange(SAMPLES) * 3
    losses, counts, gradient = sums(examples, network, [samples])
    assert all(count > 0 for count in counts.values())
    for size in (8, 5, 2):
        got = sums(examples, network, np.array_split(samples, -(-SAMPLES // size)))
        assert got[1] == counts
        for part, loss in losses.items():
            assert got[0][part] == pytest.approx(loss, rel=1e-6)
        assert (got[2] - gradient).norm() < 1e-6 * gradient.norm()


@pytest.mark.parametrize(("family", "objective", "fields"), CASES)
def test_the_loss_starts_near_that_of_guessing(
    family: str, objective: str, fields: dict, store: TokenStore
) -> None:
    """ln(classes) a target: of the vocabulary for tokens, of two for pairs."""
    member = get_objective(objective)
    examples = member.make(member.Config(name=objective, **fields), store, VOCAB, 48, 7)
    losses, counts, _ = sums(examples, network_of(family, member.LOSS_TERMS), [np.arange(SAMPLES)])
    for part, loss in losses.items():
        classes = 2 if part in ("nsp", "sop") else VOCAB.size
        assert loss / counts[part] == pytest.approx(np.log(classes), rel=0.03)
